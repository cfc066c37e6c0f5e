"""Findings of `seed doctor` on the network: transport libraries, ports, token."""

from __future__ import annotations

import importlib
import os
import socket

from seedcli.config.sections import NetConfig
from seedcli.doctor.findings import Finding, package
from seedcli.errors import RefusedError
from seedcli.net.security.token import VARIABLE, default_path, find_token
from seedcli.net.transports import listening


def transports() -> list[Finding]:
    """Findings on the libraries of both transports, and on ZeroMQ's encryption."""
    findings = []
    for module, name, feature in (("zmq", "pyzmq", "curve"), ("grpc", "grpcio", "")):
        try:
            library = importlib.import_module(module)
        except ImportError as error:
            findings.append(Finding(name, "missing", f"cannot be imported: {error}", f"pip install {name}", True))
        else:
            found = package(module)
            if feature and not library.has(feature):
                advice = "its connections cannot be encrypted: pip install --force-reinstall pyzmq"
                findings.append(Finding(name, "missing", f"{found} without CURVE", advice, True, found))
                continue
            findings.append(Finding(name, "ok", found or "installed", required=True, value=found))
    return findings


def ports() -> list[Finding]:
    """Whether a learner's default ports are free."""
    defaults = NetConfig()
    findings = []
    for key in (str(transport.port_key) for transport in listening()):
        port = getattr(defaults, key)
        with socket.socket() as probe:
            # As the listeners do: a port with connections only in TIME_WAIT is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((defaults.host, port))
            except OSError as error:
                reason, free = error.strerror or str(error), False
            else:
                reason, free = "free", True
        advice = "" if free else f"for a learner here, choose another with --set net.{key}=PORT (0: any free one)"
        findings.append(Finding(f"port {port}", "ok" if free else "warning", reason, advice, value=free))
    return findings


def token() -> list[Finding]:
    """Where this user's learners and actors find the token; never the token itself."""
    if VARIABLE not in os.environ and not os.path.lexists(default_path()):
        detail = f"none yet: seed learner creates {default_path()}"
        return [Finding("token", "ok", detail, value=None)]
    try:
        source = find_token().source
    except RefusedError as error:
        return [Finding("token", "warning", str(error), "no actor can join until this is fixed")]
    return [Finding("token", "ok", f"from {source}", value=source)]
