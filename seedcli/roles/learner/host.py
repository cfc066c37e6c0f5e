"""A learner on one of several hosts: the rendezvous before a run, and each host's part in the run."""

from __future__ import annotations

import contextlib
import logging
import secrets
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

import seedcli
from seedcli.cluster.hosts import actor_addresses, named_in_logs, reserve_port
from seedcli.cluster.messages import Addresses, Run, Status, describe_host
from seedcli.cluster.rendezvous import Rendezvous, RendezvousCancelled
from seedcli.cluster.team import Team
from seedcli.config.schema import Config
from seedcli.config.sources import Resolved, describe
from seedcli.config.topology import Plan, make_plan
from seedcli.errors import EXIT_DONE, SeedError
from seedcli.net.addresses import join_host_port, split_host_port
from seedcli.roles.learner.core import share_cores
from seedcli.roles.learner.setup import Setup
from seedcli.roles.learner.supervise import supervise
from seedcli.roles.resuming import resume_point
from seedcli.roles.run_folder import HOSTS, RunFolder
from seedcli.roles.stopping import Signals
from seedcli.roles.watchdog import Guard
from seedcli.serving.listeners import bound_host, ports
from seedcli.telemetry.logs import setup_logging
from seedcli.training.devices import Devices, find_inventory, prepare

_log = logging.getLogger(__name__)

# All hosts have joined by then, but TensorFlow's server starts slowly on a busy machine.
_CONNECT_SECONDS = (20.0, 120.0)  # bounds on topology.host_timeout for this step


def run_chief(setup: Setup, folder: RunFolder, hosts: Sequence[str], finished: str) -> int:
    """`seed learner` on the first of several hosts, which keeps the run's folder; returns the exit status.

    Args:
        setup: listeners, view and hooks of the learner.
        folder: the run's folder, locked.
        hosts: "host:port" of each, the chief first.
        finished: message for all hosts if no steps are left; "" otherwise.
    """

    def open_run(team: Team) -> RunFolder | None:
        team.checkpoint = None if finished else resume_point(folder)
        counters = team.checkpoint.counters if team.checkpoint is not None else {}
        team.share_run(Run(folder=str(folder.path.absolute()), finished=finished, counters=dict(counters)))
        if finished:
            print(f"seed: {finished}", file=sys.stderr)
        return None if finished else folder

    return _run_host(setup, hosts, 0, open_run)


def run_member(
    resolved: Resolved, logdir: Path | None, hosts: Sequence[str], index: int, *, fresh: bool, live: bool, profile: bool
) -> int:
    """`seed learner` on a host that is not the chief; its folder lies in the run's folder.

    Args:
        resolved: the configuration with its sources.
        logdir: the run's folder as this host sees it; None: the path that the chief announces.
        hosts: "host:port" of each, the chief first.
        index: position of this host in `hosts`.
        fresh: replace the folder's earlier run, unless the chief resumes it.
        live: show a live view.
        profile: print the full time profile at the end.
    """
    setup = Setup.open(resolved, live=live, profile=profile)
    setup_logging(None, setup.view, debug=False)
    with contextlib.ExitStack() as stack:

        def open_run(team: Team) -> RunFolder | None:
            run = team.share_run(None)
            if run.finished:
                print(f"seed: {run.finished}", file=sys.stderr)
                return None
            path, replaced = (logdir or Path(run.folder)) / HOSTS / str(index), fresh and not team.start_counters
            folder = RunFolder.create(
                path, resolved.config.run.preset, resume=False if replaced else None, overwrite=replaced
            )
            return stack.enter_context(folder)

        return _run_host(setup, hosts, index, open_run)


