"""A small learner for tests: it admits actors, keeps every row and answers each with its checksum.

`python -m tests.net.harness KIND SIZE…` serves in its own process and prints its address.
"""

from __future__ import annotations

import os
import queue
import select
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from seedcli.errors import ConnectionLost, ProtocolError, RefusedError
from seedcli.net.base import PING_TIMEOUT_SECONDS, ClientTransport, Destination, Payload, Peer, ServerTransport
from seedcli.net.connect import connect
from seedcli.net.frames import Header, Kind, encode_control, pack_header
from seedcli.net.handshake import ClientHandshake, NoAuthenticator, ServerHandshake
from seedcli.net.messages import Hello, Ready
from seedcli.net.security.keys import Security, TokenAuthenticator
from seedcli.net.security.token import Token
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec

OWN = "tests.own_code.my_transport:MyTransport"
KINDS = ("grpc", "grpc+token", "zmq", "zmq+token", "shm", f"{OWN}+token")
TOKEN = "the-token-of-these-tests-0123456789"
LIMIT = 20.0  # seconds, of any wait
SPEC = EnvSpec("test/rows", ArraySpec((4,), "float32"), ActionSpec((3,)))


def security_of(kind: str) -> Security | None:
    """The security of both sides of a kind of connection; "+token" is the token of these tests."""
    return Security(Token(TOKEN, "these tests")) if kind.endswith("+token") else None


def make_server(kind: str, host: str = "127.0.0.1", port: int = 0, **options: Any) -> ServerTransport:
    options = {"security": security_of(kind)} | options
    if kind.startswith("grpc"):
        from seedcli.net.grpc import GrpcServer

        return GrpcServer(host, port, **options)
    if kind.startswith("zmq"):
        from seedcli.net.zmq import ZmqServer

        return ZmqServer(host, port, **options)
    if kind.startswith(OWN):
        from tests.own_code.my_transport import MyTransport

        return MyTransport(OWN).listen(host, port, **({"timeout": PING_TIMEOUT_SECONDS} | options))
    from seedcli.net.shm_server import ShmServer

    del options["security"]
    return ShmServer(os.path.join(tempfile.mkdtemp(), "learner"), **options)


class Lost(NamedTuple):
    peer: Peer
    reason: str
    malformed: bool


class Row(NamedTuple):
    actor: str
    stream: int
    sequence: int
    data: bytes


class Learner:
    """Serves one transport in its own thread; `call` runs a function in that thread."""

    def __init__(self, server: ServerTransport, sizes: Sequence[int]) -> None:
        self.server = server
        self.sizes = list(sizes)
        self.encoded = False  # steps have no destination, as in a session with codecs
        self.rows: list[Row] = []
        self.frames: queue.SimpleQueue[tuple[Peer, Header]] = queue.SimpleQueue()  # of sessions, except steps
        self.lost_peers: queue.SimpleQueue[Lost] = queue.SimpleQueue()
        self.configure: Callable[[Hello], dict[str, Any]] = lambda hello: {"environment": {"id": "rows"}}
        self.refuse_spec: str | None = None
        self.place: Callable[[Hello], str | None] | None = None
        self.security = Security(server.token) if server.token is not None else None
        self.authenticator: Any = NoAuthenticator() if server.token is None else TokenAuthenticator(server.token)
        self.mute = False
        self.peers: dict[str, Peer] = {}
        self._actors: dict[Peer, str] = {}
        self._handshakes: dict[Peer, ServerHandshake] = {}
        self._buffers: dict[Peer, list[bytearray]] = {}
        self._expected: dict[tuple[Peer, int], int] = {}
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]]] = queue.SimpleQueue()
        self._event = os.eventfd(0, os.EFD_NONBLOCK)
        self._stop = False
        self._thread = threading.Thread(target=self.run, daemon=True)

    def start(self) -> Learner:
        self._thread.start()
        return self

    def connect(self) -> ClientTransport:
        """A client of this learner, not yet connected."""
        return connect(self.server.address, self.security)

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._event, select.POLLIN)
        poll.register(self.server.fileno(), select.POLLIN)
        # Without a timeout, so that a missed wake-up hangs and fails the test.
        while not self._stop:
            for descriptor, _ in poll.poll():
                if descriptor == self._event:
                    os.eventfd_read(self._event)
            while not self._calls.empty():
                function, result = self._calls.get()
                result.put(function())
            while not self._stop and self.server.receive(self):
                pass

    def call(self, function: Callable[[], Any]) -> Any:
        result: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._calls.put((function, result))
        os.eventfd_write(self._event, 1)
        return result.get(timeout=LIMIT)

    def halt(self) -> None:
        """Stop serving, but leave the transport open."""
        if self._thread.is_alive():

            def stop() -> None:
                self._stop = True

            self.call(stop)
            self._thread.join(LIMIT)

    def close(self) -> None:
        self.halt()
        self.server.close()

    # -- FrameHandler

    full = False

    def destination(self, peer: Peer, header: Header) -> Destination:
        buffers = self._buffers.get(peer)
        if buffers is None:
            raise ProtocolError("a step outside a session")
        if header.stream >= len(buffers) or header.sequence != self._expected[peer, header.stream]:
            raise ProtocolError("a step out of order")
        buffers[header.stream][:] = b"\xa5" * len(buffers[header.stream])
        return Destination(peer, memoryview(buffers[header.stream]), self.encoded)

    def take_row(self, destination: Destination, header: Header, payload: Payload) -> None:
        assert self.encoded or len(payload) == 0
        peer, data = destination.owner, bytes(payload if self.encoded else destination.row)
        self._expected[peer, header.stream] += 1
        self.rows.append(Row(self._actors[peer], header.stream, header.sequence, data))
        answer = zlib.crc32(data).to_bytes(4, "little")
        self.send(peer, Kind.ACTION, answer, stream=header.stream, sequence=header.sequence)

    def frame(self, peer: Peer, header: Header, payload: Payload) -> None:
        if peer in self._buffers:
            self.frames.put((peer, header))
            if header.kind == Kind.HEARTBEAT:
                self.send(peer, Kind.HEARTBEAT_ACK, b"", session=header.session)
        else:
            self._shake_hands(peer, header, payload)

    def lost(self, peer: Peer, reason: str, *, malformed: bool = False) -> None:
        self._buffers.pop(peer, None)
        self.lost_peers.put(Lost(peer, reason, malformed))

    def send(self, peer: Peer, kind: Kind, payload: bytes, **fields: int) -> None:
        self.server.send(peer, pack_header(kind, len(payload), **fields), payload)

    def _shake_hands(self, peer: Peer, header: Header, payload: Payload) -> None:
        if self.mute:
            return
        if peer not in self._handshakes:
            self._handshakes[peer] = ServerHandshake(
                lambda hello: self.configure(hello),
                lambda hello, spec, codecs: self._admit(peer, hello, spec, codecs),
                self.authenticator,
                self.place,
            )
        try:
            kind, message = self._handshakes[peer].receive(header, payload)
        except RefusedError as error:
            self.send(peer, Kind.REFUSED, encode_control({"reason": str(error)}))
            self.server.drop(peer)
            return
        self.send(peer, kind, encode_control(message))

    def _admit(self, peer: Peer, hello: Hello, spec: EnvSpec, codecs: dict[str, str]) -> dict[str, Any]:
        if self.refuse_spec is not None:
            raise RefusedError(self.refuse_spec)
        extra = self.server.open_session(peer, self.sizes)
        self._buffers[peer] = [bytearray(n) for n in self.sizes]
        self._expected.update({(peer, stream): 0 for stream in range(len(self.sizes))})
        self._actors[peer] = hello.actor_id
        self.peers[hello.actor_id] = peer
        return {
            "session": 7,
            "stream_envs": [1] * len(self.sizes),
            "payload_bytes": self.sizes,
            "heartbeat_seconds": 0.5,
            "timeout_seconds": 5,
            "reconnect_timeout": 10,
            **extra,
        }


