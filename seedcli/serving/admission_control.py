"""Admission control: limits on the resources that unauthenticated TCP connections may use.

The transports' libraries accept every connection and read data before any proof. Without limits, peers without the
token could take all of the learner's descriptors with idle connections (and checkpoints could not be written), or fill
its memory with messages of the maximum size. A thread inspects each connection to a listener in the kernel. It closes
unauthenticated connections that are too old or have sent too much, and the oldest ones if there are too many.
"""

from __future__ import annotations

import logging
import os
import resource
import socket
import stat
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from seedcli.net.addresses import plain_address
from seedcli.net.frames import CONTROL_LIMIT
from seedcli.telemetry.logs import log_once_per

_log = logging.getLogger(__name__)

PROOF_SECONDS = 10.0  # from a connection to the proof of the token
MAX_UNAUTHENTICATED = 1024  # maximum number of connections and handshakes without proof
_MIN_UNAUTHENTICATED = 8  # always permitted
_MAX_BYTES = 4 * CONTROL_LIMIT  # received before the proof: HELLO and PROOF, with TLS overhead
_BUSY_SECONDS = 0.1  # between checks while there are unauthenticated connections
_QUIET_SECONDS = 0.5  # between checks otherwise
_STALLED_SECONDS = 2.0  # without a turn of the service, after which it counts as stalled and cannot read proofs
_LOG_SECONDS = 5.0
_BYTES_RECEIVED = struct.Struct("=128xQ")  # of Linux's struct tcp_info: tcpi_bytes_received


class Listener(Protocol):
    """The interface that admission control needs of a transport; `trusts` must be thread-safe.

    Attributes:
        port: the TCP port it listens on; None: it does not use TCP.
    """

    port: int | None

    def trusts(self, descriptor: int, address: tuple[str, int]) -> bool:
        """Whether this connection's peer is authenticated.

        Args:
            descriptor: the socket's descriptor in this process.
            address: the peer's address and port; an IPv4 address is not mapped to IPv6.
        """


@dataclass
class _Connection:
    """A connection to one of the listeners.

    Attributes:
        descriptor, inode: descriptor and inode of its socket.
        seen: when it was first seen, monotonic seconds.
        listener: its listener; None: the socket is not a connection to a listener, and is ignored.
        address: the peer's address and port.
        since: start of the time for the proof, monotonic seconds; None: the peer is authenticated.
        before: bytes received until `since`.
    """

    descriptor: int
    inode: int
    seen: float
    listener: Listener | None = None
    address: tuple[str, int] = ("", 0)
    since: float | None = None
    before: int = 0


