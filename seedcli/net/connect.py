"""Choose the client transport for an address."""

from __future__ import annotations

from seedcli.net.addresses import check_address
from seedcli.net.base import ClientTransport
from seedcli.net.security.keys import Security
from seedcli.net.transports import transport_of


def connect(address: str, security: Security | None = None) -> ClientTransport:
    """The client transport for an address as a user types it, not yet connected.

    Args:
        address: "host:port" or "grpc://host:port" (gRPC), "zmq://host:port" (ZeroMQ), "shm:///path" (this machine), or
            with the name of another transport as its scheme.
        security: token and certificates for TCP connections; None: unprotected. Shared memory is never encrypted:
            only this user can open the socket.

    Raises:
        UsageError: the address is invalid, there is no such transport, or a certificate is unusable.
    """
    scheme, where = check_address(address)
    return transport_of(scheme).connect(where, security)
