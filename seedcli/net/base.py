"""What a transport is, for the learner (server) and for the actor (client).

Transports move frames and know nothing of environments, agents or sessions. The server side is driven by
one thread: it waits until `fileno()` is readable, then calls `receive(handler)`, which hands over every
waiting frame without blocking.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from seedcli.errors import RefusedError
from seedcli.net.frames import CONTROL_LIMIT, Header
from seedcli.net.security.token import Token

Payload = bytes | bytearray | memoryview


class Peer(NamedTuple):
    """One connection as the server sees it: hashable, and good for `send` until `lost` is reported.

    Attributes:
        transport: "grpc", "zmq" or "shm".
        key: the transport's own name of the connection.
        address: for people, e.g. "10.0.0.7:51234", as far as the transport knows it.
    """

    transport: str
    key: Hashable
    address: str


class Destination(NamedTuple):
    """Where the row of a STEP goes.

    Attributes:
        owner: the handler's own: whose row it is.
        row: memory of exactly the row's size.
        encoded: the handler decodes the payload into it, which is of any size up to the largest that `open_session` was
            given. Else the transport writes the payload there, and one whose size (the header's claim or the bytes that
            follow) differs is a ProtocolError of that peer.
    """

    owner: Any
    row: memoryview
    encoded: bool


class FrameHandler(Protocol):
    """The learner's side of a server transport; all calls come from the thread that calls `receive`.

    `destination`, `take_row` and `frame` may raise ProtocolError: the transport then drops that peer and calls `lost`.

    Attributes:
        full: the handler has enough to work on: `receive` returns, and goes on where it was when called again.
    """

    full: bool

    def destination(self, peer: Peer, header: Header) -> Destination | None:
        """Where the row of a STEP goes: the transport then calls `take_row`. None: there is no such session, and the
        STEP goes to `frame`.
        """

    def take_row(self, destination: Destination, header: Header, payload: Payload) -> None:
        """The row of a STEP stands in `destination.row`, and `payload` is empty; or `payload` is the encoded row.

        `payload` is good until this returns: a transport may use its memory again.
        """

    def frame(self, peer: Peer, header: Header, payload: Payload) -> None:
        """A whole, size-checked frame that has no destination; `payload` as of `take_row`."""

    def lost(self, peer: Peer, reason: str, *, malformed: bool = False) -> None:
        """The connection ended: closed by the peer, broken, or (`malformed`) dropped for a ProtocolError.

        The peer may be one of which no frame was handed over: its first was malformed.
        """


class ServerTransport(Protocol):
    """A listener. Everything but `fileno` and `close` belongs to the one service thread.

    Attributes:
        name: "grpc", "zmq" or "shm".
        address: what an actor is given as --connect, e.g. "127.0.0.1:8686", "zmq://127.0.0.1:8687".
        port: of TCP that it listens at; None: none.
        token: that peers must prove to hold; None: they need not, for nobody else reaches it or it is to be open.
        turned_away: connections that have failed in the secure handshake; 0 where the library does not tell (gRPC).
    """

    name: str
    address: str
    port: int | None
    token: Token | None
    turned_away: int

    def fileno(self) -> int:
        """A descriptor that polls readable whenever `receive` may have something to hand over."""

    def receive(self, handler: FrameHandler) -> int:
        """Hand over every waiting frame (at most some hundred, or until `handler.full`), without blocking.

        Returns how many.

        Must be called until it returns 0 before waiting on `fileno`, and once more after any `send`: ZeroMQ's
        descriptor signals a change once, and sending uses that signal up.
        """

    def send(self, peer: Peer, header: bytes, payload: Payload = b"") -> None:
        """Queue a frame; never blocks. A peer that is gone, or that does not read, is ignored or dropped."""

    def open_session(self, peer: Peer, payload_bytes: Sequence[int]) -> dict[str, Any]:
        """Called before READY with the size of each stream's largest payload: raises the limit, returns what READY
        must add."""

    def trust(self, peer: Peer) -> None:
        """The peer is authenticated: admission control leaves its connection alone."""

    def trusts(self, descriptor: int, address: tuple[str, int]) -> bool:
        """Whether a TCP connection is that of a peer that is trusted; safe from any thread.

        Args:
            descriptor: of its socket in this process.
            address: the peer's address and port; IPv4's as such, not as one of IPv6.
        """

    def drop(self, peer: Peer) -> None:
        """Forget a peer, after flushing what was sent to it; `lost` is not called for it any more."""

    def close(self) -> None:
        """Stop listening, flush for at most a second, free everything; safe to call twice."""


class Frame(NamedTuple):
    """A frame as the client receives it."""

    header: Header
    payload: Payload


class ClientTransport(Protocol):
    """One connection of an actor. `send`, `receive` belong to one thread; `heartbeat` is safe from another.

    Attributes:
        address: the learner's, as a user types it.
        token: that both sides must prove to hold; None: neither does.
    """

    address: str
    token: Token | None

    @property
    def shares_memory(self) -> bool:
        """Whether the learner reads rows where they are built: then there is no wire, and nothing is encoded."""

    def connect(self, timeout: float) -> None:
        """Open the connection.

        Raises:
            UnreachableError: nothing answers within `timeout` seconds.
            RefusedError: the learner ends each connection before anything is said: another token, another certificate.
        """

    def send(self, header: bytes, payload: Payload = b"") -> None:
        """Send a frame; raises ConnectionLost."""

    def receive(self, timeout: float) -> Frame | None:
        """The next frame, or None after `timeout` seconds; raises ConnectionLost or ProtocolError."""

    def open_session(self, ready: Mapping[str, Any], payload_bytes: Sequence[int]) -> list[memoryview]:
        """Called after READY: gives each stream the writable buffer its rows are built in.

        `send_row(stream, header)` sends what stands in it.
        """

    def send_row(self, stream: int, header: bytes) -> None:
        """Send the STEP whose payload stands in the stream's buffer; the buffer may be reused on return
        of the matching ACTION."""

    def heartbeat(self, header: bytes) -> None:
        """Send a HEARTBEAT; safe to call from another thread, never blocks, never raises."""

    def close(self) -> None:
        """Close the connection; safe to call twice."""


def frame_limit(payload_bytes: Sequence[int], max_payload: int) -> int:
    """Bytes that a payload of a session may have, given its rows'; raises RefusedError for rows over the limit."""
    largest = max(payload_bytes)
    if largest > max_payload:
        raise RefusedError(f"rows of {largest} bytes where {max_payload} are the limit: lower --envs")
    return max(largest, CONTROL_LIMIT)
