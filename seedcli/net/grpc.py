"""The gRPC transport: one bidirectional stream per actor, carrying raw bytes through generic handlers.

A message is a frame: header, then payload. The server runs grpc.aio in its own thread, which needs fewer thread
hand-offs than one thread per stream. Frames reach the service thread through a deque and an eventfd; one wake-up of
the event loop sends all queued answers.

The code relies on each operation on a deque or an attribute being atomic. Comments marked "No race" name the check
that makes the order of operations safe.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import queue
import threading
import urllib.parse
from collections import deque
from collections.abc import Sequence
from typing import Any

import grpc

from seedcli.errors import ProtocolError, VersionError
from seedcli.net.addresses import bindable_ip, join_host_port, listen_error, plain_address, shown_host
from seedcli.net.base import PING_TIMEOUT_SECONDS, FrameHandler, Payload, Peer, frame_limit, ping_milliseconds
from seedcli.net.frames import (
    ANSWER_LIMIT,
    CONTROL_LIMIT,
    HEADER_BYTES,
    Kind,
    pack_header,
    unpack_header,
)
from seedcli.net.grpc_client import METHOD, OTHER_VERSION, SERVICE, GrpcClient
from seedcli.net.security.keys import Security, tls_identity

__all__ = ["GrpcClient", "GrpcServer"]

MAX_PAYLOAD = 256 * 2**20  # bytes of one row; gRPC needs the limit at bind, before any specification is known
_SETTING = "net.grpc_port"
_FRAMES_PER_CALL = 256
_OUTGOING = 4096  # answers queued per connection; at this limit the peer is dropped because it does not read
_SPARE = 16  # frames other than steps (handshake, heartbeats) that may be queued per connection
_FLUSH_SECONDS = 1.0
_HANDSHAKE_MILLISECONDS = 10_000  # limit for the TLS handshake
_STREAMS = 8  # per connection: an actor needs one, a health check another
_UNKNOWN = pack_header(Kind.UNKNOWN)


class _Connection:
    """An actor's stream: the event loop fills `inbox` and empties `outbox`, the service thread does the reverse."""

    def __init__(self, peer: Peer, task: asyncio.Task[Any]) -> None:
        self.peer = peer
        self.task = task
        self.inbox: deque[bytes | None] = deque()  # None: the stream has ended
        self.outbox: deque[bytes | None] = deque()  # None: end the stream
        self.error: str | None = None  # details of the status that ends the stream
        self.code = grpc.StatusCode.INVALID_ARGUMENT
        self.wake = asyncio.Event()  # the outbox is not empty, or the stream has ended
        self.resume = asyncio.Event()  # the inbox has room again
        self.paused = False
        self.frames = _SPARE  # capacity of the inbox
        self.limit = CONTROL_LIMIT  # bytes of a payload
        self.known = False  # HELLO was received
        self.ended = False  # the service thread discards later frames


def _split(address: str) -> tuple[str, int]:
    """Split a peer's address into host and port."""
    host, _, port = address.rpartition(":")
    return plain_address(host), int(port)


