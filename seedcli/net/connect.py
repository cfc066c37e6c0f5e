"""The client transport for an address as a user types it."""

from __future__ import annotations

from seedcli.net.addresses import check_address
from seedcli.net.base import ClientTransport
from seedcli.net.security.keys import Security


def connect(address: str, security: Security | None = None) -> ClientTransport:
    """The client transport for an address as a user types it; not yet connected.

    Transports are imported here and not above: an actor must not pay for gRPC when it uses ZeroMQ.

    Args:
        address: "host:port" or "grpc://host:port" (gRPC), "zmq://host:port" (ZeroMQ), "shm:///path" (this machine).
        security: what TCP connections are protected with; None: they are not. Sockets of this user alone never are.

    Raises:
        UsageError: not such an address, or a certificate that cannot be used.
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
