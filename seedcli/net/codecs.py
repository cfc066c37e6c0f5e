"""Observations on the wire: a codec for each array, agreed in the handshake. What was measured: docs/codecs.md.

An encoded row, little-endian, of E environments whose observations have n arrays:

| bytes | field |
|---|---|
| 4 n | length of each array's block, uint32 |
| 4 E | reward, float32 |
| E | terminated, uint8 |
| E | truncated, uint8 |
| the lengths' sum | the blocks, in the order of the arrays' names |

A codec knows nothing of the row before: nothing is lost with a message, and a session can start anywhere.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from seedcli.errors import EnvironmentFailed, ProtocolError, RefusedError
from seedcli.net.base import Payload
from seedcli.specs import ArraySpec, EnvSpec, RowLayout

RAW = "raw"
CODECS = (RAW, "bits", "zstd", "bits+zstd")
_LEVEL = 1
_WINDOW = (10, 31)  # the smallest and largest log2 of a window that zstd knows


def binary_values(array: ArraySpec) -> tuple[int, int] | None:
    """The two values that an array's bytes take, (lower bit, upper bit); None where they take others."""
    if array.dtype == "bool":
        return 0, 1
    return (array.binary[0], array.binary[1]) if array.binary else None


def fitting_codecs(array: ArraySpec) -> tuple[str, ...]:
    """The codecs that can carry an array."""
    return tuple(name for name in CODECS if not name.startswith("bits") or binary_values(array) is not None)


def check_codecs(spec: EnvSpec, codecs: Mapping[str, str], offered: Collection[str]) -> None:
    """Refuse codecs that were not offered or do not fit.

    Args:
        spec: the environment.
        codecs: codec of each array, by the array's name; the names are the specification's.
        offered: what CONFIGURE said.

    Raises:
        RefusedError: names the array and the codec.
    """
    for name, array in spec.arrays.items():
        if codecs[name] not in offered or codecs[name] not in CODECS:
            raise RefusedError(
                f"codec {codecs[name]!r:.40} of array {name!r} is not one of {', '.join(sorted(offered))}, "
                "which this learner takes here: install the same seedcli on both sides"
            )
        if codecs[name] not in fitting_codecs(array):
            raise RefusedError(f"codec {codecs[name]!r} needs two values, and array {name!r} may take others: send raw")


