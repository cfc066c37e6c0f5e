"""The transport within one machine: rows in shared memory, frames over a Unix socket. The actor's side.

Each session has one mapping, created by the learner as a 0600 file in /dev/shm, with a region for each stream. The
actor builds its rows there. A STEP is a header and an empty payload; its `payload_bytes` is the size of the row in the
mapping, which the learner copies into the arena. The actor unlinks the file as soon as it has mapped it, so that no
file remains if either process is killed.

The socket preserves packet boundaries (SOCK_SEQPACKET). A packet is a header and the payload. Only an answer may be
longer than `PACKET_BYTES`; the rest follows in further packets, with nothing in between.
"""

from __future__ import annotations

import errno
import mmap
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from seedcli.errors import ConnectionLost, ProtocolError, UsageError
from seedcli.net.base import Frame, Payload
from seedcli.net.frames import ANSWER_LIMIT, CONTROL_LIMIT, HEADER_BYTES, unpack_header
from seedcli.net.greeting import unanswered
from seedcli.net.security.token import Token

PACKET_BYTES = HEADER_BYTES + CONTROL_LIMIT  # the kernel takes 200 kB at least
PATH_KEY = "shared_memory"  # READY's field for the file's path
_PAUSE_SECONDS = 0.05  # between attempts to connect: nothing signals a new socket
_FLUSH_SECONDS = 0.5


def offsets(payload_bytes: Sequence[int]) -> tuple[list[int], int]:
    """Return the page-aligned offset of each stream's row in the mapping, and the mapping's size, bytes."""
    starts, end = [], 0
    for nbytes in payload_bytes:
        starts.append(end)
        end += -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    return starts, end


class RowMapping:
    """A shared mapping with one row per stream.

    Args:
        descriptor: of its file.
        path: of its file.
        payload_bytes: size of each row.

    Attributes:
        rows: the memory of each stream's row.
    """

    def __init__(self, descriptor: int, path: str, payload_bytes: Sequence[int]) -> None:
        starts, size = offsets(payload_bytes)
        self._map = mmap.mmap(descriptor, size)
        self._path = path
        whole = memoryview(self._map)
        self.rows = [whole[start : start + n] for start, n in zip(starts, payload_bytes, strict=True)]

    def unlink(self) -> None:
        """Remove the file; the memory remains as long as it is mapped."""
        if self._path:
            try:
                os.unlink(self._path)
            except FileNotFoundError:
                pass  # the other side has unlinked it
            self._path = ""


class Outbox:
    """Sends packets on a non-blocking socket, and queues those that do not fit into its buffer."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._packets: deque[Payload] = deque()

    def __len__(self) -> int:
        return len(self._packets)

    def send(self, packet: Payload) -> None:
        """Send a packet, or queue it after earlier ones; raises OSError if the connection is gone."""
        self._packets.append(packet)
        self.flush()

    def flush(self) -> None:
        """Send queued packets until the socket's buffer is full; raises OSError if the connection is gone."""
        try:
            while self._packets:
                self._socket.send(self._packets[0])
                self._packets.popleft()
        except BlockingIOError:
            pass

    def drain(self, seconds: float) -> None:
        """Send queued packets as the peer reads; gives up after `seconds`, or when the connection is gone."""
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        deadline = time.monotonic() + seconds
        try:
            while self._packets and (left := deadline - time.monotonic()) > 0:
                poll.poll(int(left * 1000) + 1)
                self.flush()
        except OSError:
            pass


def hang_up(connection: socket.socket) -> None:
    """Close a socket; the peer can still read all that was sent.

    Closing a socket that has unread packets would discard those that its peer has not read.
    """
    try:
        connection.shutdown(socket.SHUT_RD)
        while connection.recv(PACKET_BYTES):
            pass
    except OSError:
        pass  # the peer is gone
    connection.close()


