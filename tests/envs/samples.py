"""Environments for the conformance checks: some that follow every rule, and some that break one rule each.

Importing this module registers them, as `tests.envs.samples:<Name>-v0`.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Walk(gymnasium.Env[Any, Any]):
    """A random walk that an action pushes; it ends at ±3, and is truncated after 20 steps."""

    observation_space: spaces.Space[Any] = spaces.Box(-10, 10, (2,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=2)
        self.steps = 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.move(action)
        self.steps += 1
        return self.observe(), self.reward(), self.over(), self.late(), {}

    def move(self, action: Any) -> None:
        self.place = self.place + self.np_random.normal(size=2) * 0.3 + (action - 1) * 0.1

    def observe(self) -> Any:
        return self.place.clip(-9, 9).astype(np.float32)

    def reward(self) -> float:
        return -float(np.abs(self.place).sum())

    def over(self) -> bool:
        return bool(np.abs(self.place).max() > 3)

    def late(self) -> bool:
        return self.steps >= 20


class Mixed(Walk):
    """Every kind of space at once."""

    observation_space = spaces.Dict(
        place=spaces.Box(-10, 10, (2,), np.float64),
        far=spaces.MultiBinary(2),
        inner=spaces.Dict(
            cell=spaces.Discrete(20, start=-10),
            cells=spaces.MultiDiscrete([20, 21], start=[-10, -10]),
            first=spaces.Box(-10, 10, (), np.float32),
            picture=spaces.Box(0, 255, (2, 2, 1), np.uint8),
        ),
    )
    action_space = spaces.MultiDiscrete([3, 2], start=[0, 5])

    def move(self, action: Any) -> None:
        assert action.dtype == np.int64 and action.shape == (2,) and action[1] in (5, 6)
        super().move(action[0] + (action[1] - 5))

    def observe(self) -> Any:
        place = self.place.clip(-9, 9)
        cells = np.floor(place).astype(np.int64)
        return {
            "place": place,
            "far": (np.abs(place) > 1).astype(np.int8),
            "inner": {
                "cell": cells[0],
                "cells": cells,
                "first": np.float32(place[0]),
                "picture": np.full((2, 2, 1), 100 + int(place[1] * 10), np.uint8),
            },
        }


class Pushed(Walk):
    """Box actions of another shape and other bounds than agents use."""

    action_space = spaces.Box(np.array([[0.0], [-2.0]]), np.array([[2.0], [np.inf]]), dtype=np.float64)

    def move(self, action: Any) -> None:
        assert action.shape == (2, 1) and action.dtype == np.float64
        assert self.action_space.contains(action)
        super().move(action.sum())


class Raises(Walk):
    def move(self, action: Any) -> None:
        if self.steps == 5:
            raise RuntimeError("the simulator fell over")
        super().move(action)


class NotANumber(Walk):
    def observe(self) -> Any:
        return np.full(2, np.nan, np.float32) if self.steps == 5 else super().observe()


class OutOfBounds(Walk):
    observation_space = spaces.Box(-10, np.array([10, 0.25], np.float32), (2,), np.float32)


class Frozen(Walk):
    def observe(self) -> Any:
        return np.ones(2, np.float32)


class DeadSensor(Walk):
    def observe(self) -> Any:
        return np.array([self.place[0].clip(-9, 9), 0.5], np.float32)


class NoReward(Walk):
    def reward(self) -> float:
        return 0.0


class RewardNotANumber(Walk):
    def reward(self) -> float:
        return float("nan") if self.steps == 5 else super().reward()


class Unseeded(Walk):
    """Draws from a generator that `seed` does not reach."""

    def move(self, action: Any) -> None:
        super().move(action + random.random())


class SeedIgnored(Walk):
    """Plays the same episodes for every seed."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=7 if seed is not None else None)


class Remembers(Walk):
    """Keeps state from one episode to the next."""

    height = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place[0] += self.height
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.height += 0.01
        return super().step(action)


class Shared(Walk):
    """All instances share one state."""

    ground = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        Shared.ground[:] = self.place
        return self.observe(), {}

    def move(self, action: Any) -> None:
        self.place = Shared.ground
        super().move(action)
        Shared.ground[:] = self.place


class ResetDoesNothing(Walk):
    """An episode begins in the state where the last one ended."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is None:
            self.steps = 0
            return self.observe(), {}
        return super().reset(seed=seed)

    def over(self) -> bool:
        return False


class LimitTerminates(Walk):
    def over(self) -> bool:
        return super().over() or super().late()

    def late(self) -> bool:
        return False


class EndTruncates(Walk):
    def over(self) -> bool:
        return False

    def late(self) -> bool:
        return super().over()


class Endless(Walk):
    def over(self) -> bool:
        return False

    def late(self) -> bool:
        return False

    def move(self, action: Any) -> None:
        super().move(action)
        self.place = self.place * 0.9


class RefusesAnAction(Walk):
    """Random actions hardly ever include the one that fails."""

    action_space = spaces.MultiDiscrete([1_000_000, 2])

    def move(self, action: Any) -> None:
        if action[0] == 200:
            raise IndexError("list index out of range")
        super().move(action[1])


class ActionsIgnored(Walk):
    def move(self, action: Any) -> None:
        super().move(1)


class Bandit(Walk):
    """Episodes of one step with a constant observation."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)

    def move(self, action: Any) -> None:
        self.won = float(self.np_random.normal(action))

    def observe(self) -> Any:
        return np.ones(1, np.float32)

    def reward(self) -> float:
        return self.won

    def over(self) -> bool:
        return True


class ContextBandit(Bandit):
    """Episodes of one step, whose final observation is the context of the next episode."""

    observation_space = spaces.Discrete(5)
    context = np.int64(0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            super().reset(seed=seed)
            self.context = self.np_random.integers(5)
        self.steps = 0
        return self.context, {}

    def move(self, action: Any) -> None:
        super().move(action == self.context % 3)
        self.context = self.np_random.integers(5)

    def observe(self) -> Any:
        return self.context


class Cards(Walk):
    """Three cards to bid on: every episode is terminated after three steps."""

    observation_space = spaces.MultiDiscrete([4, 52])

    def move(self, action: Any) -> None:
        self.won = float(action == self.place[1] % 3)

    def observe(self) -> Any:
        if self.steps < 3:
            self.place = np.array([self.steps, self.np_random.integers(52)])
        return np.array([self.steps, self.place[1]])

    def reward(self) -> float:
        return self.won

    def over(self) -> bool:
        return self.steps == 3


class RoundTrip(Walk):
    """Episodes of different lengths that end in the state in which they began."""

    observation_space = spaces.Discrete(5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = np.zeros((), np.int64)
        return self.place, {}

    def move(self, action: Any) -> None:
        self.place = (self.place + self.np_random.integers(2) + (action > 1)) % 5

    def observe(self) -> Any:
        return self.place

    def over(self) -> bool:
        return bool(self.place == 0)

    def late(self) -> bool:
        return False


class Hangs(Walk):
    def move(self, action: Any) -> None:
        time.sleep(3600)


class Dies(Walk):
    def move(self, action: Any) -> None:
        print("on the way out", flush=True)
        os.abort()


for _sample in [Walk, ContextBandit, *Walk.__subclasses__()]:
    gymnasium.register(f"{_sample.__name__}-v0", entry_point=_sample, disable_env_checker=True)
