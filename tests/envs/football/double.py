"""A double of the part of the package gfootball that seedcli uses: create_environment, and attributes of `unwrapped`.

In a match the ball starts at a column that the engine's seed chooses and moves right by a cell for each step to the
right. The right edge is the goal; a match ends after 40 steps.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest

STEPS = 40


class DoubleEnv:
    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments
        self._config: dict[str, Any] = {"episode_number": 1, **arguments["other_config_options"]}
        self.unwrapped = self
        self.seeds: list[int] = []
        self.over = True
        self.closed = 0
        self.value = 255

    def reset(self) -> np.ndarray:
        self._config["episode_number"] += 1
        seed = self._config["game_engine_random_seed"]
        assert self._config["reverse_team_processing"] is bool(seed % 2)
        self.seeds.append(seed)
        self.column, self.score, self.left, self.over = 60 + seed % 30, [0, 0], STEPS + 1, False
        self.owner = -1
        return self._planes()

    def step(self, action: int) -> tuple[np.ndarray, np.float32, bool, dict[str, Any]]:
        assert not self.over, "a match that is over must be reset"
        assert type(action) is int and 0 <= action < 19
        self.left -= 1
        self.owner = 0 if action == 5 else 1
        self.column += action == 5
        goal = self.column >= 95
        self.score[0] += goal
        self.over = goal or self.left <= 0
        return self._planes(), np.float32(goal), self.over, {"score_reward": int(goal)}

    def _planes(self) -> np.ndarray:
        planes = np.zeros((72, 96, 4), np.uint8)
        planes[36, min(self.column, 95), 2] = self.value
        planes[36, self.column - 1, [0, 3]] = 255
        return planes

    def observation(self) -> list[dict[str, Any]]:
        return [{"score": list(self.score), "ball_owned_team": self.owner, "steps_left": self.left}]

    def close(self) -> None:
        self.closed += 1


def install(monkeypatch: pytest.MonkeyPatch) -> list[DoubleEnv]:
    """Replace the package by the double; returns the list of environments that it builds."""
    built: list[DoubleEnv] = []

    def create_environment(**arguments: Any) -> DoubleEnv:
        built.append(DoubleEnv(**arguments))
        return built[-1]

    package, module = types.ModuleType("gfootball"), types.ModuleType("gfootball.env")
    module.create_environment = create_environment  # type: ignore[attr-defined]
    package.env = module  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gfootball", package)
    monkeypatch.setitem(sys.modules, "gfootball.env", module)
    return built
