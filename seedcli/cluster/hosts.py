"""Several learner hosts of one run: find the hosts, place actors on them, and name the host in logs."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import math
import re
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from seedcli.config.schema import Config
from seedcli.errors import UsageError
from seedcli.net.addresses import join_host_port, split_host_port
from seedcli.net.messages import Hello
from seedcli.net.transports import transport_of

_MAX_NODES = 65_536
_PORTS = 12_000  # first port for the rendezvous of SLURM jobs; below the systems' ephemeral ports
_BLOCK = 16  # ports per step
_BLOCKS = 1_250
_SCONTROL_SECONDS = 10.0
_STEPS = 7  # steps of a job with different blocks
_REDIRECT_SECONDS = 30.0  # until a redirected actor that its host has not reported is no longer counted


# -- hosts of the run -----------------------------------------------------------------------------------------


def resolve_hosts(config: Config, environ: Mapping[str, str]) -> tuple[tuple[str, ...], int]:
    """Return the learner hosts of a run and the index of this process; ((), 0) for a single learner.

    The hosts come from topology.hosts (`--hosts`), else from TF_CONFIG, else from a SLURM step of several tasks, all of
    which then run `seed learner`.

    Raises:
        UsageError: the description of the hosts is invalid, or there are several without `--trust-network` or with
            replay.save.
    """
    topology = config.topology
    if topology.hosts:
        where, (hosts, index) = "topology.hosts", (topology.hosts, topology.host_index)
    elif environ.get("TF_CONFIG"):
        where, (hosts, index) = "TF_CONFIG", _from_tf_config(environ["TF_CONFIG"])
    elif _step_tasks(environ) > 1:
        where, (hosts, index) = "the SLURM step", _from_slurm(environ)
    else:
        return (), 0
    _check_hosts(where, hosts, index)
    if len(hosts) < 2:
        return (), 0
    if not topology.trust_network:
        alone = "; start a single learner with srun --ntasks=1" if where == "the SLURM step" else ""
        raise UsageError(
            f"{where} names {len(hosts)} learner hosts, which need --trust-network: TensorFlow's connections between "
            f"them are neither encrypted nor authenticated, so use a private network{alone}"
        )
    check_replay(config, len(hosts))
    return hosts, index


def check_replay(config: Config, hosts: int) -> None:
    """Check that replay.save is off with several learner hosts, each of which has a part of the replay.

    Raises:
        UsageError: it is on.
    """
    if hosts > 1 and config.replay.save and config.agent.source == "replay":
        raise UsageError(
            f"replay.save = true must be false with {hosts} learner hosts: each has a part of the replay, and only the "
            "chief writes checkpoints"
        )


def _check_hosts(where: str, hosts: Sequence[str], index: int) -> None:
    for host in hosts:
        if split_host_port(host) is None:
            raise UsageError(f'{where}: "{host}" must be host:port with a port from 1 to 65535, such as gpu1:8690')
    twice = next((host for host in hosts if hosts.count(host) > 1), None)
    if twice is not None:
        raise UsageError(f"{where}: {twice} is listed twice: name each learner host once")
    if not 0 <= index < len(hosts):
        raise UsageError(
            f"{where}: host {index} is not one of the {len(hosts)} hosts: number them from 0 to {len(hosts) - 1}"
        )


def _from_tf_config(text: str) -> tuple[tuple[str, ...], int]:
    """Return the hosts of TF_CONFIG, the chief first if there is one, then the workers; and this process's index."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"TF_CONFIG is not JSON ({error}): correct or unset it") from error
    cluster, task = (found.get(key) if isinstance(found, dict) else None for key in ("cluster", "task"))
    if not isinstance(cluster, dict) or not isinstance(task, dict):
        raise UsageError('TF_CONFIG must be {"cluster": {"worker": ["host:port", …]}, "task": {"type": …, "index": …}}')
    other = next((kind for kind in cluster if kind not in ("chief", "worker")), None)
    if other is not None:
        raise UsageError(
            f"TF_CONFIG has tasks of type {other!r}: learner hosts must be of type worker, and one may be chief"
        )
    chiefs, workers = (cluster.get(kind, []) for kind in ("chief", "worker"))
    for group, named in (("chief", chiefs), ("worker", workers)):
        if not isinstance(named, list) or not all(isinstance(host, str) for host in named):
            raise UsageError(f'TF_CONFIG: cluster.{group} must be a list of "host:port"')
    if len(chiefs) > 1:
        raise UsageError(f"TF_CONFIG names {len(chiefs)} chiefs: name at most one")
    kind, index = task.get("type"), task.get("index")
    if kind not in ("chief", "worker") or not isinstance(index, int) or isinstance(index, bool):
        raise UsageError('TF_CONFIG: task must be {"type": "worker" or "chief", "index": a number from 0}')
    here = chiefs if kind == "chief" else workers
    if not 0 <= index < len(here):
        raise UsageError(f"TF_CONFIG: task {kind} {index} is not one of the {len(here)} {kind} tasks of its cluster")
    return (*chiefs, *workers), index + (len(chiefs) if kind == "worker" else 0)


