"""Shared by tests of protected connections: two tokens, and refused connections."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import pytest

from seedcli.errors import RefusedError
from seedcli.net.base import ClientTransport
from seedcli.net.connect import connect
from seedcli.net.security.keys import Security
from seedcli.net.security.token import Token
from tests.net.harness import TOKEN, Actor

Join = Callable[..., Actor]
MINE = Token(TOKEN, "these tests")
OTHER = Token("another-token-of-these-tests-0123456789", "elsewhere")
CONNECT = 5.0  # seconds for an actor to connect
PROTECTED = pytest.mark.parametrize("kind", ["grpc+token", "zmq+token"])


@contextlib.contextmanager
def client_of(address: str, security: Security | None) -> Iterator[ClientTransport]:
    client = connect(address, security)
    try:
        yield client
    finally:
        client.close()


def refused(address: str, security: Security | None) -> str:
    """Connect, expect to be refused in time; returns the message."""
    begun = time.monotonic()
    with client_of(address, security) as client, pytest.raises(RefusedError) as caught:
        client.connect(CONNECT)
    assert time.monotonic() - begun < CONNECT + 1
    assert str(caught.value).count("\n") == 0
    return str(caught.value)
