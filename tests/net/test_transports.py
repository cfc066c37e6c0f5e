"""Behaviour specific to a transport: raw garbage on the port, limits, addresses."""

from __future__ import annotations

import os
import queue
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import zmq

import seedcli.net.grpc as grpc_transport
from seedcli.errors import RefusedError, UsageError
from seedcli.net import shm_server as shm_transport
from seedcli.net import zmq_router as router_transport
from seedcli.net.connect import connect
from seedcli.net.frames import Kind, encode_control, pack_header
from seedcli.net.grpc import GrpcServer
from seedcli.net.shm_server import ShmServer
from seedcli.net.zmq import ZmqServer
from seedcli.net.zmq_router import RouterServer
from tests.net.harness import LIMIT, Actor, Learner, make_server, wait_until_gone

Join = Callable[..., Actor]
TCP = pytest.mark.parametrize("kind", ["grpc", "zmq"])
PROTECTED_TOO = pytest.mark.parametrize("kind", ["grpc", "grpc+token", "zmq", "zmq+token"])
ROUTER = pytest.mark.parametrize("kind", ["zmq"])

HELLO = encode_control({"actor_id": "raw", "envs": 1, "streams": 1, "version": "1"})
HELLO_HEADER = pack_header(Kind.HELLO, len(HELLO))
GREETING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x00NULL" + bytes(48)  # ZeroMQ's complete greeting
RAW = [
    os.urandom(4096),
    b"\x06\x00hello\x21\x00" + os.urandom(32),  # ZeroMQ's first protocol: an identity, then a message
    bytes(1_000_000),
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + os.urandom(2000),
    GREETING[:20],
    GREETING + os.urandom(2000),
    pack_header(Kind.STEP, 1000) + bytes(1000),
]


@PROTECTED_TOO
def test_raw_garbage_on_the_port_affects_no_actor(learner: Learner, join: Join) -> None:
    good = join(learner, "good")
    host, _, port = learner.server.address.removeprefix("zmq://").rpartition(":")
    for garbage in RAW:
        with socket.create_connection((host, int(port)), timeout=LIMIT) as raw:
            good.echo(0, os.urandom(1000))
            try:
                raw.sendall(garbage)
            except OSError:
                pass  # the server closed the connection
            for _ in range(5):
                good.echo(1, os.urandom(500))
    join(learner, "late").echo(0, bytes(1000))
    good.echo(0, bytes(1000))
    assert {row.actor for row in learner.rows} == {"good", "late"}


def dealer(learner: Learner, **options: int) -> tuple[zmq.Context[Any], zmq.Socket[bytes]]:
    context: zmq.Context[Any] = zmq.Context()
    raw: zmq.Socket[bytes] = context.socket(zmq.DEALER)
    for name, value in {"LINGER": 0, **options}.items():
        raw.setsockopt(getattr(zmq, name), value)
    raw.connect(learner.server.address.replace("zmq://", "tcp://"))
    return context, raw


@ROUTER
@pytest.mark.parametrize(
    "parts",
    [
        [b""],
        [b"", b""],
        [os.urandom(32), b""],
        [HELLO_HEADER],
        [HELLO_HEADER + HELLO],
        [HELLO_HEADER[:-1], HELLO],
        [HELLO_HEADER, HELLO[:-1]],
        [HELLO_HEADER, HELLO + b" "],
        [HELLO_HEADER, HELLO, b""],
        [HELLO_HEADER, HELLO] + [b"x"] * 20,
        [b"", HELLO_HEADER, HELLO],
        [HELLO_HEADER, b"\xff" * len(HELLO)],
    ],
)
def test_a_malformed_message_ends_only_that_peer(learner: Learner, join: Join, parts: list[bytes]) -> None:
    good = join(learner, "good")
    context, raw = dealer(learner)
    raw.send_multipart(parts)
    assert learner.lost_peers.get(timeout=LIMIT).malformed
    assert raw.poll(int(LIMIT * 1000)) and raw.recv_multipart() == [pack_header(Kind.UNKNOWN), b""]
    # Afterwards the server answers every frame with UNKNOWN.
    raw.send_multipart([HELLO_HEADER, HELLO])
    assert raw.poll(int(LIMIT * 1000)) and raw.recv_multipart() == [pack_header(Kind.UNKNOWN), b""]
    good.echo(0, bytes(1000))
    assert learner.lost_peers.empty()
    context.destroy(linger=0)


@ROUTER
def test_garbage_in_a_session_ends_only_that_peer(kind: str, learner: Learner, join: Join) -> None:
    good = join(learner, "good")
    for garbage in ([b""], [os.urandom(32), b"x"], [good.header(0)], [good.header(0), bytes(1000), b"more"]):
        bad = join(learner, "bad")
        bad.client._socket.send_multipart(garbage)  # type: ignore[attr-defined]
        assert learner.lost_peers.get(timeout=LIMIT).malformed
        wait_until_gone(bad.client)
        good.echo(0, bytes(1000))


