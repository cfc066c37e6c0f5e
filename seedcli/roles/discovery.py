"""Find the learner: at the address the user typed, or through the address file in the run's folder.

An actor looks the address up before each attempt to connect, so it follows a learner that restarts on another host.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seedcli.cluster.hosts import expand_nodes
from seedcli.errors import RefusedError, UnreachableError, UsageError
from seedcli.net.addresses import check_address, join_host_port, machine_id, reachable_hosts
from seedcli.net.security.keys import Security, TlsFiles
from seedcli.net.security.token import find_token
from seedcli.net.transports import listening, transport_of
from seedcli.roles.run_folder import RunFolder

VARIABLE = "SEED_CONNECT"
_DEFAULT_PORT = 8686


def announcement(host: str, ports: Mapping[str, int]) -> dict[str, Any]:
    """Build the address record that a learner writes to its run's folder for `Discovery`.

    Args:
        host: the address that the learner is bound to.
        ports: port by transport.
    """
    everywhere = host in ("0.0.0.0", "::")
    return {"hosts": reachable_hosts(host), "everywhere": everywhere, "machine": machine_id(), **ports}


def default_connect(environ: Mapping[str, str]) -> str:
    """The default of --connect: SEED_CONNECT, else the first node of the SLURM job.

    Raises:
        UsageError: neither is set.
    """
    if environ.get(VARIABLE):
        return environ[VARIABLE]
    if environ.get("SLURM_JOB_NODELIST"):
        return f"{_first_node(environ['SLURM_JOB_NODELIST'])}:{_DEFAULT_PORT}"
    raise UsageError(f"no learner address given: give --connect HOST:PORT or --connect RUN_FOLDER, or set {VARIABLE}")


def _first_node(nodes: str) -> str:
    """The first node of a SLURM node list such as "gpu[03-07,11]"."""
    try:
        return expand_nodes(nodes)[0]
    except UsageError as error:
        raise UsageError(
            f"cannot determine the job's first node (SLURM_JOB_NODELIST: {error}): give --connect"
        ) from error


class Discovery:
    """Yields the address and the security of each attempt to connect.

    Args:
        connect: addresses and run folders, separated by commas.
        transport: its name, used when the address comes from a run's folder; None: gRPC.
        insecure: no token, no encryption.
        token_file: see `net.security.token.find_token`.
        tls: the user's own certificates.

    Raises:
        UsageError: an entry is neither an address nor a folder, a transport does not exist or has no port, or
            certificates are given for one that does not use them, such as ZeroMQ.
    """

    def __init__(
        self,
        connect: str,
        *,
        transport: str | None = None,
        insecure: bool = False,
        token_file: Path | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        self._places = [place.strip() for place in connect.split(",") if place.strip()]
        if not self._places:
            raise UsageError(f'no learner address given (--connect "{connect}"): give HOST:PORT or a run\'s folder')
        self._transport = transport or listening()[0].name
        if transport_of(self._transport).port_key is None:
            raise UsageError(
                f"--transport {transport} serves only the actors of seed train, so no learner publishes its address: "
                f"choose {' or '.join(each.name for each in listening())}"
            )
        if transport is not None and not any(map(_is_folder, self._places)):
            raise UsageError(
                f"--transport {transport} is for --connect RUN_FOLDER: an address names its own transport, "
                "zmq://HOST:PORT or HOST:PORT (gRPC)"
            )
        for place in self._places:
            scheme = self._transport if _is_folder(place) else check_address(place)[0]
            if tls is not None and not transport_of(scheme).certificates:
                raise UsageError(f"--tls-cert, --tls-key and --tls-ca are for gRPC: leave them out for {place}")
        self._connect = connect
        self._insecure = insecure
        self._token_file = token_file
        self._tls = tls
        self._turn = 0
        self._candidates: list[list[str]] = []  # by place
        self._tried: set[str] = set()
        self._refusals: set[str] = set()

    def __str__(self) -> str:
        return self._connect

    def next(self) -> str:
        """The next address to try; places are tried in rotation.

        Raises:
            UnreachableError: no folder holds a learner's address.
        """
        self._candidates = []
        missing: UnreachableError | None = None
        for place in self._places:
            try:
                self._candidates.append(self._addresses(place) if _is_folder(place) else [place])
            except UnreachableError as error:
                self._candidates.append([])
                missing = error
        every = [address for addresses in self._candidates for address in addresses]
        if not every:
            assert missing is not None
            raise missing
        address = every[self._turn % len(every)]
        self._turn += 1
        self._tried.add(address)
        return address

    def succeeded(self) -> None:
        """Start with the last address at the next attempt, because it worked."""
        self._turn -= 1
        self._tried.clear()
        self._refusals.clear()

    def refused(self, address: str, error: RefusedError) -> None:
        """Record that the learner at `address` refused this actor; raise the error if every place has refused it.

        A folder may hold several addresses of one learner. The folder counts as refused once all of them have been
        tried and at least one has refused.
        """
        self._refusals.add(address)
        if all(self._refusals & set(place) and set(place) <= self._tried for place in self._candidates):
            raise error

    def _addresses(self, folder: str) -> list[str]:
        found = RunFolder.read_address(Path(folder))
        port = found.get(self._transport) if found is not None else None
        hosts = found.get("hosts") if found is not None else None
        if found is None or not isinstance(hosts, list):
            raise UnreachableError(f"no learner has published its address in {folder}: start it with --logdir {folder}")
        if not isinstance(port, int):
            raise UnreachableError(f"the learner of {folder} does not listen on {self._transport}: see --transport")
        if found.get("everywhere") and found.get("machine") == machine_id():
            hosts = ["127.0.0.1", *hosts]
        prefix = transport_of(self._transport).prefix
        return [f"{prefix}{join_host_port(str(host), port)}" for host in hosts]

    def security(self, address: str) -> Security | None:
        """The security of a connection to `address`; None: unprotected. Reads the token at every call.

        Raises:
            RefusedError: there is no usable token.
        """
        if self._insecure or transport_of(check_address(address)[0]).port_key is None:
            return None
        return Security(find_token(self._token_file), self._tls)


def _is_folder(place: str) -> bool:
    return "://" not in place and ("/" in place or place in (".", "..") or os.path.isdir(place))
