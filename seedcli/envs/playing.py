"""Plays vector environments as actors do and keeps the records, for the conformance checks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seedcli.envs.base import VectorEnv
from seedcli.specs import ActionSpec, RowLayout, Rows, aligned_empty

MakeEnv = Callable[[int], VectorEnv]

FILL = (0xA5, 0x5A)  # contents of a row before a record is written into it, alternating
_BYTES = 2**27  # of records kept from one play


def extremes(action: ActionSpec) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The lowest and the highest action."""
    array = action.array
    if action.size:
        return np.full(array.shape, -1, np.float32), np.full(array.shape, 1, np.float32)
    return np.zeros(array.shape, np.int32), (np.array(action.categories, np.int32) - 1).reshape(array.shape)


def every_action(action: ActionSpec) -> list[npt.NDArray[Any]]:
    """Every category of each part and a box's corners along each number: at most a few hundred."""
    low, high = extremes(action)
    if action.size:
        single = np.concatenate([np.eye(action.size, dtype=np.float32), -np.eye(action.size, dtype=np.float32)])
        return [low, high, 2 * high, 0 * high, *single[:256]]
    found = []
    for part, count in enumerate(action.categories):
        for category in range(min(count, 256)):
            chosen = np.zeros(len(action.categories), np.int32)
            chosen[part] = category
            found.append(chosen.reshape(low.shape))
    return found[:1024]


class Run(NamedTuple):
    """Records [T, E, ...]; `actions[t]` led from record t to t + 1."""

    observation: dict[str, npt.NDArray[Any]]
    reward: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.uint8]
    truncated: npt.NDArray[np.uint8]
    actions: list[npt.NDArray[Any]]

    @property
    def final(self) -> npt.NDArray[np.bool_]:
        """[T, E]: the record ends its episode."""
        return np.logical_or(self.terminated, self.truncated)

    @property
    def first(self) -> npt.NDArray[np.bool_]:
        """[T, E]: the record begins an episode."""
        return np.concatenate([np.ones_like(self.final[:1]), self.final[:-1]])

    def column(self, env: int) -> Run:
        """One environment's records, as a vector of one would give them."""
        return Run(
            {name: part[:, env : env + 1] for name, part in self.observation.items()},
            self.reward[:, env : env + 1],
            self.terminated[:, env : env + 1],
            self.truncated[:, env : env + 1],
            [actions[env : env + 1] for actions in self.actions],
        )

    def until_end(self) -> Run:
        """The records up to the first one that ends an episode."""
        ends = np.flatnonzero(self.final.any(axis=1))
        length = int(ends[0]) + 1 if len(ends) else len(self.reward)
        return Run(
            {name: part[:length] for name, part in self.observation.items()},
            self.reward[:length],
            self.terminated[:length],
            self.truncated[:length],
            self.actions[: length - 1],
        )

    def difference(self, other: Run) -> str | None:
        """Name the first record, and its part, in which another run of the same actions differs."""
        parts = {**self.observation, "reward": self.reward, "terminated": self.terminated, "truncated": self.truncated}
        theirs = {**other.observation, "reward": other.reward, "terminated": other.terminated}
        theirs["truncated"] = other.truncated
        found: list[tuple[int, str]] = []
        for name, part in parts.items():
            length = min(len(part), len(theirs[name]))
            one, two = (each[:length].reshape(length, -1) for each in (part, theirs[name]))
            differs = (one != two) & ~((one != one) & (two != two))  # NaNs count as equal
            rows = np.flatnonzero(differs.any(axis=1))
            if len(rows):
                found.append((int(rows[0]), name))
        return f"record {min(found)[0]} ({min(found)[1]})" if found else None


class Driver:
    """A vector environment that writes into a row, as an actor's does; records are copied out of it."""

    def __init__(self, env: VectorEnv) -> None:
        self.env = env
        self.num_envs = env.num_envs
        layout = RowLayout(env.spec, env.num_envs)
        self._row = aligned_empty(layout.nbytes)
        self._out = layout.views(self._row)
        self._most = max(10, _BYTES // layout.nbytes)
        self._written = 0

    def _record(self) -> Rows:
        out = self._out
        names = out.observation if isinstance(out.observation, dict) else {"observation": out.observation}
        copies = {name: part.copy() for name, part in names.items()}
        return Rows(copies, out.reward.copy(), out.terminated.copy(), out.truncated.copy())

    def reset(self, seed: int) -> Rows:
        """First records [E, ...], the observation's arrays by name."""
        self._row[:] = FILL[0]
        self._written = 1
        self.env.reset(seed, self._out)
        return self._record()

    def step(self, actions: npt.NDArray[Any]) -> Rows:
        """The next records, as `reset` gives them."""
        self._row[:] = FILL[self._written % 2]
        self._written += 1
        self.env.step(actions, self._out)
        return self._record()

    def play(
        self,
        seed: int,
        steps: int,
        seconds: float,
        *,
        script: list[npt.NDArray[Any]] | None = None,
        until_final: bool = False,
        least: int = 10,
    ) -> Run:
        """Play `script`, or random actions for at most `steps` or `seconds`, but at least `least` steps."""
        random = np.random.default_rng(seed)
        records, actions = [self.reset(seed)], []
        steps = min(steps, self._most) if script is None else len(script)
        begun = time.perf_counter()
        for t in range(steps):
            if script is None and t >= least and time.perf_counter() - begun > seconds:
                break
            actions.append(self.env.spec.action.sample(random, self.num_envs) if script is None else script[t])
            records.append(self.step(actions[-1]))
            if until_final and (records[-1].terminated | records[-1].truncated).any():
                break
        return _stack(records, actions)


def _stack(records: list[Rows], actions: list[npt.NDArray[Any]]) -> Run:
    return Run(
        {name: np.stack([r.observation[name] for r in records]) for name in records[0].observation},
        np.stack([r.reward for r in records]),
        np.stack([r.terminated for r in records]),
        np.stack([r.truncated for r in records]),
        actions,
    )


@contextlib.contextmanager
def driving(make: MakeEnv, num_envs: int) -> Iterator[Driver]:
    """Build a vector environment, and close it at the end."""
    env = make(num_envs)
    try:
        yield Driver(env)
    finally:
        env.close()


class Episode(NamedTuple):
    """Steps and sum of rewards of one whole episode, and whether it was terminated and not truncated as well."""

    length: int
    reward: float
    terminated: bool


def episodes_of(run: Run) -> list[Episode]:
    """The episodes that ended in a run, all environments' one after the other."""
    episodes = []
    for env in range(run.reward.shape[1]):
        begun = 0
        for end in np.flatnonzero(run.final[:, env]).tolist():
            rewards = run.reward[begun + 1 : end + 1, env]
            episodes.append(Episode(end - begun, float(rewards.sum()), not run.truncated[end, env]))
            begun = end + 1
    return episodes


def carried_ends(run: Run) -> int:
    """The number of different final observations of one environment's episodes, the largest of all environments.

    0 if some new episode begins with a different observation than the previous one ended with, or none has begun.
    """
    most = 0
    for env in range(run.reward.shape[1]):
        finals = np.flatnonzero(run.final[:-1, env])
        parts = [part[:, env] for part in run.observation.values()]
        if any((part[finals] != part[finals + 1]).any() for part in parts):
            return 0
        most = max(most, len({b"".join(part[t].tobytes() for part in parts) for t in finals.tolist()}))
    return most