@ROUTER
def test_memory_of_dropped_peers_is_bounded(learner: Learner, join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_transport, "_DROPPED", 3)
    assert isinstance(learner.server, RouterServer)
    good = join(learner, "good")
    for _ in range(8):
        context, raw = dealer(learner)
        raw.send_multipart([b"garbage", b""])
        assert learner.lost_peers.get(timeout=LIMIT).malformed
        context.destroy(linger=0)
    assert len(learner.server._dropped) == 3 and len(learner.server._connections) == 1
    good.echo(0, bytes(1000))


@ROUTER
def test_a_heartbeat_connection_carries_heartbeats_only(learner: Learner, join: Join) -> None:
    good = join(learner, "good")
    context, raw = dealer(learner)
    raw.disconnect(raw.getsockopt_string(zmq.LAST_ENDPOINT))
    raw.setsockopt(zmq.IDENTITY, b"H" + good.client._name)  # type: ignore[attr-defined]
    raw.connect(learner.server.address.replace("zmq://", "tcp://"))
    raw.send_multipart([good.header(0), bytes(1000)])
    lost = learner.lost_peers.get(timeout=LIMIT)
    assert lost.malformed and lost.peer != learner.peers["good"]
    good.echo(0, bytes(1000))
    context.destroy(linger=0)


@pytest.mark.parametrize("kind", ["grpc"])
@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"x",
        os.urandom(32),
        HELLO_HEADER[:-1],
        HELLO_HEADER,
        HELLO_HEADER + HELLO[:-1],
        HELLO_HEADER + HELLO + b" ",
        HELLO_HEADER + b"\xff" * len(HELLO),
    ],
    ids=["empty", "a byte", "noise", "half a header", "no payload", "too short", "too long", "not JSON"],
)
def test_a_malformed_grpc_message_ends_only_that_stream(learner: Learner, join: Join, message: bytes) -> None:
    good = join(learner, "good")
    with grpc.insecure_channel(learner.server.address) as channel:
        requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        requests.put(message)
        call = channel.stream_stream("/seed.Actor/Connect")(iter(requests.get, None))
        with pytest.raises(grpc.RpcError):
            for _ in call:
                pass
        requests.put(None)
        assert call.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert learner.lost_peers.get(timeout=LIMIT).malformed
    good.echo(0, bytes(1000))


@pytest.mark.parametrize("kind", ["grpc", "zmq", "shm"])
def test_a_peer_that_does_not_read_is_dropped(
    kind: str, learner: Learner, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_transport, "_OUTGOING", 8)
    monkeypatch.setattr(grpc_transport, "_OUTGOING", 8)
    monkeypatch.setattr(shm_transport, "_OUTGOING", 8)
    server = make_server(kind)
    seen: queue.SimpleQueue[Any] = queue.SimpleQueue()
    other = Learner(server, [1000])
    shake_hands = other._shake_hands
    monkeypatch.setattr(
        other,
        "_shake_hands",
        lambda peer, header, payload: seen.put(peer) if payload == HELLO else shake_hands(peer, header, payload),
    )
    other.start()
    try:
        if kind == "zmq":
            context, raw = dealer(other, RCVHWM=1)
            raw.send_multipart([HELLO_HEADER, HELLO])
        elif kind == "shm":
            silent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            silent.connect(server.address.removeprefix("shm://"))
            silent.send(HELLO_HEADER + HELLO)
        else:
            channel = grpc.insecure_channel(server.address)
            requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
            requests.put(HELLO_HEADER + HELLO)
            call = channel.stream_stream("/seed.Actor/Connect")(iter(requests.get, None))
        peer = seen.get(timeout=LIMIT)
        for _ in range(500):
            other.call(lambda: other.send(peer, Kind.ACTION, bytes(60_000)))
            if not other.lost_peers.empty():
                break
        lost = other.lost_peers.get(timeout=LIMIT)
        assert lost.peer == peer and "does not read" in lost.reason and not lost.malformed
        join(other, "good").echo(0, bytes(1000))
        if kind == "zmq":
            context.destroy(linger=0)
        elif kind == "shm":
            silent.close()
        else:
            requests.put(None)
            call.cancel()
            channel.close()
    finally:
        other.close()


@pytest.mark.parametrize("kind", ["grpc"])
def test_the_inbox_of_a_grpc_connection_is_bounded(learner: Learner, join: Join) -> None:
    actor = join(learner)
    assert isinstance(learner.server, GrpcServer)
    (connection,) = learner.server._connections.values()
    assert connection.frames == 2 + 16
    longest = 0

    def stall() -> None:
        nonlocal longest
        for _ in range(2000):
            actor.client.heartbeat(pack_header(Kind.HEARTBEAT))
        while not connection.paused:  # pytest's timeout is the limit
            pass
        longest = len(connection.inbox)

    learner.call(stall)
    assert longest == connection.frames
    for _ in range(2000):
        assert actor.client.receive(LIMIT) is not None


