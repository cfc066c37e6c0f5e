"""Transports: how each listens and connects, and its properties. Libraries are imported when used.

Nothing outside of `net` compares their names.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from seedcli.config.choices import TRANSPORTS
from seedcli.config.sections import NetConfig
from seedcli.errors import UsageError
from seedcli.net.base import ClientTransport, ServerTransport
from seedcli.net.security.keys import Security

_LOOPBACK = "127.0.0.1"


class Transport:
    """A transport: subclass it, set `Config` and `port_key` if it listens on a TCP port, and implement the methods.

    Args:
        name: as in `net.transport`: that of a built-in or of an entry point, or "module:Class".

    Attributes:
        Config: the keys of [net], a subclass of `NetConfig`.
        port_key: the key of its TCP port in [net], -1: off, 0: any free one; None: it serves only actors of the
            learner's machine and user, which need no token.
        certificates: TLS certificates can secure it; others that listen on TCP derive their keys from the token.
    """

    Config: ClassVar[type[NetConfig]] = NetConfig
    port_key: ClassVar[str | None] = None
    certificates: ClassVar[bool] = False

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def prefix(self) -> str:
        """The beginning of its addresses, as a user types them: its name as a scheme, such as "zmq://"."""
        return f"{self.name}://"

    def listen(self, host: str, port: int, security: Security | None, timeout: float) -> ServerTransport:
        """Open a listener named `name` on a host and TCP port, 0: any free one; only with a `port_key`.

        Its address is `prefix` followed by "host:port".

        Args:
            host: the address to bind.
            port: the TCP port.
            security: of the connections; None: none.
            timeout: of pings, seconds, if it has them (`ServerTransport.pings`).

        Raises:
            UsageError: the port is in use, the host is not on this machine, or a certificate is unusable.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement listen, or have no port_key")

    def listen_here(self, folder: Path, security: Security | None, timeout: float) -> ServerTransport:
        """Open a listener for `seed train`, which only this machine can reach; by default on its loopback interface.

        Args:
            folder: for sockets; only this user can open it.
            security: of TCP listeners.
            timeout: as of `listen`.
        """
        return self.listen(_LOOPBACK, 0, security, timeout)

    def connect(self, where: str, security: Security | None) -> ClientTransport:
        """A client, not yet connected, for the part of an address after `prefix`.

        Raises:
            UsageError: `where` is invalid, or a certificate is unusable.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement connect")


class GrpcTransport(Transport):
    """gRPC: an address without a scheme."""

    port_key = "grpc_port"
    certificates = True

    @property
    def prefix(self) -> str:
        """Nothing: it is the default."""
        return ""

    def listen(self, host: str, port: int, security: Security | None, timeout: float) -> ServerTransport:
        from seedcli.net.grpc import GrpcServer

        return GrpcServer(host, port, security=security, timeout=timeout)

    def connect(self, where: str, security: Security | None) -> ClientTransport:
        from seedcli.net.grpc_client import GrpcClient

        return GrpcClient(where, security=security)


class ZmqTransport(Transport):
    """ZeroMQ over TCP."""

    port_key = "zmq_port"

    def listen(self, host: str, port: int, security: Security | None, timeout: float) -> ServerTransport:
        from seedcli.net.zmq import ZmqServer

        return ZmqServer(host, port, security=security, timeout=timeout)

    def connect(self, where: str, security: Security | None) -> ClientTransport:
        from seedcli.net.zmq import ZmqClient

        return ZmqClient(f"tcp://{where}", security=security)


class ShmTransport(Transport):
    """Shared memory. The permissions of its socket keep other users out, so it needs no token."""

    def listen_here(self, folder: Path, security: Security | None, timeout: float) -> ServerTransport:
        from seedcli.net.shm_server import ShmServer

        return ShmServer(str(folder / "actors"), timeout=timeout)

    def connect(self, where: str, security: Security | None) -> ClientTransport:
        from seedcli.net.shm import ShmClient

        return ShmClient(where)


@cache
def transport_of(name: str) -> Transport:
    """The transport of a name.

    Raises:
        UsageError: it does not exist, cannot be imported, or is not a `Transport`.
    """
    found: Any = TRANSPORTS.load(name)
    if not issubclass(found, Transport):
        raise UsageError(f'{TRANSPORTS.key} = "{name}" must be a subclass of seedcli.net.transports.Transport')
    made: Transport = found(name)
    return made


def listening(chosen: str | None = None) -> list[Transport]:
    """The transports that listen on a TCP port: the built-in ones, and the chosen one if it does."""
    names = dict.fromkeys([*TRANSPORTS.built_in, *([chosen] if chosen is not None else [])])
    return [transport for transport in map(transport_of, names) if transport.port_key is not None]
