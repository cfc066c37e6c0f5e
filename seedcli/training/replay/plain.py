"""Unrolls in memory as plain arrays: for small observations, where a compressor call per unroll would be too slow."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from seedcli.training.replay.blocks import BlockCodec, batch_arrays, checked_arrays


class PlainStorage:
    """A `storage.Storage` of one array [max_rows, ...] per field; the row of serial s has the place s mod max_rows.

    The operating system allocates memory on first write, so a replay takes only the memory of the rows written.

    Args:
        codec: its fields are those of an unroll; it packs rows for checkpoints.
        capacity: the largest number of rows, at least 1.
    """

    def __init__(self, codec: BlockCodec, capacity: int) -> None:
        self._codec = codec
        self.max_rows = self.rows_at_once = capacity
        self.nbytes = 0
        self._arrays = {field.name: np.empty((capacity, *field.shape), field.dtype) for field in codec.fields}
        self._next = 0
        self._frozen: weakref.WeakSet[FrozenRows] = weakref.WeakSet()

    def pack(self, arrays: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """A copy by rows, [N, R, ...]: the buffer of the arrays is reused before the rows are inserted."""
        _, found = checked_arrays(arrays, self._codec.fields)
        return {
            field.name: np.array(np.moveaxis(found[field.name], 1, 0) if field.per_record else found[field.name])
            for field in self._codec.fields
        }

    def load(self, blocks: Sequence[bytes]) -> dict[str, npt.NDArray[Any]]:
        return self.pack(self._codec.unpacked(blocks))

    def size_of(self, packed: dict[str, npt.NDArray[Any]], start: int, stop: int) -> int:
        return (stop - start) * self._codec.raw_bytes

    def put(self, serial: int, packed: dict[str, npt.NDArray[Any]], start: int, stop: int) -> None:
        for frozen in self._frozen:
            frozen.keep(serial - self.max_rows, serial - self.max_rows + stop - start)
        while start < stop:  # twice if the rows wrap around
            place = serial % self.max_rows
            count = min(stop - start, self.max_rows - place)
            for name, array in self._arrays.items():
                array[place : place + count] = packed[name][start : start + count]
            start += count
            serial += count
            self.nbytes += count * self._codec.raw_bytes
        self._next = serial

    def evict(self, count: int) -> None:
        self.nbytes -= count * self._codec.raw_bytes

    def read(
        self, serials: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], records: int
    ) -> Callable[[], dict[str, npt.NDArray[Any]]]:
        """Reads at once: insertion may overwrite a row as soon as the lock is free."""
        arrays = self._gather(serials, starts, records)
        return lambda: arrays

    def _gather(
        self, serials: npt.NDArray[np.int64], starts: npt.NDArray[np.int64] | int, records: int | None
    ) -> dict[str, npt.NDArray[Any]]:
        places = serials % self.max_rows
        arrays = batch_arrays(self._codec.fields, len(serials), records)
        for field in self._codec.fields:
            stored, out, index = self._arrays[field.name], arrays[field.name], places
            if field.per_record:
                index = places * field.shape[0] + starts + np.arange(len(out))[:, None]
                stored = stored.reshape(-1, *field.shape[1:])
            # All indices are in range; unlike "raise", "clip" writes into `out` directly.
            np.take(stored, index, axis=0, out=out, mode="clip")
        return arrays

    def rows(self, first: int, stop: int) -> dict[str, npt.NDArray[Any]]:
        """A copy of the rows of serials first to stop-1, side by side."""
        return self._gather(np.arange(first, stop), 0, None)

    def freeze(self, lock: threading.Condition) -> FrozenRows:
        oldest = self._next - self.nbytes // self._codec.raw_bytes
        frozen = FrozenRows(self, self._codec, range(oldest, self._next), lock)
        self._frozen.add(frozen)
        return frozen


class FrozenRows:
    """Rows of a `PlainStorage` at one moment.

    They are read in place, not copied; those that insertion is about to overwrite are packed first.

    Args:
        storage: holds the rows.
        codec: packs them.
        serials: of the rows.
        lock: held while rows are put into the storage.
    """

    def __init__(self, storage: PlainStorage, codec: BlockCodec, serials: range, lock: threading.Condition) -> None:
        self._storage = storage
        self._codec = codec
        self._unread = serials  # earlier rows have been read and need not be kept
        self._lock = lock
        self._kept: dict[int, bytes] = {}

    def keep(self, first: int, stop: int) -> None:
        """Pack the unread ones of the rows first to stop-1, which are about to be overwritten."""
        first, stop = max(first, self._unread.start), min(stop, self._unread.stop)
        if first < stop:
            blocks = self._codec.pack(self._storage.rows(first, stop))
            self._kept.update(zip(range(first, stop), blocks, strict=True))

    def blocks(self, first: int) -> Iterator[bytes]:
        """See `storage.Frozen`; raises ValueError for rows that were read already, because these are not kept."""
        end = self._unread.stop
        if first < self._unread.start:
            raise ValueError(f"rows before {self._unread.start} were read already")
        for start in range(first, end, self._codec.chunk):
            stop = min(start + self._codec.chunk, end)
            with self._lock:
                # Insertion overwrites the oldest rows first, so the kept rows precede the others.
                kept = [self._kept.pop(serial) for serial in range(start, stop) if serial in self._kept]
                rows = self._storage.rows(start + len(kept), stop)
                self._unread = range(stop, end)
            yield from kept
            if start + len(kept) < stop:
                yield from self._codec.pack(rows)
