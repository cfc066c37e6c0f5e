"""Data types of a replay: inserted unrolls, sampled batches, and snapshots for checkpoints."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seedcli.training.replay.storage import Frozen


class Packed(NamedTuple):
    """Unrolls as `Replay.insert` takes them.

    Attributes:
        columns: E.
        content: in the form of the storage.
        final: bool [E, T], whether a record is the last of its episode; None if the draws do not need it.
    """

    columns: int
    content: Any
    final: npt.NDArray[np.bool_] | None


class Sample(NamedTuple):
    """A batch drawn from the replay.

    Attributes:
        serials: int64 [B]; an unroll may be drawn twice.
        starts: int64 [B], index of each column's first record in its unroll; 0 for whole unrolls.
        weights: float32 [B], importance weights in (0, 1]; 1 for uniform draws.
        arrays: name → [R, B, ...] of per-record fields, [B, ...] of the others; contiguous, 64-byte aligned. R is the
            number of records of a column: n + 1, or those of a whole unroll.
        waited: seconds spent waiting for insertion, as the ratio requires.
    """

    serials: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]
    arrays: dict[str, npt.NDArray[Any]]
    waited: float


class Snapshot(NamedTuple):
    """Immutable snapshot of a replay.

    Attributes:
        oldest: serial of the first row.
        next: serial the next row gets: rows inserted so far.
        sampled: columns sampled so far.
        dropped: unrolls dropped so far.
        places: places of the ring; with the priorities they determine the next draws.
        rng: state of the random generator, JSON-serialisable.
        priorities: float64 [next - oldest], 0 for rows that are never drawn again; None for uniform draws.
        highest: the highest priority so far, 1 for uniform draws.
        rows: the rows held.
    """

    oldest: int
    next: int
    sampled: int
    dropped: int
    places: int
    rng: dict[str, Any]
    priorities: npt.NDArray[np.float64] | None
    highest: float
    rows: Frozen