def descriptor_limit() -> int:
    """Return how many files and sockets this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _for_connections(limit: int) -> int:
    """Return how many of `limit` descriptors connections may use; the learner needs the rest for its own files."""
    return limit - max(32, limit // 16)


class AdmissionControl:
    """A thread that limits unauthenticated connections to the listeners; see the module's docstring.

    Args:
        listeners: transports; those without a port are ignored, and without any port no thread is started.
        last_turn: returns when the service last received frames, monotonic seconds; while the service is stalled, no
            connection is too old.

    Attributes:
        ended: number of connections closed so far.
        unauthenticated: number of unauthenticated connections at the last check.
        descriptors: number of open files and sockets at the last check.
    """

    def __init__(self, listeners: Iterable[Listener], last_turn: Callable[[], float]) -> None:
        self._listeners = {listener.port: listener for listener in listeners if listener.port is not None}
        self._last_turn = last_turn
        self._seen: dict[int, _Connection] = {}
        self.ended = 0
        self.unauthenticated = 0
        self.descriptors = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if self._listeners:
            # Sockets are inspected through a duplicate that nothing else closes. Its descriptor is reserved now,
            # because it is needed most when no descriptor is left.
            self._nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            self._duplicate = os.dup(self._nothing)
            self._thread = threading.Thread(target=self._run, name="admission control", daemon=True)
            self._thread.start()

    @property
    def descriptors_exhausted(self) -> bool:
        """Whether authenticated actors use all descriptors that connections may use."""
        limit = descriptor_limit()
        return self.descriptors - self.unauthenticated > _for_connections(limit)

    def close(self) -> None:
        """End the thread; safe to call twice."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            os.close(self._nothing)
            os.close(self._duplicate)

    def _run(self) -> None:
        pause = _BUSY_SECONDS
        while not self._stop.wait(pause):
            ended = self._check_connections(time.monotonic())
            pause = _BUSY_SECONDS if self.unauthenticated else _QUIET_SECONDS
            for reason, count in ended.items():
                log_once_per(
                    f"unauthenticated {reason}", _LOG_SECONDS, _log, logging.WARNING,
                    "%d connections of unauthenticated peers were closed: %s", count, reason,
                )  # fmt: skip

    def _check_connections(self, now: float) -> Counter[str]:
        """Check every connection; returns the number closed, by reason."""
        self._update_connections(now)
        ended: Counter[str] = Counter()
        staying = []
        unauthenticated = self._find_unauthenticated(now)
        for connection in unauthenticated:
            reason = self._too_much(connection, now)
            if reason is None:
                staying.append(connection)
            elif self._end(connection):
                ended[reason] += 1
        # The oldest first: a holder of the token proves it at once.
        staying.sort(key=lambda connection: connection.seen)
        for connection in staying[: self._surplus(len(staying))]:
            ended["there were too many of them"] += self._end(connection)
        self.unauthenticated = len(unauthenticated)
        self.ended += ended.total()
        return ended

    def _find_unauthenticated(self, now: float) -> list[_Connection]:
        found = []
        stalled = now - self._last_turn() > _STALLED_SECONDS
        for connection in self._seen.values():
            if connection.listener is None:
                continue
            if connection.listener.trusts(connection.descriptor, connection.address):
                connection.since = None
                continue
            if connection.since is None:
                # Its session has ended: restart its time, so that the last frames still reach it.
                connection.since, connection.before = now, self._received(connection)
            elif stalled:
                connection.since = now
            found.append(connection)
        return found

    def _surplus(self, unauthenticated: int) -> int:
        # A few are always permitted: a reconnecting fleet must get an answer, even if it is a refusal.
        limit = descriptor_limit()
        left = _for_connections(limit) - (self.descriptors - unauthenticated)
        return max(0, unauthenticated - min(MAX_UNAUTHENTICATED, max(_MIN_UNAUTHENTICATED, min(limit // 4, left))))

    def _update_connections(self, now: float) -> None:
        present: dict[int, _Connection] = {}
        count = 0
        for descriptor in _open_descriptors():
            try:
                status = os.fstat(descriptor)
            except OSError:
                continue  # not open any more
            count += 1
            if not stat.S_ISSOCK(status.st_mode):
                continue
            known = self._seen.get(status.st_ino) or self._identify(descriptor, status.st_ino, now)
            known.descriptor = descriptor
            present[status.st_ino] = known
        self._seen, self.descriptors = present, count

    def _identify(self, descriptor: int, inode: int, now: float) -> _Connection:
        connection = _Connection(descriptor, inode, seen=now, since=now)

        def ask(sock: socket.socket) -> None:
            if sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM:
                host, port, *_ = sock.getpeername()  # fails for a listener
                connection.address = plain_address(host), port
                connection.listener = self._listeners.get(sock.getsockname()[1])

        self._with_socket(connection, ask)
        return connection

    def _too_much(self, connection: _Connection, now: float) -> str | None:
        """Return why the connection must be closed, or None."""
        assert connection.since is not None
        if now - connection.since > PROOF_SECONDS:
            return f"no proof within {PROOF_SECONDS:.0f} s"
        if self._received(connection) - connection.before > _MAX_BYTES:
            return f"more than {_MAX_BYTES} bytes before the proof of the token"
        return None

    def _received(self, connection: _Connection) -> int:
        """Bytes the kernel has received on a connection."""
        received = 0

        def ask(sock: socket.socket) -> None:
            nonlocal received
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED.size)
            if len(info) == _BYTES_RECEIVED.size:  # less on systems that emulate Linux
                (received,) = _BYTES_RECEIVED.unpack(info)

        self._with_socket(connection, ask)
        return received

    def _end(self, connection: _Connection) -> bool:
        # Checked again here: it may have proved the token since.
        assert connection.listener is not None
        if connection.listener.trusts(connection.descriptor, connection.address):
            return False
        return self._with_socket(connection, lambda sock: sock.shutdown(socket.SHUT_RDWR))

    def _with_socket(self, connection: _Connection, action: Callable[[socket.socket], None]) -> bool:
        """Call `action` with a connection's socket; returns False if that failed, e.g. because it is closed."""
        try:
            os.dup2(connection.descriptor, self._duplicate, inheritable=False)
        except OSError:
            return False
        try:
            if os.fstat(self._duplicate).st_ino != connection.inode:
                return False
            duplicate = socket.socket(fileno=self._duplicate)
            try:
                action(duplicate)
            finally:
                duplicate.detach()
        except OSError:
            return False
        finally:
            os.dup2(self._nothing, self._duplicate, inheritable=False)
        return True


def _open_descriptors() -> Iterable[int]:
    """Return descriptors that include those of all open files and sockets."""
    try:
        return map(int, os.listdir("/proc/self/fd"))
    except OSError:
        return range(descriptor_limit())  # no descriptor is left to open the folder
