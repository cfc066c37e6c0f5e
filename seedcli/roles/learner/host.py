"""A learner on one host of several: how hosts find each other before a run, and what each does in it."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import seedcli
from seedcli.cluster.hosts import actor_addresses, free_port, named_in_logs
from seedcli.cluster.meeting import Door, Introduction, Meeting, MeetingCancelled, meet
from seedcli.cluster.team import Team
from seedcli.config.schema import Config
from seedcli.config.sources import Resolved, describe
from seedcli.config.topology import Plan, make_plan
from seedcli.errors import EXIT_DONE, SeedError
from seedcli.net.addresses import join_host_port, split_host_port
from seedcli.net.base import ServerTransport
from seedcli.net.security.keys import Security
from seedcli.roles.learner.core import share_cores
from seedcli.roles.learner.supervise import supervise
from seedcli.roles.learner.threads import Learner
from seedcli.roles.resuming import resume_point
from seedcli.roles.run_folder import HOSTS, RunFolder
from seedcli.roles.stopping import Signals
from seedcli.roles.watchdog import Guard
from seedcli.serving.admission_control import Doorman
from seedcli.serving.listeners import bound_host, learner_security, open_transports, ports
from seedcli.telemetry.exporter import Exporter, open_exporter
from seedcli.telemetry.live import View, make_view
from seedcli.telemetry.logs import setup_logging
from seedcli.training.checkpoint_files import Checkpoint
from seedcli.training.devices import Devices, find_inventory, prepare

_log = logging.getLogger(__name__)

# All hosts have met by then, so none need be waited for; but TensorFlow's server takes some to start on a busy machine.
_CONNECT_SECONDS = (20.0, 120.0)  # at least and at most, between them topology.host_timeout
_FLUSH_SECONDS = 5.0
# What the chief tells first: why there is nothing to do, or "", and the counters of the checkpoint it goes on from.
_FINISHED, _COUNTERS = "finished", "counters"


def run_host(
    resolved: Resolved,
    folder_of: Callable[[str, bool], RunFolder],
    hosts: Sequence[str],
    index: int,
    transports: Sequence[ServerTransport],
    security: Security | None,
    view: View,
    announce: Callable[[Learner, View], None],
    exporter: Exporter | None,
    done: str = "",
) -> int:
    """Meet the other hosts and train with them.

    Args:
        resolved: the configuration with its sources.
        folder_of: gives this host's own folder, from the chief's and from whether the run is gone on with; a chief's
            own is asked for with "" and False.
        hosts, index: "host:port" of each, the chief first, and which of them this is.
        transports, security: listeners, bound already, and what protects them.
        view: where progress is shown.
        announce: called once the learner serves.
        exporter: where metrics and health are asked for.
        done: the chief's: why there is nothing left to do.

    Returns:
        The exit status.
    """
    config = resolved.config
    plan = _plan(config, hosts, index)
    signals = Signals()
    with contextlib.ExitStack() as stack:
        stack.callback(signals.restore)
        stack.enter_context(named_in_logs(index, len(hosts)))
        folder = folder_of("", False) if index == 0 else None
        server = join_host_port(_name(hosts[index]), free_port(_name(hosts[index])))
        introduction = Introduction(
            config=_compared(resolved, plan),
            version=seedcli.__version__,
            tensorflow=server,
            actors=actor_addresses(hosts[index], bound_host(config), ports(transports)),
            folder=str(folder.path.absolute()) if folder is not None else "",
        )
        door = stack.enter_context(_watched(hosts[0])) if index == 0 else None
        _log.info("%s", _waiting(hosts, index, config.topology.host_timeout))
        try:
            meeting = meet(
                hosts, index, introduction,
                security=security, timeout=config.topology.host_timeout, stopped=signals.raised.is_set,
                door=door,
            )  # fmt: skip
            team = Team(meeting, tuple(hosts), index, config.topology.host_timeout, signals.raised.is_set)
            stack.enter_context(_left_in_order(team))
            checkpoint = _compare_notes(team, folder, done)
            done = done or str(meeting.told[_FINISHED])
            if done:
                print(f"seed: {done}", file=sys.stderr)
                meeting.flush(_FLUSH_SECONDS)
                team.parted = True
                return EXIT_DONE
            if folder is None:
                folder = stack.enter_context(folder_of(meeting.introductions[0].folder, bool(team.began)))
            setup_logging(folder.log_path, view, debug=False)
            team.wait_for_all()
        except MeetingCancelled:
            for transport in transports:
                transport.close()
            return signals.status or EXIT_DONE
        devices = _devices(plan, meeting, config.topology.host_timeout)
        signals.insist()  # TensorFlow takes SIGTERM for itself
        _log.info("met %s; TensorFlow's own connections between hosts are not protected", _counted(len(hosts) - 1))
        return supervise(
            resolved, folder, transports, view,
            announce=announce, tick=team.look, exporter=exporter, devices=devices, team=team,
            signals=signals, checkpoint=checkpoint,
        )  # fmt: skip


def _compare_notes(team: Team, folder: RunFolder | None, done: str) -> Checkpoint | None:
    """Have every host know where the run stands; returns the checkpoint that the chief goes on from."""
    checkpoint = None
    if folder is not None:
        checkpoint = None if done else resume_point(folder)
        team.meeting.tell({_FINISHED: done, _COUNTERS: {} if checkpoint is None else checkpoint.counters})
    team.resume(team.wait_told(_COUNTERS))
    return checkpoint


def run_member(
    resolved: Resolved, logdir: Path | None, hosts: Sequence[str], index: int, *, fresh: bool, live: bool
) -> int:
    """`seed learner` on a host that is not the chief: it has a folder of its own in the chief's.

    Args:
        resolved: the configuration with its sources.
        logdir: the run's folder as this host sees it; None: where the chief says it is.
        hosts, index: see `run_host`.
        fresh: the folder's earlier run is replaced, unless the chief goes on with it.
        live: show a live view.
    """
    config = resolved.config
    security = learner_security(config)
    exporter = open_exporter(config.net)
    transports = open_transports(config, security)
    view = make_view(live)
    setup_logging(None, view, debug=False)

    def folder_of(chiefs: str, goes_on: bool) -> RunFolder:
        path = (logdir or Path(chiefs)) / HOSTS / str(index)
        anew = fresh and not goes_on
        return RunFolder.create(path, config.run.preset, resume=False if anew else None, overwrite=anew)

    return run_host(resolved, folder_of, hosts, index, transports, security, view, lambda learner, view: None, exporter)


def _plan(config: Config, hosts: Sequence[str], index: int) -> Plan:
    """What this host's devices do."""
    topology = config.topology.model_copy(update={"hosts": tuple(hosts), "host_index": index})
    plan = make_plan(config.model_copy(update={"topology": topology}), find_inventory())
    prepare(plan)
    share_cores()
    return plan


