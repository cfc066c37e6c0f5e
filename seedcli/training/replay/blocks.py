"""Unrolls as compressed blocks: one zstd frame holds one environment's K + T + 1 records and their state."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from seedcli.specs import aligned_empty

_FORMAT = 1
# Level 1 packs Atari frames 30 to 150 times at gigabytes a second; higher levels gain a few percent for half the
# speed, and subtracting the previous frame first makes the blocks larger: zstd's matches find unchanged rows anyway.
_LEVEL = 1
_CHUNK_BYTES = 1 << 20
_LARGE = 8192  # bytes; fields of at least this size are copied unroll by unroll


@dataclass(frozen=True)
class BlockField:
    """One array of an unroll.

    Attributes:
        name: e.g. "observation".
        shape: of one unroll, without a batch axis: (R, 84, 84, 1), (512,).
        dtype: NumPy's name of the element type.
        per_record: the first axis is the record, R; otherwise the field belongs to the whole unroll (state).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    per_record: bool

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


class _ThreadTools(threading.local):
    """Compression contexts, one per thread because they are not thread-safe."""

    def __init__(self, raw_bytes: int) -> None:
        parameters = zstandard.ZstdCompressionParameters.from_level(_LEVEL, source_size=raw_bytes)
        self.compressor = zstandard.ZstdCompressor(compression_params=parameters)
        self.decompressor = zstandard.ZstdDecompressor()


