"""Mutations of valid frames: of their bytes, their headers, their JSON, their encoded rows.

Most have one wrong place, so that they pass all checks before it.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import zstandard

from seedcli.net.frames import HEADER_BYTES, Kind, pack_header

_HEADER = struct.Struct("<4sBBHIIQQ")
_FIELDS = {"magic": 4, "version": 1, "kind": 1, "stream": 2, "sequence": 4, "payload_bytes": 4, "session": 8, "zero": 8}
_INTEGERS = [
    *(-1, 0, 1, 2, 3, 4, 5, 8, 9, 64, 65, 255, 256, 257, 4095, 4096, 4097, 65_535, 65_536, 65_537),
    *(2**20, 2**20 + 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63, 2**64 - 1, 2**64, 10**400),
]
_TEXTS = [
    "",
    " ",
    "x",
    "x" * 65,
    "x" * 600,
    "\x00",
    "\n",
    "é",
    "\ud800",
    "💥" * 40,
    "raw",
    "bits",
    "zstd",
    "float32",
    "../..",
]
_OTHERS: list[Any] = [
    *(None, True, False, 0.5, -0.0, 1e308, float("nan"), float("inf"), [], {}, [1], [[1]], [None], [-1], [2**40]),
    *([0], [1, 1], [2**20] * 2, [2**31 - 1] * 2, [1] * 9, [1] * 5000, {"": 0}, {"shape": [1]}, [0, 255], [0, 1, 2]),
    {f"array-{i}": {} for i in range(65)},
]
# A block of four bytes (RFC 8878) that holds 128 KiB of zeros, after headers that claim no size, 12 and 16 bytes.
_ZEROS = b"\x03\x00\x10\x00"
_BLOCKS = [
    b"",
    b"\x28\xb5\x2f\xfd\x00\x58" + _ZEROS,
    b"\x28\xb5\x2f\xfd\x20\x0c" + _ZEROS,
    b"\x28\xb5\x2f\xfd\x20\x10" + _ZEROS,
    b"\x28\xb5\x2f\xfd\x20\x10\x01\x00\x00",  # 16 bytes claimed, an empty last block
    b"\x28\xb5\x2f\xfd\x20\x0c\x01\x00\x00",
    b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd",  # a skippable frame
    zstandard.ZstdCompressor(level=1).compress(bytes(2**22)),
]


class Sent(NamedTuple):
    """A frame to send; `what` names the change."""

    header: bytes
    payload: bytes
    what: str


class Mutator:
    """A source of mutations; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def frame(
        self,
        kind: int,
        payload: bytes,
        *,
        session: int = 0,
        stream: int = 0,
        sequence: int = 0,
        blocks: int = 0,
        lengths: bool = True,
        elsewhere: int = 0,
    ) -> Sent:
        """Return a mutated frame.

        Args:
            kind, payload, session, stream, sequence: of the valid frame.
            blocks: number of encoded arrays in the payload.
            lengths: whether the header may claim a wrong length.
            elsewhere: bytes of a row in shared memory, which the header claims but the payload does not hold.
        """
        fields = {"stream": stream, "sequence": sequence, "session": session}
        ways: list[Callable[[], tuple[bytes, bytes, str]]] = []

        def changed_header() -> tuple[bytes, bytes, str]:
            names = [name for name in _FIELDS if lengths or name != "payload_bytes"]
            name = self.random.choice(names)
            header = pack_header(kind, elsewhere or len(payload), **fields)
            return self._with_field(header, name), payload, f"header {name}"

        def noisy_header() -> tuple[bytes, bytes, str]:
            return self.noise(pack_header(kind, elsewhere or len(payload), **fields)), payload, "header bytes"

        def noisy_payload() -> tuple[bytes, bytes, str]:
            body = self.noise(payload)
            return pack_header(kind, len(body), **fields), body, "payload bytes"

        def another_kind() -> tuple[bytes, bytes, str]:
            return pack_header(self.random.choice(list(Kind)), len(payload), **fields), payload, "another kind"

        def changed_json() -> tuple[bytes, bytes, str]:
            body = self.json(payload)
            return pack_header(kind, len(body), **fields), body, "JSON"

        def changed_blocks() -> tuple[bytes, bytes, str]:
            body = self.row(payload, blocks)
            return pack_header(kind, len(body), **fields), body, "encoded row"

        ways += [changed_header, noisy_header, noisy_payload, another_kind]
        if payload[:1] == b"{":
            ways += [changed_json] * 8
        if blocks:
            ways += [changed_blocks] * 8
        return Sent(*self.random.choice(ways)())

    def _with_field(self, header: bytes, name: str) -> bytes:
        at = 0
        for field, width in _FIELDS.items():
            if field == name:
                old = int.from_bytes(header[at : at + width], "little")
                new = self.random.choice(
                    [old + 1, old - 1, old ^ 1, 0, 2 ** (8 * width) - 1, self.random.getrandbits(63)]
                )
                return header[:at] + (new % 2 ** (8 * width)).to_bytes(width, "little") + header[at + width :]
            at += width
        raise KeyError(name)

    def noise(self, data: bytes) -> bytes:
        """Return `data` with bits flipped, bytes cut off or inserted, or all of it replaced."""
        pick = self.random.randrange(6)
        if pick == 0 or not data:
            return self.random.randbytes(self.random.choice([1, 16, HEADER_BYTES, 100, 1000]))
        at = self.random.randrange(len(data))
        if pick == 1:
            return data[:at]
        if pick == 2:
            return data[:at] + self.random.randbytes(self.random.randrange(1, 9)) + data[at:]
        if pick == 3:
            return data + self.random.randbytes(self.random.choice([1, 8, 500]))
        changed = bytearray(data)
        for _ in range(self.random.choice([1, 1, 2, 8])):
            changed[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
        return bytes(changed)

    # -- JSON -------------------------------------------------------------------------------------------------

    def json(self, payload: bytes) -> bytes:
        """Return a JSON object with a changed value, an added, missing or duplicate field, or deep nesting."""
        text = payload.decode()
        message = json.loads(text)
        pick = self.random.randrange(12)
        if pick == 0:
            depth = self.random.choice([50, 2_000, 30_000])
            return text.replace(":", ":" + "[" * depth, 1).encode()
        if pick == 1 and len(message):
            key = self.random.choice(list(message))
            return f"{text[:-1]},{json.dumps(key)}:{self._dump(self._value())}}}".encode()
        if pick == 2:
            return self._dump(self.random.choice([[message], None, 1, "x", [], {}, {"": message}])).encode()
        if pick == 3:
            return (text[:-1] + "," + " " * self.random.choice([10, 70_000]) + '"z":0}').encode()
        places = _places(message)
        if not places:
            return self._dump({"field": self._value()}).encode("utf-8", "surrogatepass")
        holder, key = self.random.choice(places)
        if pick == 4:
            del holder[key]
        elif pick == 5 and isinstance(holder, dict):
            holder[f"{key}x"] = holder.pop(key, 0)
        elif pick == 6 and isinstance(holder, dict):
            holder[
                self.random.choice(
                    ["extra", "binary", "categories", "failure", "placed", "observation", "observations"]
                )
            ] = self._value()
        elif pick == 7:
            other, name = self.random.choice(places)
            holder[key] = json.loads(json.dumps(other[name]))
        else:
            holder[key] = self._value(holder[key])
        return self._dump(message).encode("utf-8", "surrogatepass")

    def _value(self, old: Any = None) -> Any:
        """Return any value; half of the time of the type of `old`, which passes more checks."""
        if old is not None and self.random.random() < 0.5:
            same = [value for value in (*_INTEGERS, *_TEXTS, *_OTHERS) if type(value) is type(old)]
            return self.random.choice(same)
        return self.random.choice(self.random.choice((_INTEGERS, _TEXTS, _OTHERS)))

    @staticmethod
    def _dump(value: Any) -> str:
        return json.dumps(value, separators=(",", ":"), check_circular=False)

    # -- encoded rows -----------------------------------------------------------------------------------------

    def row(self, payload: bytes, blocks: int) -> bytes:
        """Return an encoded row with wrong lengths or another block."""
        lengths = list(struct.unpack_from(f"<{blocks}I", payload))
        head = len(payload) - sum(lengths)
        parts, at = [], head
        for length in lengths:
            parts.append(payload[at : at + length])
            at += length
        which = self.random.randrange(blocks)
        pick = self.random.randrange(5)
        if pick == 0:
            lengths[which] = (
                self.random.choice([0, 1, lengths[which] + 1, lengths[which] - 1, 2**31, 2**32 - 1]) % 2**32
            )
            return struct.pack(f"<{blocks}I", *lengths) + payload[4 * blocks :]
        if pick == 1:
            parts[which] = self.random.choice(_BLOCKS)
        elif pick == 2:
            parts[which] = self.noise(parts[which])
        elif pick == 3:
            parts[which] = zstandard.ZstdCompressor(level=1).compress(bytes(self.random.choice([0, 1, 12, 16, 4096])))
        else:
            self.random.shuffle(parts)
        packed = struct.pack(f"<{blocks}I", *map(len, parts))
        return packed + payload[4 * blocks : head] + b"".join(parts)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in nested JSON, as its container and its key or index."""
    found: list[tuple[Any, Any]] = []
    keys: Any = list(value) if isinstance(value, Mapping) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        found.append((value, key))
        found.extend(_places(value[key]))
    return found
