"""A user's transport with its own port: ZeroMQ's sockets under another name and on another port."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from seedcli.config.sections import NetConfig
from seedcli.net.base import ClientTransport, ServerTransport
from seedcli.net.security.keys import Security
from seedcli.net.transports import Transport
from seedcli.net.zmq import MAX_PAYLOAD, ZmqClient
from seedcli.net.zmq_router import RouterServer


class MyConfig(NetConfig):
    """Where it listens."""

    my_port: int = Field(8690, ge=-1, le=65535, description="port of MyTransport; 0: any free port, -1: off")


class MyTransport(Transport):
    """Listens on `net.my_port`."""

    Config = MyConfig
    port_key = "my_port"

    def listen(
        self, host: str, port: int, security: Security | None, timeout: float, **options: Any
    ) -> ServerTransport:
        url = f"tcp://{host}:{port or '*'}"
        options = {"max_payload": MAX_PAYLOAD} | options
        server = RouterServer(self.name, url, security=security, timeout=timeout, **options)
        server.address = f"{self.prefix}127.0.0.1:{server.port}"
        return server

    def connect(self, where: str, security: Security | None) -> ClientTransport:
        return ZmqClient(f"tcp://{where}", address=f"{self.prefix}{where}", security=security)
