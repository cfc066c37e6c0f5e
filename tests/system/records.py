"""Check on the learner's side that every record of `Counter` environments is in its place."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from seedcli.agents.base import UnrollBatch
from seedcli.envs.testing import MAX_LENGTH, counter_reward
from seedcli.inference.arena import UnrollBuffer
from seedcli.inference.device_policy import Promise

NUMBER, EPISODE, STEP, ACTION = range(4)


def marks(observation: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Marks that identify an observation [..., 4], recorded in place of the behaviour logits.

    Computed element by element, because matrix products round differently in batches of different sizes.
    """
    return observation * np.array([1, 0.01, 0.1, 0.3], np.float32)


def marked(begin: Any) -> Any:
    """Wrap `DevicePolicy.begin`, to record `marks` instead of logits."""

    def marking(self: Any, observation: Any, *arguments: Any, **options: Any) -> Promise:
        promise: Promise = begin(self, observation, *arguments, **options)
        return promise._replace(recorded={"logits": tf.convert_to_tensor(marks(observation))})

    return marking


@dataclass
class Column:
    """A copy of one environment's part of an unroll: arrays [R, ...]."""

    observation: npt.NDArray[np.float32]
    reward: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    action: npt.NDArray[np.int32]
    logits: npt.NDArray[np.float32]
    frames: npt.NDArray[np.float32]
    previous_action: int
    version: npt.NDArray[np.int64] | None = None

    @property
    def number(self) -> float:
        return float(self.observation[0, NUMBER])

    def key(self) -> bytes:
        """The bytes of all arrays except the version."""
        parts = (self.observation, self.reward, self.terminated, self.truncated, self.action, self.logits, self.frames)
        return b"".join(part.tobytes() for part in parts) + bytes([self.previous_action])

    def check(self) -> None:
        """Check that records follow each other, each with its own reward, flags, action and state."""
        number, episode, step, led_by = self.observation.T
        assert (number == number[0]).all(), "records of two environments in one column"
        assert ((step >= 0) & (step <= MAX_LENGTH)).all()
        assert (self.reward == counter_reward(episode, step)).all(), "a reward of another record"
        assert not (self.terminated & self.truncated).any()
        assert (episode[self.terminated] % 2 == 0).all(), "a termination instead of a truncation"
        assert (episode[self.truncated] % 2 == 1).all(), "a truncation instead of a termination"
        final = (self.terminated | self.truncated)[:-1]
        assert (step[1:] == np.where(final, 0, step[:-1] + 1)).all(), "a step is missing or duplicated"
        assert (episode[1:] == episode[:-1] + final).all(), "an episode is missing or duplicated"
        assert (led_by[1:] == np.where(final, -1, self.action[:-1])).all(), "an action that was not taken"
        assert (led_by[step == 0] == -1).all()
        assert np.array_equal(self.logits, marks(self.observation)), "logits of another record"
        assert self.previous_action == led_by[0] + 1, "the previous action of another record in the state"
        before = self.observation[0] - [0, 0, 1, 0] if step[0] > 0 else np.zeros(4)
        assert (self.frames[0, : STEP + 1] == before[: STEP + 1]).all(), "the frame of another record in the state"
        if self.version is not None:
            assert (np.diff(self.version) >= 0).all(), "an older policy after a newer one"


def columns_of(buffer: UnrollBuffer) -> list[Column]:
    """Copies of a finished buffer's columns."""
    rows, state = buffer.rows, buffer.state
    return [
        Column(
            observation=rows.observation[:, i].copy(),
            reward=rows.reward[:, i].copy(),
            terminated=rows.terminated[:, i].astype(np.bool_),
            truncated=rows.truncated[:, i].astype(np.bool_),
            action=buffer.action[:, i].copy(),
            logits=buffer.recorded["logits"][:, i].copy(),
            frames=np.array(state["frames"][i]),
            previous_action=int(state["previous_action"][i]),
            version=buffer.version.copy(),
        )
        for i in range(buffer.num_envs)
    ]


def columns_of_batch(unrolls: UnrollBatch) -> list[Column]:
    """A training batch's columns."""
    arrays = [
        np.asarray(x)
        for x in (
            unrolls.observation,
            unrolls.reward,
            unrolls.terminated,
            unrolls.truncated,
            unrolls.action,
            unrolls.recorded["logits"],
        )
    ]
    frames, previous = (np.asarray(unrolls.state[name]) for name in ("frames", "previous_action"))
    return [
        Column(*(array[:, i] for array in arrays), frames=frames[i], previous_action=int(previous[i]))
        for i in range(len(frames))
    ]


class Book:
    """Keeps every finished unroll and every training batch, to check them at the end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.finished: list[Column] = []
        self.trained: list[Column] = []

    def numbers(self) -> set[float]:
        """Numbers of the environments with a finished unroll."""
        with self._lock:
            return {column.number for column in self.finished}

    def finish(self, buffer: UnrollBuffer) -> None:
        """Keep a finished buffer."""
        columns = columns_of(buffer)
        with self._lock:
            self.finished += columns

    def train(self, unrolls: UnrollBatch) -> None:
        """Keep an assembled batch."""
        columns = columns_of_batch(unrolls)
        with self._lock:
            self.trained += columns

    def check(self, *, restarts: int = 0) -> None:
        """Check all records.

        Args:
            restarts: number of environments that started again in a later session of their actor.
        """
        restarted = 0
        newest: dict[float, Column] = {}
        counted: set[tuple[float, int, int]] = set()
        for column in self.finished:
            column.check()
            before = newest.get(column.number)
            start = 1
            if before is None or not _overlap(before, column):
                assert column.observation[0, STEP] == 0, "the first record of a session does not begin an episode"
                if before is not None:
                    assert column.observation[0, EPISODE] > before.observation[-1, EPISODE]
                    restarted += 1
                start = 0
            newest[column.number] = column
            for number, episode, step, _ in column.observation[start:].tolist():
                key = (number, int(episode), int(step))
                assert key not in counted, f"record {key} is duplicated"
                counted.add(key)
        assert restarted == restarts
        unread = {column.key() for column in self.finished}
        assert len(unread) == len(self.finished)
        for column in self.trained:
            column.check()
            assert column.key() in unread, "a column was trained on twice, or differs from the finished one"
            unread.remove(column.key())


def _overlap(before: Column, after: Column) -> bool:
    """Whether `after` begins with the last record of `before`, including its action."""
    arrays = ("observation", "reward", "terminated", "truncated", "action", "logits", "version")
    return all(np.array_equal(getattr(before, name)[-1], getattr(after, name)[0]) for name in arrays)
