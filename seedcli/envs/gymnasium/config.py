"""Configuration keys of the family gymnasium."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from seedcli.config.sections import EnvironmentConfig, Name, Sections


class GymnasiumConfig(EnvironmentConfig):
    """Any Gymnasium environment (`seedcli/envs/gymnasium/`)."""

    id: Name = Field("CartPole-v1", description="Gymnasium id, or module:Id-v0 of an environment of your own")
    max_episode_steps: Annotated[int, Field(ge=0)] = Field(
        0, description="steps after which an episode is truncated; 0: as registered"
    )
    kwargs: dict[str, Any] = Field(
        default_factory=dict,
        description="keyword arguments of make()",
        json_schema_extra={"of": "environment.id"},
    )
    observation_keys: tuple[Name, ...] = Field(
        (), description='keys of a Dict observation to use; "-key" excludes one; empty: all except text'
    )

    def conflicts(self, config: Sections) -> Iterator[str]:
        keys = self.observation_keys
        if len({key.startswith("-") for key in keys}) > 1:
            yield (
                f"environment.observation_keys = {list(keys)} must not mix included and excluded keys: "
                'prefix all of them with "-", or none'
            )