def _run_host(setup: Setup, hosts: Sequence[str], index: int, open_run: Callable[[Team], RunFolder | None]) -> int:
    """Join the other hosts and train with them.

    Args:
        setup, hosts, index: as above.
        open_run: agrees with the other hosts on the run's state and returns this host's folder; None: the run is done.
    """
    host_timeout = setup.resolved.config.topology.host_timeout
    plan = _plan(setup.resolved.config, hosts, index)
    signals = Signals()
    with contextlib.ExitStack() as stack:
        stack.callback(signals.restore)
        stack.enter_context(named_in_logs(index, len(hosts)))
        name = (split_host_port(hosts[index]) or ("", 0))[0].strip("[]")
        reservation = stack.enter_context(reserve_port(name))
        status = _status(setup, plan, hosts, join_host_port(name, reservation.getsockname()[1]))
        others = " and ".join(describe_host(hosts, number) for number in range(len(hosts)) if number != index)
        where = "here" if index == 0 else f"at {hosts[0]}"
        _log.info("waiting %s for %s, at most %g s (topology.host_timeout)", where, others, host_timeout)
        try:
            rendezvous = Rendezvous(hosts, status, setup.security, signals.raised.is_set).join(host_timeout)
            team = stack.enter_context(Team(rendezvous, host_timeout))
            folder = open_run(team)
            if folder is None:
                team.finished = True
                return EXIT_DONE
            setup_logging(folder.log_path, setup.view, debug=False)
            team.wait_for_all()
        except RendezvousCancelled:
            for transport in setup.transports:
                transport.close()
            return signals.status or EXIT_DONE
        reservation.close()
        devices = _connect_devices(plan, [host.tensorflow for host in rendezvous.state.hosts], host_timeout)
        signals.reinstall()  # TensorFlow installs its own SIGTERM handler
        _log.info("connected to %s; TensorFlow's own connections between hosts are not protected", others)
        return supervise(setup, folder, devices, team=team, signals=signals)


def _plan(config: Config, hosts: Sequence[str], index: int) -> Plan:
    """The roles of this host's devices."""
    topology = config.topology.model_copy(update={"hosts": tuple(hosts), "host_index": index})
    plan = make_plan(config.model_copy(update={"topology": topology}), find_inventory())
    prepare(plan)
    share_cores(config)
    return plan


def _status(setup: Setup, plan: Plan, hosts: Sequence[str], tensorflow: str) -> Status:
    """The announcement of this host: every value that hosts must agree on, and what "auto" resolved to here."""
    host = hosts[plan.host_index]
    values = {value.key: value.value for value in describe(setup.resolved)}
    derived = {"topology.platform": plan.platform, "topology.training_devices": len(plan.training)}
    return Status(
        index=plan.host_index,
        process=secrets.token_hex(8),
        version=seedcli.__version__,
        addresses=Addresses(
            tensorflow=tensorflow,
            actors=actor_addresses(host, bound_host(setup.resolved.config), ports(setup.transports)),
        ),
        config=values | derived,
    )


def _connect_devices(plan: Plan, servers: Sequence[str], host_timeout: float) -> Devices:
    """Connect this host's devices with those of the others; a timeout kills this process."""
    limit, named = float(np.clip(host_timeout, *_CONNECT_SECONDS)), ", ".join(servers)
    _log.info("TensorFlow is connecting %s; this process is killed if that takes longer than %.0f s", named, limit)
    # TensorFlow holds the GIL while it waits for the others: no thread or signal handler could interrupt it.
    guard = Guard(
        limit,
        f"TensorFlow's servers at {named} have not connected within {limit:.0f} s: they need "
        "every port between the learner hosts, and every host alive; this host is killed: start all again",
    )
    with contextlib.closing(guard):
        return _make_devices(plan, servers)


def _make_devices(plan: Plan, servers: Sequence[str]) -> Devices:
    try:
        return Devices(
            plan,
            tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec({"worker": servers}), task_type="worker", task_id=plan.host_index, rpc_layer="grpc"
            ),
        )
    except tf.errors.OpError as error:
        raise SeedError(
            f"TensorFlow's servers at {', '.join(servers)} cannot reach each other ({error.message.splitlines()[0]}): "
            "they need every port between the learner hosts"
        ) from error
