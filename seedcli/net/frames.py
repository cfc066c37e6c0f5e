"""The frame format of all transports: a 32-byte little-endian header, then the payload.

| offset | bytes | field |
|---|---|---|
| 0 | 4 | magic, b"SEED" |
| 4 | 1 | protocol version |
| 5 | 1 | kind |
| 6 | 2 | stream (0 for frames that belong to none) |
| 8 | 4 | sequence number of the step, counted from 0 by the actor; an action has that of its step |
| 12 | 4 | payload bytes; must be exactly what follows |
| 16 | 8 | session id (0 before the session) |
| 24 | 8 | reserved, 0 |

Control payloads are UTF-8 JSON objects. A step's payload is one row (`specs.RowLayout`), encoded if the handshake
agreed on codecs (`net.codecs`); an action's payload is the specification's action array, [E, ...]. Nothing is
unpickled.
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from seedcli.errors import ProtocolError, VersionError

PROTOCOL_VERSION = 3
MAGIC = b"SEED"
_HEADER = struct.Struct("<4sBBHIIQQ")
HEADER_BYTES = _HEADER.size
CONTROL_LIMIT = 64 * 1024  # bytes of a control payload, and of any payload before Ready
ANSWER_LIMIT = 2**24  # bytes of an action's payload


class Kind(enum.IntEnum):
    """The kind of a frame. HELLO to REFUSED are the handshake, in this order."""

    HELLO = 1  # actor: protocol, actor id, number of environments, streams
    CHALLENGE = 2  # learner: nonce, and whether a proof is required
    PROOF = 3  # actor: the answer to the challenge
    CONFIGURE = 4  # learner: the environment's configuration, seed, streams, accepted codecs
    SPEC = 5  # actor: the specification of the environments it has built, codec of each array
    READY = 6  # learner: session id, environments of each stream, payload sizes, timeouts
    REFUSED = 7  # learner: reason; the connection ends
    STEP = 8  # actor: one row of one stream
    ACTION = 9  # learner: actions [E, ...], the answer to the step of the same stream and sequence
    HEARTBEAT = 10  # actor, independent of step traffic
    HEARTBEAT_ACK = 11  # learner
    DONE = 12  # learner: training is done, exit with status 0
    UNKNOWN = 13  # learner: no such session here, e.g. after a restart: reconnect
    GOODBYE = 14  # actor: leaving; its slots can be freed at once
    REDIRECT = 15  # learner, instead of CONFIGURE: the address of the host that serves this actor


class Header(NamedTuple):
    """A decoded header; the module's docstring describes the fields."""

    kind: int
    stream: int
    sequence: int
    payload_bytes: int
    session: int


_KINDS = frozenset(int(kind) for kind in Kind)


def pack_header(kind: int, payload_bytes: int = 0, *, stream: int = 0, sequence: int = 0, session: int = 0) -> bytes:
    """Encode a header to 32 bytes."""
    return _HEADER.pack(MAGIC, PROTOCOL_VERSION, kind, stream, sequence, payload_bytes, session, 0)


def unpack_header(data: bytes | memoryview) -> Header:
    """Decode a header.

    Raises:
        ProtocolError: not 32 bytes, or a wrong magic, kind or reserved field.
        VersionError: another protocol version.
    """
    if len(data) != HEADER_BYTES:
        raise ProtocolError(f"a frame header has {HEADER_BYTES} bytes, not {len(data)}")
    magic, version, kind, stream, sequence, payload_bytes, session, reserved = _HEADER.unpack(data)
    if magic != MAGIC:
        raise ProtocolError(f"a frame starts with {MAGIC!r}, not {bytes(magic)!r}: the peer uses another protocol")
    if version != PROTOCOL_VERSION:
        raise VersionError(
            f"the peer uses protocol version {version}, this is version {PROTOCOL_VERSION}: "
            "install the same seedcli on both sides"
        )
    if kind not in _KINDS or reserved:
        raise ProtocolError(f"unknown frame kind {kind} or reserved field {reserved}")
    return Header(kind, stream, sequence, payload_bytes, session)


def encode_control(message: Mapping[str, Any]) -> bytes:
    """Encode a control payload as compact JSON in UTF-8; raises ProtocolError if it is over the limit."""
    data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) > CONTROL_LIMIT:
        raise ProtocolError(f"a control message of {len(data)} bytes is over the limit of {CONTROL_LIMIT}")
    return data


def decode_control(payload: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Decode a control payload.

    Raises:
        ProtocolError: too long, or not a JSON object.
    """
    if len(payload) > CONTROL_LIMIT:
        raise ProtocolError(f"a control message of {len(payload)} bytes is over the limit of {CONTROL_LIMIT}")
    try:
        message = json.loads(bytes(payload))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a control message is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise ProtocolError(f"a control message must be an object, not {type(message).__name__}")
    return message