def _waiting(hosts: Sequence[str], index: int, seconds: float) -> str:
    others = " and ".join(f"host {number} ({host})" for number, host in enumerate(hosts) if number != index)
    where = "here" if index == 0 else f"at {hosts[0]}"
    return f"waiting {where} for {others}, at most {seconds:g} s (topology.host_timeout)"


def _counted(others: int) -> str:
    return "the other learner host" if others == 1 else f"{others} other learner hosts"


def _name(host: str) -> str:
    parts = split_host_port(host)
    assert parts is not None, host
    return parts[0].strip("[]")


def _compared(resolved: Resolved, plan: Plan) -> dict[str, Any]:
    """What hosts must agree on: every value, and what "auto" has come to here."""
    values = {value.key: value.value for value in describe(resolved)}
    return values | {
        "topology.platform": plan.platform,
        "topology.training_devices": len(plan.training),
    }


@contextlib.contextmanager
def _watched(chief: str) -> Iterator[Door]:
    """Have the connections of strangers to the meeting's port ended, as those to the ports for actors are."""
    door = Door(chief)
    with contextlib.closing(Doorman([door], time.monotonic)):
        yield door


@contextlib.contextmanager
def _left_in_order(team: Team) -> Iterator[None]:
    """Leave the meeting in the end, and say why where the others cannot know."""
    try:
        yield
    except BaseException as error:
        team.meeting.close(str(error) or type(error).__name__)
        raise
    team.meeting.close("" if team.parted else "it was stopped before training had begun")


def _devices(plan: Plan, meeting: Meeting, patience: float) -> Devices:
    """This host's devices, connected with those of the others; this process is killed where that takes too long."""
    servers = ", ".join(introduction.tensorflow for introduction in meeting.introductions)
    limit = float(np.clip(patience, *_CONNECT_SECONDS))
    _log.info("TensorFlow connects %s; this process is killed where it cannot within %.0f s", servers, limit)
    # TensorFlow keeps Python from running while it waits for the others: no thread and no signal could end that.
    guard = Guard(
        limit,
        f"TensorFlow's servers at {servers} have not connected within {limit:.0f} s: they need "
        "every port between the learner hosts, and every host alive; this host is killed: start all again",
    )
    with contextlib.closing(guard):
        return _connected(plan, servers.split(", "))


def _connected(plan: Plan, servers: Sequence[str]) -> Devices:
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
