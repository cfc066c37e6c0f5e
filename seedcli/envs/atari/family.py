"""The family atari."""

from __future__ import annotations

import importlib.util
from typing import ClassVar

from seedcli.envs.atari.config import AtariConfig
from seedcli.envs.base import BareGroup, Family, VectorEnv
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec

_FRAMES_PER_SECOND = 60
_ALL_ACTIONS = 18


class AtariFamily(Family):
    """Atari games in ale-py's vector environment."""

    Config = AtariConfig
    install: ClassVar[str] = "pip install ale-py"
    preset: ClassVar[str] = "atari_vtrace"
    isolation = "never"
    library: ClassVar[str] = "ale_py AtariVectorEnv"
    simulator: ClassVar[tuple[str, ...]] = ("_vector",)

    def make(self, config: AtariConfig, num_envs: int, *, render: bool = False, threads: int = 0) -> VectorEnv:
        from seedcli.envs.atari.env import AtariVectorEnv

        return AtariVectorEnv(config, num_envs, render=render, threads=threads)

    def check(self, config: AtariConfig, kwargs_source: str) -> None:
        from seedcli.envs.atari.env import check_game

        check_game(config.id)

    def check_simulator(self, config: AtariConfig) -> bool:
        return importlib.util.find_spec("ale_py") is not None

    def expected_spec(self, config: AtariConfig) -> EnvSpec:
        """With the full action set."""
        frame = ArraySpec((config.height, config.width, 1), "uint8")
        return EnvSpec(f"atari/{config.id}", frame, ActionSpec((_ALL_ACTIONS,)))

    def frames_per_second(self, config: AtariConfig) -> float:
        return _FRAMES_PER_SECOND / config.frame_skip

    def make_bare(self, config: AtariConfig, num_envs: int, threads: int, seed: int) -> BareGroup:
        from ale_py.vector_env import AtariVectorEnv

        group = AtariVectorEnv(
            config.id,
            num_envs,
            num_threads=min(threads, num_envs),
            max_num_frames_per_episode=config.max_frames,
            repeat_action_probability=config.repeat_action_probability,
            full_action_space=config.full_action_set,
            img_height=config.height,
            img_width=config.width,
            stack_num=1,
            frameskip=config.frame_skip,
            noop_max=config.noop_max,
            episodic_life=config.episodic_life,
            use_fire_reset=config.fire_reset,
            reward_clipping=False,
        )
        group.reset(seed=seed)
        group.action_space.seed(1)
        return BareGroup(group, group.action_space.sample, overlapped=True)
