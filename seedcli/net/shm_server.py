"""The transport within one machine, see `net.shm`: the learner's side."""

from __future__ import annotations

import os
import select
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

from seedcli.errors import ProtocolError, RefusedError, UsageError
from seedcli.net.base import PING_TIMEOUT_SECONDS, FrameHandler, Payload, Peer
from seedcli.net.frames import HEADER_BYTES, Header, Kind, pack_header, unpack_header
from seedcli.net.security.token import Token
from seedcli.net.shm import PACKET_BYTES, PATH_KEY, Outbox, RowMapping, hang_up, offsets

_FOLDER = "/dev/shm"
_PATH_LIMIT = 107  # bytes; the kernel's limit for a socket's path
_OUTGOING = 4096  # packets queued per connection; at this limit the peer is dropped because it does not read
_CHECKS = 8  # checks per timeout whether a process can run
_FLUSH_SECONDS = 1.0
_UNKNOWN = pack_header(Kind.UNKNOWN)
_CREDENTIALS = struct.Struct("3i")  # process, user, group


class _Connection:
    """A connected actor; its peer is known to the handler once it has sent HELLO."""

    __slots__ = ("known", "mapping", "outbox", "peer", "process", "socket", "stopped")

    def __init__(self, connection: socket.socket, number: int) -> None:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.process: int = _CREDENTIALS.unpack(credentials)[0]  # 0 in another namespace
        self.socket = connection
        self.peer = Peer("shm", (connection.fileno(), number), f"process {self.process}")
        self.outbox = Outbox(connection)
        self.mapping: RowMapping | None = None
        self.known = False
        self.stopped = 0  # consecutive checks in which the process could not run


