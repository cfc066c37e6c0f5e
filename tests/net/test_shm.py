"""The shared-memory transport: invalid packets on its socket, long answers, and fairness between actors."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from seedcli.errors import ConnectionLost, ProtocolError
from seedcli.net.base import Destination, Payload, Peer
from seedcli.net.frames import ANSWER_LIMIT, CONTROL_LIMIT, Header, Kind, encode_control, pack_header
from seedcli.net.shm import ShmClient
from tests.net.harness import LIMIT, Actor, Learner, expect, make_server, wait_until_gone

Join = Callable[..., Actor]

HELLO = encode_control({"actor_id": "raw", "envs": 1, "streams": 1, "version": "1"})
HELLO_HEADER = pack_header(Kind.HELLO, len(HELLO))


@pytest.fixture
def kind() -> str:
    return "shm"


@contextlib.contextmanager
def raw_connection(learner: Learner) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as raw:
        raw.settimeout(LIMIT)
        raw.connect(learner.server.address.removeprefix("shm://"))
        yield raw


@pytest.mark.parametrize(
    "packet",
    [
        b"x",
        os.urandom(32),
        HELLO_HEADER[:-1],
        HELLO_HEADER,
        HELLO_HEADER + HELLO[:-1],
        HELLO_HEADER + HELLO + b" ",
        HELLO_HEADER + b"\xff" * len(HELLO),
        pack_header(Kind.HELLO, CONTROL_LIMIT + 1) + bytes(CONTROL_LIMIT + 1),
    ],
    ids=["a byte", "noise", "half a header", "no payload", "too short", "too long", "not JSON", "over the limit"],
)
def test_a_malformed_packet_ends_only_that_peer(learner: Learner, join: Join, packet: bytes) -> None:
    good = join(learner, "good")
    with raw_connection(learner) as raw:
        raw.send(packet)
        lost = learner.lost_peers.get(timeout=LIMIT)
        assert lost.malformed and lost.peer.address == f"process {os.getpid()}"
        assert raw.recv(100) == pack_header(Kind.UNKNOWN)
        assert raw.recv(100) == b""
    good.echo(0, bytes(1000))
    assert learner.lost_peers.empty()


@pytest.mark.parametrize(
    "packet",
    [
        b"x",
        os.urandom(32) + b"x",
        pack_header(Kind.STEP, 1000, session=7) + bytes(1000),
        pack_header(Kind.STEP, 1000, session=7)[:-1],
        pack_header(Kind.STEP, 999, session=7),
        pack_header(Kind.STEP, 1000, stream=2, session=7),
    ],
    ids=["a byte", "noise", "a row in the packet", "half a header", "another size", "another stream"],
)
def test_garbage_in_a_session_ends_only_that_actor(learner: Learner, join: Join, packet: bytes) -> None:
    good, bad = join(learner, "good"), join(learner, "bad")
    bad.client.send(packet)
    lost = learner.lost_peers.get(timeout=LIMIT)
    assert lost.malformed and lost.peer == learner.peers["bad"]
    wait_until_gone(bad.client)
    good.echo(0, bytes(1000))


@pytest.mark.parametrize("size", [0, 1, CONTROL_LIMIT, CONTROL_LIMIT + 1, 1_000_003])
def test_answers_of_any_size_arrive(learner: Learner, join: Join, size: int) -> None:
    actor = join(learner)
    payloads = [os.urandom(size) for _ in range(3)]
    for number, payload in enumerate(payloads):
        learner.call(lambda p=payload, n=number: learner.send(learner.peers["actor"], Kind.ACTION, p, sequence=n))
    for number, payload in enumerate(payloads):
        frame = expect(actor.client, Kind.ACTION)
        assert frame.header.sequence == number and bytes(frame.payload) == payload
    actor.echo(0, bytes(1000))


@pytest.mark.parametrize(
    ("packets", "sentence"),
    [
        ([pack_header(Kind.ACTION, 3) + b"four"], "whose size differs"),
        ([pack_header(Kind.ACTION, 5) + b"four"], "whose size differs"),
        ([pack_header(Kind.ACTION, ANSWER_LIMIT + 1) + bytes(CONTROL_LIMIT)], "over the limit"),
        ([pack_header(Kind.ACTION, CONTROL_LIMIT + 3) + bytes(CONTROL_LIMIT), b"four"], "whose size differs"),
        ([pack_header(Kind.ACTION, CONTROL_LIMIT + 3) + bytes(CONTROL_LIMIT), b"2!"], "whose size differs"),
    ],
)
def test_an_actor_refuses_damaged_frames(tmp_path: Any, packets: list[bytes], sentence: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "learner"))
        listener.listen()
        client = ShmClient(str(tmp_path / "learner"))
        client.connect(LIMIT)
        connection, _ = listener.accept()
        for packet in packets:
            connection.send(packet)
        with pytest.raises(ProtocolError, match=sentence):
            client.receive(0.2)
        connection.close()
        with pytest.raises(ConnectionLost):
            client.receive(LIMIT)
        client.close()


def test_a_long_answer_may_come_in_several_calls(tmp_path: Any) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "learner"))
        listener.listen()
        client = ShmClient(str(tmp_path / "learner"))
        client.connect(LIMIT)
        connection, _ = listener.accept()
        payload = os.urandom(CONTROL_LIMIT + 3)
        connection.send(pack_header(Kind.ACTION, len(payload)) + payload[:CONTROL_LIMIT])
        assert client.receive(0.05) is None
        connection.send(payload[CONTROL_LIMIT:])
        connection.send(pack_header(Kind.DONE))
        frame = client.receive(LIMIT)
        assert frame is not None and frame.payload == payload
        frame = client.receive(LIMIT)
        assert frame is not None and frame.header.kind == Kind.DONE
        client.close()
        connection.close()


class OneAtATime:
    """A handler that takes one frame in each call of `receive`."""

    full = False

    def __init__(self) -> None:
        self.senders: list[Peer] = []

    def destination(self, peer: Peer, header: Header) -> Destination | None:
        return None

    def take_row(self, destination: Destination, header: Header, payload: Payload) -> None:
        raise AssertionError("no session has a row")

    def frame(self, peer: Peer, header: Header, payload: Payload) -> None:
        self.senders.append(peer)
        self.full = True

    def lost(self, peer: Peer, reason: str, *, malformed: bool = False) -> None:
        raise AssertionError(reason)


def test_no_actor_starves_another() -> None:
    """Three actors with frames waiting are served in turn, even if each call takes one frame."""
    server, handler = make_server("shm"), OneAtATime()
    clients = [ShmClient(server.address.removeprefix("shm://")) for _ in range(3)]
    try:
        for client in clients:
            client.connect(LIMIT)
        while server.receive(handler):  # accepts them
            pass
        for client in clients:
            for _ in range(10):
                client.send(HELLO_HEADER, HELLO)
        while len(handler.senders) < 30:
            handler.full = False
            assert server.receive(handler)
        for turn in range(10):
            assert len(set(handler.senders[3 * turn : 3 * turn + 3])) == 3
    finally:
        for client in clients:
            client.close()
        server.close()


FORKED = """
import os, sys, time
from tests.net.harness import Actor
actor = Actor(sys.argv[1], "parent")
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
sys.stdin.read()
"""


def test_an_actor_is_noticed_to_have_ended_while_its_child_lives(spawn: Callable[..., Any]) -> None:
    """The child, such as a simulator's, has inherited the connection."""
    learner = Learner(make_server("shm", timeout=2.0), [1000]).start()
    try:
        process = spawn("-c", FORKED, learner.server.address)
        child = int(process.stdout.readline())
        process.kill()
        lost = learner.lost_peers.get(timeout=LIMIT)
        assert lost.peer == learner.peers["parent"] and not lost.malformed and "has ended" in lost.reason
        os.kill(child, signal.SIGKILL)
    finally:
        learner.close()
