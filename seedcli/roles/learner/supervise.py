"""The life of a learner: start, report, stop, checkpoint, summarise."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from seedcli.cluster.team import Team
from seedcli.config.schema import Config
from seedcli.config.sources import without_effect
from seedcli.config.toml_text import format_value
from seedcli.config.topology import make_plan
from seedcli.errors import EXIT_DONE, EXIT_FAILED
from seedcli.roles.learner.core import share_cores
from seedcli.roles.learner.reporting import Reporter
from seedcli.roles.learner.setup import Setup
from seedcli.roles.learner.threads import Learner
from seedcli.roles.resuming import check_steps, resume_point
from seedcli.roles.run_folder import RunFolder
from seedcli.roles.sessions import SessionRecorder
from seedcli.roles.stopping import Signals
from seedcli.training.devices import Devices, find_inventory, prepare

_log = logging.getLogger(__name__)


def use_devices(config: Config) -> Devices:
    """Set up the devices of a single learner host. Call before TensorFlow's first operation.

    Raises:
        UsageError: the topology does not fit the devices.
    """
    plan = make_plan(config, find_inventory())
    prepare(plan)
    share_cores(config)
    return Devices(plan)


def run_until_done(
    learner: Learner, reporter: Reporter, signals: Signals, tick: Callable[[], None], folder: RunFolder
) -> None:
    """The main thread of a run: report and call `tick` until the run is over.

    Raises:
        The exception that ended a thread of the learner, or that `tick` raised.
    """
    interval = learner.config.telemetry.interval_seconds
    next_report = time.monotonic() + interval
    while not learner.done.is_set() and not signals.raised.is_set():
        learner.done.wait(0.1)
        if learner.has_stepped:
            folder.begin()
        tick()
        reporter.refresh()
        if time.monotonic() >= next_report:
            next_report += interval
            reporter.report()
    reporter.training_ended()
    if learner.failure is not None:
        raise learner.failure


def supervise(
    setup: Setup, folder: RunFolder, devices: Devices, *, team: Team | None = None, signals: Signals | None = None
) -> int:
    """Run a learner to its end: report, stop, checkpoint, summarise, also after a failure.

    Args:
        setup: its listeners, view and hooks.
        folder, devices, team: see `Learner`.
        signals: the stop signals, if already caught; restored here.

    Returns:
        The exit status.
    """
    resolved, view, exporter = setup.resolved, setup.view, setup.exporter
    for note in resolved.notes:
        _log.info("%s", note)
    for value in without_effect(resolved):
        _log.warning(
            "%s = %s (from %s) has no effect with agent.algorithm %s and environment.family %s",
            value.key, format_value(value.value), value.source,
            resolved.config.agent.algorithm, resolved.config.environment.family,
        )  # fmt: skip
    signals = signals or Signals()
    checkpoint = resume_point(folder) if team is None else team.checkpoint
    check_steps(resolved, checkpoint)
    learner = Learner(resolved, folder, setup.transports, checkpoint, devices=devices, team=team)
    # Only now: a configuration that does not fit the checkpoint must not overwrite one that does.
    folder.write_config(resolved)
    reporter = Reporter(learner, folder, view, resumed_at=learner.resumed_at, resumed_with=setup.resumed_with)
    status = EXIT_FAILED  # unless training completes
    with SessionRecorder(folder.path, find_inventory().models) as record:
        try:
            reporter.start()
            if exporter is not None:
                exporter.start(reporter)
                _log.info("metrics and health: %s/metrics", exporter.url)
            learner.start()
            training_done = False
            try:
                setup.announce(learner, view)
                reporter.enter("serving")
                if checkpoint is not None:
                    view.log(f"resuming from {checkpoint.path} at {checkpoint.env_steps:,} environment steps")
                run_until_done(learner, reporter, signals, setup.tick if team is None else team.report_envs, folder)
                training_done = signals.status is None and learner.training.stopped_by is None
            finally:
                reporter.enter("stopping")
                if not training_done:
                    learner.training.leaving = signals.status or EXIT_FAILED
                if signals.status is not None:
                    writes = (
                        "stopping: writing a checkpoint" if team is None or team.chief else "stopping with all hosts"
                    )
                    view.log(f"{writes} (press Ctrl-C again to stop immediately)")
                # Each step runs even if an earlier one fails, so that no progress is lost and no actor is left behind.
                try:
                    learner.stop(training_done=training_done)
                finally:
                    try:
                        learner.save()
                    finally:
                        profiles = setup.closing()
            record.profile = reporter.finish(profiles)
            status = signals.status or learner.training.stopped_by or EXIT_DONE
        finally:
            if learner.has_stepped:
                folder.begin()
            if exporter is not None:
                exporter.close()
            reporter.close(status, interrupted=signals.status is not None)
            signals.restore()
        record.status = signals.status or status
    return record.status
