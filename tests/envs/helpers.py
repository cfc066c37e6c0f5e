"""Helpers that drive environments through rows laid out as on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from seedcli.config.sections import EnvironmentConfig
from seedcli.envs.registry import create_env
from seedcli.specs import RowLayout, Rows, aligned_empty, map_arrays
from tests.configs import env_config

COUNTER = "seedcli.envs.testing:Counter-v0"
RECALL = "seedcli.envs.testing:Recall-v0"
MIXED = "tests.envs.samples:Mixed-v0"
PUSHED = "tests.envs.samples:Pushed-v0"
POSITIONS = "seedcli.envs.memory:CartPolePositions-v0"


def gymnasium_config(env_id: str, **fields: Any) -> EnvironmentConfig:
    return env_config(family="gymnasium", id=env_id, **fields)


def atari_config(game: str, **fields: Any) -> EnvironmentConfig:
    return env_config(family="atari", id=game, **fields)


class Played:
    """A vector environment and the row it writes into, filled with 0xA5 before each step."""

    def __init__(self, config: EnvironmentConfig, num_envs: int, **options: Any) -> None:
        self.env = create_env(config, num_envs, **options)
        self.layout = RowLayout(self.env.spec, num_envs)
        self.row = aligned_empty(self.layout.nbytes)
        self.out: Rows = self.layout.views(self.row)

    def __enter__(self) -> Played:
        return self

    def __exit__(self, *_: object) -> None:
        self.env.close()

    def reset(self, seed: int) -> Rows:
        self.row[:] = 0xA5
        self.env.reset(seed, self.out)
        return _copy(self.out)

    def step(self, actions: Any) -> Rows:
        self.row[:] = 0xA5
        array = self.env.spec.action.array
        self.env.step(np.broadcast_to(np.asarray(actions, array.dtype), (self.env.num_envs, *array.shape)), self.out)
        return _copy(self.out)

    def run(self, seed: int, steps: int, action_seed: int = 0) -> Rows:
        """Play random actions; records are stacked along a first axis [steps + 1, E, ...]."""
        random = np.random.default_rng(action_seed)
        records = [self.reset(seed)]
        for _ in range(steps):
            records.append(self.step(self.env.spec.action.sample(random, self.env.num_envs)))
        return stack(records)


FIELDS = ("observation", "reward", "terminated", "truncated")


def play(config: EnvironmentConfig, num_envs: int, seed: int, steps: int, **options: Any) -> Rows:
    with Played(config, num_envs, **options) as played:
        return played.run(seed, steps)


def _copy(batch: Rows) -> Rows:
    return Rows(*(map_arrays(np.copy, getattr(batch, name)) for name in FIELDS))


def stack(records: Sequence[Rows]) -> Rows:
    """Records along a first axis [T, E, ...]."""
    return Rows(
        *(map_arrays(lambda *parts: np.stack(parts), *(getattr(record, name) for record in records)) for name in FIELDS)
    )


def assert_same(one: Rows, other: Rows, fields: Sequence[str] = FIELDS) -> None:
    for name in fields:
        map_arrays(np.testing.assert_array_equal, getattr(one, name), getattr(other, name))
