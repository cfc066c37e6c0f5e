"""Where the learner is: what the user typed, or the file that a learner leaves in its run's folder.

An actor asks anew before each attempt to connect, so that it follows a learner that was started again elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from seedcli.cluster.hosts import expand_nodes
from seedcli.errors import RefusedError, UnreachableError, UsageError
from seedcli.net.addresses import check_address, join_host_port, machine_id, reachable_hosts
from seedcli.net.security.keys import Security, TlsFiles
from seedcli.net.security.token import find_token
from seedcli.roles.run_folder import RunFolder

VARIABLE = "SEED_CONNECT"
_DEFAULT_PORT = 8686

ActorTransport = Literal["grpc", "zmq"]


def announcement(host: str, ports: Mapping[str, int]) -> dict[str, Any]:
    """What a learner leaves in its run's folder for `Discovery`.

    Args:
        host: the address it is bound to.
        ports: by transport, "grpc" and "zmq".
    """
    everywhere = host in ("0.0.0.0", "::")
    return {"hosts": reachable_hosts(host), "everywhere": everywhere, "machine": machine_id(), **ports}


def default_connect(environ: Mapping[str, str]) -> str:
    """Where an actor that was told nothing looks: SEED_CONNECT, else the first node of its SLURM job.

    Raises:
        UsageError: neither is there.
    """
    if environ.get(VARIABLE):
        return environ[VARIABLE]
    if environ.get("SLURM_JOB_NODELIST"):
        return f"{_first_node(environ['SLURM_JOB_NODELIST'])}:{_DEFAULT_PORT}"
    raise UsageError(f"no learner address given: give --connect HOST:PORT or --connect RUN_FOLDER, or set {VARIABLE}")


def _first_node(nodes: str) -> str:
    """The first of a job's nodes, "gpu[03-07,11]" being SLURM's way to write them."""
    try:
        return expand_nodes(nodes)[0]
    except UsageError as error:
        raise UsageError(
            f"the job's first node cannot be told (SLURM_JOB_NODELIST: {error}): give --connect"
        ) from error


class Discovery:
    """Gives the address of each attempt to connect, and what it is protected with.

    Args:
        connect: addresses and run folders, separated by commas.
        transport: what is used to a learner whose address is read from its run's folder; None: gRPC.
        insecure: no token, no encryption.
        token_file: see `net.security.token.find_token`.
        tls: certificates of the user's own.

    Raises:
        UsageError: one of them is neither an address nor a folder, or certificates are given for ZeroMQ, which has no
            use for them.
    """

    def __init__(
        self,
        connect: str,
        *,
        transport: ActorTransport | None = None,
        insecure: bool = False,
        token_file: Path | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        self._places = [place.strip() for place in connect.split(",") if place.strip()]
        if not self._places:
            raise UsageError(f'no learner address given (--connect "{connect}"): give HOST:PORT or a run\'s folder')
        self._transport = transport or "grpc"
        if transport is not None and not any(map(_is_folder, self._places)):
            raise UsageError(
                f"--transport {transport} is for --connect RUN_FOLDER: an address says it itself, zmq://HOST:PORT or "
                "HOST:PORT (gRPC)"
            )
        for place in self._places:
            scheme = self._transport if _is_folder(place) else check_address(place)[0]
            if tls is not None and scheme == "zmq":
                raise UsageError(f"--tls-cert, --tls-key and --tls-ca are for gRPC: leave them out for {place}")
        self._connect = connect
        self._insecure = insecure
        self._token_file = token_file
        self._tls = tls
        self._turn = 0
        self._candidates: list[list[str]] = []  # of each place
        self._tried: set[str] = set()
        self._refusals: set[str] = set()

    def __str__(self) -> str:
        return self._connect

    def next(self) -> str:
        """The address to try now; each place in turn.

        Raises:
            UnreachableError: no learner has left its address in that folder.
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

    def again(self) -> None:
        """Try the place of the last attempt first next time: it worked."""
        self._turn -= 1
        self._tried.clear()
        self._refusals.clear()

    def refused(self, address: str, error: RefusedError) -> None:
        """Note that the learner at `address` said no; raises the error where every place has.

        A folder's learner has several addresses: it has said no where one of them has and none of the others led to it.
        """
        self._refusals.add(address)
        if all(self._refusals & set(place) and set(place) <= self._tried for place in self._candidates):
            raise error

    def _addresses(self, folder: str) -> list[str]:
        found = RunFolder.read_address(Path(folder))
        port = found.get(self._transport) if found is not None else None
        hosts = found.get("hosts") if found is not None else None
        if found is None or not isinstance(hosts, list):
            raise UnreachableError(f"no learner has left its address in {folder}: start it with --logdir {folder}")
        if not isinstance(port, int):
            raise UnreachableError(f"the learner of {folder} does not listen on {self._transport}: see --transport")
        if found.get("everywhere") and found.get("machine") == machine_id():
            hosts = ["127.0.0.1", *hosts]
        scheme = "zmq://" if self._transport == "zmq" else ""
        return [f"{scheme}{join_host_port(str(host), port)}" for host in hosts]

    def security(self, address: str) -> Security | None:
        """What a connection to `address` is protected with; None: with nothing. Reads the token anew.

        Raises:
            RefusedError: there is no token, or none that may be used.
        """
        if self._insecure or address.startswith("shm:"):
            return None
        return Security(find_token(self._token_file), self._tls)


def _is_folder(place: str) -> bool:
    return "://" not in place and ("/" in place or place in (".", "..") or os.path.isdir(place))
