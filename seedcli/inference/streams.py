"""The step engine's state of each stream, and its counters."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seedcli.agents.base import Role
from seedcli.inference.arena import UnrollBuffer
from seedcli.telemetry.metrics import Reservoir

# NumPy's fastest index of slots: a slice if they are contiguous.
SlotIndex = slice | npt.NDArray[np.int32]


class Stream:
    """E environments stepped in lock-step: an open buffer, a cursor, a range of slots.

    Attributes:
        owner: opaque to the engine; the service uses it to send the answer.
        index: number of the stream within its session.
        role: "training", or "evaluation": records are answered and counted separately, but not kept.
        slots: int32 [E], rows of its environments in the agent-state table.
        slot_index: the slots as NumPy's fastest index.
        sequence: sequence number of the next row.
        pending: whether a row has arrived and is not answered yet.
        ranks: int32 [E], indices of its environments among the training environments; None for evaluation.
        lane: its lane; used by the engine only.
    """

    __slots__ = (
        "arrived", "begun", "buffer", "closed", "cursor", "index", "lane", "last_bad_reward", "num_envs", "owner",
        "pending", "ranks", "records", "role", "sequence", "slot_index", "slots", "states", "untrained",
    )  # fmt: skip

    def __init__(
        self,
        owner: Any,
        index: int,
        role: Role,
        slots: npt.NDArray[np.int32],
        ranks: npt.NDArray[np.int32] | None,
        buffer: UnrollBuffer,
        lane: Any,
    ) -> None:
        self.owner = owner
        self.lane = lane
        self.role = role
        self.ranks = ranks
        self.index = index
        self.num_envs = len(slots)
        self.slots = slots
        # Indexing with a slice is several times faster than with an array.
        together = slots[-1] - slots[0] == len(slots) - 1
        self.slot_index: SlotIndex = slice(int(slots[0]), int(slots[-1]) + 1) if together else slots
        self.buffer = buffer
        self.cursor = 0
        self.sequence = 0
        self.pending = False
        self.closed = False
        self.arrived = 0.0
        self.records = 0
        self.begun = 0.0  # mean records of the training environments when it was opened
        # Agent states before the first record of each unroll that has begun and is not yet handed on.
        self.states: deque[Any] = deque()
        # [E] int64, the last record of each environment with a non-finite reward, -1: none; None: no environment.
        self.last_bad_reward: npt.NDArray[np.int64] | None = None
        self.untrained: deque[int] = deque()  # see `inference.pace`


class Answer(NamedTuple):
    """Actions [E, ...] for a stream's pending row, with its sequence number."""

    stream: Stream
    sequence: int
    actions: npt.NDArray[Any]


class SlotAllocator:
    """Allocates slots, contiguous ones if possible."""

    def __init__(self, slots: int) -> None:
        self._free: npt.NDArray[np.bool_] = np.ones(slots, np.bool_)

    def take(self, count: int) -> npt.NDArray[np.int32] | None:
        """Take `count` slots, int32 [count], ascending and contiguous if possible; None if fewer are free."""
        free = np.flatnonzero(self._free)
        if len(free) < count:
            return None
        runs = np.flatnonzero(free[count - 1 :] - free[: len(free) - count + 1] == count - 1)
        start = int(runs[0]) if len(runs) else 0
        taken = free[start : start + count]
        self._free[taken] = False
        return taken.astype(np.int32)

    def give(self, slots: npt.NDArray[np.int32]) -> None:
        """Free slots."""
        self._free[slots] = True


@dataclass
class EngineStats:
    """Counters of the engine; written by the engine's thread, read by telemetry.

    Environment steps count transitions, so the first record of an episode does not count. Evaluation streams are
    counted separately.
    """

    env_steps: int = 0
    episodes: int = 0
    evaluation_steps: int = 0
    evaluation_episodes: int = 0
    dropped_unrolls: int = 0
    batches: int = 0
    batch_rows: int = 0
    latency: Reservoir = field(default_factory=Reservoir)
    finished: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=100_000))
    finished_evaluation: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=100_000))
    # Kept in checkpoints.
    recent_returns: deque[float] = field(default_factory=lambda: deque(maxlen=100))  # of training
    recent_evaluation_returns: deque[float] = field(default_factory=lambda: deque(maxlen=20))
