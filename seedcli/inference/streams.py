"""What the step engine keeps of each stream, and counts of all of them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seedcli.agents.base import Role
from seedcli.inference.arena import UnrollBuffer
from seedcli.telemetry.metrics import Reservoir

# Slots as NumPy reads them fastest: a slice where they are neighbours.
SlotIndex = slice | npt.NDArray[np.int32]


class Stream:
    """E environments stepped in lock-step: an open buffer, a cursor, a range of slots.

    Attributes:
        owner: whatever the service needs to send the answer; the engine only carries it.
        index: number of the stream within its session.
        role: "training", or "evaluation": records are answered, counted apart and forgotten.
        slots: int32 [E], where its environments are in the agent-state table.
        slot_index: the same, as what NumPy reads fastest.
        sequence: sequence number of the row that is expected next.
        pending: a row has arrived and is not answered yet.
        ranks: [E] int32, which of the training environments these are; None for evaluation.
        lane: where it is answered; the engine's.
    """

    __slots__ = ("arrived", "begun", "buffer", "closed", "cursor", "index", "lane", "num_envs", "owner", "pending",
                 "ranks", "records", "repaired", "role", "sequence", "slot_index", "slots", "states")  # fmt: skip

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
        # NumPy reads a slice several times faster than a list of indices.
        together = slots[-1] - slots[0] == len(slots) - 1
        self.slot_index: SlotIndex = slice(int(slots[0]), int(slots[-1]) + 1) if together else slots
        self.buffer = buffer
        self.cursor = 0
        self.sequence = 0
        self.pending = False
        self.closed = False
        self.arrived = 0.0
        self.records = 0
        self.begun = 0.0  # rounds of the training environments when it was opened
        # Agent states before the first record of each unroll begun and not yet handed on.
        self.states: deque[Any] = deque()
        # [E] int64, the last record of each environment whose reward was not finite, -1: none; None: none at all.
        self.repaired: npt.NDArray[np.int64] | None = None


class Answer(NamedTuple):
    """Actions [E, ...] for a stream's pending row, with its sequence number."""

    stream: Stream
    sequence: int
    actions: npt.NDArray[Any]


class SlotAllocator:
    """Which slots are free; neighbouring ones are given where there are enough of them."""

    def __init__(self, slots: int) -> None:
        self._free: npt.NDArray[np.bool_] = np.ones(slots, np.bool_)

    def take(self, count: int) -> npt.NDArray[np.int32] | None:
        """Take `count` slots, ascending and next to each other if possible; None where fewer are free."""
        free = np.flatnonzero(self._free)
        if len(free) < count:
            return None
        runs = np.flatnonzero(free[count - 1 :] - free[: len(free) - count + 1] == count - 1)
        start = int(runs[0]) if len(runs) else 0
        taken = free[start : start + count]
        self._free[taken] = False
        return taken.astype(np.int32)

    def give(self, slots: npt.NDArray[np.int32]) -> None:
        """Give slots back."""
        self._free[slots] = True


@dataclass
class EngineStats:
    """Counters of the engine; read by telemetry, written by the engine's thread.

    Environment steps count transitions: the first record of an episode is none. Those of evaluation streams are
    counted apart.
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
    recent_returns: deque[float] = field(default_factory=lambda: deque(maxlen=100))  # of training, for checkpoints
