"""The baselines of `seed bench`: echo servers written directly on pyzmq, grpcio, mmap and sockets.

Each copies the received bytes into one buffer, once, and answers with as many bytes as an action frame has. No bytes
pass through our server transports. The handshake before the first step is answered as by a learner, so that the same
client can talk to either.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import zmq

from seedcli.net.frames import HEADER_BYTES, Kind, encode_control, pack_header, unpack_header
from seedcli.net.handshake import NoAuthenticator, ServerHandshake
from seedcli.net.messages import Hello
from seedcli.net.security.keys import TokenAuthenticator
from seedcli.net.security.token import Token
from seedcli.net.shm import PACKET_BYTES, PATH_KEY
from seedcli.specs import EnvSpec, RowLayout, aligned_empty, split_envs

# Connections are idle while the other server of a comparison is measured: that must not count as a lost peer.
SILENCE_SECONDS = 24 * 3600.0
_MESSAGE_LIMIT = 1 << 30
_ACTION = bytes([Kind.ACTION])
_STREAM = struct.Struct("<H")


class BenchServer(Protocol):
    """A server that a client is measured against.

    Attributes:
        address: as `net.connect` takes it; bound.
    """

    address: str

    def run(self) -> None:
        """Serve one client until `close`."""

    def close(self) -> dict[str, Any]:
        """End `run`, from another thread; returns the server's own statistics, possibly empty."""


class Admission:
    """Admits every client and records its session.

    Args:
        extra: returns what the transport adds to READY, from the size of each stream's row.
        token: that clients must prove; None: none.

    Attributes:
        envs: environments of each stream, once admitted.
        payload_bytes: size of each stream's row, once admitted.
        complete: READY was sent.
    """

    def __init__(
        self,
        extra: Callable[[list[int]], Mapping[str, Any]] = lambda payload_bytes: {},
        token: Token | None = None,
    ) -> None:
        self._extra = extra
        authenticator = NoAuthenticator() if token is None else TokenAuthenticator(token)
        self._handshake = ServerHandshake(lambda hello: {"environment": {}, "seed": 0}, self._admit, authenticator)
        self.envs: list[int] = []
        self.payload_bytes: list[int] = []

    @property
    def complete(self) -> bool:
        return self._handshake.complete

    def _admit(self, hello: Hello, spec: EnvSpec, codecs: Mapping[str, str]) -> dict[str, Any]:
        self.envs = split_envs(hello.envs, hello.streams)
        self.payload_bytes = [RowLayout(spec, envs).nbytes for envs in self.envs]
        return {
            "session": 1,
            "stream_envs": self.envs,
            "payload_bytes": self.payload_bytes,
            "heartbeat_seconds": SILENCE_SECONDS,
            "timeout_seconds": SILENCE_SECONDS,
            "reconnect_timeout": 0.0,
            **self._extra(self.payload_bytes),
        }

    def answer(self, header: bytes, payload: bytes | memoryview) -> tuple[bytes, bytes]:
        """Header and payload that answer a frame of the handshake."""
        kind, message = self._handshake.receive(unpack_header(header), payload)
        body = encode_control(message)
        return pack_header(kind, len(body)), body

    def action_header(self) -> Callable[[bytes], bytes]:
        """A function from a step's header to that of its answer; the streams must be of one size."""
        size = struct.pack("<I", 4 * self.envs[0])
        return lambda header: header[:5] + _ACTION + header[6:12] + size + header[16:HEADER_BYTES]


