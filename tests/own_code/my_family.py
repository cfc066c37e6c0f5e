"""A user's family of environments with its own key."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from seedcli.config.sections import EnvironmentConfig, PositiveInt
from seedcli.envs.base import Family, VectorEnv
from seedcli.envs.gymnasium.config import GymnasiumConfig
from seedcli.envs.gymnasium.env import GymnasiumVectorEnv


class ShortConfig(EnvironmentConfig):
    """CartPole with short episodes."""

    longest: PositiveInt = Field(50, description="steps of the longest episode")


class ShortFamily(Family):
    """CartPole for every id, cut after `environment.longest` steps."""

    Config = ShortConfig

    def make(self, config: Any, num_envs: int, *, render: bool = False, threads: int = 0) -> VectorEnv:
        inner = GymnasiumConfig(id="CartPole-v1", max_episode_steps=config.longest)
        return GymnasiumVectorEnv(inner, num_envs, render=render)
