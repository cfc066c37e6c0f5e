"""A learner's ZeroMQ ROUTER.

ZeroMQ reconnects silently and does not notify a ROUTER of connections that end. The socket's monitor reports their
descriptors, and the server then sends a probe to the identity that used the descriptor; the probe also gives the right
answer if the descriptor has been reused. A ROUTER cannot close a single connection: the server remembers dropped peers,
discards their frames and answers them with UNKNOWN.
"""

from __future__ import annotations

import errno
import os
import select
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from seedcli.errors import ProtocolError
from seedcli.net.base import PING_TIMEOUT_SECONDS, FrameHandler, Payload, Peer, frame_limit, ping_milliseconds
from seedcli.net.frames import CONTROL_LIMIT, Header, Kind, pack_header, unpack_header
from seedcli.net.security.curve import HANDSHAKE_MILLISECONDS, ZapHandler, protect_listener
from seedcli.net.security.keys import Security
from seedcli.net.zmq_sockets import keep_alive, property_of, skip, watch

_FRAMES_PER_CALL = 256
_INCOMING = 64  # messages queued per connection before TCP's flow control holds the actor back
_OUTGOING = 4096  # messages queued per connection; at this limit the peer is dropped because it does not read
_DROPPED = 1024  # dropped identities that are remembered
_PROBE_SECONDS = 1.0  # for which a connection that may have ended is probed
_NOWAIT = zmq.NOBLOCK
_MORE = zmq.SNDMORE | zmq.NOBLOCK
_HANDSHAKE_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
_UNKNOWN = pack_header(Kind.UNKNOWN)
_PROBE = pack_header(Kind.HEARTBEAT_ACK)


class _Connection:
    """A peer that has sent HELLO."""

    __slots__ = ("descriptor", "heartbeats", "limit", "peer", "trusted")

    def __init__(self, peer: Peer, descriptor: int) -> None:
        self.peer = peer
        self.descriptor = descriptor  # of its socket, as the monitor reports it
        self.heartbeats = -1  # descriptor of its connection for heartbeats
        self.limit = CONTROL_LIMIT  # bytes of a payload
        self.trusted = False