def _step_tasks(environ: Mapping[str, str]) -> int:
    """Return the number of tasks of this process's SLURM step; 1 in a batch script, which is not a step."""
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "1")
    return int(tasks) if tasks.isdecimal() else 1


def _from_slurm(environ: Mapping[str, str]) -> tuple[tuple[str, ...], int]:
    """Return the addresses of a step's tasks, in order, at ports that no other step uses; and this task's index."""
    rank = _number(environ, "SLURM_PROCID")
    nodes = expand_nodes(environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", ""))
    counts = _tasks_per_node(environ, len(nodes))
    first = [(node, local) for node, count in enumerate(counts) for local in range(count)]
    turns = sorted(first, key=lambda place: (place[1], place[0]))
    mine = (_number(environ, "SLURM_NODEID"), _number(environ, "SLURM_LOCALID"))
    # SLURM does not report the distribution of the tasks: infer it from the location of this node's tasks.
    ids = {int(task) for task in environ.get("SLURM_GTIDS", "").split(",") if task.isdecimal()}
    for places in (first, turns):
        there = {task for task, (node, _) in enumerate(places) if node == mine[0]}
        if rank < len(places) and places[rank] == mine and ids in (set(), there):
            break
    else:
        raise UsageError(
            f"the tasks of this SLURM step are distributed in an unknown way (task {rank} is number {mine[1]} on "
            f"node {mine[0]}): use srun --distribution=block, or give --hosts and --host-index"
        )
    addresses = _addresses_of(nodes)
    port = dict.fromkeys(addresses, _base_port(environ))  # in test clusters, nodes may share an address
    hosts: list[str] = []
    for node, _ in places:
        hosts.append(join_host_port(addresses[node], port[addresses[node]]))
        port[addresses[node]] += 1
    return tuple(hosts), rank


def _addresses_of(nodes: Sequence[str]) -> list[str]:
    """Return the nodes' addresses: their names or, if these cannot be resolved, the addresses that SLURM uses."""
    if all(map(_is_known, nodes)):
        return list(nodes)
    try:
        shown = subprocess.run(
            ["scontrol", "--oneliner", "show", "node", ",".join(nodes)],
            capture_output=True, text=True, check=True, timeout=_SCONTROL_SECONDS,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return list(nodes)  # the rendezvous reports the name that cannot be resolved
    found = dict(re.findall(r"^NodeName=(\S+) .*?\bNodeAddr=(\S+)", shown, re.MULTILINE))
    return [found.get(node, node) for node in nodes]


def _is_known(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):
        return False
    return True


def _number(environ: Mapping[str, str], name: str) -> int:
    value = environ.get(name, "")
    if not value.isdecimal():
        raise UsageError(f"{name} = {value!r} is not a number, so this SLURM step cannot be used: give --hosts")
    return int(value)


def _tasks_per_node(environ: Mapping[str, str], nodes: int) -> list[int]:
    """Return the number of tasks on each node; SLURM writes 2, 2, 2, 1 as "2(x3),1"."""
    text = environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", part)
        if match is None or len(counts) > _MAX_NODES:
            break
        counts += [int(match[1])] * min(int(match[2] or 1), _MAX_NODES)
    if len(counts) != nodes or sum(counts) != _step_tasks(environ):
        raise UsageError(
            f"SLURM_STEP_TASKS_PER_NODE = {text!r} does not describe {_step_tasks(environ)} tasks on {nodes} nodes: "
            "give --hosts and --host-index"
        )
    if max(counts) > _BLOCK:
        raise UsageError(f"{max(counts)} learner hosts on one node are more than the limit of {_BLOCK}: start fewer")
    return counts


def _base_port(environ: Mapping[str, str]) -> int:
    """Return the first port of a step; it differs between concurrent jobs and steps."""
    job, step = _number(environ, "SLURM_JOB_ID"), environ.get("SLURM_STEP_ID", "0")
    return _PORTS + _BLOCK * ((_STEPS * job + (int(step) if step.isdecimal() else 0)) % _BLOCKS)


def expand_nodes(nodes: str) -> list[str]:
    """Expand a SLURM node list: "gpu[01-03,07],login" is gpu01, gpu02, gpu03, gpu07, login.

    Raises:
        UsageError: the list is invalid or too long.
    """
    found: list[str] = []
    # Commas outside brackets separate nodes.
    for pattern in re.split(r",(?![^\[\]]*\])", nodes):
        parts = re.split(r"\[([^\[\]]*)\]", pattern)
        if not pattern or not all(re.fullmatch(r"[A-Za-z0-9._-]*", part) for part in parts[::2]):
            raise UsageError(f"{nodes!r} is not a SLURM node list such as gpu[01-03,07],login: give addresses")
        choices = [[part] if at % 2 == 0 else _range_of(part, nodes) for at, part in enumerate(parts)]
        if math.prod(map(len, choices)) + len(found) > _MAX_NODES:
            raise UsageError(f"{nodes!r:.80} names more than {_MAX_NODES} nodes: give addresses")
        found += ["".join(chosen) for chosen in itertools.product(*choices)]
    return found


def _range_of(text: str, nodes: str) -> list[str]:
    """Expand the content of one pair of brackets: "01-03,07" is 01, 02, 03, 07."""
    found: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if match is None or not first <= last < first + _MAX_NODES:
            raise UsageError(f"{nodes!r} is not a SLURM node list such as gpu[01-03,07],login: give addresses")
        found += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return found


# -- addresses of this host -----------------------------------------------------------------------------------


def reserve_port(host: str) -> socket.socket:
    """Return a socket that keeps a port, free on all interfaces, for TensorFlow's server; close it just before.

    Hosts may wait minutes for each other. Meanwhile any connection could take a port that is announced but not bound.

    Args:
        host: name or address at which the others reach this host.

    Raises:
        UsageError: the host is not on this machine.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"{host} is not an address of this machine ({error}): check topology.hosts and topology.host_index"
        ) from error
    reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reservation.bind(("", 0))
    return reservation


def actor_addresses(host: str, listening: str, ports: Mapping[str, int]) -> dict[str, str]:
    """Return a learner host's addresses for actors, transport → "host:port".

    Args:
        host: its address in topology.hosts, "host:port".
        listening: the address to which its listeners are bound; "0.0.0.0" or "::" for every interface.
        ports: ports of its listeners, by transport.
    """
    parts = split_host_port(host)
    assert parts is not None, host
    name = parts[0].strip("[]") if listening in ("0.0.0.0", "::") else listening
    return {transport: join_host_port(name, port) for transport, port in ports.items()}


# -- placement of actors --------------------------------------------------------------------------------------


class Placement:
    """Chooses the learner host that serves an actor: the one with the fewest environments, round robin among equals.

    Call it from the service's thread; see `serving.handshakes.Handshakes.place`.

    Args:
        index: the index of this host.
        addresses: addresses of each host, transport → "host:port".
        own: returns the number of environments of this host without those of the named actor, whose previous session
            may not have timed out yet.
        loads: returns the number of environments that each host last reported.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        index: int,
        addresses: Sequence[Mapping[str, str]],
        *,
        own: Callable[[str], int],
        loads: Callable[[], Sequence[int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._index = index
        self._addresses = addresses
        self._own = own
        self._loads = loads
        self._clock = clock
        self._turn = index
        self._reported = [0] * len(addresses)  # environments that each host last reported
        # For each host, redirected actors that it has not reported yet: [time, number of environments].
        self._redirected: list[deque[list[float]]] = [deque() for _ in addresses]

    def __call__(self, hello: Hello, transport: str) -> str | None:
        """Return the address to redirect an actor to, as a user would type it; None: this host serves it."""
        counts = self._counts()
        counts[self._index] = self._own(hello.actor_id)
        hosts = len(self._addresses)
        order = [(self._turn + step) % hosts for step in range(hosts)]
        there = [host for host in order if host == self._index or transport in self._addresses[host]]
        chosen = min(there, key=counts.__getitem__)  # the first in turn among equals
        self._turn = (chosen + 1) % hosts
        if chosen == self._index:
            return None
        self._redirected[chosen].append([self._clock(), hello.envs])
        return transport_of(transport).prefix + self._addresses[chosen][transport]

    def _counts(self) -> list[float]:
        """Return the number of environments of each host, including those of redirected actors not reported yet."""
        loads, now = self._loads(), self._clock()
        counts: list[float] = []
        for host, waiting in enumerate(self._redirected):
            reported = loads[host]
            arrived: float = max(0, reported - self._reported[host])
            self._reported[host] = reported
            while waiting and (arrived > 0 or now - waiting[0][0] > _REDIRECT_SECONDS):
                part = min(arrived, waiting[0][1])
                arrived -= part
                waiting[0][1] -= part
                if waiting[0][1] > 0 and now - waiting[0][0] <= _REDIRECT_SECONDS:
                    break
                waiting.popleft()
            counts.append(reported + sum(envs for _, envs in waiting))
        return counts


# -- logs -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def named_in_logs(index: int, hosts: int) -> Iterator[None]:
    """Within the context, prefix every log record with the host: "host 1/2: …" is the second of two.

    It changes the records, so that it also works for handlers that are set up later.
    """
    before = logging.getLogRecordFactory()

    def factory(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = before(*args, **kwargs)
        record.msg = f"host {index}/{hosts}: {record.msg}"
        return record

    logging.setLogRecordFactory(factory)
    try:
        yield
    finally:
        logging.setLogRecordFactory(before)
