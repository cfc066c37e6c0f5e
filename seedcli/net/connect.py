"""Choose the client transport for an address."""

from __future__ import annotations

from seedcli.net.addresses import check_address
from seedcli.net.base import ClientTransport
from seedcli.net.security.keys import Security


def connect(address: str, security: Security | None = None) -> ClientTransport:
    """Return the client transport for an address as a user types it, not yet connected.

    Transports are imported here, so that an actor that uses ZeroMQ does not import gRPC.

    Args:
        address: "host:port" or "grpc://host:port" (gRPC), "zmq://host:port" (ZeroMQ), "shm:///path" (this machine).
        security: token and certificates for TCP connections; None: unprotected. Shared memory is never encrypted:
            only this user can open the socket.

    Raises:
        UsageError: the address is invalid, or a certificate is unusable.
    """
    scheme, where = check_address(address)
    if scheme == "shm":
        from seedcli.net.shm import ShmClient

        return ShmClient(where)
    if scheme == "zmq":
        from seedcli.net.zmq import ZmqClient

        return ZmqClient(f"tcp://{where}", security=security)
    from seedcli.net.grpc_client import GrpcClient

    return GrpcClient(where, security=security)
