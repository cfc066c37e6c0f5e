"""Environments driven through rows laid out as on the wire."""

from __future__ import annotations

from typing import Any

import numpy as np

from seedcli.config import EnvironmentConfig
from seedcli.envs import create_env
from seedcli.specs import RowLayout, StepBatch, aligned_empty

COUNTER = "seedcli.envs.testing:Counter-v0"
RECALL = "seedcli.envs.testing:Recall-v0"
POSITIONS = "seedcli.envs.memory:CartPolePositions-v0"


def gymnasium_config(env_id: str, **fields: Any) -> EnvironmentConfig:
    return EnvironmentConfig(family="gymnasium", id=env_id, **fields)


def atari_config(game: str, **fields: Any) -> EnvironmentConfig:
    return EnvironmentConfig(family="atari", id=game, **fields)


class Played:
    """A vector environment and the row it writes into, whose bytes are all set to 0xA5 before each step."""

    def __init__(self, config: EnvironmentConfig, num_envs: int, **options: Any) -> None:
        self.env = create_env(config, num_envs, **options)
        self.layout = RowLayout(self.env.spec, num_envs)
        self.row = aligned_empty(self.layout.nbytes)
        self.out: StepBatch = self.layout.views(self.row)

    def __enter__(self) -> Played:
        return self

    def __exit__(self, *_: object) -> None:
        self.env.close()

    def reset(self, seed: int) -> StepBatch:
        self.row[:] = 0xA5
        self.env.reset(seed, self.out)
        return _copy(self.out)

    def step(self, actions: Any) -> StepBatch:
        self.row[:] = 0xA5
        self.env.step(np.broadcast_to(np.asarray(actions, np.int32), (self.env.num_envs,)), self.out)
        return _copy(self.out)

    def run(self, seed: int, steps: int, action_seed: int = 0) -> StepBatch:
        """Play random actions; records are stacked along a first axis [steps + 1, E, ...]."""
        random = np.random.default_rng(action_seed)
        records = [self.reset(seed)]
        for _ in range(steps):
            records.append(self.step(random.integers(self.env.spec.num_actions, size=self.env.num_envs)))
        return StepBatch(*(np.stack([getattr(r, name) for r in records]) for name in FIELDS))


FIELDS = ("observation", "reward", "terminated", "truncated")


def play(config: EnvironmentConfig, num_envs: int, seed: int, steps: int, **options: Any) -> StepBatch:
    with Played(config, num_envs, **options) as played:
        return played.run(seed, steps)


def _copy(batch: StepBatch) -> StepBatch:
    return StepBatch(*(getattr(batch, name).copy() for name in FIELDS))
