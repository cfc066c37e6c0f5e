"""The transport interfaces of the learner (server) and the actor (client).

Transports move frames and know nothing of environments, agents or sessions. One thread drives the server side: it
waits until `fileno()` is readable, then calls `receive(handler)`, which passes every waiting frame to the handler
without blocking.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from seedcli.errors import RefusedError
from seedcli.net.frames import CONTROL_LIMIT, Header
from seedcli.net.security.token import Token

Payload = bytes | bytearray | memoryview


PING_TIMEOUT_SECONDS = 20.0  # default of `net.timeout_seconds`
_PINGS = 8  # in a timeout


class Peer(NamedTuple):
    """One connection, as the server sees it: hashable, and valid for `send` until `lost` is called.

    Attributes:
        transport: the transport's name.
        key: the transport's key of the connection.
        address: for messages, e.g. "10.0.0.7:51234", as far as the transport knows it.
    """

    transport: str
    key: Hashable
    address: str


class Destination(NamedTuple):
    """The memory for the row of a STEP.

    Attributes:
        owner: the handler's own object for the row's stream.
        row: memory of exactly the row's size.
        encoded: the payload is encoded, with a size up to the maximum passed to `open_session`, and the handler decodes
            it into `row`. Otherwise the transport copies the payload into `row`; a payload of another size, in the
            header or on the wire, is a ProtocolError of that peer.
    """

    owner: Any
    row: memoryview
    encoded: bool


class FrameHandler(Protocol):
    """Receives a server transport's frames; all calls come from the thread that calls `receive`.

    `destination`, `take_row` and `frame` may raise ProtocolError: the transport then drops that peer and calls `lost`.

    Attributes:
        full: the handler cannot take more frames now: `receive` returns, and the next call continues.
    """

    full: bool

    def destination(self, peer: Peer, header: Header) -> Destination | None:
        """Return the memory for a STEP's row; the transport then calls `take_row`.

        None: there is no such session, and the transport passes the STEP to `frame`.
        """

    def take_row(self, destination: Destination, header: Header, payload: Payload) -> None:
        """Take a STEP's row: it is in `destination.row` and `payload` is empty, or `payload` is the encoded row.

        `payload` is valid only during the call: a transport may reuse its memory.
        """

    def frame(self, peer: Peer, header: Header, payload: Payload) -> None:
        """Take a complete frame of the announced size that has no destination; `payload` as for `take_row`."""

    def lost(self, peer: Peer, reason: str, *, malformed: bool = False) -> None:
        """The connection ended: closed by the peer, broken, or (`malformed`) dropped because of a ProtocolError.

        The handler may not know the peer: its first frame may have been malformed.
        """


class ServerTransport(Protocol):
    """A listener. Everything but `fileno`, `trusts` and `close` may be called from the service thread only.

    Attributes:
        name: the transport's name in `net.transport`.
        address: value for an actor's --connect, e.g. "127.0.0.1:8686", "zmq://127.0.0.1:8687".
        port: the TCP port it listens on; None: it does not use TCP.
        shares_memory: it reads rows where actors build them, so they are never encoded.
        token: the token that peers must prove they hold; None: no proof, because only this user can connect or the
            listener is open.
        turned_away: connections that failed in the secure handshake; 0 if the library does not report them (gRPC).
        pings: the library itself pings its peers, whose libraries answer even while their Python is blocked, and loses
            a connection that does not answer within the listener's timeout.
    """

    name: str
    address: str
    port: int | None
    shares_memory: bool
    token: Token | None
    turned_away: int
    pings: bool

    def fileno(self) -> int:
        """Return a descriptor that polls readable whenever frames may be waiting."""

    def receive(self, handler: FrameHandler) -> int:
        """Pass waiting frames to the handler without blocking, up to a few hundred or until `handler.full`.

        Returns the number of frames. Call it until it returns 0 before waiting on `fileno`, and again after any `send`:
        ZeroMQ's descriptor signals each change once, and sending consumes the signal.
        """

    def send(self, peer: Peer, header: bytes, payload: Payload = b"") -> None:
        """Queue a frame; never blocks. A frame for a lost peer is discarded; a peer that does not read is dropped."""

    def open_session(self, peer: Peer, payload_bytes: Sequence[int]) -> dict[str, Any]:
        """Prepare a session before READY: raise the peer's payload limit and return fields to add to READY.

        Args:
            peer: the actor's connection.
            payload_bytes: maximum payload size of each stream.
        """

    def trust(self, peer: Peer) -> None:
        """Mark the peer as authenticated: admission control leaves its connection open."""

    def trusts(self, descriptor: int, address: tuple[str, int]) -> bool:
        """Whether a TCP connection belongs to an authenticated peer; safe to call from any thread.

        Args:
            descriptor: the socket's descriptor in this process.
            address: the peer's address and port; an IPv4 address is not mapped to IPv6.
        """

    def drop(self, peer: Peer) -> None:
        """Flush what was sent to a peer and forget it; `lost` is not called for it."""

    def close(self) -> None:
        """Stop listening, flush for at most a second and release all resources; safe to call twice."""


class Frame(NamedTuple):
    """A frame received by the client."""

    header: Header
    payload: Payload


class ClientTransport(Protocol):
    """An actor's connection. Call `send` and `receive` from one thread; `heartbeat` is safe from another.

    Attributes:
        address: the learner's address, as a user types it.
        token: the token that both sides must prove they hold; None: no proof.
    """

    address: str
    token: Token | None

    @property
    def shares_memory(self) -> bool:
        """Whether the learner reads rows from the memory they are built in; they are then never encoded."""

    def connect(self, timeout: float) -> None:
        """Open the connection.

        Raises:
            UnreachableError: no learner answers within `timeout` seconds.
            RefusedError: the learner closes every connection in the secure handshake: tokens or certificates differ.
        """

    def send(self, header: bytes, payload: Payload = b"") -> None:
        """Send a frame; raises ConnectionLost."""

    def receive(self, timeout: float) -> Frame | None:
        """Return the next frame, or None after `timeout` seconds; raises ConnectionLost or ProtocolError."""

    def open_session(self, ready: Mapping[str, Any], payload_bytes: Sequence[int]) -> list[memoryview]:
        """Return one writable buffer per stream, in which its rows are built; call it after READY.

        `send_row` sends the content of a stream's buffer.
        """

    def send_row(self, stream: int, header: bytes) -> None:
        """Send a STEP whose payload is in the stream's buffer; reuse the buffer only after the matching ACTION."""

    def heartbeat(self, header: bytes) -> None:
        """Send a HEARTBEAT; safe to call from another thread, never blocks, never raises."""

    def close(self) -> None:
        """Close the connection; safe to call twice."""


def ping_milliseconds(timeout: float) -> tuple[int, int]:
    """Return the interval of pings and how long to wait for an answer, together at most `timeout` seconds.

    They are as long as possible, so that a connection survives short outages.
    """
    interval = max(1, int(1000 * timeout / _PINGS))
    return interval, max(1, int(1000 * timeout) - 2 * interval)


def frame_limit(payload_bytes: Sequence[int], max_payload: int) -> int:
    """Return a session's payload limit, bytes, given the size of its rows; raises RefusedError if over the limit."""
    largest = max(payload_bytes)
    if largest > max_payload:
        raise RefusedError(f"rows have {largest} bytes, more than the limit of {max_payload}: lower --envs")
    return max(largest, CONTROL_LIMIT)
