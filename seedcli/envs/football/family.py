"""The family football."""

from __future__ import annotations

import importlib.util
from typing import ClassVar

import numpy as np

from seedcli.envs.base import BareGroup, Family, VectorEnv
from seedcli.envs.football.config import FootballConfig
from seedcli.envs.football.rewards import MARKED, PLANES
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec

_FRAMES_PER_SECOND = 10.0  # the engine's step is ten physics frames of 10 ms


class FootballFamily(Family):
    """Google Research Football in envpool's engine, or in the package gfootball."""

    Config = FootballConfig
    install: ClassVar[str] = "pip install 'seedcli[football]' (Linux, Python 3.11)"
    preset: ClassVar[str] = "football_vtrace"
    isolation = "never"
    keeps_finished_episodes: ClassVar[bool] = True  # envpool keeps about 46 MB of every match
    library: ClassVar[str] = "envpool gfootball"
    simulator: ClassVar[tuple[str, ...]] = ("_engine", "_pool")

    def make(self, config: FootballConfig, num_envs: int, *, render: bool = False, threads: int = 0) -> VectorEnv:
        from seedcli.envs.football.env import FootballVectorEnv

        return FootballVectorEnv(config, num_envs, render=render, threads=threads)

    def check(self, config: FootballConfig, kwargs_source: str) -> None:
        from seedcli.envs.football.env import check_scenario

        check_scenario(config.id)

    def check_simulator(self, config: FootballConfig) -> bool:
        return importlib.util.find_spec(config.engine) is not None

    def expected_spec(self, config: FootballConfig) -> EnvSpec:
        planes = ArraySpec(PLANES, "uint8", binary=(0, MARKED))
        return EnvSpec(f"football/{config.id}", planes, ActionSpec((19,)))

    def frames_per_second(self, config: FootballConfig) -> float:
        return _FRAMES_PER_SECOND

    def counts_wins(self, config: FootballConfig, sees_rewards: bool) -> tuple[FootballConfig, bool]:
        """Evaluation scores goals only: checkpoint rewards exist for training."""
        if sees_rewards:
            return config, config.rewards == "scoring"
        return config.model_copy(update={"rewards": "scoring"}), True

    def make_bare(self, config: FootballConfig, num_envs: int, threads: int, seed: int) -> BareGroup:
        import envpool

        group = envpool.make(
            f"gfootball/{config.id}-v1",
            env_type="gymnasium",
            num_envs=num_envs,
            num_threads=min(threads, num_envs),
            seed=seed,
        )
        group.reset()
        rng = np.random.default_rng(1)
        # Its action space is that of one environment, and its engine takes int32.
        return BareGroup(group, lambda: rng.integers(0, group.action_space.n, num_envs, np.int32))
