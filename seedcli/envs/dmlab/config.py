"""Configuration keys of the family dmlab."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from seedcli.config.sections import EnvironmentConfig, Name, PositiveInt


class LabConfig(EnvironmentConfig):
    """DeepMind Lab (`seedcli/envs/dmlab/`)."""

    id: Name = Field("explore_goal_locations_small", description="level")
    kwargs: dict[str, Any] = Field(
        default_factory=dict,
        description="further settings of Lab or the level",
        json_schema_extra={"of": "environment.id"},
    )
    frame_skip: PositiveInt = Field(4, description="frames for which each action is repeated")
    height: PositiveInt = Field(84, multiple_of=4, description="observation height, pixels")
    width: PositiveInt = Field(84, multiple_of=4, description="observation width, pixels")
    instructions: Literal["off", "hashed"] = Field(
        "off", description="the level's instruction text, hashed to integers"
    )
    level_cache: str = Field(
        "auto", description="folder that caches compiled levels; auto: in the user's cache folder; empty: no cache"
    )
    renderer: Literal["software", "hardware"] = Field("software", description="renderer of the frames")
