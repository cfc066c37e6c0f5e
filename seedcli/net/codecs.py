"""Codecs for observations on the wire: one per array, agreed in the handshake. For measurements see docs/codecs.md.

The encoded row of E environments whose observations have n arrays, little-endian:

| bytes | field |
|---|---|
| 4 n | length of each array's block, uint32 |
| 4 E | reward, float32 |
| E | terminated, uint8 |
| E | truncated, uint8 |
| sum of the lengths | the blocks, in the order of the arrays' names |

Codecs are stateless: no row depends on an earlier one.
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
_WINDOW = (10, 31)  # zstd's limits for the log2 of a window


def binary_values(array: ArraySpec) -> tuple[int, int] | None:
    """The two values of an array's bytes, (for bit 0, for bit 1); None if they can take other values."""
    if array.dtype == "bool":
        return 0, 1
    return (array.binary[0], array.binary[1]) if array.binary else None


def fitting_codecs(array: ArraySpec) -> tuple[str, ...]:
    """The codecs that can carry an array."""
    return tuple(name for name in CODECS if not name.startswith("bits") or binary_values(array) is not None)


def check_codecs(spec: EnvSpec, codecs: Mapping[str, str], offered: Collection[str]) -> None:
    """Check that the codecs were offered and fit their arrays.

    Args:
        spec: the environment's specification.
        codecs: codec by array name, for every array of `spec`.
        offered: the codecs that CONFIGURE listed.

    Raises:
        RefusedError: a codec was not offered or does not fit its array.
    """
    for name, array in spec.arrays.items():
        if codecs[name] not in offered or codecs[name] not in CODECS:
            raise RefusedError(
                f"codec {codecs[name]!r:.40} of array {name!r} is not one of {', '.join(sorted(offered))}, "
                "which this learner accepts: install the same seedcli on both sides"
            )
        if codecs[name] not in fitting_codecs(array):
            raise RefusedError(
                f"codec {codecs[name]!r} needs two values, and array {name!r} may have others: use codec 'raw'"
            )


class ArrayCodec:
    """Encodes one array of E environments, [E, ...], as a block of bytes, without loss.

    *raw* is the array's bytes. *bits* is one bit per byte of an array with two values, in the order of `np.packbits`.
    *zstd* is one zstd frame (RFC 8878) that includes its content's size; *bits+zstd* is the frame of the bits. If the
    frame is not smaller than its content, the block is the content: a block of the content's size is never a frame.

    Args:
        name: one of `CODECS`.
        array: the array of one environment.
        num_envs: E.

    Attributes:
        raw_bytes: size of the array.
        max_bytes: maximum size of a block.
    """

    def __init__(self, name: str, array: ArraySpec, num_envs: int) -> None:
        if name not in fitting_codecs(array):
            raise ValueError(f"codec {name!r} does not fit {array}: use one of {', '.join(fitting_codecs(array))}")
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
        """Return the block of `raw`, contiguous [raw_bytes] uint8: a buffer of at most `max_bytes`.

        Raises:
            EnvironmentFailed: an array with two values has a third.
        """
        content: Any = raw
        if self._values is not None:
            low, high = self._values
            upper = raw == high
            if np.count_nonzero(upper) + (np.count_nonzero(raw == low) if low != high else 0) != raw.size:
                raise EnvironmentFailed(
                    f"the environment returned a value other than {low} and {high} in an array specified to have only "
                    "these two: correct the specification, or set net.compression to off"
                )
            content = np.packbits(upper)
        if self._compressor is not None:
            frame = self._compressor.compress(content)
            if len(frame) < self.max_bytes:
                return frame
        return content

    def check_length(self, length: int) -> bool:
        """Whether a block may have `length` bytes."""
        return 0 < length <= self.max_bytes if self._compressor is not None else length == self.max_bytes

    def decode(self, block: memoryview, out: npt.NDArray[np.uint8]) -> None:
        """Decode a block into `out`, contiguous [raw_bytes] uint8.

        The size in the block is compared with the specification before memory is allocated.

        Raises:
            ProtocolError: the block is invalid; the content of `out` is then undefined.
        """
        if not self.check_length(len(block)):
            raise ProtocolError(f"a block has {len(block)} bytes for an array of {self.raw_bytes}")
        content: Any = block
        if len(block) != self.max_bytes:
            try:
                size = zstandard.frame_content_size(block)
                if size != self.max_bytes:
                    raise ProtocolError(f"a block announces {size} bytes, expected {self.max_bytes}")
                content = self._decompressor.decompress(block, allow_extra_data=False)
            except zstandard.ZstdError as error:
                raise ProtocolError(f"a block is not a zstd frame: {error}") from error
            if len(content) != self.max_bytes:
                raise ProtocolError(f"a block contains {len(content)} bytes, expected {self.max_bytes}")
        content = np.frombuffer(content, np.uint8)
        if self._values is None:
            out[:] = content
            return
        low, high = self._values
        # Modulo 256, because the values may be in either order.
        np.multiply(np.unpackbits(content, count=self.raw_bytes), np.uint8((high - low) & 0xFF), out=out)
        if low:
            np.add(out, np.uint8(low), out=out)


class _RowCodec:
    """The layout of raw and encoded rows."""

    def __init__(self, layout: RowLayout, codecs: Mapping[str, str]) -> None:
        arrays = layout.spec.arrays
        self._codecs = [ArrayCodec(codecs[name], array, layout.num_envs) for name, array in arrays.items()]
        self._lengths = struct.Struct(f"<{len(arrays)}I")
        # (slice of the row, slice of the payload) of reward, terminated and truncated.
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
        self.max_payload = at + sum(codec.max_bytes for codec in self._codecs)


class RowEncoder(_RowCodec):
    """Encodes the rows of one stream; not thread-safe.

    Args:
        layout: the rows' layout.
        codecs: codec by array name.

    Attributes:
        max_payload: maximum size of an encoded row, bytes.
    """

    def encode(self, row: npt.NDArray[np.uint8], out: memoryview) -> int:
        """Encode `row`, [row_bytes] uint8, into `out`, at least `max_payload` bytes; returns the encoded size.

        Raises:
            EnvironmentFailed: an array with two values has a third.
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
    """Decodes the rows of one stream; not thread-safe. Arguments and attributes are those of `RowEncoder`."""

    def decode(self, payload: Payload, destination: memoryview) -> None:
        """Decode a payload into `destination`, [row_bytes]; the padding between the arrays is left unchanged.

        Raises:
            ProtocolError: the payload is invalid; the content of `destination` is then undefined.
        """
        view = memoryview(payload)
        if len(view) < self._head:
            raise ProtocolError(f"an encoded row has {len(view)} bytes, fewer than the {self._head} before its blocks")
        lengths = self._lengths.unpack_from(view)
        if self._head + sum(lengths) != len(view):
            raise ProtocolError(
                f"an encoded row has {len(view)} bytes, but its lengths add up to {self._head + sum(lengths)}"
            )
        row = np.frombuffer(destination, np.uint8)
        at = self._head
        for codec, place, length in zip(self._codecs, self._places, lengths, strict=True):
            codec.decode(view[at : at + length], row[place])
            at += length
        for target, source in self._scalars:
            row[target] = np.frombuffer(view[source], np.uint8)
