"""The transports by name, and what the rest must know of each: nothing outside of `net` compares their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from seedcli.net.base import ServerTransport
from seedcli.net.security.keys import Security

_LOOPBACK = "127.0.0.1"

_Listen = Callable[[str, int, Security | None, float], ServerTransport]


@dataclass(frozen=True, kw_only=True)
class Transport:
    """A transport.

    Attributes:
        name: as in `net.transport`.
        prefix: of its addresses, as a user types them: "zmq://"; "": an address without a scheme.
        port_key: the key of its TCP port in [net]; None: it serves only actors of the learner's machine and user.
        certificates: TLS certificates can secure it; others that listen on TCP derive their keys from the token.
        shares_memory: the learner reads rows where actors build them, so they are never encoded.
        listen: opens a listener on a host and TCP port, 0: any free one, with its security, None: none, and the timeout
            of pings, seconds (`ServerTransport.pings`); None without a `port_key`.
        listen_here: opens a listener that only this machine can reach, given a folder for sockets, the security of TCP
            listeners, None: none, and the timeout of pings.
    """

    name: str
    prefix: str
    port_key: str | None = None
    certificates: bool = False
    shares_memory: bool = False
    listen: _Listen | None = None
    listen_here: Callable[[Path, Security | None, float], ServerTransport]


def _grpc(host: str, port: int, security: Security | None, timeout: float) -> ServerTransport:
    from seedcli.net.grpc import GrpcServer

    return GrpcServer(host, port, security=security, timeout=timeout)


def _zmq(host: str, port: int, security: Security | None, timeout: float) -> ServerTransport:
    from seedcli.net.zmq import ZmqServer

    return ZmqServer(host, port, security=security, timeout=timeout)


def _in_this_process(folder: Path, security: Security | None, timeout: float) -> ServerTransport:
    from seedcli.net.inprocess import InProcessServer

    return InProcessServer()


def _shm_here(folder: Path, security: Security | None, timeout: float) -> ServerTransport:
    """The socket's permissions keep other users out, so the token is not needed."""
    from seedcli.net.shm import ShmServer

    return ShmServer(str(folder / "actors"), timeout=timeout)


# In the order in which a learner opens them and names their addresses; the first is an actor's default.
TRANSPORTS: Mapping[str, Transport] = MappingProxyType(
    {
        transport.name: transport
        for transport in (
            Transport(
                name="grpc",
                prefix="",
                port_key="grpc_port",
                certificates=True,
                listen=_grpc,
                listen_here=lambda folder, security, timeout: _grpc(_LOOPBACK, 0, security, timeout),
            ),
            Transport(
                name="zmq",
                prefix="zmq://",
                port_key="zmq_port",
                listen=_zmq,
                listen_here=lambda folder, security, timeout: _zmq(_LOOPBACK, 0, security, timeout),
            ),
            Transport(name="shm", prefix="shm://", shares_memory=True, listen_here=_shm_here),
            Transport(name="inprocess", prefix="", listen_here=_in_this_process),
        )
    }
)


def listening() -> list[Transport]:
    """The transports that listen on a TCP port."""
    return [transport for transport in TRANSPORTS.values() if transport.port_key is not None]
