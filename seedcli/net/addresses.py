"""Hosts and ports: parse addresses, resolve the host of a listener and check that its port is free."""

from __future__ import annotations

import errno
import functools
import hashlib
import ipaddress
import re
import socket
from pathlib import Path

from seedcli.config.choices import TRANSPORTS
from seedcli.errors import UnreachableError, UsageError

_HOST_PORT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")


def split_host_port(text: str) -> tuple[str, int] | None:
    """Split "host:port" ("[::1]:8686" for IPv6); None if it is not such an address, or the port is not 1 to 65535.

    The host keeps its brackets, because gRPC's and ZeroMQ's addresses need them.
    """
    match = _HOST_PORT.fullmatch(text)
    if match is None or not 1 <= int(match["port"]) <= 65535:
        return None
    return match["host"], int(match["port"])


def join_host_port(host: str, port: int) -> str:
    """Join to "host:port", with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def plain_address(host: str) -> str:
    """Normalise a numeric address: an IPv4-mapped address becomes IPv4, and a zone is removed."""
    address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    return str(getattr(address, "ipv4_mapped", None) or address)


def check_known(where: str, address: str) -> None:
    """Check that the host of `where` can be resolved; does nothing if `where` is not "host:port".

    Args:
        where: the address to connect to.
        address: the same address as the user typed it, for the message.

    Raises:
        UnreachableError: this machine cannot resolve the name, at least now.
    """
    parts = split_host_port(where)
    if parts is None:
        return
    try:
        socket.getaddrinfo(parts[0].strip("[]"), parts[1], type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UnreachableError(
            f"cannot connect to a learner at {address}: this machine cannot resolve {parts[0]}; check the name"
        ) from error


def reachable_hosts(host: str) -> list[str]:
    """Return names or addresses at which a listener bound to `host` may be reached, most likely first; never empty.

    Args:
        host: "0.0.0.0" or "::" for every interface.
    """
    if host not in ("0.0.0.0", "::"):
        return [host]
    name = socket.gethostname()
    found: list[str] = []
    try:
        for _, _, _, _, address in socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM):
            if not str(address[0]).startswith("127."):
                found = [name, str(address[0])]
    except OSError:
        pass  # this machine cannot resolve its own name, and others may not either
    routed = _routed_address()
    if routed and routed not in found:
        found.append(routed)
    return found or ["127.0.0.1"]


def _routed_address() -> str:
    """Return the source address of this machine's traffic to others, "" if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a documentation address (RFC 5737); nothing is sent
        except OSError:
            return ""
        address = str(probe.getsockname()[0])
    return "" if address.startswith("127.") else address


def shown_host(host: str) -> str:
    """Return the host to show in addresses for users."""
    return reachable_hosts(host)[0]


@functools.cache
def machine_id() -> str:
    """Return an id of this machine that all of its processes share until it reboots; it is not secret.

    An address cannot replace it: a port forwarded from another machine looks like a port of this machine.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        boot = ""
    return hashlib.blake2b(f"{boot}{socket.gethostname()}".encode(), digest_size=16).hexdigest()


def bindable_ip(host: str, port: int, *, setting: str) -> str:
    """Return the IP address to bind for `host`, after checking that `port` is free there.

    The check gives every transport the same clear message; the libraries' own differ, and gRPC also prints to stderr.

    Args:
        host: name or IP address of an interface of this machine.
        port: TCP port; 0 for any free one.
        setting: the configuration key of the port, for the message, e.g. "net.zmq_port".

    Raises:
        UsageError: the host is not on this machine, or the port is in use or not permitted.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise UsageError(f'net.host = "{host}" is not an address of this machine ({error}): use 127.0.0.1') from error
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As both libraries do: ignore connections of a previous learner in TIME_WAIT.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError as error:
            raise listen_error(host, port, error.errno or 0, setting=setting) from error
    return str(address[0])


def listen_error(host: str, port: int, number: int, *, setting: str) -> UsageError:
    """Return the error for a listener that cannot be opened because of errno `number`."""
    if number == errno.EADDRINUSE:
        return UsageError(
            f"port {port} on {host} is in use: stop the process that uses it, or choose another port with "
            f"--set {setting}=… (0: any)"
        )
    if number == errno.EACCES:
        return UsageError(f"port {port} on {host} is not permitted: choose one above 1023 with --set {setting}=…")
    return UsageError(
        f"cannot listen on port {port} of {host} ({errno.errorcode.get(number, number)}): "
        f"check --set net.host=… and --set {setting}=…"
    )


def check_address(address: str) -> tuple[str, str]:
    """Split an address into its scheme, the name of a transport, and its rest: "host:port", a path, or another form.

    A user's transport is not imported, because an address may come from a peer.

    Raises:
        UsageError: the address is invalid.
    """
    scheme, separator, rest = address.partition("://")
    if not separator:
        scheme, rest = "grpc", address
    if scheme == "shm" and rest.startswith("/") and len(rest) > 1:
        return scheme, rest
    parts = split_host_port(rest)
    if parts is not None and scheme in ("zmq", "grpc"):
        return scheme, join_host_port(parts[0].strip("[]"), parts[1])
    if rest and (":" in scheme or scheme in TRANSPORTS.installed):
        return scheme, rest
    raise UsageError(
        f'"{address}" is not a learner\'s address: give HOST:PORT for gRPC (127.0.0.1:8686), '
        "zmq://HOST:PORT for ZeroMQ (zmq://127.0.0.1:8687), shm:///PATH on one machine, or the run's folder"
    )
