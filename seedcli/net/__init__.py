"""How steps travel: the frame codec, the handshake, one file a transport."""

from __future__ import annotations

from seedcli.errors import UsageError
from seedcli.net.addresses import join_host_port, split_host_port
from seedcli.net.base import ClientTransport

__all__ = ["connect"]


def connect(address: str) -> ClientTransport:
    """The client transport for an address as a user types it; not yet connected.

    Transports are imported here and not above: an actor must not pay for gRPC when it uses ZeroMQ.

    Args:
        address: "host:port" or "grpc://host:port" (gRPC), "zmq://host:port" (ZeroMQ), "shm:///path" (this machine).

    Raises:
        UsageError: not such an address.
    """
    scheme, separator, rest = address.partition("://")
    if not separator:
        scheme, rest = "grpc", address
    if scheme == "shm" and rest.startswith("/") and len(rest) > 1:
        from seedcli.net.shm import ShmClient

        return ShmClient(rest)
    parts = split_host_port(rest)
    if parts is not None and scheme == "zmq":
        from seedcli.net.zmq import ZmqClient

        return ZmqClient(f"tcp://{parts[0]}:{parts[1]}")
    if parts is not None and scheme == "grpc":
        from seedcli.net.grpc_client import GrpcClient

        return GrpcClient(join_host_port(parts[0].strip("[]"), parts[1]))
    raise UsageError(
        f'"{address}" is no learner\'s address: give HOST:PORT for gRPC (127.0.0.1:8686), '
        "zmq://HOST:PORT for ZeroMQ (zmq://127.0.0.1:8687) or shm:///PATH on one machine"
    )
