"""The unroll arena: records are written once, into bounded preallocated buffers, one open buffer per stream.

A buffer holds the K + T + 1 records of E environments. An incoming row is one contiguous copy to the stream's cursor.
A full buffer is handed on whole and comes back through `release`.

Bound: there are (streams) + ceil(B / E) · (1 + queue_batches) buffers for streams of E environments. If none is free,
every buffer that is not open waits for training. These hold at least B columns, even if only one column of the first
of them is left. So a training batch can always be formed, and the arena cannot deadlock.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from seedcli.specs import ArraySpec, EnvSpec, RowLayout, Rows, aligned_empty


class UnrollBuffer:
    """Records of one stream, time-major: arrays are [R, E, ...] with R = K + T + 1.

    Attributes:
        layout: memory layout of a row.
        memory: uint8 [R, row bytes].
        destinations: R writable memoryviews, one per row.
        rows: the received rows, [R, E, ...] views of `memory`.
        row: R views of one row each, [E, ...], made once because slicing takes time.
        action: [R, E, ...], dtype and shape of the specification's action.
        recorded: name → [R, E, ...], the fields that the algorithm records with each action.
        version: int64 [R], the policy version that chose the record's action.
        state: the agent state before record 0, nested arrays [E, ...]; set when the buffer is handed on.
        keep: bool [E], columns that may be trained on; None: all. Set when the buffer is handed on.
    """

    def __init__(self, layout: RowLayout, records: int, recorded: Mapping[str, ArraySpec]) -> None:
        self.layout = layout
        self.memory = aligned_empty(records * layout.nbytes).reshape(records, layout.nbytes)
        self.destinations = [memoryview(self.memory[t]) for t in range(records)]
        self.rows: Rows = layout.views(self.memory)
        self.row: list[Rows] = [layout.views(self.memory[t]) for t in range(records)]
        envs = layout.num_envs
        action = layout.spec.action.array
        self.action: npt.NDArray[Any] = np.zeros((records, envs, *action.shape), action.dtype)
        self.recorded: dict[str, npt.NDArray[Any]] = {
            name: np.zeros((records, envs, *spec.shape), spec.dtype) for name, spec in recorded.items()
        }
        self.version: npt.NDArray[np.int64] = np.zeros(records, np.int64)
        self.state: Any = None
        self.keep: npt.NDArray[np.bool_] | None = None

    @property
    def num_envs(self) -> int:
        """E, the columns of the buffer."""
        return self.layout.num_envs

    def carry_over(self, source: UnrollBuffer, start: int) -> None:
        """Copy records `start`… of `source` to the front of this buffer (the overlap of two unrolls)."""
        count = len(source.memory) - start
        self.memory[:count] = source.memory[start:]
        self.action[:count] = source.action[start:]
        self.version[:count] = source.version[start:]
        for name, values in self.recorded.items():
            values[:count] = source.recorded[name][start:]


class Arena:
    """Pools of unroll buffers, one pool per E in use.

    `admit`, `retire` and `acquire` belong to the inference thread; `release` may be called from any thread.

    Args:
        spec: the environment.
        records: R = K + T + 1.
        recorded: the algorithm's recorded fields.
        batch_size: B, columns of a training batch.
        queue_batches: training batches of finished unrolls that may wait.
        on_release: called after each release (wakes the inference thread).
    """

    def __init__(
        self,
        spec: EnvSpec,
        records: int,
        recorded: Mapping[str, ArraySpec],
        *,
        batch_size: int,
        queue_batches: int,
        on_release: Callable[[], None] = lambda: None,
    ) -> None:
        self._spec = spec
        self._records = records
        self._recorded = dict(recorded)
        self._batch_size = batch_size
        self._queue_batches = queue_batches
        self._on_release = on_release
        self._free: dict[int, deque[UnrollBuffer]] = {}
        self._allocated: dict[int, int] = {}
        self._streams: dict[int, int] = {}
        self._lock = threading.Lock()

    def layout(self, num_envs: int) -> RowLayout:
        """The row layout of a stream of `num_envs` environments."""
        return RowLayout(self._spec, num_envs)

    def _slack(self, num_envs: int) -> int:
        return math.ceil(self._batch_size / num_envs) * (1 + self._queue_batches)

    def admit(self, num_envs: int) -> None:
        """Allocate buffers for one more stream of `num_envs` environments."""
        with self._lock:
            self._streams[num_envs] = self._streams.get(num_envs, 0) + 1
            free = self._free.setdefault(num_envs, deque())
            wanted = self._streams[num_envs] + self._slack(num_envs)
            while self._allocated.get(num_envs, 0) < wanted:
                free.append(UnrollBuffer(self.layout(num_envs), self._records, self._recorded))
                self._allocated[num_envs] = self._allocated.get(num_envs, 0) + 1

    def retire(self, num_envs: int) -> None:
        """Remove one stream of `num_envs` environments; its share of buffers is freed as they are released."""
        with self._lock:
            self._streams[num_envs] -= 1
            self._shrink(num_envs)

    def _shrink(self, num_envs: int) -> None:
        streams = self._streams[num_envs]
        wanted = streams + self._slack(num_envs) if streams else 0
        free = self._free[num_envs]
        while free and self._allocated[num_envs] > wanted:
            free.pop()
            self._allocated[num_envs] -= 1

    def unpooled(self, num_envs: int) -> UnrollBuffer:
        """Return a buffer of one record outside the pools, for records that are not kept; must not be released."""
        return UnrollBuffer(self.layout(num_envs), 1, self._recorded)

    def acquire(self, num_envs: int) -> UnrollBuffer | None:
        """Return a free buffer, or None if all are in use: the stream then waits for `release`."""
        free = self._free[num_envs]
        with self._lock:  # `release` may free surplus buffers concurrently
            return free.popleft() if free else None

    def release(self, buffer: UnrollBuffer) -> None:
        """Return a buffer to its pool; nothing may read it afterwards."""
        buffer.state = buffer.keep = None
        with self._lock:
            self._free[buffer.num_envs].append(buffer)
            self._shrink(buffer.num_envs)
        self._on_release()

    @property
    def allocated_bytes(self) -> int:
        """Bytes of row memory allocated now."""
        return sum(count * self._records * self.layout(envs).nbytes for envs, count in self._allocated.items())

    def bound_bytes(self, max_envs: int, num_envs: int) -> int:
        """Upper bound of row memory in bytes, with `max_envs` environments in streams of `num_envs`."""
        buffers = math.ceil(max_envs / num_envs) + self._slack(num_envs)
        return buffers * self._records * self.layout(num_envs).nbytes
