"""The ZeroMQ transport: a ROUTER at the learner, a DEALER at each actor.

A frame is a message of two parts, header and payload; the ROUTER prepends the connection's identity. A step's payload
is received directly into the arena (`recv_into`), with one copy.

An actor has two sockets, because a ZeroMQ socket is not thread-safe: one for steps and answers, whose identity is b"C"
and 15 random bytes, and one that only sends heartbeats, b"H" and the same bytes. The learner attributes a heartbeat to
the first, and sends the acknowledgement there.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from seedcli.errors import AuthenticationError, ConnectionLost, ProtocolError, UsageError
from seedcli.net.addresses import bindable_ip, check_known, join_host_port, listen_error, shown_host
from seedcli.net.base import PING_TIMEOUT_SECONDS, Frame, Payload
from seedcli.net.frames import ANSWER_LIMIT, unpack_header
from seedcli.net.greeting import not_a_learner, other_protocol, unanswered
from seedcli.net.security.curve import protect_client
from seedcli.net.security.keys import Security
from seedcli.net.security.refusal import refusal
from seedcli.net.zmq_router import RouterServer
from seedcli.net.zmq_sockets import keep_alive, skip, watch
from seedcli.specs import aligned_empty

MAX_PAYLOAD = 256 * 2**20  # bytes of one row; ZeroMQ needs the limit at bind, before any specification is known
_SETTING = "net.zmq_port"
_OTHER_PORT = "if that is its gRPC port, leave out zmq://"
_ONE_ENCRYPTS = f"only one of the two encrypts; {_OTHER_PORT}"
_REJECTIONS = 3  # connections that were accepted and then closed before the handshake
_PAUSE_MILLISECONDS = 100  # between attempts
_REJECTED = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_OTHER = zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL


class ZmqServer(RouterServer):
    """The learner's ZeroMQ listener on TCP.

    Args:
        host: name or address of an interface of this machine.
        port: TCP port; 0 for any free one.
        security: token and certificates; None: no encryption and no authentication.
        max_payload: limit for the rows of all sessions, bytes.
        timeout: seconds without an answer to pings, after which a connection is lost.

    Raises:
        UsageError: the port is in use, or the host is not on this machine.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        security: Security | None = None,
        max_payload: int = MAX_PAYLOAD,
        timeout: float = PING_TIMEOUT_SECONDS,
    ) -> None:
        address = join_host_port(bindable_ip(host, port, setting=_SETTING), port)
        try:
            super().__init__("zmq", f"tcp://{address}", max_payload=max_payload, security=security, timeout=timeout)
        except zmq.ZMQError as error:
            raise listen_error(host, port, error.errno or 0, setting=_SETTING) from error
        self.address = f"zmq://{join_host_port(shown_host(host), int(self.endpoint.rpartition(':')[2]))}"


