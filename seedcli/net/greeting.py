"""What a server says as soon as somebody connects: it tells a learner that is busy or stopped from another program.

A learner's ZeroMQ port greets at once; its gRPC port says nothing under TLS, and HTTP/2's SETTINGS without.
"""

from __future__ import annotations

import socket

from seedcli.errors import DistrustedError, SeedError, UnreachableError
from seedcli.net.addresses import split_host_port

_BYTES = 9  # the head of an HTTP/2 frame; ZeroMQ's signature has one more
_SECONDS = 0.3
_ZMQ_SIGNATURE = b"\xff"
_SETTINGS = 4  # the type of that frame, its fourth byte


def greeting(host: str, port: int) -> bytes:
    """The first bytes, at most 9, that the server says unasked; b"" where it says nothing, or ends the connection.

    Raises:
        OSError: nobody accepts a connection there, or it was reset.
    """
    said = b""
    with socket.create_connection((host, port), _SECONDS) as connection:
        connection.settimeout(_SECONDS)
        try:
            while len(said) < _BYTES and (part := connection.recv(_BYTES - len(said))):
                said += part
        except TimeoutError:
            pass
    return said


def is_zmq(said: bytes) -> bool:
    """Whether a ZeroMQ peer begins like this."""
    return said.startswith(_ZMQ_SIGNATURE)


def is_http2(said: bytes) -> bool:
    """Whether an HTTP/2 server begins like this."""
    return len(said) == _BYTES and said[3] == _SETTINGS


def other_protocol(address: str) -> DistrustedError | None:
    """The error for an address at which something answers that is no learner; None where that does not show.

    Args:
        address: of the learner, "host:port" for gRPC, "zmq://host:port", "shm://path".
    """
    said = _heard_at(address)
    return not_a_learner(address) if said and _is_other(address, said) else None


def not_a_learner(address: str) -> DistrustedError:
    """The error for an address, see `other_protocol`, at which something else than a learner answers."""
    protocol = "ZeroMQ" if address.startswith("zmq:") else "gRPC"
    return DistrustedError(
        f"what answers at {address} does not speak {protocol}, so no learner listens there: check the host and the "
        "port; a learner's gRPC port is written HOST:PORT, its ZeroMQ port zmq://HOST:PORT"
    )


def unanswered(address: str, timeout: float) -> SeedError:
    """The error for an address, see `other_protocol`, at which nobody has shaken hands within `timeout` seconds."""
    said = _heard_at(address)
    if said and _is_other(address, said):
        return not_a_learner(address)
    nobody = f"no learner answered at {address} within {timeout:g} s"
    if said is None:
        return UnreachableError(f"{nobody}: check the address, and that the learner runs")
    return UnreachableError(
        f"{nobody}, though connections are accepted there: wait if the learner is starting or busy, else check that it "
        "is not stopped, and that the port is a learner's"
    )


def _is_other(address: str, said: bytes) -> bool:
    return not (is_zmq(said) if address.startswith("zmq:") else is_http2(said))


def _heard_at(address: str) -> bytes | None:
    """The greeting of one address; None where none accepts a connection."""
    parts = split_host_port(address.removeprefix("zmq://"))
    if parts is None:
        return None  # a socket of this machine
    try:
        return greeting(parts[0].strip("[]"), parts[1])
    except OSError:
        return None
