"""An actor's gRPC connection; a separate module, so that an actor does not load the server."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import grpc

from seedcli.errors import AuthenticationError, ConnectionLost, ProtocolError, SeedError
from seedcli.net.addresses import check_known
from seedcli.net.base import Frame, Payload
from seedcli.net.frames import ANSWER_LIMIT, HEADER_BYTES, unpack_header
from seedcli.net.greeting import not_a_learner, unanswered
from seedcli.net.security.keys import Security, TlsIdentity, tls_identity
from seedcli.net.security.refusal import refusal
from seedcli.net.security.tls_probe import OTHER_PROTOCOL, why_refused
from seedcli.specs import aligned_empty

SERVICE = "seed.Actor"
METHOD = "Connect"
OTHER_VERSION = grpc.StatusCode.FAILED_PRECONDITION  # status with which the learner ends a stream of another version
KEEPALIVE = [("grpc.keepalive_time_ms", 20_000), ("grpc.keepalive_timeout_ms", 20_000)]
_PROBE_AFTER_SECONDS = 1.0  # without a ready connection, the actor probes the address
_PROBE_SECONDS = 2.0
_REFUSALS = 2  # in a row: a learner that is shutting down closes a connection once


class GrpcClient:
    """An actor's gRPC connection; see `net.base.ClientTransport`.

    Args:
        address: "host:port".
        security: token and certificates; None: no encryption and no authentication.

    Raises:
        UsageError: a certificate given by the user is unusable.
    """

    def __init__(self, address: str, *, security: Security | None = None) -> None:
        self.address = address
        self.token = security.token if security is not None else None
        self._security = security
        self._identity = tls_identity(security, "actor") if security is not None else None
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._inbox: queue.SimpleQueue[Frame | SeedError] = queue.SimpleQueue()
        self._lost: SeedError | None = None
        self._buffers: list[memoryview] = []
        self._call: Any = None
        self._reader: threading.Thread | None = None
        self._channel = _channel(address, self._identity)

    @property
    def shares_memory(self) -> bool:
        return False

    def connect(self, timeout: float) -> None:
        check_known(self.address, self.address)
        self._wait_until_ready(timeout)
        self._call = self._channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter(self._outbox.get, None))
        self._reader = threading.Thread(target=self._read, name="grpc-reader", daemon=True)
        self._reader.start()

    def _wait_until_ready(self, timeout: float) -> None:
        ready = grpc.channel_ready_future(self._channel)
        deadline = time.monotonic() + timeout
        refusals = 0
        while True:
            left = deadline - time.monotonic()
            try:
                ready.result(max(0.0, min(left, _PROBE_AFTER_SECONDS)))
                return
            except grpc.FutureTimeoutError as error:
                if left <= 0:
                    ready.cancel()
                    raise unanswered(self.address, timeout) from error
            reason = why_refused(self.address, self._identity, min(left, _PROBE_SECONDS))
            refusals = refusals + 1 if reason is not None else 0
            if reason is not None and refusals >= _REFUSALS:
                ready.cancel()
                if reason == OTHER_PROTOCOL:
                    raise not_a_learner(self.address)
                raise AuthenticationError(refusal(self.address, self._security, reason))

    def _read(self) -> None:
        end: SeedError = ConnectionLost(f"the connection to the learner at {self.address} was closed")
        try:
            for message in self._call:
                header = unpack_header(message[:HEADER_BYTES])
                if header.payload_bytes != len(message) - HEADER_BYTES:
                    raise ProtocolError("the learner sent a frame whose size differs from its header")
                self._inbox.put(Frame(header, message[HEADER_BYTES:]))
        except ProtocolError as error:
            end = error
            self._call.cancel()
        except grpc.RpcError as error:
            if self._call.code() == OTHER_VERSION:
                end = ProtocolError(f"the learner at {self.address} does not understand this actor: {error.details()}")
            elif self._call.code() != grpc.StatusCode.CANCELLED:
                end = ConnectionLost(f"the connection to the learner at {self.address} broke: {error.details()}")
        self._lost = end
        self._inbox.put(end)

    def send(self, header: bytes, payload: Payload = b"") -> None:
        if self._lost is not None:
            raise self._lost
        self._outbox.put(b"".join((header, payload)))

    def receive(self, timeout: float) -> Frame | None:
        try:
            item = self._inbox.get(timeout=timeout) if timeout > 0 else self._inbox.get_nowait()
        except queue.Empty:
            return None
        if isinstance(item, SeedError):
            self._inbox.put(item)  # for later calls
            raise item
        return item

    def open_session(self, ready: Mapping[str, Any], payload_bytes: Sequence[int]) -> list[memoryview]:
        self._buffers = [aligned_empty(nbytes).data for nbytes in payload_bytes]
        return self._buffers

    def send_row(self, stream: int, header: bytes) -> None:
        self.send(header, self._buffers[stream])

    def heartbeat(self, header: bytes) -> None:
        self._outbox.put(header)

    def close(self) -> None:
        """Flush for up to half a second and close the connection; safe to call twice."""
        if self._reader is not None:
            # The learner ends the stream after it has read all messages.
            self._outbox.put(None)
            self._reader.join(timeout=0.5)
            self._call.cancel()
            self._reader.join(timeout=0.5)
            self._reader = None
        self._channel.close()


def _channel(address: str, identity: TlsIdentity | None) -> grpc.Channel:
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", HEADER_BYTES + ANSWER_LIMIT),
        ("grpc.max_send_message_length", -1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # Do not connect to a learner through the cluster's web proxy.
        ("grpc.enable_http_proxy", 0),
        # Each channel of a process gets its own connection.
        ("grpc.use_local_subchannel_pool", 1),
        *KEEPALIVE,
    ]
    if identity is None:
        return grpc.insecure_channel(address, options=options)
    if identity.name is not None:
        options.append(("grpc.ssl_target_name_override", identity.name))
    credentials = grpc.ssl_channel_credentials(identity.roots, identity.key, identity.chain)
    return grpc.secure_channel(address, credentials, options=options)
