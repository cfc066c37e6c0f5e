"""The family dmlab."""

from __future__ import annotations

import importlib.util
from typing import ClassVar

from seedcli.envs.base import Family, VectorEnv
from seedcli.envs.dmlab.config import LabConfig
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec

_FRAMES_PER_SECOND = 60
_MODULES = ("deepmind_lab", "dm_env")  # the first imports the second


class LabFamily(Family):
    """DeepMind Lab."""

    Config = LabConfig
    install: ClassVar[str] = (
        "build DeepMind Lab's Python module, or install the package dmlab-gym, which builds it, and pip install dm-env "
        "(docs/deepmind-lab.md)"
    )
    preset: ClassVar[str] = "dmlab_vtrace"
    isolation = "always"  # it draws through Mesa, see `envs.isolated`
    may_end_process = True
    clock_terminates = True

    def make(self, config: LabConfig, num_envs: int, *, render: bool = False, threads: int = 0) -> VectorEnv:
        from seedcli.envs.dmlab.env import LabVectorEnv

        return LabVectorEnv(config, num_envs, render=render)

    def check(self, config: LabConfig, kwargs_source: str) -> None:
        from seedcli.envs.dmlab.env import check_level

        check_level(config.id)

    def check_simulator(self, config: LabConfig) -> bool:
        return all(importlib.util.find_spec(name) is not None for name in _MODULES)

    def expected_spec(self, config: LabConfig) -> EnvSpec:
        from seedcli.envs.dmlab.env import ACTIONS

        frame = ArraySpec((config.height, config.width, 3), "uint8")
        return EnvSpec(f"dmlab/{config.id}", frame, ActionSpec((len(ACTIONS),)))

    def frames_per_second(self, config: LabConfig) -> float:
        return _FRAMES_PER_SECOND / config.frame_skip
