"""The transport within one machine: rows in shared memory, announced over ZeroMQ on an ipc socket.

Each session has one mapping, created by the learner as a 0600 file in /dev/shm, with a region for each stream. The
actor builds its rows there. A STEP is a header and an empty payload; its `payload_bytes` is the size of the row in the
mapping, which the learner copies into the arena. The actor unlinks the file as soon as it has mapped it, so that no
file remains if either process is killed.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import zmq

from seedcli.errors import ConnectionLost, ProtocolError, RefusedError, UsageError
from seedcli.net.base import PING_TIMEOUT_SECONDS, Peer
from seedcli.net.frames import CONTROL_LIMIT, Header
from seedcli.net.zmq import ZmqClient
from seedcli.net.zmq_router import RouterServer

_PAGE = mmap.PAGESIZE
_FOLDER = "/dev/shm"
_KEY = "shared_memory"  # READY's field for the file's path
_PATH_LIMIT = 107  # bytes; the kernel's limit for a socket's path


def _offsets(payload_bytes: Sequence[int]) -> tuple[list[int], int]:
    """Return the page-aligned offset of each stream's row in the mapping, and the mapping's size, bytes."""
    offsets, end = [], 0
    for nbytes in payload_bytes:
        offsets.append(end)
        end += -(-nbytes // _PAGE) * _PAGE
    return offsets, end


class _Mapping:
    """A shared mapping with one row per stream."""

    def __init__(self, descriptor: int, path: str, payload_bytes: Sequence[int]) -> None:
        offsets, size = _offsets(payload_bytes)
        self._map = mmap.mmap(descriptor, size)
        self._path = path
        whole = memoryview(self._map)
        self.rows = [whole[start : start + n] for start, n in zip(offsets, payload_bytes, strict=True)]

    def unlink(self) -> None:
        """Remove the file; the memory remains as long as it is mapped."""
        if self._path:
            try:
                os.unlink(self._path)
            except FileNotFoundError:
                pass  # the other side has unlinked it
            self._path = ""


class ShmServer(RouterServer):
    """The learner's shared-memory listener.

    Args:
        path: path of the ipc socket to create; only this user should have access to its directory.
        timeout: seconds without an answer to pings, after which a connection is lost.

    Raises:
        UsageError: the socket cannot be created.
    """

    shares_memory = True

    def __init__(self, path: str, *, timeout: float = PING_TIMEOUT_SECONDS) -> None:
        path = os.path.abspath(path)
        if len(os.fsencode(path)) > _PATH_LIMIT:
            raise UsageError(
                f'the socket path "{path}" is longer than {_PATH_LIMIT} bytes: set TMPDIR to a shorter one'
            )
        self._mappings: dict[Hashable, _Mapping] = {}
        self._path = path
        try:
            super().__init__("shm", f"ipc://{path}", max_payload=CONTROL_LIMIT, timeout=timeout)
        except zmq.ZMQError as error:
            raise UsageError(f'cannot create a socket at "{path}" ({error.strerror}): check the folder') from error
        os.chmod(path, 0o600)
        self.address = f"shm://{path}"

    def open_session(self, peer: Peer, payload_bytes: Sequence[int]) -> dict[str, Any]:
        """Create the mapping; returns its path as a field for READY.

        Raises:
            RefusedError: there is not enough shared memory.
        """
        connection = self._connections.get(peer.key)  # type: ignore[call-overload]
        if connection is None:
            raise ProtocolError("the connection ended before the session was opened")
        size = _offsets(payload_bytes)[1]
        folder = _FOLDER if os.path.isdir(_FOLDER) else None
        path = ""
        try:
            descriptor, path = tempfile.mkstemp(prefix="seed-", dir=folder)  # 0600
            try:
                # Allocates the pages now: a full file system is an error here but SIGBUS in a later write.
                os.posix_fallocate(descriptor, 0, size)
                mapping = _Mapping(descriptor, path, payload_bytes)
            finally:
                os.close(descriptor)
        except OSError as error:
            if path:
                os.unlink(path)
            raise RefusedError(
                f"{size} bytes of shared memory for this actor cannot be allocated in "
                f"{folder or tempfile.gettempdir()} ({error.strerror}): free some, or use --transport zmq"
            ) from error
        self._mappings[connection.peer.key] = mapping
        connection.limit = max(payload_bytes)
        return {_KEY: path}

    def _receive_row(self, connection: Any, header: Header, row: memoryview) -> None:
        mapping = self._mappings.get(connection.peer.key)
        if mapping is None or header.stream >= len(mapping.rows):
            raise ProtocolError(f"a step is for stream {header.stream}, which has no shared memory")
        shared = mapping.rows[header.stream]
        count = self._socket.recv_into(bytearray(1), flags=zmq.NOBLOCK)
        if count or self._socket.getsockopt(zmq.RCVMORE) or shared.nbytes != header.payload_bytes:
            raise ProtocolError(
                f"a step has a payload of {count} bytes and announces {header.payload_bytes}; expected none "
                f"and {shared.nbytes} bytes in shared memory"
            )
        mapping.unlink()
        row[:] = shared

    def _forget(self, identity: bytes) -> None:
        super()._forget(identity)
        mapping = self._mappings.pop(identity, None)
        if mapping is not None:
            mapping.unlink()

    def close(self) -> None:
        super().close()
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            pass


class ShmClient(ZmqClient):
    """An actor's connection through shared memory; see `net.base.ClientTransport`.

    Args:
        path: path of the learner's ipc socket.
    """

    def __init__(self, path: str) -> None:
        super().__init__(f"ipc://{path}", address=f"shm://{path}")

    @property
    def shares_memory(self) -> bool:
        return True

    def open_session(self, ready: Mapping[str, Any], payload_bytes: Sequence[int]) -> list[memoryview]:
        """Map the session's shared memory; the buffers are its rows, which the learner reads."""
        path = ready.get(_KEY)
        if not isinstance(path, str):
            raise ProtocolError("the learner's READY names no shared memory: check that it has this version")
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise ConnectionLost(f"the shared memory of this session cannot be opened ({error.strerror})") from error
        try:
            if os.fstat(descriptor).st_size != _offsets(payload_bytes)[1]:
                raise ProtocolError("the size of this session's shared memory differs from that of its rows")
            mapping = _Mapping(descriptor, path, payload_bytes)
        finally:
            os.close(descriptor)
        mapping.unlink()
        self._buffers = mapping.rows
        return self._buffers

    def send_row(self, stream: int, header: bytes) -> None:
        """Send the header only: the row is in shared memory."""
        self.send(header)