class GrpcServer:
    """The learner's gRPC listener; see `net.base.ServerTransport`.

    Args:
        host: name or address of an interface of this machine.
        port: TCP port; 0 for any free one.
        security: token and certificates; None: no encryption and no authentication.
        max_payload: limit for the rows of all sessions, bytes.
        timeout: seconds without an answer to pings, after which a connection is lost.

    Raises:
        UsageError: the port is in use, the host is not on this machine, or a certificate is unusable.
    """

    name = "grpc"
    shares_memory = False
    turned_away = 0
    pings = True  # between the threads of the two libraries

    def __init__(
        self,
        host: str,
        port: int,
        *,
        security: Security | None = None,
        max_payload: int = MAX_PAYLOAD,
        timeout: float = PING_TIMEOUT_SECONDS,
    ) -> None:
        self.token = security.token if security is not None else None
        self._identity = tls_identity(security, "learner") if security is not None else None
        self._max_payload = max_payload
        self._ping = ping_milliseconds(timeout)
        self._bind = join_host_port(bindable_ip(host, port, setting=_SETTING), port)
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ready: deque[_Connection] = deque()  # one element per entry of an inbox
        self._written: deque[_Connection] = deque()  # one element per entry of an outbox
        self._wake_scheduled = False
        self._numbers = itertools.count()
        self._connections: dict[int, _Connection] = {}
        self._trusted: dict[tuple[str, int], int] = {}  # number by address; read by other threads
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        started: queue.SimpleQueue[int | BaseException | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(started,), name="grpc", daemon=True)
        self._thread.start()
        bound = started.get()
        if not isinstance(bound, int):
            self._thread.join()
            os.close(self._event)
            raise listen_error(host, port, 0, setting=_SETTING) from bound
        self.port: int | None = bound
        self.address = join_host_port(shown_host(host), bound)

    # -- in the event loop's thread ---------------------------------------------------------------------------

    def _run(self, started: queue.SimpleQueue[int | BaseException | None]) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve(started))
        except Exception as error:
            started.put(error)  # the constructor waits for the port
            raise
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    async def _serve(self, started: queue.SimpleQueue[int | BaseException | None]) -> None:
        # Imported here because only a learner needs it, and it imports protobuf.
        from grpc_health.v1 import health, health_pb2, health_pb2_grpc

        server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", HEADER_BYTES + max(self._max_payload, CONTROL_LIMIT)),
                ("grpc.max_send_message_length", HEADER_BYTES + ANSWER_LIMIT),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                ("grpc.http2.max_ping_strikes", 0),
                ("grpc.max_concurrent_streams", _STREAMS),
                ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MILLISECONDS),
                ("grpc.keepalive_time_ms", self._ping[0]),
                ("grpc.keepalive_timeout_ms", self._ping[1]),
                ("grpc.http2.ping_timeout_ms", self._ping[1]),
                ("grpc.http2.max_pings_without_data", 0),  # no limit
            ]
        )
        handler = grpc.stream_stream_rpc_method_handler(self._connect)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        servicer = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        for service in ("", SERVICE):
            await servicer.set(service, health_pb2.HealthCheckResponse.SERVING)
        try:
            port = self._add_port(server)
            await server.start()
        except RuntimeError:
            started.put(None)
            return
        started.put(port)
        await self._stop.wait()
        await servicer.enter_graceful_shutdown()
        await server.stop(_FLUSH_SECONDS)

    def _add_port(self, server: Any) -> int:
        identity = self._identity
        if identity is None:
            return int(server.add_insecure_port(self._bind))
        assert identity.key is not None and identity.chain is not None
        credentials = grpc.ssl_server_credentials(
            [(identity.key, identity.chain)], identity.roots, require_client_auth=identity.roots is not None
        )
        return int(server.add_secure_port(self._bind, credentials))

    async def _connect(self, requests: object, context: Any) -> None:
        """Serve one stream: write the outbox while `_read` fills the inbox."""
        task = asyncio.current_task()
        assert task is not None
        address = urllib.parse.unquote(context.peer().partition(":")[2])  # "ipv6:%5B::1%5D:51234"
        connection = _Connection(Peer(self.name, next(self._numbers), address), task)
        reader = asyncio.create_task(self._read(connection, context))
        reader.add_done_callback(lambda _: connection.wake.set())
        try:
            while True:
                while connection.outbox:
                    message = connection.outbox.popleft()
                    if message is None:
                        if connection.error is not None:
                            await context.abort(connection.code, connection.error)
                        return
                    await context.write(message)
                if reader.done():
                    return
                # No race: nothing else runs in this thread between the check of the outbox and this line, and every
                # later append schedules a wake-up in this thread.
                connection.wake.clear()
                await connection.wake.wait()
        finally:
            reader.cancel()
            self._hand_over(connection, None)

    async def _read(self, connection: _Connection, context: Any) -> None:
        try:
            while (message := await context.read()) is not grpc.aio.EOF:
                self._hand_over(connection, message)
                while len(connection.inbox) >= connection.frames:
                    connection.resume.clear()
                    connection.paused = True
                    # No race: the service thread takes a frame before it checks `paused`.
                    if len(connection.inbox) >= connection.frames:
                        await connection.resume.wait()
        except grpc.RpcError:
            return  # the stream has ended, e.g. after a message over the limit

    def _hand_over(self, connection: _Connection, message: bytes | None) -> None:
        connection.inbox.append(message)
        self._ready.append(connection)
        os.eventfd_write(self._event, 1)

    def _wake_writers(self) -> None:
        # Before the loop, so that a later append schedules another wake-up.
        self._wake_scheduled = False
        while self._written:
            self._written.popleft().wake.set()

    def _end_within(self, connection: _Connection, seconds: float) -> None:
        self._loop.call_later(seconds, connection.task.cancel)

    # -- in the service thread --------------------------------------------------------------------------------

    def fileno(self) -> int:
        return self._event

    def receive(self, handler: FrameHandler) -> int:
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            pass
        count = 0
        while self._ready:
            if count >= _FRAMES_PER_CALL or handler.full:
                os.eventfd_write(self._event, 1)
                break
            count += 1
            connection = self._ready.popleft()
            message = connection.inbox.popleft()
            if connection.paused:
                connection.paused = False
                self._call(connection.resume.set)
            if connection.ended:
                continue
            if message is None:
                self._forget(connection)
                if connection.known:
                    handler.lost(connection.peer, connection.error or "the connection was closed")
                continue
            try:
                self._take(connection, message, handler)
            except ProtocolError as error:
                if isinstance(error, VersionError):
                    connection.code = OTHER_VERSION
                self._abort(connection, str(error))
                handler.lost(connection.peer, str(error), malformed=True)
        return count

    def _take(self, connection: _Connection, message: bytes, handler: FrameHandler) -> None:
        header = unpack_header(message[:HEADER_BYTES])
        size = len(message) - HEADER_BYTES
        limit = connection.limit if header.kind == Kind.STEP else CONTROL_LIMIT
        if size != header.payload_bytes or size > limit:
            raise ProtocolError(
                f"the payload has {size} bytes; the header says {header.payload_bytes}, and the limit is {limit}"
            )
        if not connection.known:
            if header.kind != Kind.HELLO:
                # A frame of a session with a previous learner: the actor must start a handshake.
                self._queue(connection, _UNKNOWN)
                return
            connection.known = True
            self._connections[connection.peer.key] = connection  # type: ignore[index]
        payload = memoryview(message)[HEADER_BYTES:]
        if header.kind == Kind.STEP:
            destination = handler.destination(connection.peer, header)
            if destination is not None:
                if not destination.encoded:
                    if destination.row.nbytes != size:
                        raise ProtocolError(f"the step has {size} bytes, expected {destination.row.nbytes}")
                    destination.row[:] = payload
                    payload = payload[:0]
                handler.take_row(destination, header, payload)
                return
        handler.frame(connection.peer, header, payload)

    def _call(self, callback: Any, *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            pass  # the loop and all streams have ended

    def _queue(self, connection: _Connection, message: bytes | None) -> None:
        connection.outbox.append(message)
        self._written.append(connection)
        # No race: `_wake_writers` clears the flag before it reads `_written`.
        if not self._wake_scheduled:
            self._wake_scheduled = True
            self._call(self._wake_writers)

    def _forget(self, connection: _Connection) -> None:
        connection.ended = True
        self._connections.pop(connection.peer.key, None)  # type: ignore[call-overload]
        address = _split(connection.peer.address)
        if self._trusted.get(address) == connection.peer.key:
            del self._trusted[address]

    def _abort(self, connection: _Connection, reason: str) -> None:
        """End a stream with an error."""
        connection.error = reason
        self._forget(connection)
        self._queue(connection, None)
        self._call(self._end_within, connection, _FLUSH_SECONDS)

    def send(self, peer: Peer, header: bytes, payload: Payload = b"") -> None:
        connection = self._connections.get(peer.key)  # type: ignore[call-overload]
        if connection is None:
            return
        if len(connection.outbox) >= _OUTGOING:
            # The end of the stream arrives through the inbox and is reported there.
            connection.error = "the peer does not read its messages"
            self._connections.pop(connection.peer.key, None)
            self._call(connection.task.cancel)
            return
        self._queue(connection, b"".join((header, payload)))

    def open_session(self, peer: Peer, payload_bytes: Sequence[int]) -> dict[str, Any]:
        """Raises RefusedError for rows over the limit."""
        connection = self._connections.get(peer.key)  # type: ignore[call-overload]
        if connection is None:
            raise ProtocolError("the connection ended before the session was opened")
        connection.limit = frame_limit(payload_bytes, self._max_payload)
        connection.frames = len(payload_bytes) + _SPARE
        return {}

    def trust(self, peer: Peer) -> None:
        if peer.key in self._connections:
            assert isinstance(peer.key, int)
            self._trusted[_split(peer.address)] = peer.key

    def trusts(self, descriptor: int, address: tuple[str, int]) -> bool:
        return address in self._trusted

    def drop(self, peer: Peer) -> None:
        connection = self._connections.get(peer.key)  # type: ignore[call-overload]
        if connection is None:
            return
        self._forget(connection)
        self._queue(connection, None)
        self._call(self._end_within, connection, _FLUSH_SECONDS)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for connection in list(self._connections.values()):
            self.drop(connection.peer)
        self._call(self._stop.set)
        self._thread.join(timeout=5 * _FLUSH_SECONDS)
        if not self._thread.is_alive():
            os.close(self._event)
