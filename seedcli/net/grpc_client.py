"""An actor's gRPC connection, apart from the server's file: an actor need not load what serves.

A message is a frame: header, then payload.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import grpc

from seedcli.errors import ConnectionLost, ProtocolError, SeedError, UnreachableError
from seedcli.net.base import Frame, Payload
from seedcli.net.frames import ANSWER_LIMIT, HEADER_BYTES, unpack_header
from seedcli.specs import aligned_empty

SERVICE = "seed.Actor"
METHOD = "Connect"
KEEPALIVE = [("grpc.keepalive_time_ms", 20_000), ("grpc.keepalive_timeout_ms", 20_000)]


class GrpcClient:
    """An actor's gRPC connection; see `net.base.ClientTransport`.

    Args:
        address: "host:port".
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._inbox: queue.SimpleQueue[Frame | SeedError] = queue.SimpleQueue()
        self._lost: SeedError | None = None
        self._buffers: list[memoryview] = []
        self._call: Any = None
        self._reader: threading.Thread | None = None
        self._channel = grpc.insecure_channel(
            address,
            options=[
                ("grpc.max_receive_message_length", HEADER_BYTES + ANSWER_LIMIT),
                ("grpc.max_send_message_length", -1),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.min_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 1000),
                # A cluster's web proxy is not on the way to a learner.
                ("grpc.enable_http_proxy", 0),
                *KEEPALIVE,
            ],
        )

    @property
    def shares_memory(self) -> bool:
        """See `net.base.ClientTransport`."""
        return False

    def connect(self, timeout: float) -> None:
        """See `net.base.ClientTransport.connect`."""
        try:
            grpc.channel_ready_future(self._channel).result(timeout)
        except grpc.FutureTimeoutError as error:
            raise UnreachableError(
                f"no learner answered at {self.address} within {timeout:g} s: "
                "check the address, and that the learner runs"
            ) from error
        self._call = self._channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter(self._outbox.get, None))
        self._reader = threading.Thread(target=self._read, name="grpc-reader", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        end: SeedError = ConnectionLost(f"the connection to the learner at {self.address} was closed")
        try:
            for message in self._call:
                header = unpack_header(message[:HEADER_BYTES])
                if header.payload_bytes != len(message) - HEADER_BYTES:
                    raise ProtocolError("the learner sent a frame of another size than its header says")
                self._inbox.put(Frame(header, message[HEADER_BYTES:]))
        except ProtocolError as error:
            end = error
            self._call.cancel()
        except grpc.RpcError as error:
            if self._call.code() != grpc.StatusCode.CANCELLED:
                end = ConnectionLost(f"the connection to the learner at {self.address} broke: {error.details()}")
        self._lost = end
        self._inbox.put(end)

    def send(self, header: bytes, payload: Payload = b"") -> None:
        """See `net.base.ClientTransport.send`."""
        if self._lost is not None:
            raise self._lost
        self._outbox.put(b"".join((header, payload)))

    def receive(self, timeout: float) -> Frame | None:
        """See `net.base.ClientTransport.receive`."""
        try:
            item = self._inbox.get(timeout=timeout) if timeout > 0 else self._inbox.get_nowait()
        except queue.Empty:
            return None
        if isinstance(item, SeedError):
            self._inbox.put(item)  # and so for every later call
            raise item
        return item

    def open_session(self, ready: Mapping[str, Any], payload_bytes: Sequence[int]) -> list[memoryview]:
        """See `net.base.ClientTransport.open_session`."""
        self._buffers = [aligned_empty(nbytes).data for nbytes in payload_bytes]
        return self._buffers

    def send_row(self, stream: int, header: bytes) -> None:
        """See `net.base.ClientTransport.send_row`."""
        self.send(header, self._buffers[stream])

    def heartbeat(self, header: bytes) -> None:
        """See `net.base.ClientTransport.heartbeat`."""
        self._outbox.put(header)

    def close(self) -> None:
        """See `net.base.ClientTransport.close`; waits up to half a second for what was sent last."""
        if self._reader is not None:
            # The learner ends the stream when it has read everything up to our end of it.
            self._outbox.put(None)
            self._reader.join(timeout=0.5)
            self._call.cancel()
            self._reader.join(timeout=0.5)
            self._reader = None
        self._channel.close()
