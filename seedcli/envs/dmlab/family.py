"""The family dmlab."""

from __future__ import annotations

import importlib.util
from typing import ClassVar

from seedcli.envs.base import Family, VectorEnv
from seedcli.envs.dmlab.config import LabConfig
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec

_FRAMES_PER_SECOND = 60


class LabFamily(Family):
    """DeepMind Lab."""

    Config = LabConfig
    install: ClassVar[str] = (
        "build DeepMind Lab's Python module, or the package dmlab-gym that builds it (docs/deepmind-lab.md)"
    )
    preset: ClassVar[str] = "dmlab_vtrace"
    isolation = "never"

    def make(self, config: LabConfig, num_envs: int, *, render: bool = False, threads: int = 0) -> VectorEnv:
        from seedcli.envs.dmlab.env import LabVectorEnv

        return LabVectorEnv(config, num_envs, render=render)

    def check(self, config: LabConfig, kwargs_source: str) -> None:
        from seedcli.envs.dmlab.env import check_level

        check_level(config.id)

    def check_simulator(self, config: LabConfig) -> None:
        if importlib.util.find_spec("deepmind_lab") is None:
            self.make(config, 1).close()  # raises the error with its message

    def expected_spec(self, config: LabConfig) -> EnvSpec:
        from seedcli.envs.dmlab.env import ACTIONS

        frame = ArraySpec((config.height, config.width, 3), "uint8")
        return EnvSpec(f"dmlab/{config.id}", frame, ActionSpec((len(ACTIONS),)))

    def frames_per_second(self, config: LabConfig) -> float:
        return _FRAMES_PER_SECOND / config.frame_skip