class ZmqEcho:
    """A `BenchServer`: a ROUTER on TCP loopback that receives each row into one buffer (`recv_into`)."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self.address = f"zmq://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"
        self._admission = Admission()

    def run(self) -> None:
        try:
            while not self._admission.complete:
                identity, header, payload = self._socket.recv_multipart()
                self._socket.send_multipart([identity, *self._admission.answer(header, payload)])
            self._echo()
        except zmq.ContextTerminated:
            pass
        finally:
            self._socket.close()

    def _echo(self) -> None:
        receive, receive_into, send, more = self._socket.recv, self._socket.recv_into, self._socket.send, zmq.SNDMORE
        buffer = aligned_empty(max(self._admission.payload_bytes)).data
        action_header, actions = self._admission.action_header(), bytes(4 * self._admission.envs[0])
        while True:
            identity = receive()
            header = receive()
            receive_into(buffer)
            send(identity, more)
            send(action_header(header), more)
            send(actions)

    def close(self) -> dict[str, Any]:
        self._context.term()  # a blocked socket is interrupted, and closed by its own thread
        return {}


class ShmEcho:
    """A `BenchServer`: rows in a shared mapping, frames over a Unix socket; each row is copied into one buffer."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="seed-")
        self._path = ""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(f"{self._folder}/echo")
        self._socket.listen()
        self.address = f"shm://{self._folder}/echo"
        self._client: socket.socket | None = None

    def _extra(self, payload_bytes: list[int]) -> Mapping[str, Any]:
        page = mmap.PAGESIZE
        sizes = [-(-nbytes // page) * page for nbytes in payload_bytes]
        descriptor, self._path = tempfile.mkstemp(prefix="seed-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        os.posix_fallocate(descriptor, 0, sum(sizes))
        whole = memoryview(mmap.mmap(descriptor, sum(sizes)))
        os.close(descriptor)
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        self._rows = [whole[start : start + nbytes] for start, nbytes in zip(starts, payload_bytes, strict=True)]
        return {PATH_KEY: self._path}

    def run(self) -> None:
        admission = Admission(self._extra)
        try:
            self._client, _ = self._socket.accept()
            receive, send = self._client.recv, self._client.send
            while not admission.complete:
                packet = receive(PACKET_BYTES)
                if not packet:
                    return
                send(b"".join(admission.answer(packet[:HEADER_BYTES], packet[HEADER_BYTES:])))
            rows, buffer = self._rows, aligned_empty(max(admission.payload_bytes)).data
            action_header, actions = admission.action_header(), bytes(4 * admission.envs[0])
            while header := receive(PACKET_BYTES):
                buffer[:] = rows[_STREAM.unpack_from(header, 6)[0]]
                send(action_header(header) + actions)
        except OSError:
            pass  # `close` or the client ended the connection

    def close(self) -> dict[str, Any]:
        for each in (self._socket, self._client):
            if each is not None:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)  # ends a blocked call, which closing does not
                each.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._path and os.path.exists(self._path):
            os.unlink(self._path)
        return {}


class GrpcEcho:
    """A `BenchServer`: a synchronous generic handler on TCP loopback, raw bytes, one thread per stream."""

    def __init__(self) -> None:
        import grpc

        from seedcli.net.grpc_client import METHOD, SERVICE

        self._server = grpc.server(
            ThreadPoolExecutor(max_workers=2),
            options=[("grpc.max_receive_message_length", _MESSAGE_LIMIT), ("grpc.so_reuseport", 0)],
        )
        handler = grpc.stream_stream_rpc_method_handler(self._connect)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def _connect(self, requests: Iterator[bytes], context: object) -> Iterator[bytes]:
        admission = Admission()
        while not admission.complete:
            message = next(requests)
            yield b"".join(admission.answer(message[:HEADER_BYTES], message[HEADER_BYTES:]))
        buffer = aligned_empty(max(admission.payload_bytes)).data
        action_header, actions = admission.action_header(), bytes(4 * admission.envs[0])
        for message in requests:
            buffer[:] = memoryview(message)[HEADER_BYTES:]
            yield action_header(message) + actions

    def run(self) -> None:
        self._server.start()
        self._server.wait_for_termination()

    def close(self) -> dict[str, Any]:
        self._server.stop(grace=0).wait(timeout=10)
        return {}


def make_echo(transport: str) -> BenchServer:
    """The bare echo of a transport: "zmq", "shm" or "grpc"."""
    echoes: dict[str, Callable[[], BenchServer]] = {"zmq": ZmqEcho, "shm": ShmEcho, "grpc": GrpcEcho}
    return echoes[transport]()
