"""What an eavesdropper can read: all bytes between an actor and a learner are recorded and searched."""

from __future__ import annotations

import os
import select
import socket
import threading

import pytest

from seedcli.net.frames import Kind, pack_header
from seedcli.net.security.keys import curve_keys
from tests.net.harness import LIMIT, TOKEN, Actor, Learner, expect
from tests.net.protected import MINE, PROTECTED


class Wire:
    """A TCP proxy that records every byte."""

    def __init__(self, address: str) -> None:
        scheme, _, where = address.rpartition("://")
        host, _, port = where.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"{scheme}://" * bool(scheme) + f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.sent, self.received = bytearray(), bytearray()
        self._stop, self._stopper = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pairs: dict[socket.socket, tuple[socket.socket, bytearray]] = {}
        while True:
            for ready in select.select([self._listener, self._stop, *pairs], [], [])[0]:
                if ready is self._stop:
                    for each in pairs:
                        each.close()
                    return
                if ready is self._listener:
                    near, far = self._listener.accept()[0], socket.create_connection(self._target)
                    pairs |= {near: (far, self.sent), far: (near, self.received)}
                elif ready in pairs:
                    other, kept = pairs[ready]
                    try:
                        data = ready.recv(65536)
                        kept += data
                        if data:
                            other.sendall(data)
                    except OSError:
                        data = b""
                    if not data:
                        for each in (ready, other):
                            pairs.pop(each, None)
                            each.close()

    def close(self) -> None:
        self._stopper.close()
        self._thread.join(LIMIT)
        self._listener.close()
        self._stop.close()


def readable(learner: Learner) -> dict[str, bytes]:
    """Record a session; returns what an eavesdropper can read, by name. The row holds random bytes."""
    row = os.urandom(16) * 62 + bytes(8)
    wire = Wire(learner.server.address)
    try:
        actor = Actor(wire.address, "an-actor-with-a-name", learner.security)
        actor.echo(0, row)
        actor.client.heartbeat(pack_header(Kind.HEARTBEAT, session=7))
        expect(actor.client, Kind.HEARTBEAT_ACK)
        actor.client.close()
    finally:
        wire.close()
    assert len(wire.sent) > 1000 and len(wire.received) > 100
    keys = {"actor_id": b"actor_id", "environment": b"environment", "nonce": b'"nonce"', "proof": b'"proof"'}
    keys |= {"actor": b"an-actor-with-a-name", "specification": b"test/rows", "magic": b"SEED", "row": row[:16]}
    keys |= {"token": TOKEN.encode()}
    for purpose in ("zeromq curve learner", "zeromq curve actor", "proof actor", "proof learner"):
        keys |= {purpose: MINE.derive(purpose), f"{purpose} in hex": MINE.derive(purpose).hex().encode()}
    for side in ("learner", "actor"):
        keys |= {f"curve secret of the {side}": curve_keys(MINE, side)[1]}  # type: ignore[arg-type]
    both = bytes(wire.sent) + b"\0" * 64 + bytes(wire.received)
    return {name: text for name, text in keys.items() if text in both}


@PROTECTED
def test_nothing_readable_crosses_the_wire(kind: str, learner: Learner) -> None:
    assert set(readable(learner)) == set()


@pytest.mark.parametrize("kind", ["grpc", "zmq"])
def test_plain_text_crosses_the_wire_without_security(kind: str, learner: Learner) -> None:
    """The control: without security the same search finds it."""
    found = set(readable(learner))
    assert {"actor_id", "environment", "nonce", "actor", "specification", "magic", "row"} <= found
    assert not any("token" in name or "curve" in name for name in found)


@pytest.mark.parametrize("kind", ["grpc+token", "zmq+token"])
def test_a_recorded_session_cannot_be_replayed(kind: str, learner: Learner) -> None:
    wire = Wire(learner.server.address)
    try:
        actor = Actor(wire.address, "once", learner.security)
        actor.echo(0, bytes(1000))
        actor.client.close()
    finally:
        wire.close()
    assert learner.lost_peers.get(timeout=LIMIT).peer == learner.peers["once"]
    rows = len(learner.rows)
    host, _, port = learner.server.address.removeprefix("zmq://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=LIMIT) as again:
        again.sendall(wire.sent)
        again.shutdown(socket.SHUT_WR)
        try:
            while again.recv(65536):
                pass
        except ConnectionResetError:
            pass
    late = Actor(learner.server.address, "late", learner.security)
    late.echo(0, bytes(1000))
    late.client.close()
    assert len(learner.rows) == rows + 1 and set(learner.peers) == {"once", "late"}