class Actor:
    """A client that has completed its handshake."""

    def __init__(self, address: str, name: str = "actor", security: Security | None = None) -> None:
        self.client: ClientTransport = connect(address, security)
        self.client.connect(LIMIT)
        handshake = ClientHandshake(self.client, actor_id=name, envs=64, streams=8, timeout=LIMIT)
        self.configuration = handshake.configure()
        self.ready: Ready = handshake.announce(SPEC)
        self.buffers = self.client.open_session(self.ready.extra, self.ready.payload_bytes)
        self.sequence = [0] * len(self.buffers)

    def step(self, stream: int, data: bytes) -> None:
        self.buffers[stream][:] = data
        self.client.send_row(stream, self.header(stream))
        self.sequence[stream] += 1

    def send(self, stream: int, data: bytes) -> None:
        """Send a step of any size, as in a session with codecs."""
        self.client.send(self.header(stream, len(data)), data)
        self.sequence[stream] += 1

    def header(self, stream: int, nbytes: int | None = None) -> bytes:
        size = self.ready.payload_bytes[stream] if nbytes is None else nbytes
        return pack_header(Kind.STEP, size, stream=stream, sequence=self.sequence[stream], session=7)

    def echo(self, stream: int, data: bytes) -> None:
        """Send a step and check the answer."""
        sequence = self.sequence[stream]
        self.step(stream, data)
        frame = expect(self.client, Kind.ACTION)
        assert (frame.header.stream, frame.header.sequence) == (stream, sequence)
        assert bytes(frame.payload) == zlib.crc32(data).to_bytes(4, "little")


def expect(client: ClientTransport, kind: Kind) -> Any:
    """Return the next frame, which must be of `kind`; skips heartbeats, which a learner may send at any time."""
    while (frame := client.receive(LIMIT)) is not None:
        if frame.header.kind != Kind.HEARTBEAT_ACK or kind == Kind.HEARTBEAT_ACK:
            assert frame.header.kind == kind
            return frame
    raise AssertionError(f"no {kind.name} within {LIMIT} s")


def wait_until_gone(client: ClientTransport) -> None:
    """Wait until the client learns that its connection or session has ended."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        try:
            frame = client.receive(0.5)
        except ConnectionLost:
            return
        if frame is not None and frame.header.kind == Kind.UNKNOWN:
            return
    raise AssertionError(f"the connection is still open after {LIMIT} s")


if __name__ == "__main__":
    learner = Learner(make_server(sys.argv[1]), [int(n) for n in sys.argv[2:]])
    print(learner.server.address, flush=True)
    learner.run()
