"""A lane of the step engine: the streams of one inference device, and their next batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seedcli.inference.policy import Policy
from seedcli.inference.streams import SlotIndex, Stream
from seedcli.specs import EnvSpec, map_arrays


class InferenceBatch(NamedTuple):
    """The rows of several streams, concatenated: N environments whose actions are chosen together.

    Attributes:
        lane: the lane of the batch.
        streams: the streams, in the order of their rows.
        observation: [N, ...], or a mapping of name → [N, ...].
        reward: [N] float32.
        terminated, truncated: [N] uint8, not 0 where the episode has ended.
        slots: [N] int32.
        slot_index: the slots as NumPy's fastest index, a slice if they are contiguous.
    """

    lane: Lane
    streams: list[Stream]
    observation: Any
    reward: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.uint8]
    truncated: npt.NDArray[np.uint8]
    slots: npt.NDArray[np.int32]
    slot_index: SlotIndex

    @property
    def final(self) -> npt.NDArray[np.uint8]:
        """[N], not 0 where the episode has ended."""
        final: npt.NDArray[np.uint8] = self.terminated | self.truncated
        return final


class Lane:
    """Pending rows for one device.

    Args:
        policy: the policy on the device.
        spec: the environment.
        max_envs: maximum number of environments.
        batch_size: environments that a batch waits for; 0: half of those of the lane.

    Attributes:
        envs: environments of its streams.
        pending: streams with a pending row, the oldest first.
        pending_envs: environments of the pending streams.
        target: environments that make up a batch; 0 if the lane has none.
    """

    __slots__ = ("_batch_size", "_gathered", "_gathered_streams", "envs", "pending", "pending_envs", "policy",
                 "target")  # fmt: skip

    def __init__(self, policy: Policy, spec: EnvSpec, max_envs: int, batch_size: int) -> None:
        self.policy = policy
        self._batch_size = batch_size
        # Uninitialised: the system commits memory when it is written.
        self._gathered = map_arrays(lambda a: np.empty((max_envs, *a.shape), a.dtype), spec.observation)
        # Pending streams already copied to `_gathered`, in order; see `arrived`.
        self._gathered_streams = 0
        self.envs = 0
        self.target = 0
        self.pending: list[Stream] = []
        self.pending_envs = 0

    def connect(self, envs: int) -> None:
        """Add environments; a negative number removes them."""
        self.envs += envs
        # A batch cannot wait for more environments than are connected.
        self.target = min(self._batch_size, self.envs) if self._batch_size else (self.envs + 1) // 2

    def arrived(self, stream: Stream) -> None:
        """Note that a stream's row has been written."""
        start, self.pending_envs = self.pending_envs, self.pending_envs + stream.num_envs
        self.pending.append(stream)
        # A batch of several rows is gathered as they arrive, while each is in the CPU cache; a batch of one row is
        # read in place.
        count = len(self.pending)
        if count > 1 or self.pending_envs < self.target:
            if self._gathered_streams == count - 1:
                stop, row = self.pending_envs, stream.buffer.row[stream.cursor]
                map_arrays(lambda to, part: np.copyto(to[start:stop], part), self._gathered, row.observation)
                self._gathered_streams = count

    def forget(self, stream: Stream) -> None:
        """Remove a closed stream."""
        if stream in self.pending:
            self.pending.remove(stream)
            self.pending_envs -= stream.num_envs
            self._gathered_streams = -1  # the gathered rows have a hole: the batch must be gathered again

    def close(self) -> InferenceBatch:
        """Return the pending batch and begin the next."""
        streams, self.pending, self.pending_envs = self.pending, [], 0
        gathered, self._gathered_streams = self._gathered_streams == len(streams), 0
        return self.batch(streams, gathered)

    def batch(self, streams: list[Stream], gathered: bool = False) -> InferenceBatch:
        """Build the batch of the streams' rows; `gathered`: their observations have been gathered already."""
        rows = [stream.buffer.row[stream.cursor] for stream in streams]
        if len(rows) == 1:
            row, stream = rows[0], streams[0]
            ends = (row.terminated, row.truncated)
            return InferenceBatch(self, streams, row.observation, row.reward, *ends, stream.slots, stream.slot_index)
        envs = sum(stream.num_envs for stream in streams)
        observation = map_arrays(lambda array: array[:envs], self._gathered)
        if not gathered:
            map_arrays(
                lambda to, *parts: np.concatenate(parts, out=to), observation, *[row.observation for row in rows]
            )
        reward = np.concatenate([row.reward for row in rows])
        terminated = np.concatenate([row.terminated for row in rows])
        truncated = np.concatenate([row.truncated for row in rows])
        slots = np.concatenate([stream.slots for stream in streams])
        return InferenceBatch(self, streams, observation, reward, terminated, truncated, slots, slots)


def share(batch_size: int, lanes: int) -> int:
    """Batch size per lane, rounded up; 0 (half of the lane's environments) stays 0."""
    return -(-batch_size // lanes)
