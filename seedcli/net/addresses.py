"""Hosts and ports: resolving what a listener binds, checking that it is free, splitting what a user typed."""

from __future__ import annotations

import errno
import functools
import hashlib
import ipaddress
import re
import socket
from pathlib import Path

from seedcli.errors import UnreachableError, UsageError

_HOST_PORT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")


def split_host_port(text: str) -> tuple[str, int] | None:
    """Split "host:port" ("[::1]:8686" for IPv6, brackets kept); None where it is not that, or the port is not 1…65535.

    The brackets stay because both gRPC's and ZeroMQ's addresses want them.
    """
    match = _HOST_PORT.fullmatch(text)
    if match is None or not 1 <= int(match["port"]) <= 65535:
        return None
    return match["host"], int(match["port"])


def join_host_port(host: str, port: int) -> str:
    """Join to "host:port", with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def plain_address(host: str) -> str:
    """A numeric address in its one form: that of IPv4 where it is one, without an interface's name."""
    address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    return str(getattr(address, "ipv4_mapped", None) or address)


def check_known(where: str, address: str) -> None:
    """Make sure that the host of `where` ("host:port") has an address; anything else is left alone.

    Args:
        where: what is connected to.
        address: the same as the user typed it, for the message.

    Raises:
        UnreachableError: its name is not known here, at least at the moment.
    """
    parts = split_host_port(where)
    if parts is None:
        return
    try:
        socket.getaddrinfo(parts[0].strip("[]"), parts[1], type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UnreachableError(
            f"no learner can be looked for at {address}: this machine knows no host {parts[0]}; check the name"
        ) from error


def reachable_hosts(host: str) -> list[str]:
    """Under which names or addresses a listener bound to `host` may be found, likeliest first; never empty.

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
        pass  # the name means nothing here, and perhaps elsewhere
    routed = _routed_address()
    if routed and routed not in found:
        found.append(routed)
    return found or ["127.0.0.1"]


def _routed_address() -> str:
    """The address this machine would speak to others from; "" where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documentation: nothing is sent
        except OSError:
            return ""
        address = str(probe.getsockname()[0])
    return "" if address.startswith("127.") else address


def shown_host(host: str) -> str:
    """The host a person is told to connect to."""
    return reachable_hosts(host)[0]


@functools.cache
def machine_id() -> str:
    """What tells this machine, as long as it is up, from others: the same for all of its processes, and no secret.

    An address does not tell: a port that is forwarded from another machine looks like one of this machine's own.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        boot = ""
    return hashlib.blake2b(f"{boot}{socket.gethostname()}".encode(), digest_size=16).hexdigest()


def bindable_ip(host: str, port: int, *, setting: str) -> str:
    """The IP address to bind for `host`, after trying that `port` is free there.

    Trying it here gives one clear sentence for every transport; their own messages differ and gRPC also prints
    lines of its own.

    Args:
        host: name or IP address of an interface of this machine.
        port: 0 for any free one.
        setting: the setting that chooses the port, for the message, e.g. "net.zmq_port".

    Raises:
        UsageError: the host is not one of this machine's, or the port is in use or not allowed.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise UsageError(f'net.host = "{host}" is no address of this machine ({error}): use 127.0.0.1') from error
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As both libraries do: connections of an earlier learner that linger in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError as error:
            raise listen_error(host, port, error.errno or 0, setting=setting) from error
    return str(address[0])


def listen_error(host: str, port: int, number: int, *, setting: str) -> UsageError:
    """The sentence for a listener that cannot be opened for the reason `number` (an errno)."""
    if number == errno.EADDRINUSE:
        return UsageError(
            f"port {port} on {host} is in use: stop what holds it, or choose another with --set {setting}=… (0: any)"
        )
    if number == errno.EACCES:
        return UsageError(f"port {port} on {host} is not allowed to you: choose one above 1023, --set {setting}=…")
    return UsageError(
        f"cannot listen on port {port} of {host} ({errno.errorcode.get(number, number)}): "
        f"check --set net.host=… and --set {setting}=…"
    )


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
