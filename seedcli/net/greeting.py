"""The bytes a server sends on connection: they distinguish a busy or suspended learner from another program.

A learner's ZeroMQ port sends a greeting at once. Its gRPC port sends nothing with TLS, and HTTP/2's SETTINGS without.
"""

from __future__ import annotations

import socket

from seedcli.errors import AuthenticationError, SeedError, UnreachableError
from seedcli.net.addresses import split_host_port

_BYTES = 9  # an HTTP/2 frame header; ZeroMQ's signature has one more
_SECONDS = 0.3
_ZMQ_SIGNATURE = b"\xff"
_SETTINGS = 4  # HTTP/2's frame type, the fourth byte


def greeting(host: str, port: int) -> bytes:
    """Return the first bytes, at most 9, that the server sends; b"" if it sends nothing or closes the connection.

    Raises:
        OSError: the connection was not accepted, or was reset.
    """
    received = b""
    with socket.create_connection((host, port), _SECONDS) as connection:
        connection.settimeout(_SECONDS)
        try:
            while len(received) < _BYTES and (part := connection.recv(_BYTES - len(received))):
                received += part
        except TimeoutError:
            pass
    return received


def is_zmq(received: bytes) -> bool:
    """Whether the bytes begin a ZeroMQ greeting."""
    return received.startswith(_ZMQ_SIGNATURE)


def is_http2(received: bytes) -> bool:
    """Whether the bytes begin an HTTP/2 connection."""
    return len(received) == _BYTES and received[3] == _SETTINGS


def other_protocol(address: str) -> AuthenticationError | None:
    """Return the error for an address at which another program answers; None if that cannot be detected.

    Args:
        address: the learner's address: "host:port" for gRPC, "zmq://host:port" or "shm://path".
    """
    received = _greeting_at(address)
    return not_a_learner(address) if received and _is_other(address, received) else None


def not_a_learner(address: str) -> AuthenticationError:
    """Return the error for an address, see `other_protocol`, at which another program answers."""
    protocol = "ZeroMQ" if address.startswith("zmq:") else "gRPC"
    return AuthenticationError(
        f"the server at {address} does not speak {protocol}, so it is not a learner: check the host and the port; a "
        "learner's gRPC port is written HOST:PORT, its ZeroMQ port zmq://HOST:PORT"
    )


def unanswered(address: str, timeout: float) -> SeedError:
    """Return the error for an address, see `other_protocol`, without a handshake within `timeout` seconds."""
    received = _greeting_at(address)
    if received and _is_other(address, received):
        return not_a_learner(address)
    sentence = f"no learner answered at {address} within {timeout:g} s"
    if received is None:
        return UnreachableError(f"{sentence}: check the address and that the learner is running")
    return UnreachableError(
        f"{sentence}, though connections are accepted there: wait if the learner is starting or busy; otherwise check "
        "that it is not suspended and that the port is a learner's"
    )


def _is_other(address: str, received: bytes) -> bool:
    return not (is_zmq(received) if address.startswith("zmq:") else is_http2(received))


def _greeting_at(address: str) -> bytes | None:
    """Return the greeting at an address; None if no connection is accepted there."""
    parts = split_host_port(address.removeprefix("zmq://"))
    if parts is None:
        return None  # a path, for shared memory
    try:
        return greeting(parts[0].strip("[]"), parts[1])
    except OSError:
        return None