@pytest.mark.parametrize(("server", "setting"), [(GrpcServer, "net.grpc_port"), (ZmqServer, "net.zmq_port")])
def test_a_port_in_use_is_a_usage_error(server: Callable[[str, int], Any], setting: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"port {port} on 127.0.0.1 is in use: .*--set {setting}="):
            server("127.0.0.1", port)
    with pytest.raises(UsageError, match="net.host"):
        server("no-such-host.invalid", 0)
    with pytest.raises(UsageError, match="net.host"):
        server("192.0.2.1", 0)  # reserved for documentation


@PROTECTED_TOO
def test_a_restarted_learner_binds_the_same_port(kind: str, learner: Learner, join: Join) -> None:
    actor = join(learner)
    actor.echo(0, bytes(1000))
    port = int(learner.server.address.rpartition(":")[2])
    learner.close()
    wait_until_gone(actor.client)
    again = Learner(make_server(kind, port=port), [1000]).start()
    try:
        join(again).echo(0, bytes(1000))
    finally:
        again.close()


@pytest.mark.parametrize("kind", ["shm"])
def test_shared_memory_is_private_and_leaves_nothing(
    kind: str, learner: Learner, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths: list[str] = []
    modes: list[int] = []
    opened = ShmServer.open_session

    def watch(self: ShmServer, *arguments: Any) -> dict[str, Any]:
        extra = opened(self, *arguments)
        paths.append(extra["shared_memory"])
        modes.append(stat.S_IMODE(os.stat(paths[-1]).st_mode))
        return extra

    monkeypatch.setattr(ShmServer, "open_session", watch)
    actor = join(learner)
    assert modes == [0o600] and not os.path.exists(paths[0])
    actor.echo(0, bytes(1000))
    # The learner removes the file of an actor that dies before mapping it.
    monkeypatch.setattr("seedcli.net.shm.ShmClient.open_session", lambda *_: [])
    unmapped = join(learner, "unmapped")
    assert os.path.exists(paths[1])
    unmapped.client.close()
    assert learner.lost_peers.get(timeout=LIMIT).peer == learner.peers["unmapped"]
    assert not os.path.exists(paths[1])
    socket_path = learner.server.address.removeprefix("shm://")
    assert stat.S_IMODE(os.stat(socket_path).st_mode) == 0o600


@pytest.mark.parametrize("kind", ["shm"])
def test_too_little_shared_memory_is_a_refusal(learner: Learner, join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    before = set(os.listdir("/dev/shm"))
    with monkeypatch.context() as patch:
        patch.setattr("seedcli.net.shm_server.os.posix_fallocate", full)
        with pytest.raises(RefusedError, match=r"bytes of shared memory .*No space left.*--transport zmq"):
            join(learner, "late")
    assert {name for name in set(os.listdir("/dev/shm")) - before if name.startswith("seed-")} == set()
    join(learner, "good").echo(0, bytes(1000))


def test_invalid_socket_paths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="longer than 107 bytes"):
        ShmServer("/tmp/" + "x" * 120)
    with pytest.raises(UsageError, match="cannot create a socket"):
        ShmServer("/no-such-folder/learner")


@pytest.mark.parametrize(
    ("address", "transport"),
    [
        ("127.0.0.1:8686", "GrpcClient"),
        ("grpc://learner.cluster:8686", "GrpcClient"),
        ("[::1]:8686", "GrpcClient"),
        ("zmq://127.0.0.1:8687", "ZmqClient"),
        ("zmq://[::1]:8687", "ZmqClient"),
        ("shm:///tmp/learner", "ShmClient"),
    ],
)
def test_an_address_chooses_the_transport(address: str, transport: str) -> None:
    client = connect(address)
    assert type(client).__name__ == transport
    assert client.address == address.removeprefix("grpc://")
    client.close()


@pytest.mark.parametrize(
    "address",
    ["", "learner", "127.0.0.1", ":8686", "host:0", "host:65536", "host:x", "http://host:80", "zmq://host", "shm://",
     "shm://relative", "host:1:2", "a b:80", "zmq://host:80/path", "ho\nst:80"],
)  # fmt: skip
def test_invalid_addresses_are_refused(address: str) -> None:
    with pytest.raises(UsageError, match="is not a learner's address: give HOST:PORT for gRPC"):
        connect(address)


@PROTECTED_TOO
def test_ipv6_loopback(kind: str, join: Join) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    learner = Learner(make_server(kind, "::1"), [1000]).start()
    try:
        assert "[::1]:" in learner.server.address
        join(learner).echo(0, bytes(1000))
    finally:
        learner.close()


@pytest.mark.parametrize("address", ["zmq://127.0.0.1:1", "shm:///tmp/x", "127.0.0.1:1"])
def test_an_actor_loads_its_own_transport_only(address: str) -> None:
    program = (
        "import sys; from seedcli.net.connect import connect; connect(sys.argv[1]).close();"
        "print(*sorted({'grpc', 'zmq', 'google.protobuf', 'tensorflow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program, address], capture_output=True, text=True, timeout=LIMIT)
    expected = {"zmq": ["zmq"], "shm": []}.get(address.partition("://")[0], ["grpc"])
    assert done.stdout.split() == expected, done.stderr
