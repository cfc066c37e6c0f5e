"""Configuration keys of the family atari."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from seedcli.config.sections import EnvironmentConfig, Fraction, Name, PositiveInt, Sections

_SNAKE_CASE = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")


def _snake_case(game: str) -> str:
    """The snake_case name of a game given as a Gymnasium id: "ALE/SpaceInvaders-v5" → "space_invaders"."""
    name = re.sub(r"(NoFrameskip|Deterministic)?-v\d+$", "", game.rsplit("/", 1)[-1])
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "pong"


class AtariConfig(EnvironmentConfig):
    """Atari games (`seedcli/envs/atari/`)."""

    id: Name = Field("pong", description="game in snake_case")
    frame_skip: PositiveInt = Field(4, description="frames for which each action is repeated")
    repeat_action_probability: Fraction = Field(0.0, description="probability of sticky actions")
    noop_max: Annotated[int, Field(ge=0)] = Field(30, description="maximum number of no-ops at reset")
    full_action_set: bool = Field(True, description="all 18 actions instead of the game's minimal set")
    max_frames: PositiveInt = Field(108_000, description="frames after which an episode is truncated")
    episodic_life: bool = Field(False, description="a lost life ends the episode")
    fire_reset: bool = Field(False, description="press FIRE at reset")
    height: PositiveInt = Field(84, description="observation height, pixels")
    width: PositiveInt = Field(84, description="observation width, pixels")

    def conflicts(self, config: Sections) -> Iterator[str]:
        if not _SNAKE_CASE.fullmatch(self.id):
            yield f'environment.id = "{self.id}" must be a game in snake_case: write "{_snake_case(self.id)}"'
