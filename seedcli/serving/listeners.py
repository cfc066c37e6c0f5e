"""The learner's doors: which listeners a configuration asks for, and what they are protected with."""

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

_log = logging.getLogger(__name__)

_DESCRIPTORS = 2**18  # more than a learner can have actors; some systems allow a billion


def bound_host(config: Config) -> str:
    """The address the listeners are bound to: what was asked for, else every interface where they are protected."""
    return config.net.host or ("127.0.0.1" if config.net.insecure else "0.0.0.0")


def learner_security(config: Config) -> Security | None:
    """What a learner protects its TCP listeners with; makes this user's token where there is none.

    Raises:
        RefusedError: there is a token that may not be used.
    """
    if config.net.insecure:
        return None
    net = config.net
    tls = TlsFiles(net.tls_cert, net.tls_key, net.tls_ca)
    return Security(find_token(net.token_file, create=True), tls if tls.given else None)


def check_listeners(config: Config) -> None:
    """Refuse ports that cannot be had and a token that may not be used, before anything is started.

    Raises:
        UsageError: a port is in use or not allowed, or the host is not this machine's.
        RefusedError: see `learner_security`.
    """
    host = bound_host(config)
    for key, port in (("net.grpc_port", config.net.grpc_port), ("net.zmq_port", config.net.zmq_port)):
        if port > 0:
            try:
                bindable_ip(host, port, setting=key)
            except UsageError as error:
                raise name_flags(error) from error
    learner_security(config)


def open_transports(config: Config, security: Security | None) -> list[ServerTransport]:
    """Bind the TCP listeners a configuration asks for.

    Raises:
        UsageError: both are off, a port is in use, or a certificate cannot be used.
    """
    allow_descriptors()
    host = bound_host(config)
    transports: list[ServerTransport] = []
    try:
        if config.net.grpc_port >= 0:
            from seedcli.net.grpc import GrpcServer

            transports.append(GrpcServer(host, config.net.grpc_port, security=security))
        if config.net.zmq_port >= 0:
            from seedcli.net.zmq import ZmqServer

            transports.append(ZmqServer(host, config.net.zmq_port, security=security))
    except SeedError:
        for transport in transports:
            transport.close()
        raise
    if not transports:
        raise UsageError("net.grpc_port and net.zmq_port are both -1 (off): turn one of them on")
    return transports


def ports(transports: Sequence[ServerTransport]) -> dict[str, int]:
    """The port of each listener, by transport."""
    found = {transport.name: split_host_port(transport.address.removeprefix("zmq://")) for transport in transports}
    return {name: parts[1] for name, parts in found.items() if parts is not None}


def how_to_join(config: Config, security: Security | None, transports: Sequence[ServerTransport]) -> list[str]:
    """Lines for whoever starts actors."""
    lines = ["waiting for actors; start one with:"]
    for transport in transports:
        flags = "".join(f" {flag}" for flag in _actor_flags(config, transport.name))
        lines.append(f"  seed actor --connect {transport.address} --envs {config.actors.envs}{flags}")
    if security is not None:
        return [f"connections are encrypted and need the token from {security.token.source}", *lines]
    _log.warning("net.insecure: no token and no encryption, whoever reaches %s is let in", bound_host(config))
    return lines


def _actor_flags(config: Config, transport: str) -> list[str]:
    """What an actor needs beside the address; names of its own files are its user's to fill in."""
    net = config.net
    flags = ["--insecure"] if net.insecure else []
    if net.token_file:
        flags.append(f"--token-file {shlex.quote(net.token_file)}")
    if transport == "grpc" and net.tls_cert:
        flags.append("--tls-ca CA.pem")
    if transport == "grpc" and net.tls_ca:
        flags.append("--tls-cert ACTOR.pem --tls-key ACTOR.key")
    return flags


def allow_descriptors() -> None:
    """Have as many files and sockets open at once as the system lets this process: an actor takes up to two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            _log.warning("only %d files and sockets may be open at once: %s", soft, error)