class ShmClient:
    """An actor's connection through shared memory; see `net.base.ClientTransport`.

    Args:
        path: path of the learner's socket.
    """

    def __init__(self, path: str) -> None:
        self.token: Token | None = None
        self.address = f"shm://{path}"
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._outbox = Outbox(self._socket)
        self._parts: list[bytes] = []  # packets of an incomplete frame
        self._lock = threading.Lock()  # of the outbox, for heartbeats; only `close` waits while it holds it
        # A reader that polls a socket directly wakes on the sender's core, as if the sender were about to sleep; the
        # learner is not, and would be interrupted. With an epoll, the reader wakes on any core.
        self._epoll = select.epoll()
        self._epoll.register(self._socket, select.EPOLLIN)
        self._poll = select.poll()
        self._poll.register(self._epoll, select.POLLIN)
        self._closed = False

    @property
    def shares_memory(self) -> bool:
        return True

    def connect(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            try:
                self._socket.connect(self._path)
                return
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN, errno.ENOTDIR):
                    raise UsageError(
                        f'cannot connect to "{self.address}" ({error.strerror}): check the address'
                    ) from error
            left = deadline - time.monotonic()
            if left <= 0:
                raise unanswered(self.address, timeout)
            time.sleep(min(left, _PAUSE_SECONDS))

    def _lost(self) -> ConnectionLost:
        state = "is closed" if self._closed else "was closed"
        return ConnectionLost(f"the connection to the learner at {self.address} {state}")

    def send(self, header: bytes, payload: Payload = b"") -> None:
        try:
            with self._lock:
                self._outbox.send(header + payload if payload else header)
        except OSError as error:
            raise self._lost() from error

    def receive(self, timeout: float) -> Frame | None:
        deadline = time.monotonic() + timeout
        while (packet := self._packet(deadline)) is not None:
            self._parts.append(packet)
            frame = self._frame()
            if frame is not None:
                return frame
        return None

    def _frame(self) -> Frame | None:
        """The frame formed by the packets received; None if more must follow, perhaps in the next call."""
        parts, self._parts = self._parts, []
        header = unpack_header(memoryview(parts[0])[:HEADER_BYTES])
        if header.payload_bytes > ANSWER_LIMIT:
            raise ProtocolError(f"the learner sent a frame of {header.payload_bytes} bytes, over the limit")
        received = sum(map(len, parts)) - HEADER_BYTES
        if received < header.payload_bytes and len(parts[-1]) == PACKET_BYTES:
            self._parts = parts
            return None
        if received != header.payload_bytes:
            raise ProtocolError("the learner sent a frame whose size differs from its header")
        return Frame(header, (parts[0] if len(parts) == 1 else b"".join(parts))[HEADER_BYTES:])

    def _packet(self, deadline: float) -> bytes | None:
        """The next packet; None if none arrives before the deadline."""
        while True:
            left = max(0.0, deadline - time.monotonic())
            # poll takes milliseconds: round up to avoid spinning through the last one.
            try:
                if self._outbox:
                    self._flush(left)
                elif not self._poll.poll(int(left * 1000) + 1 if left else 0):
                    return None
                packet = self._socket.recv(PACKET_BYTES)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return None
                continue
            except OSError as error:
                raise self._lost() from error
            if not packet:
                raise self._lost()
            return packet

    def _flush(self, seconds: float) -> None:
        """Wait until the learner reads or sends, then send queued packets."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | select.POLLOUT)
        poll.poll(int(seconds * 1000) + 1)
        with self._lock:
            self._outbox.flush()

    def open_session(self, ready: Mapping[str, Any], payload_bytes: Sequence[int]) -> list[memoryview]:
        """Map the session's shared memory; the buffers are its rows, which the learner reads."""
        path = ready.get(PATH_KEY)
        if not isinstance(path, str):
            raise ProtocolError("the learner's READY names no shared memory: check that it has this version")
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise ConnectionLost(f"the shared memory of this session cannot be opened ({error.strerror})") from error
        try:
            if os.fstat(descriptor).st_size != offsets(payload_bytes)[1]:
                raise ProtocolError("the size of this session's shared memory differs from that of its rows")
            mapping = RowMapping(descriptor, path, payload_bytes)
        finally:
            os.close(descriptor)
        mapping.unlink()
        return mapping.rows

    def send_row(self, stream: int, header: bytes) -> None:
        """Send the header only: the row is in shared memory."""
        self.send(header)

    def heartbeat(self, header: bytes) -> None:
        try:
            self.send(header)
        except ConnectionLost:
            pass

    def close(self) -> None:
        """Flush for up to half a second and close the connection; safe to call twice."""
        if self._closed:
            return
        with self._lock:
            self._outbox.drain(_FLUSH_SECONDS)
            self._closed = True
            self._epoll.close()
            hang_up(self._socket)
