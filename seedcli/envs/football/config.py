"""Configuration keys of the family football."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from seedcli.config.sections import EnvironmentConfig, Name


class FootballConfig(EnvironmentConfig):
    """Google Research Football (`seedcli/envs/football/`)."""

    id: Name = Field("11_vs_11_easy_stochastic", description="scenario")
    rewards: Literal["scoring", "scoring,checkpoints"] = Field(
        "scoring", description="goals only, or also 0.1 for each of ten zones reached with the ball"
    )
    engine: Literal["envpool", "gfootball"] = Field("envpool", description="package that provides the engine")
