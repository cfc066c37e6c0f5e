"""A lane of the step engine: the streams that one device answers, and the batch that waits for it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seedcli.inference.policy import Policy
from seedcli.inference.streams import SlotIndex, Stream
from seedcli.specs import EnvSpec, map_arrays


class InferenceBatch(NamedTuple):
    """The rows of several streams, side by side: N environments whose actions are chosen together.

    Attributes:
        lane: whose it is.
        streams: whose rows it holds, in this order.
        observation: [N, ...], or such arrays by name.
        reward: [N] float32.
        final: [N], not 0 where the episode has ended.
        slots: [N] int32.
        slot_index: the same, as what NumPy reads fastest.
    """

    lane: Lane
    streams: list[Stream]
    observation: Any
    reward: npt.NDArray[np.float32]
    final: Any
    slots: npt.NDArray[np.int32]
    slot_index: SlotIndex


class Lane:
    """Rows that wait for one device.

    Args:
        policy: what answers.
        spec: the environment.
        max_envs: environments at most.
        batch_size: environments a batch waits for; 0: half of those of the lane.

    Attributes:
        envs: environments of its streams.
        pending: streams whose rows wait, the oldest first.
        pending_envs: their environments.
        target: of them make up a batch; 0 where the lane has none.
    """

    __slots__ = ("_batch_size", "_gathered", "_gathered_streams", "envs", "pending", "pending_envs", "policy",
                 "target")  # fmt: skip

    def __init__(self, policy: Policy, spec: EnvSpec, max_envs: int, batch_size: int) -> None:
        self.policy = policy
        self._batch_size = batch_size
        # Uninitialised: the system gives memory where it is written.
        self._gathered = map_arrays(lambda a: np.empty((max_envs, *a.shape), a.dtype), spec.observation)
        # How many of the pending rows stand in `_gathered` already, in order; see `arrived`.
        self._gathered_streams = 0
        self.envs = 0
        self.target = 0
        self.pending: list[Stream] = []
        self.pending_envs = 0

    def connect(self, envs: int) -> None:
        """Take so many environments in; fewer than 0: they leave."""
        self.envs += envs
        # No more than there are can come.
        self.target = min(self._batch_size, self.envs) if self._batch_size else (self.envs + 1) // 2

    def arrived(self, stream: Stream) -> None:
        """A stream's row is in its buffer."""
        start, self.pending_envs = self.pending_envs, self.pending_envs + stream.num_envs
        self.pending.append(stream)
        # A batch of several rows is gathered as they come, while each is in the processor's cache; a batch of one
        # is read where it lies.
        count = len(self.pending)
        if count > 1 or self.pending_envs < self.target:
            if self._gathered_streams == count - 1:
                stop, row = self.pending_envs, stream.buffer.row[stream.cursor]
                map_arrays(lambda to, part: np.copyto(to[start:stop], part), self._gathered, row.observation)
                self._gathered_streams = count

    def forget(self, stream: Stream) -> None:
        """A stream that is closed waits no longer."""
        if stream in self.pending:
            self.pending.remove(stream)
            self.pending_envs -= stream.num_envs
            self._gathered_streams = -1  # what was gathered has a hole: the batch is gathered again

    def close(self) -> InferenceBatch:
        """Close the batch; the next begins."""
        streams, self.pending, self.pending_envs = self.pending, [], 0
        gathered, self._gathered_streams = self._gathered_streams == len(streams), 0
        return self.batch(streams, gathered)

    def batch(self, streams: list[Stream], gathered: bool = False) -> InferenceBatch:
        """The batch of the streams' rows; `gathered`: their observations have been brought together already."""
        rows = [stream.buffer.row[stream.cursor] for stream in streams]
        if len(rows) == 1:
            row, stream = rows[0], streams[0]
            final = row.terminated | row.truncated
            return InferenceBatch(self, streams, row.observation, row.reward, final, stream.slots, stream.slot_index)
        envs = sum(stream.num_envs for stream in streams)
        observation = map_arrays(lambda array: array[:envs], self._gathered)
        if not gathered:
            map_arrays(
                lambda to, *parts: np.concatenate(parts, out=to), observation, *[row.observation for row in rows]
            )
        reward = np.concatenate([row.reward for row in rows])
        final = np.concatenate([row.terminated for row in rows]) | np.concatenate([row.truncated for row in rows])
        slots = np.concatenate([stream.slots for stream in streams])
        return InferenceBatch(self, streams, observation, reward, final, slots, slots)


def share(batch_size: int, lanes: int) -> int:
    """What each of the lanes waits for, rounded up; 0 (half of its environments) stays 0."""
    return -(-batch_size // lanes)
