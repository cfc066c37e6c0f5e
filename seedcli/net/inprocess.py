"""Both ends of a connection in one thread, for `seed train --deterministic`.

No bytes leave the process, but every frame takes the same path through the handler as on a socket.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from seedcli.errors import ConnectionLost, ProtocolError
from seedcli.net.base import Frame, FrameHandler, Payload, Peer
from seedcli.net.frames import Kind, unpack_header
from seedcli.net.security.token import Token


class InProcessServer:
    """A server transport whose clients run in the same thread; see `net.base.ServerTransport`."""

    name = "inprocess"
    turned_away = 0
    shares_memory = False  # its clients may encode rows
    pings = False
    port: int | None = None
    token: Token | None = None

    def __init__(self) -> None:
        self.address = "inprocess"
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._incoming: deque[tuple[Peer, bytes, Payload]] = deque()
        self._clients: dict[Peer, InProcessClient] = {}
        self._connections = 0

    def client(self) -> InProcessClient:
        """Return a new, connected client."""
        peer = Peer(self.name, self._connections, f"inprocess-{self._connections}")
        self._connections += 1
        client = InProcessClient(self, peer)
        self._clients[peer] = client
        return client

    def deliver(self, peer: Peer, header: bytes, payload: Payload) -> None:
        """Take a frame from a client."""
        if peer in self._clients:
            self._incoming.append((peer, header, payload))

    def fileno(self) -> int:
        """Return an event that is never set: serial mode does not wait."""
        return self._event

    def receive(self, handler: FrameHandler) -> int:
        count = 0
        while self._incoming and not handler.full:
            count += 1
            peer, data, payload = self._incoming.popleft()
            if peer not in self._clients:
                continue
            try:
                header = unpack_header(data)
                destination = handler.destination(peer, header) if header.kind == Kind.STEP else None
                if destination is None:
                    handler.frame(peer, header, payload)
                    continue
                if not destination.encoded:
                    if len(payload) != len(destination.row):
                        raise ProtocolError(f"the row has {len(payload)} bytes, expected {len(destination.row)}")
                    destination.row[:] = payload
                    payload = b""
                handler.take_row(destination, header, payload)
            except ProtocolError as error:
                self.drop(peer)
                handler.lost(peer, str(error), malformed=True)
        return count

    def send(self, peer: Peer, header: bytes, payload: Payload = b"") -> None:
        client = self._clients.get(peer)
        if client is not None:
            client.inbox.append(Frame(unpack_header(header), payload))

    def open_session(self, peer: Peer, payload_bytes: Sequence[int]) -> dict[str, Any]:
        return {}

    def trust(self, peer: Peer) -> None:
        """Do nothing: there are no unauthenticated peers."""

    def trusts(self, descriptor: int, address: tuple[str, int]) -> bool:
        """Return False: no connection has a descriptor."""
        return False

    def drop(self, peer: Peer) -> None:
        self._clients.pop(peer, None)

    def close(self) -> None:
        self._clients.clear()
        if self._event >= 0:
            os.close(self._event)
            self._event = -1


class InProcessClient:
    """The client; see `net.base.ClientTransport`. `receive` never waits: serial mode runs the server between calls."""

    token: Token | None = None

    def __init__(self, server: InProcessServer, peer: Peer) -> None:
        self.address = server.address
        self._server = server
        self._peer = peer
        self._buffers: list[memoryview] = []
        self.inbox: deque[Frame] = deque()
        self._pump: Any = None

    @property
    def shares_memory(self) -> bool:
        return True

    def pump_with(self, turn: Any) -> None:
        """Set `turn`, which runs the server: `receive` calls it if no frame is waiting (in the handshake)."""
        self._pump = turn

    def connect(self, timeout: float) -> None:
        """Do nothing: the client is connected."""

    def send(self, header: bytes, payload: Payload = b"") -> None:
        self._server.deliver(self._peer, header, payload)

    def receive(self, timeout: float) -> Frame | None:
        """Return the next frame; if none is waiting and `timeout` is not 0, run the server first."""
        if not self.inbox and timeout and self._pump is not None:
            self._pump()
        return self.inbox.popleft() if self.inbox else None

    def open_session(self, ready: Mapping[str, Any], payload_bytes: Sequence[int]) -> list[memoryview]:
        self._buffers = [memoryview(bytearray(n)) for n in payload_bytes]
        return self._buffers

    def send_row(self, stream: int, header: bytes) -> None:
        if unpack_header(header).kind != Kind.STEP:
            raise ConnectionLost("send_row sends steps only")
        self._server.deliver(self._peer, header, self._buffers[stream])

    def heartbeat(self, header: bytes) -> None:
        """Do nothing: both ends are in one process."""

    def close(self) -> None:
        self._server.drop(self._peer)
