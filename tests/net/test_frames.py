from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedcli.errors import ProtocolError
from seedcli.net.frames import (
    CONTROL_LIMIT,
    HEADER_BYTES,
    MAGIC,
    PROTOCOL_VERSION,
    Header,
    Kind,
    decode_control,
    encode_control,
    pack_header,
    unpack_header,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(
    st.sampled_from(Kind),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
)
def test_headers_round_trip(kind: Kind, nbytes: int, stream: int, sequence: int, session: int) -> None:
    data = pack_header(kind, nbytes, stream=stream, sequence=sequence, session=session)
    assert len(data) == HEADER_BYTES
    assert unpack_header(data) == Header(kind, stream, sequence, nbytes, session)


def test_the_header_layout_is_as_documented() -> None:
    data = pack_header(Kind.STEP, 0x01020304, stream=5, sequence=6, session=7)
    assert data == b"SEED" + bytes([3, 8, 5, 0, 6, 0, 0, 0, 4, 3, 2, 1, 7]) + bytes(15)


@given(st.binary(max_size=64) | st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_any_bytes_decode_or_are_a_protocol_error(data: bytes) -> None:
    try:
        header = unpack_header(data)
    except ProtocolError:
        return
    assert data == pack_header(
        header.kind, header.payload_bytes, stream=header.stream, sequence=header.sequence, session=header.session
    )


@given(st.binary(min_size=HEADER_BYTES - 6, max_size=HEADER_BYTES - 6), st.integers(0, 255))
def test_any_fields_decode_or_are_a_protocol_error(rest: bytes, kind: int) -> None:
    data = MAGIC + bytes([PROTOCOL_VERSION, kind]) + rest
    known = kind in set(Kind) and rest[-8:] == bytes(8)
    if known:
        assert unpack_header(data).kind == kind
    else:
        with pytest.raises(ProtocolError):
            unpack_header(data)


def test_the_error_names_a_different_version() -> None:
    data = bytearray(pack_header(Kind.HELLO))
    data[4] = PROTOCOL_VERSION + 1
    with pytest.raises(ProtocolError, match=f"version {PROTOCOL_VERSION + 1}, this is version {PROTOCOL_VERSION}"):
        unpack_header(bytes(data))


@given(st.dictionaries(st.text(), JSON, max_size=5))
def test_control_messages_round_trip(message: dict[str, object]) -> None:
    assert decode_control(encode_control(message)) == json.loads(json.dumps(message))


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_control_payload_decodes_or_is_a_protocol_error(payload: bytes) -> None:
    try:
        assert isinstance(decode_control(payload), dict)
    except ProtocolError:
        pass


def test_control_messages_are_limited() -> None:
    with pytest.raises(ProtocolError, match="over the limit"):
        decode_control(b"{}" + b" " * CONTROL_LIMIT)
    with pytest.raises(ProtocolError, match="over the limit"):
        encode_control({"text": "x" * CONTROL_LIMIT})
    with pytest.raises(ProtocolError):
        decode_control(b"[" * 60_000)
