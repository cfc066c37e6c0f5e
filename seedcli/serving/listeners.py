"""The learner's listeners: which ones a configuration opens, and how they are protected."""

from __future__ import annotations

import logging
import resource
import shlex
from collections.abc import Sequence

from seedcli.config.flags import name_flags
from seedcli.config.schema import Config
from seedcli.errors import SeedError, UsageError
from seedcli.net.addresses import bindable_ip, split_host_port
from seedcli.net.base import ServerTransport
from seedcli.net.security.keys import Security, TlsFiles
from seedcli.net.security.token import find_token
from seedcli.net.transports import Transport, listening, transport_of

_log = logging.getLogger(__name__)

_DESCRIPTORS = 2**18  # more than actors need; some systems allow a billion


def bound_host(config: Config) -> str:
    """Return the address to bind: net.host or, by default, all interfaces, but 127.0.0.1 with net.insecure."""
    return config.net.host or ("127.0.0.1" if config.net.insecure else "0.0.0.0")


def learner_security(config: Config) -> Security | None:
    """Return the security of a learner's TCP listeners; creates this user's token if there is none.

    Raises:
        RefusedError: the token is missing, unreadable or too weak.
    """
    if config.net.insecure:
        return None
    net = config.net
    tls = TlsFiles(net.tls_cert, net.tls_key, net.tls_ca)
    return Security(find_token(net.token_file, create=True), tls if tls.given else None)


def check_listeners(config: Config) -> None:
    """Check ports and token before anything is started.

    Raises:
        UsageError: a port is in use or not permitted, or the host is not on this machine.
        RefusedError: see `learner_security`.
    """
    host = bound_host(config)
    for transport in listening(config.net.transport):
        port = _port(config, transport)
        if port > 0:
            try:
                bindable_ip(host, port, setting=f"net.{transport.port_key}")
            except UsageError as error:
                raise name_flags(error) from error
    learner_security(config)


def open_transports(config: Config, security: Security | None) -> list[ServerTransport]:
    """Bind the TCP listeners of a configuration.

    Raises:
        UsageError: both are off, a port is in use, or a certificate is unusable.
    """
    allow_descriptors()
    host = bound_host(config)
    transports: list[ServerTransport] = []
    try:
        for each in listening(config.net.transport):
            port = _port(config, each)
            if port >= 0:
                transports.append(each.listen(host, port, security, config.net.timeout_seconds))
    except SeedError:
        for transport in transports:
            transport.close()
        raise
    if not transports:
        keys = " and ".join(f"net.{each.port_key}" for each in listening())
        raise UsageError(f"{keys} are both -1 (off): set one of them")
    return transports


def _port(config: Config, transport: Transport) -> int:
    """The configured port of a transport that listens on one; 0: any free one, -1: off."""
    port: int = getattr(config.net, str(transport.port_key))
    return port


def ports(transports: Sequence[ServerTransport]) -> dict[str, int]:
    """Return the port of each listener, by transport."""
    found = {transport.name: _host_port(transport) for transport in transports}
    return {name: parts[1] for name, parts in found.items() if parts is not None}


def _host_port(transport: ServerTransport) -> tuple[str, int] | None:
    return split_host_port(transport.address.removeprefix(transport_of(transport.name).prefix))


def how_to_join(config: Config, security: Security | None, transports: Sequence[ServerTransport]) -> list[str]:
    """Return lines that say how to start actors."""
    lines = ["waiting for actors; start one with:"]
    for transport in transports:
        flags = "".join(f" {flag}" for flag in _actor_flags(config, transport.name))
        lines.append(f"  seed actor --connect {transport.address} --envs {config.actors.envs}{flags}")
    if security is not None:
        return [f"connections are encrypted and need the token from {security.token.source}", *lines]
    _log.warning("net.insecure: no token and no encryption, any peer can connect to %s", bound_host(config))
    return lines


def _actor_flags(config: Config, transport: str) -> list[str]:
    """Return an actor's flags besides the address, with placeholders for its own files."""
    net = config.net
    flags = ["--insecure"] if net.insecure else []
    if net.token_file:
        flags.append(f"--token-file {shlex.quote(net.token_file)}")
    if transport_of(transport).certificates and net.tls_cert:
        flags.append("--tls-ca CA.pem")
    if transport_of(transport).certificates and net.tls_ca:
        flags.append("--tls-cert ACTOR.pem --tls-key ACTOR.key")
    return flags


def allow_descriptors() -> None:
    """Raise the limit of open files and sockets to what the system permits: an actor needs up to two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            _log.warning("cannot raise the limit of %d open files and sockets: %s", soft, error)
