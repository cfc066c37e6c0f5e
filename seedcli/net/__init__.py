"""How steps travel: the frame codec, the handshake, one file a transport."""

from __future__ import annotations

from seedcli.errors import UsageError
from seedcli.net.addresses import join_host_port, split_host_port
from seedcli.net.base import ClientTransport
from seedcli.net.security import Security

__all__ = ["check_address", "connect"]


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


def check_address(address: str) -> tuple[str, str]:
    """Take an address apart: "grpc", "zmq" or "shm", and "host:port" or the path.

    Raises:
        UsageError: not such an address.
    """
    scheme, separator, rest = address.partition("://")
    if not separator:
        scheme, rest = "grpc", address
    if scheme == "shm" and rest.startswith("/") and len(rest) > 1:
        return scheme, rest
    parts = split_host_port(rest)
    if parts is not None and scheme in ("zmq", "grpc"):
        return scheme, join_host_port(parts[0].strip("[]"), parts[1])
    raise UsageError(
        f'"{address}" is no learner\'s address: give HOST:PORT for gRPC (127.0.0.1:8686), '
        "zmq://HOST:PORT for ZeroMQ (zmq://127.0.0.1:8687), shm:///PATH on one machine, or the folder of its run"
    )