class RouterServer:
    """Serves a ROUTER on any interface and port; see `net.base.ServerTransport`.

    Args:
        name: the transport's name.
        url: ZeroMQ URL to bind, "tcp://host:port".
        max_payload: limit for the rows of all sessions, bytes.
        security: token and certificates; None: no encryption and no authentication.
        timeout: seconds without an answer to pings, after which a connection is lost.

    Raises:
        zmq.ZMQError: the address cannot be bound.
    """

    shares_memory = False
    pings = True  # between the I/O threads of the two libraries

    def __init__(
        self,
        name: str,
        url: str,
        *,
        max_payload: int,
        security: Security | None = None,
        timeout: float = PING_TIMEOUT_SECONDS,
    ) -> None:
        self.name = name
        self.address = url
        self.token = security.token if security is not None else None
        self._max_payload = max_payload
        self._connections: dict[bytes, _Connection] = {}
        self._by_descriptor: dict[int, bytes] = {}
        self._trusted: dict[int, bytes] = {}  # identity by descriptor; read by other threads
        self._dropped: OrderedDict[bytes, None] = OrderedDict()
        self._probed: dict[bytes, float] = {}  # connections that may have ended, with the end of their probes
        self._full: list[bytes] = []  # connections with a full queue
        # Receives steps that have no destination, so that no frame makes the server allocate memory.
        self._scratch = memoryview(bytearray(CONTROL_LIMIT))
        self._signalled = False
        self._closed = False
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        ping_interval, ping_timeout = ping_milliseconds(timeout)
        for option, value in (
            (zmq.ROUTER_MANDATORY, 1),
            (zmq.ROUTER_HANDOVER, 1),
            (zmq.RCVHWM, _INCOMING),
            (zmq.SNDHWM, _OUTGOING),
            (zmq.LINGER, 1000),
            (zmq.MAXMSGSIZE, max(max_payload, CONTROL_LIMIT)),
            (zmq.IPV6, int(url.startswith("tcp://["))),
            (zmq.BACKLOG, 1024),
            (zmq.HANDSHAKE_IVL, HANDSHAKE_MILLISECONDS),
            (zmq.HEARTBEAT_IVL, ping_interval),
            (zmq.HEARTBEAT_TIMEOUT, ping_timeout),
        ):
            self._socket.setsockopt(option, value)
        keep_alive(self._socket)
        if security is not None:
            ZapHandler(self._context, security)
            protect_listener(self._socket, security)
        self.turned_away = 0
        self._monitor = watch(self._socket, zmq.EVENT_DISCONNECTED | _HANDSHAKE_FAILED)
        try:
            self._socket.bind(url)
        except zmq.ZMQError:
            # Not `destroy`: the ZAP handler's thread owns its socket and closes it when the context ends.
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
            self._socket.close(linger=0)
            self._context.term()
            raise
        self.endpoint: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.port: int | None = int(self.endpoint.rpartition(":")[2])
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        for descriptor in (self._socket.getsockopt(zmq.FD), self._monitor.getsockopt(zmq.FD), self._event):
            self._epoll.register(int(descriptor), select.EPOLLIN)

    def fileno(self) -> int:
        return self._epoll.fileno()

    def receive(self, handler: FrameHandler) -> int:
        if self._signalled:
            self._signalled = False
            os.eventfd_read(self._event)
        count = 0
        receive = self._socket.recv
        while count < _FRAMES_PER_CALL and not handler.full:
            try:
                identity = receive(_NOWAIT)
            except zmq.Again:
                break
            count += 1
            connection = self._connections.get(identity)
            if connection is None:
                self._unknown(identity, handler)
                continue
            try:
                self._take(connection, unpack_header(receive(_NOWAIT)), handler)
            except ProtocolError as error:
                self._end(identity, str(error), handler, malformed=True)
        else:
            return count  # more frames may be waiting: the caller calls again before it sleeps
        # After all waiting frames, so that a peer's last frames come before its end.
        return count + self._find_lost(handler)

    def _take(self, connection: _Connection, header: Header, handler: FrameHandler) -> None:
        socket = self._socket
        if not socket.getsockopt(zmq.RCVMORE):
            raise ProtocolError("a frame has no payload part")
        if header.kind == Kind.STEP:
            if header.payload_bytes > connection.limit:
                raise ProtocolError(
                    f"the step has {header.payload_bytes} bytes, more than the limit of {connection.limit}"
                )
            self._take_step(connection, header, handler)
            return
        if header.payload_bytes > CONTROL_LIMIT:
            raise ProtocolError(f"the payload has {header.payload_bytes} bytes, more than the limit of {CONTROL_LIMIT}")
        body = socket.recv(_NOWAIT)
        if len(body) != header.payload_bytes or socket.getsockopt(zmq.RCVMORE):
            raise ProtocolError(f"the payload has {len(body)} bytes, but the header says {header.payload_bytes}")
        handler.frame(connection.peer, header, body)

    def _take_step(self, connection: _Connection, header: Header, handler: FrameHandler) -> None:
        destination = handler.destination(connection.peer, header)
        payload: Payload = b""
        if destination is None or destination.encoded:
            if header.payload_bytes > len(self._scratch):
                self._scratch = memoryview(bytearray(connection.limit))
            payload = self._scratch[: header.payload_bytes]
            self._receive_into(header, payload)
        elif header.payload_bytes != destination.row.nbytes:
            raise ProtocolError(f"the step has {header.payload_bytes} bytes, expected {destination.row.nbytes}")
        else:
            self._receive_into(header, destination.row)
        if destination is None:
            handler.frame(connection.peer, header, payload)
        else:
            handler.take_row(destination, header, payload)

    def _receive_into(self, header: Header, memory: memoryview) -> None:
        # Returns the size of the part even if it does not fit; nothing is written beyond the buffer.
        count = self._socket.recv_into(memory, flags=_NOWAIT)
        if count != header.payload_bytes or self._socket.getsockopt(zmq.RCVMORE):
            raise ProtocolError(f"the row has {count} bytes, but the header says {header.payload_bytes}")

    def _unknown(self, identity: bytes, handler: FrameHandler) -> None:
        """Take a frame of an identity without a connection: a heartbeat, a HELLO or an unexpected frame."""
        socket = self._socket
        if identity in self._dropped:
            skip(socket)
            self._post(identity, _UNKNOWN)
            return
        first = socket.recv(_NOWAIT, copy=False)
        owner = b"C" + identity[1:] if identity[:1] == b"H" else identity
        try:
            header = unpack_header(first.bytes)
            if owner is not identity:
                self._heartbeat(owner, header, handler, property_of(first, zmq.SRCFD))
                return
            if header.kind != Kind.HELLO:
                # A frame of a session that has ended or was with a previous learner: the actor must start a handshake.
                skip(socket)
                self._post(identity, _UNKNOWN)
                return
            descriptor = property_of(first, zmq.SRCFD)
            if not isinstance(descriptor, int):
                raise ProtocolError("the peer uses an outdated ZeroMQ protocol")
            connection = _Connection(self._peer(identity, first), descriptor)
            earlier = self._by_descriptor.get(descriptor)
            if earlier is not None:  # its descriptor was reused, so its connection has ended
                self._probed[earlier] = time.monotonic() + _PROBE_SECONDS
            self._connections[identity] = connection
            self._by_descriptor[descriptor] = identity
            self._take(connection, header, handler)
        except ProtocolError as error:
            if identity not in self._connections:
                self._connections[identity] = _Connection(self._peer(identity, first), -1)
            self._end(identity, str(error), handler, malformed=True)

    def _heartbeat(self, owner: bytes, header: Header, handler: FrameHandler, descriptor: object) -> None:
        if header.kind != Kind.HEARTBEAT or header.payload_bytes:
            raise ProtocolError(f"a connection for heartbeats received a frame of kind {header.kind}")
        skip(self._socket)
        connection = self._connections.get(owner)
        if connection is None:
            self._post(owner, _UNKNOWN)
            return
        if connection.trusted and isinstance(descriptor, int) and descriptor != connection.heartbeats:
            self._withdraw_trust(owner, connection.heartbeats)
            self._trusted[descriptor] = owner
            connection.heartbeats = descriptor
        try:
            handler.frame(connection.peer, header, b"")
        except ProtocolError as error:
            self._end(owner, str(error), handler, malformed=True)

    def _peer(self, identity: bytes, frame: zmq.Frame) -> Peer:
        return Peer(self.name, identity, str(property_of(frame, "Peer-Address") or "an unknown address"))

    def _find_lost(self, handler: FrameHandler) -> int:
        lost = 0
        full, self._full = self._full, []
        for identity in full:
            if identity in self._connections:
                self._end(identity, "the peer does not read its messages", handler)
                lost += 1
        # The monitor reports the end of a connection shortly before the ROUTER notices it: connections are probed again
        # in the next calls, which the ROUTER's descriptor triggers.
        now = time.monotonic()
        for identity, deadline in list(self._probed.items()):
            if identity not in self._connections or now > deadline:
                del self._probed[identity]
            elif not self._post(identity, _PROBE):
                self._end(identity, "the connection was closed", handler)
                lost += 1
        while int(self._monitor.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            event = parse_monitor_message(self._monitor.recv_multipart(_NOWAIT))
            if event["event"] & _HANDSHAKE_FAILED:
                self.turned_away += 1
                continue
            ended = self._by_descriptor.get(event["value"])
            if ended is not None:
                self._probed[ended] = now + _PROBE_SECONDS
            lost += 1  # makes the caller call again
        if self._probed:
            self._rearm()
        return lost

    def _end(self, identity: bytes, reason: str, handler: FrameHandler, *, malformed: bool = False) -> None:
        skip(self._socket)
        connection = self._connections[identity]
        self._forget(identity)
        if malformed:
            self._post(identity, _UNKNOWN)
        handler.lost(connection.peer, reason, malformed=malformed)

    def _forget(self, identity: bytes) -> None:
        connection = self._connections.pop(identity)
        if self._by_descriptor.get(connection.descriptor) == identity:
            del self._by_descriptor[connection.descriptor]
        self._probed.pop(identity, None)
        self._withdraw_trust(identity, connection.descriptor)
        self._withdraw_trust(identity, connection.heartbeats)
        self._dropped[identity] = None
        if len(self._dropped) > _DROPPED:
            self._dropped.popitem(last=False)

    def _withdraw_trust(self, identity: bytes, descriptor: int) -> None:
        if self._trusted.get(descriptor) == identity:  # else the descriptor was closed and reused
            del self._trusted[descriptor]

    def _signal(self) -> None:
        if not self._signalled:
            self._signalled = True
            os.eventfd_write(self._event, 1)

    def _rearm(self) -> None:
        """Call after sending, which consumes the socket's signals: a frame received since must still wake the poll."""
        if not self._signalled and int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._signal()

    def _post(self, identity: bytes, header: bytes, payload: Payload = b"") -> bool:
        """Send a frame; returns False if no such peer is connected."""
        send = self._socket.send
        try:
            send(identity, _MORE)
            send(header, _MORE)
            send(payload, _NOWAIT)
        except zmq.Again:
            self._full.append(identity)
            self._signal()
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            return False
        return True

    def send(self, peer: Peer, header: bytes, payload: Payload = b"") -> None:
        if peer.key not in self._connections:
            return
        assert isinstance(peer.key, bytes)
        self._post(peer.key, header, payload)

    def open_session(self, peer: Peer, payload_bytes: Sequence[int]) -> dict[str, Any]:
        """Raises RefusedError for rows over the limit."""
        connection = self._connections.get(peer.key)  # type: ignore[call-overload]
        if connection is None:
            raise ProtocolError("the connection ended before the session was opened")
        connection.limit = frame_limit(payload_bytes, self._max_payload)
        return {}

    def trust(self, peer: Peer) -> None:
        connection = self._connections.get(peer.key)  # type: ignore[call-overload]
        if connection is not None:
            connection.trusted = True
            self._trusted[connection.descriptor] = connection.peer.key

    def trusts(self, descriptor: int, address: tuple[str, int]) -> bool:
        return descriptor in self._trusted

    def drop(self, peer: Peer) -> None:
        if isinstance(peer.key, bytes) and peer.key in self._connections:
            self._forget(peer.key)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for identity in list(self._connections):
            self._forget(identity)
        self._epoll.close()
        os.close(self._event)
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=1000)
        self._context.term()