class BlockCodec:
    """Packs the arrays of each unroll into a block and restores them exactly; thread-safe.

    Elements of more than one byte are laid out in byte planes (all first bytes, all second bytes …), so that signs,
    exponents and leading zeros are adjacent. The result is compressed as one zstd frame. (De)compression and copies
    run without the GIL. Arrays hold N unrolls side by side, as stream buffers and batches do: per-record fields
    [R, N, ...], the others [N, ...].

    Attributes:
        fields: in their order within a block.
        raw_bytes: bytes of an unroll, uncompressed.
        chunk: number of unrolls in about a megabyte; packing or unpacking this many at a time limits memory use.
        signature: describes the fields, shapes, types and format of a block; equal if blocks are interchangeable.
    """

    def __init__(self, fields: Sequence[BlockField]) -> None:
        self.fields = tuple(fields)
        if len({field.name for field in self.fields}) != len(self.fields):
            raise ValueError(f"fields of a block must have different names: {[f.name for f in self.fields]}")
        self.raw_bytes = sum(field.nbytes for field in self.fields)
        if self.raw_bytes == 0:
            raise ValueError("a block needs a non-empty field")
        self.chunk = max(1, _CHUNK_BYTES // self.raw_bytes)
        described = [[f.name, list(f.shape), f.dtype, f.per_record] for f in self.fields]
        self.signature = json.dumps({"zstd": _FORMAT, "fields": described}, separators=(",", ":"))
        self._runs = _runs(self.fields)
        self._tools = _ThreadTools(self.raw_bytes)

    def pack(self, arrays: Mapping[str, npt.NDArray[Any]]) -> list[bytes]:
        """Return the blocks of N unrolls, from arrays of any strides.

        Raises:
            ValueError: an array is missing, or has another shape or dtype than its field.
        """
        columns, found = checked_arrays(arrays, self.fields)
        raw = np.empty((columns, self.raw_bytes), np.uint8)
        start = 0
        for field in self.fields:
            array = found[field.name]
            by_column = np.moveaxis(array, 1, 0) if field.per_record else array
            part = raw[:, start : start + field.nbytes]
            if array.itemsize == 1:
                part.view(array.dtype).reshape(by_column.shape)[...] = by_column
            else:
                elements = np.ascontiguousarray(by_column).reshape(columns, -1).view(np.uint8)
                planes = elements.reshape(columns, -1, array.itemsize).transpose(0, 2, 1)
                part.reshape(planes.shape)[...] = planes
            start += field.nbytes
        compress = self._tools.compressor.compress
        # A copy, because zstandard's result keeps its worst-case memory, many times that of the block.
        return [bytes(memoryview(compress(row.data))) for row in raw]

    def unpacked(self, blocks: Sequence[bytes]) -> dict[str, npt.NDArray[Any]]:
        """The unrolls of N blocks in new arrays, see `batch_arrays`; raises ValueError as `unpack` does."""
        arrays = batch_arrays(self.fields, len(blocks))
        self.unpack(blocks, arrays)
        return arrays

    def unpack(self, blocks: Sequence[bytes], out: Mapping[str, npt.NDArray[Any]]) -> None:
        """Write the unrolls of N blocks into the arrays `out`, of any strides.

        Raises:
            ValueError: a block is damaged or has other fields, or an array of `out` does not fit its field.
        """
        columns = len(blocks)
        targets = {field.name: _checked(out, field, columns) for field in self.fields}
        # Small fields of all unrolls are decoded together: separate calls would take longer than the copies.
        together = np.empty((columns, sum(size for few, _, size in self._runs if few[0].nbytes < _LARGE)), np.uint8)
        for column, block in enumerate(blocks):
            # One at a time, so that each reuses memory that is in the processor's cache.
            raw = self._decompressed(block)
            place = 0
            for few, start, size in self._runs:
                part = raw[start : start + size]
                if few[0].nbytes < _LARGE:
                    together[column, place : place + size] = part
                    place += size
                else:
                    target = targets[few[0].name]
                    target = target[:, column] if few[0].per_record else target[column]
                    target[...] = _elements(part[np.newaxis], few[0])[0]
        place = 0
        for field in (field for few, _, _ in self._runs for field in few if few[0].nbytes < _LARGE):
            values = _elements(together[:, place : place + field.nbytes], field)
            targets[field.name][...] = np.moveaxis(values, 0, 1) if field.per_record else values
            place += field.nbytes

    def _decompressed(self, block: bytes) -> npt.NDArray[np.uint8]:
        try:
            # Check the size first, so that a block cannot make us allocate more than an unroll.
            if zstandard.frame_content_size(block) != self.raw_bytes:
                raise ValueError(f"a block of other fields: it does not hold {self.raw_bytes} bytes")
            return np.frombuffer(self._tools.decompressor.decompress(block), np.uint8)
        except zstandard.ZstdError as error:
            raise ValueError(f"a damaged block: {error}") from error


def batch_arrays(fields: Sequence[BlockField], columns: int, records: int | None = None) -> dict[str, npt.NDArray[Any]]:
    """New arrays for N columns: [R, N, ...] of per-record fields, [N, ...] of the others; contiguous, 64-byte aligned.

    Args:
        fields: of an unroll.
        columns: N.
        records: R, if it is not that of the fields.
    """
    arrays = {}
    for field in fields:
        shape = (columns, *field.shape)
        if field.per_record:
            shape = (field.shape[0] if records is None else records, columns, *field.shape[1:])
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(field.dtype).itemsize
        arrays[field.name] = aligned_empty(nbytes).view(field.dtype).reshape(shape)
    return arrays


def checked_arrays(
    arrays: Mapping[str, npt.NDArray[Any]], fields: Sequence[BlockField]
) -> tuple[int, dict[str, npt.NDArray[Any]]]:
    """N, and the arrays of N unrolls side by side by the names of their fields.

    Raises:
        ValueError: an array is missing, or has another shape or dtype than its field.
    """
    columns = _columns(arrays, fields)
    return columns, {field.name: _checked(arrays, field, columns) for field in fields}


def _runs(fields: Sequence[BlockField]) -> list[tuple[list[BlockField], int, int]]:
    """Group consecutive small fields, with each large one alone; returns (fields, first byte, bytes) of each run."""
    runs: list[list[BlockField]] = []
    for field in fields:
        if runs and field.nbytes < _LARGE and runs[-1][0].nbytes < _LARGE:
            runs[-1].append(field)
        else:
            runs.append([field])
    found, start = [], 0
    for few in runs:
        size = sum(field.nbytes for field in few)
        found.append((few, start, size))
        start += size
    return found


def _elements(raw: npt.NDArray[np.uint8], field: BlockField) -> npt.NDArray[Any]:
    """Decode the byte planes of raw [N, bytes] into values [N, *shape]."""
    dtype = np.dtype(field.dtype)
    if dtype.itemsize > 1:
        planes = raw.reshape(len(raw), dtype.itemsize, -1)
        raw = np.ascontiguousarray(planes.transpose(0, 2, 1)).reshape(len(raw), -1)
    return raw.view(dtype).reshape(len(raw), *field.shape)


def _columns(arrays: Mapping[str, npt.NDArray[Any]], fields: Sequence[BlockField]) -> int:
    """N, the number of unrolls in the first field's array."""
    array = arrays.get(fields[0].name)
    axis = int(fields[0].per_record)
    return array.shape[axis] if array is not None and array.ndim > axis else 0


def _checked(arrays: Mapping[str, npt.NDArray[Any]], field: BlockField, columns: int) -> npt.NDArray[Any]:
    array = arrays.get(field.name)
    shape = (field.shape[0], columns, *field.shape[1:]) if field.per_record else (columns, *field.shape)
    if array is None or array.shape != shape or array.dtype != np.dtype(field.dtype):
        found = "missing" if array is None else f"{array.dtype} {array.shape}"
        raise ValueError(f"field {field.name} is {found} where {field.dtype} {shape} is expected")
    return array