class ArrayCodec:
    """One array of E environments, [E, ...], to a block of bytes and back to the bit.

    *raw* is the bytes as they are. *bits* is a bit for each byte of an array of two values, in the order of
    `np.packbits`. *zstd* is one zstd frame (RFC 8878) that says its content's size; *bits+zstd* the frame of the bits.
    A frame that would not be smaller than its content is left out: a block of the content's own size is the content.

    Args:
        name: of `CODECS`.
        array: one environment's.
        num_envs: E.

    Attributes:
        raw_bytes: of the array.
        max_bytes: of a block.
    """

    def __init__(self, name: str, array: ArraySpec, num_envs: int) -> None:
        if name not in fitting_codecs(array):
            raise ValueError(f"codec {name!r} is not one of {', '.join(fitting_codecs(array))}, which fit {array}")
        self.raw_bytes = array.nbytes * num_envs
        self._values = binary_values(array) if name.startswith("bits") else None
        self.max_bytes = -(-self.raw_bytes // 8) if self._values else self.raw_bytes
        self._compressor: zstandard.ZstdCompressor | None = None
        if name.endswith("zstd"):
            low, high = _WINDOW
            window = 2 ** min(max((self.max_bytes - 1).bit_length(), low), high)
            self._compressor = zstandard.ZstdCompressor(level=_LEVEL)
            self._decompressor = zstandard.ZstdDecompressor(max_window_size=window)

    def encode(self, raw: npt.NDArray[np.uint8]) -> Any:
        """The block of `raw`, contiguous [raw_bytes] uint8: a buffer of at most `max_bytes`.

        Raises:
            EnvironmentFailed: an array of two values holds another.
        """
        content: Any = raw
        if self._values is not None:
            low, high = self._values
            upper = raw == high
            if np.count_nonzero(upper) + (np.count_nonzero(raw == low) if low != high else 0) != raw.size:
                raise EnvironmentFailed(
                    f"the environment gave another value than {low} and {high} in an array that, it says, holds these "
                    "two: correct its specification, or set net.compression to off"
                )
            content = np.packbits(upper)
        if self._compressor is not None:
            frame = self._compressor.compress(content)
            if len(frame) < self.max_bytes:
                return frame
        return content

    def check_length(self, length: int) -> bool:
        """Whether a block may have so many bytes."""
        return 0 < length <= self.max_bytes if self._compressor is not None else length == self.max_bytes

    def decode(self, block: memoryview, out: npt.NDArray[np.uint8]) -> None:
        """Write the array whose block this is into `out`, contiguous [raw_bytes] uint8.

        Raises:
            ProtocolError: not such a block; `out` may then hold anything. What a block says of its size is held
                against the specification before anything is allocated for it.
        """
        if not self.check_length(len(block)):
            raise ProtocolError(f"a block of {len(block)} bytes for an array of {self.raw_bytes}")
        content: Any = block
        if len(block) != self.max_bytes:
            try:
                size = zstandard.frame_content_size(block)
                if size != self.max_bytes:
                    raise ProtocolError(f"a block that holds {size} bytes where {self.max_bytes} are expected")
                content = self._decompressor.decompress(block, allow_extra_data=False)
            except zstandard.ZstdError as error:
                raise ProtocolError(f"a block that is not a zstd frame: {error}") from error
            if len(content) != self.max_bytes:
                raise ProtocolError(f"a block that held {len(content)} bytes where {self.max_bytes} are expected")
        content = np.frombuffer(content, np.uint8)
        if self._values is None:
            out[:] = content
            return
        low, high = self._values
        # Modulo 256, so that the values may stand in either order.
        np.multiply(np.unpackbits(content, count=self.raw_bytes), np.uint8((high - low) & 0xFF), out=out)
        if low:
            np.add(out, np.uint8(low), out=out)


class _RowCodec:
    """What both directions know of a row."""

    def __init__(self, layout: RowLayout, codecs: Mapping[str, str]) -> None:
        arrays = layout.spec.arrays
        self._codecs = [ArrayCodec(codecs[name], array, layout.num_envs) for name, array in arrays.items()]
        self._lengths = struct.Struct(f"<{len(arrays)}I")
        # From row to payload, [start, stop) of each: reward, terminated, truncated.
        at = self._lengths.size
        self._scalars = []
        for start, width in zip(layout.offsets[len(arrays) :], (4, 1, 1), strict=False):
            nbytes = width * layout.num_envs
            self._scalars.append((slice(start, start + nbytes), slice(at, at + nbytes)))
            at += nbytes
        self._head = at
        self._places = [
            slice(start, start + codec.raw_bytes) for start, codec in zip(layout.offsets, self._codecs, strict=False)
        ]
        self.row_bytes = layout.nbytes
        self.max_payload = at + sum(codec.max_bytes for codec in self._codecs)


class RowEncoder(_RowCodec):
    """Encodes the rows of one stream; belongs to one thread.

    Args:
        layout: of the rows.
        codecs: codec of each array, by the array's name.

    Attributes:
        row_bytes: of a row, uint8.
        max_payload: bytes of the largest payload.
    """

    def encode(self, row: npt.NDArray[np.uint8], out: memoryview) -> int:
        """Write the payload of `row`, [row_bytes] uint8, into `out`, at least `max_payload` bytes; returns its bytes.

        Raises:
            EnvironmentFailed: an array of two values holds another.
        """
        at = self._head
        lengths = []
        for codec, place in zip(self._codecs, self._places, strict=True):
            block = codec.encode(row[place])
            end = at + len(block)
            out[at:end] = block
            lengths.append(len(block))
            at = end
        self._lengths.pack_into(out, 0, *lengths)
        for source, target in self._scalars:
            out[target] = row[source].data
        return at


class RowDecoder(_RowCodec):
    """Decodes the rows of one stream; belongs to one thread. Arguments and attributes as of `RowEncoder`."""

    def decode(self, payload: Payload, destination: memoryview) -> None:
        """Write the row of a payload into `destination`, [row_bytes]; the padding between its arrays stays as it is.

        Raises:
            ProtocolError: the payload is not what these codecs make; `destination` may then hold anything.
        """
        view = memoryview(payload)
        if len(view) < self._head:
            raise ProtocolError(f"an encoded row of {len(view)} bytes, less than the {self._head} before its blocks")
        lengths = self._lengths.unpack_from(view)
        if self._head + sum(lengths) != len(view):
            raise ProtocolError(f"an encoded row of {len(view)} bytes whose blocks say {self._head + sum(lengths)}")
        row = np.frombuffer(destination, np.uint8)
        at = self._head
        for codec, place, length in zip(self._codecs, self._places, lengths, strict=True):
            codec.decode(view[at : at + length], row[place])
            at += length
        for target, source in self._scalars:
            row[target] = np.frombuffer(view[source], np.uint8)