class ZmqClient:
    """An actor's ZeroMQ connection; see `net.base.ClientTransport`.

    Args:
        url: ZeroMQ URL, "tcp://host:port".
        address: the learner's address, as the user typed it; default: derived from `url`.
        security: token and certificates; None: no encryption and no authentication.
    """

    def __init__(self, url: str, *, address: str | None = None, security: Security | None = None) -> None:
        self.address = address or url.replace("tcp://", "zmq://", 1)
        self.token = security.token if security is not None else None
        self._security = security
        self._url = url
        self._lost: str | None = None
        self._buffers: list[memoryview] = []
        self._context = zmq.Context()
        self._name = os.urandom(15)
        self._socket = self._dealer(b"C" + self._name, incoming=0)
        self._monitor = watch(self._socket, _REJECTED | _OTHER)
        # Contended only by `close`: a heartbeat never waits for a frame.
        self._heartbeat_lock = threading.Lock()
        self._heartbeat: zmq.Socket[bytes] | None = None
        self._closed = False

    @property
    def shares_memory(self) -> bool:
        return False

    def _dealer(self, identity: bytes, *, incoming: int) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        for option, value in (
            (zmq.SNDHWM, 0),  # unbounded: an actor has at most one step per stream in flight
            (zmq.RCVHWM, incoming),
            (zmq.MAXMSGSIZE, ANSWER_LIMIT),
            (zmq.IPV6, int(self._url.startswith("tcp://["))),
            (zmq.RECONNECT_IVL, _PAUSE_MILLISECONDS),
            (zmq.LINGER, 0),
        ):
            socket.setsockopt(option, value)
        socket.setsockopt(zmq.IDENTITY, identity)
        keep_alive(socket)
        if self._security is not None:
            protect_client(socket, self._security)
        return socket

    def connect(self, timeout: float) -> None:
        """Connect and wait for the ZeroMQ handshake."""
        check_known(self._url.removeprefix("tcp://"), self.address)
        self._dial()
        deadline = time.monotonic() + timeout
        accepted, rejections = False, 0
        while (left := deadline - time.monotonic()) > 0:
            if not self._monitor.poll(int(left * 1000) + 1):
                continue
            event = self._event()
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                return
            if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                # Only one side encrypts. ZeroMQ does not retry after this event.
                raise AuthenticationError(refusal(self.address, self._security, _ONE_ENCRYPTS))
            if event == zmq.EVENT_CONNECTED:
                accepted = True
            elif accepted and event & _REJECTED:
                # A learner that is shutting down closes one connection; one that rejects this actor closes each.
                accepted, rejections = False, rejections + 1
                # A disconnection without a failed handshake: the peer did not send a ZeroMQ greeting.
                other = event == zmq.EVENT_DISCONNECTED
                if rejections >= _REJECTIONS:
                    raise self._rejected(other)
                if other:
                    self._dial_again()
        raise unanswered(self.address, timeout)

    def _dial(self) -> None:
        try:
            self._socket.connect(self._url)
        except zmq.ZMQError as error:
            raise UsageError(f'cannot connect to "{self.address}" ({error.strerror}): check the address') from error

    def _dial_again(self) -> None:
        """Retry with a new socket: ZeroMQ gives up an address after a greeting of another protocol."""
        socket, monitor = self._socket, self._monitor
        time.sleep(_PAUSE_MILLISECONDS / 1000)
        self._socket = self._dealer(b"C" + self._name, incoming=0)
        self._monitor = watch(self._socket, _REJECTED | _OTHER)
        socket.disable_monitor()
        monitor.close(linger=0)
        socket.close(linger=0)
        self._dial()

    def _rejected(self, other: bool) -> AuthenticationError:
        """Return the error for repeated rejections; `other`: the last one did not come from a ZeroMQ handshake."""
        found = not_a_learner(self.address) if other else other_protocol(self.address)
        return found or AuthenticationError(refusal(self.address, self._security, _OTHER_PORT))

    def _event(self) -> int:
        return int(parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))["event"])

    def _watch(self) -> None:
        while self._lost is None and int(self._monitor.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            if self._event() == zmq.EVENT_DISCONNECTED:
                self._lost = f"the connection to the learner at {self.address} was closed"

    def _check(self) -> None:
        if self._closed:
            raise ConnectionLost(f"the connection to the learner at {self.address} is closed")
        self._watch()
        if self._lost is not None:
            raise ConnectionLost(self._lost)

    def send(self, header: bytes, payload: Payload = b"") -> None:
        self._check()
        self._socket.send(header, zmq.SNDMORE | zmq.NOBLOCK)
        self._socket.send(payload, zmq.NOBLOCK)

    def receive(self, timeout: float) -> Frame | None:
        deadline = time.monotonic() + timeout
        sockets = [(self._socket, zmq.POLLIN), (self._monitor, zmq.POLLIN)]
        while True:
            if self._closed:
                raise ConnectionLost(f"the connection to the learner at {self.address} is closed")
            wait = 0 if self._lost is not None else max(0.0, deadline - time.monotonic())
            # poll takes milliseconds: round up to avoid spinning through the last one.
            ready = dict(zmq.zmq_poll(sockets, int(wait * 1000) + 1 if wait else 0))
            # Frames that the learner sent before it disconnected come first.
            if self._socket in ready:
                return self._frame()
            if self._lost is not None:
                raise ConnectionLost(self._lost)
            self._watch()
            if self._lost is None and time.monotonic() >= deadline:
                return None

    def _frame(self) -> Frame:
        first = self._socket.recv(zmq.NOBLOCK)
        try:
            header = unpack_header(first)
            if not self._socket.getsockopt(zmq.RCVMORE):
                raise ProtocolError("the learner sent a frame without a payload part")
            payload = self._socket.recv(zmq.NOBLOCK)
            if len(payload) != header.payload_bytes or self._socket.getsockopt(zmq.RCVMORE):
                raise ProtocolError("the learner sent a frame whose size differs from its header")
        finally:
            skip(self._socket)
        return Frame(header, payload)

    def open_session(self, ready: Mapping[str, Any], payload_bytes: Sequence[int]) -> list[memoryview]:
        self._buffers = [aligned_empty(nbytes).data for nbytes in payload_bytes]
        return self._buffers

    def send_row(self, stream: int, header: bytes) -> None:
        self._check()
        self._socket.send(header, zmq.SNDMORE | zmq.NOBLOCK)
        self._socket.send(self._buffers[stream], zmq.NOBLOCK)

    def heartbeat(self, header: bytes) -> None:
        with self._heartbeat_lock:
            if self._closed:
                return
            if self._heartbeat is None:
                self._heartbeat = self._dealer(b"H" + self._name, incoming=1)
                self._heartbeat.connect(self._url)
            self._heartbeat.send(header, zmq.SNDMORE | zmq.NOBLOCK)
            self._heartbeat.send(b"", zmq.NOBLOCK)

    def close(self) -> None:
        """Flush for up to half a second and close the connection; safe to call twice."""
        with self._heartbeat_lock:
            if self._closed:
                return
            self._closed = True
            if self._heartbeat is not None:
                self._heartbeat.close(linger=0)
        self._watch()
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0 if self._lost is not None else 500)
        self._context.term()