class ShmServer:
    """The learner's shared-memory listener; see `net.base.ServerTransport`.

    Args:
        path: path of the socket to create; only this user should have access to its directory.
        timeout: seconds within which the connection of a process that cannot run is lost.

    Raises:
        UsageError: the socket cannot be created.
    """

    name = "shm"
    port: int | None = None
    shares_memory = True
    token: Token | None = None
    turned_away = 0
    pings = True  # the kernel reports when a process ends, and a thread finds those that cannot run

    def __init__(self, path: str, *, timeout: float = PING_TIMEOUT_SECONDS) -> None:
        path = os.path.abspath(path)
        if len(os.fsencode(path)) > _PATH_LIMIT:
            raise UsageError(
                f'the socket path "{path}" is longer than {_PATH_LIMIT} bytes: set TMPDIR to a shorter one'
            )
        self.address = f"shm://{path}"
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            self._listener.bind(path)
            os.chmod(path, 0o600)
            self._listener.listen(1024)
        except OSError as error:
            self._listener.close()
            raise UsageError(f'cannot create a socket at "{path}" ({error.strerror}): check the folder') from error
        self._connections: dict[int, _Connection] = {}  # by descriptor
        self._accepted = 0
        self._ready: list[tuple[int, int]] = []  # descriptors and events that `receive` has not handled yet
        self._lost: list[tuple[_Connection, str]] = []
        self._packet = bytearray(PACKET_BYTES + 1)  # one byte more, to detect a packet that is too long
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        for descriptor in (self._listener.fileno(), self._event):
            self._epoll.register(descriptor, select.EPOLLIN)
        self._closing = threading.Event()
        self._watch = threading.Thread(
            target=self._watch_processes, args=[timeout / _CHECKS], name="processes", daemon=True
        )
        self._watch.start()

    def fileno(self) -> int:
        return self._epoll.fileno()

    def receive(self, handler: FrameHandler) -> int:
        count = self._end_lost(handler)
        # Events that an earlier call has not handled come first, so that no actor starves another.
        ready, self._ready = self._ready or self._epoll.poll(0), []
        for place, (descriptor, events) in enumerate(ready):
            connection = self._connections.get(descriptor)
            if connection is not None:
                count += self._serve(connection, events, handler)
            elif descriptor == self._listener.fileno():
                count += self._accept()
            elif descriptor == self._event:
                os.eventfd_read(self._event)
                count += 1
            if handler.full:
                self._ready = ready[place + 1 :]
                break
        return count

    def _accept(self) -> int:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return 0  # the actor has left, or no descriptor is free until another leaves
        connection.setblocking(False)
        self._accepted += 1
        self._connections[connection.fileno()] = _Connection(connection, self._accepted)
        self._epoll.register(connection.fileno(), select.EPOLLIN)
        return 1

    def _serve(self, connection: _Connection, events: int, handler: FrameHandler) -> int:
        """Take the connection's next packet, and send queued ones; returns 0 if there was none to take."""
        if events & select.EPOLLOUT:
            self._flush(connection)
        try:
            size = connection.socket.recv_into(self._packet)
        except BlockingIOError:
            return 0
        except OSError:
            size = 0
        if not size:
            self._end(connection, "the connection was closed", handler)
            return 1
        try:
            packet = memoryview(self._packet)[:size]
            header = unpack_header(packet[:HEADER_BYTES])
            if connection.known or header.kind == Kind.HELLO:
                connection.known = True
                self._take(connection, header, packet[HEADER_BYTES:], handler)
            else:
                # A frame of a session that has ended or was with a previous learner: the actor must start a handshake.
                self._post(connection, _UNKNOWN)
        except ProtocolError as error:
            connection.known = True
            self._post(connection, _UNKNOWN)
            self._end(connection, str(error), handler, malformed=True)
        return 1

    def _take(self, connection: _Connection, header: Header, payload: memoryview, handler: FrameHandler) -> None:
        destination = handler.destination(connection.peer, header) if header.kind == Kind.STEP else None
        if destination is not None:
            shared = self._shared_row(connection, header, len(payload))
            if shared.nbytes != destination.row.nbytes:
                raise ProtocolError(f"the step has {shared.nbytes} bytes, expected {destination.row.nbytes}")
            destination.row[:] = shared
            handler.take_row(destination, header, b"")
            return
        if header.kind != Kind.STEP and len(payload) != header.payload_bytes:
            raise ProtocolError(f"the payload has {len(payload)} bytes, but the header says {header.payload_bytes}")
        handler.frame(connection.peer, header, payload)

    def _shared_row(self, connection: _Connection, header: Header, inline: int) -> memoryview:
        mapping = connection.mapping
        if mapping is None or header.stream >= len(mapping.rows):
            raise ProtocolError(f"a step is for stream {header.stream}, which has no shared memory")
        shared = mapping.rows[header.stream]
        if inline or shared.nbytes != header.payload_bytes:
            raise ProtocolError(
                f"a step has a payload of {inline} bytes and announces {header.payload_bytes}; expected none "
                f"and {shared.nbytes} bytes in shared memory"
            )
        mapping.unlink()
        return shared

    def _end_lost(self, handler: FrameHandler) -> int:
        lost, self._lost = self._lost, []
        for connection, reason in lost:
            self._end(connection, reason, handler)
        return len(lost)

    def _end(self, connection: _Connection, reason: str, handler: FrameHandler, *, malformed: bool = False) -> None:
        if self._forget(connection) and connection.known:
            handler.lost(connection.peer, reason, malformed=malformed)

    def _forget(self, connection: _Connection) -> bool:
        """Close a connection; False if that was done before."""
        descriptor = connection.socket.fileno()
        if descriptor < 0:
            return False
        del self._connections[descriptor]
        self._epoll.unregister(connection.socket)
        if connection.mapping is not None:
            connection.mapping.unlink()
        hang_up(connection.socket)
        return True

    def _post(self, connection: _Connection, header: bytes, payload: Payload = b"") -> None:
        kept = len(connection.outbox)
        frame = header + payload if payload else header
        try:
            connection.outbox.send(frame[:PACKET_BYTES])
            for start in range(PACKET_BYTES, len(frame), PACKET_BYTES):
                connection.outbox.send(frame[start : start + PACKET_BYTES])
        except OSError:
            return  # `receive` detects the end of the connection
        if len(connection.outbox) > _OUTGOING:
            self._lost.append((connection, "the peer does not read its messages"))
        elif connection.outbox and not kept:
            self._epoll.modify(connection.socket, select.EPOLLIN | select.EPOLLOUT)

    def _flush(self, connection: _Connection) -> None:
        try:
            connection.outbox.flush()
        except OSError:
            return  # the next `recv` reports it
        if not connection.outbox:
            self._epoll.modify(connection.socket, select.EPOLLIN)

    def send(self, peer: Peer, header: bytes, payload: Payload = b"") -> None:
        connection = self._connection_of(peer)
        if connection is not None:
            self._post(connection, header, payload)

    def _connection_of(self, peer: Peer) -> _Connection | None:
        """The connection of a peer; None if it has ended, even if its descriptor has been reused."""
        assert isinstance(peer.key, tuple)
        connection = self._connections.get(peer.key[0])
        return connection if connection is not None and connection.peer == peer else None

    def open_session(self, peer: Peer, payload_bytes: Sequence[int]) -> dict[str, Any]:
        """Create the mapping; returns its path as a field for READY.

        Raises:
            RefusedError: there is not enough shared memory.
        """
        connection = self._connection_of(peer)
        if connection is None:
            raise ProtocolError("the connection ended before the session was opened")
        size = offsets(payload_bytes)[1]
        folder = _FOLDER if os.path.isdir(_FOLDER) else None
        path = ""
        try:
            descriptor, path = tempfile.mkstemp(prefix="seed-", dir=folder)  # 0600
            try:
                # Allocates the pages now: a full file system is an error here but SIGBUS in a later write.
                os.posix_fallocate(descriptor, 0, size)
                connection.mapping = RowMapping(descriptor, path, payload_bytes)
            finally:
                os.close(descriptor)
        except OSError as error:
            if path:
                os.unlink(path)
            raise RefusedError(
                f"{size} bytes of shared memory for this actor cannot be allocated in "
                f"{folder or tempfile.gettempdir()} ({error.strerror}): free some, or use --transport zmq"
            ) from error
        return {PATH_KEY: path}

    def trust(self, peer: Peer) -> None:
        """Do nothing: the permissions of the socket keep other users out."""

    def trusts(self, descriptor: int, address: tuple[str, int]) -> bool:
        return False  # it has no TCP connections

    def drop(self, peer: Peer) -> None:
        connection = self._connection_of(peer)
        if connection is not None:
            self._forget(connection)

    def _watch_processes(self, interval: float) -> None:
        """Find processes that could not run for the whole timeout.

        These are processes stopped by SIGSTOP or a debugger, and those that have ended while a forked child keeps the
        connection open.
        """
        while not self._closing.wait(interval):
            for connection in list(self._connections.values()):
                connection.stopped = connection.stopped + 1 if _cannot_run(connection.process) else 0
                if connection.stopped == _CHECKS - 1:
                    self._lost.append((connection, "its process is stopped or has ended"))
                    os.eventfd_write(self._event, 1)

    def close(self) -> None:
        if self._closing.is_set():
            return
        self._closing.set()
        self._watch.join()
        deadline = time.monotonic() + _FLUSH_SECONDS
        for connection in list(self._connections.values()):
            connection.outbox.drain(deadline - time.monotonic())
            self._forget(connection)
        self._epoll.close()
        os.close(self._event)
        self._listener.close()
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            pass


def _cannot_run(process: int) -> bool:
    """Whether a process is stopped (states T and t) or has ended; False for 0, which is in another PID namespace."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t", b"Z", b"X")
    except (OSError, IndexError):
        return process != 0
