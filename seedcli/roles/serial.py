"""Deterministic mode: the same parts in one thread, in lock-step. Equal seeds produce bit-identical metrics."""

from __future__ import annotations

import logging
import time

import tensorflow as tf

from seedcli.config.sources import Resolved
from seedcli.envs.placement import create_env_beside_tensorflow
from seedcli.errors import EXIT_DONE, EXIT_FAILED
from seedcli.net.inprocess import InProcessServer
from seedcli.roles.actor.session import ActorSession, Environments
from seedcli.roles.learner.reporting import Reporter
from seedcli.roles.learner.supervise import use_devices
from seedcli.roles.learner.threads import Learner
from seedcli.roles.learner.training_loop import save_if_due
from seedcli.roles.resuming import check_steps, resume_point
from seedcli.roles.run_folder import RunFolder
from seedcli.roles.sessions import SessionRecorder
from seedcli.roles.stopping import Signals
from seedcli.telemetry.live import View
from seedcli.telemetry.metrics import Profile
from seedcli.training.devices import find_inventory

_log = logging.getLogger(__name__)

_NEVER = 1e9  # seconds: both ends share one process, so neither can be lost, and a debugger may pause both
UPDATES_PER_LINE = 20  # updates per metrics line; a clock would make the lines irreproducible


def _open_actors(learner: Learner, server: InProcessServer, profile: Profile) -> list[ActorSession]:
    actors = learner.config.actors
    sessions = []
    for index in range(actors.count):
        client = server.client()
        client.pump_with(lambda: learner.service.turn(block=False))
        session = ActorSession(
            client,
            # One worker thread: more could change the order in which native vector environments return.
            Environments(threads=1, create=create_env_beside_tensorflow),
            actor_id=f"serial-{index}",
            envs=actors.envs,
            streams=min(actors.streams, actors.envs),
            profile=profile,
        )
        session.open()
        sessions.append(session)
    return sessions


def run_serial(resolved: Resolved, folder: RunFolder, view: View) -> int:
    """Train in one thread; see `roles.local.run_train`.

    After a resume the environments start new episodes. A resumed run is therefore reproducible, but not bit-identical
    to an uninterrupted one.
    """
    for note in resolved.notes:
        _log.info("%s", note)
    devices = use_devices(resolved.config)
    tf.config.experimental.enable_op_determinism()
    signals = Signals()
    checkpoint = resume_point(folder)
    check_steps(resolved, checkpoint)
    server = InProcessServer()
    # With deadline 0 a batch closes once every ready stream has sent its step; a real deadline would depend on the
    # clock.
    learner = Learner(resolved, folder, [server], checkpoint, deadline=0.0, timeout=_NEVER, devices=devices)
    folder.write_config(resolved)
    reporter = Reporter(
        learner,
        folder,
        view,
        resumed_at=checkpoint.env_steps if checkpoint else None,
        wall_clock=False,
        resumed_with="seed train",
    )
    environment_profile = Profile()
    sessions: list[ActorSession] = []
    status = EXIT_FAILED  # unless training completes
    with SessionRecorder(folder.path, find_inventory().models) as record:
        try:
            reporter.start()
            sessions = _open_actors(learner, server, environment_profile)
            _loop(learner, sessions, signals, reporter)
            learner.save()
            learner.stop(training_done=signals.status is None)
            record.profile = reporter.finish({"actors": environment_profile.seconds()})
            status = signals.status or EXIT_DONE
        finally:
            if learner.has_stepped:
                folder.begin()
            for session in sessions:
                session.close(goodbye=False)
            reporter.close(status, interrupted=signals.status is not None)
            signals.restore()
        record.status = signals.status or status
    return record.status


def _loop(learner: Learner, sessions: list[ActorSession], signals: Signals, reporter: Reporter) -> None:
    core = learner.core
    assert core is not None
    while not core.finished and not signals.raised.is_set():
        moved = learner.service.turn(block=False)
        for session in sessions:
            while session.turn(0.0):
                moved = True
        batch = core.source.next_batch(wait=False)
        if batch is not None:
            begun = time.perf_counter()
            learner.training.results.append(core.train(batch))
            learner.training.profile.add("training", time.perf_counter() - begun)
            if core.trainer.updates % UPDATES_PER_LINE == 0:
                reporter.report()
            save_if_due(learner.training, core)
        elif not moved:
            raise RuntimeError("serial mode is stalled: no step, no answer and no batch is pending")
    reporter.report()
