"""Unrolls in memory as compressed blocks: for large observations, whose blocks are much smaller."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from seedcli.training.replay.blocks import BlockCodec, batch_arrays


class CompressedStorage:
    """A `storage.Storage` of one block per row.

    Args:
        codec: packs one unroll.
        capacity: the largest number of rows.
    """

    rows_at_once = 1  # blocks differ in size: how many rows to evict is known only when the next one arrives

    def __init__(self, codec: BlockCodec, capacity: int) -> None:
        self._codec = codec
        self.max_rows = capacity
        self.nbytes = 0
        self._blocks: list[bytes] = []  # block i is that of serial first + i; b"" where the row is gone
        self._first = 0
        self._gone = 0

    def pack(self, arrays: dict[str, npt.NDArray[Any]]) -> list[bytes]:
        return self._codec.pack(arrays)

    def load(self, blocks: Sequence[bytes]) -> list[bytes]:
        return list(blocks)

    def size_of(self, packed: list[bytes], start: int, stop: int) -> int:
        return sum(len(block) for block in packed[start:stop])

    def put(self, serial: int, packed: list[bytes], start: int, stop: int) -> None:
        if not self._blocks:
            self._first = serial
        self._blocks += packed[start:stop]
        self.nbytes += self.size_of(packed, start, stop)

    def evict(self, count: int) -> None:
        gone = slice(self._gone, self._gone + count)
        self.nbytes -= sum(len(block) for block in self._blocks[gone])
        self._blocks[gone] = [b""] * count
        self._gone += count
        if 2 * self._gone > len(self._blocks):
            del self._blocks[: self._gone]
            self._first += self._gone
            self._gone = 0

    def read(
        self, serials: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], records: int
    ) -> Callable[[], dict[str, npt.NDArray[Any]]]:
        blocks = [self._blocks[index] for index in (serials - self._first).tolist()]
        return lambda: self._unpack(blocks, starts, records)

    def _unpack(self, blocks: list[bytes], starts: npt.NDArray[np.int64], records: int) -> dict[str, npt.NDArray[Any]]:
        whole, columns = self._codec.unpacked(blocks), len(blocks)
        parts = batch_arrays(self._codec.fields, columns, records)
        for field in self._codec.fields:
            if field.per_record and field.shape[0] != records:
                index = (starts + np.arange(records)[:, None]) * columns + np.arange(columns)
                values = whole[field.name].reshape(-1, *field.shape[1:])
                whole[field.name] = np.take(values, index, axis=0, out=parts[field.name], mode="clip")
        return whole

    def freeze(self, lock: threading.Condition) -> FrozenBlocks:
        return FrozenBlocks(self._first + self._gone, self._blocks[self._gone :])


class FrozenBlocks:
    """The rows of a `CompressedStorage` at one moment; the blocks are shared, not copied."""

    def __init__(self, first: int, blocks: list[bytes]) -> None:
        self._first = first
        self._blocks = blocks

    def blocks(self, first: int) -> Iterator[bytes]:
        return iter(self._blocks[first - self._first :])
