"""The learner: inference, prefetch and training threads, and a main thread that reports and ends the run."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from seedcli.config import Config
from seedcli.errors import EXIT_DONE, CheckpointError, RefusedError, SeedError, UsageError
from seedcli.inference.engine import StepEngine
from seedcli.inference.service import InferenceService
from seedcli.inference.sessions import FleetSettings
from seedcli.inference.streams import Stream
from seedcli.layering import Resolved, format_value, from_toml_file, to_toml, without_effect
from seedcli.net.base import ServerTransport
from seedcli.roles.core import LearnerCore, share_cores
from seedcli.roles.discovery import announcement
from seedcli.roles.listeners import bound_host, how_to_join, learner_security, open_transports, ports
from seedcli.roles.reporting import Reporter
from seedcli.roles.runfolder import RunFolder
from seedcli.roles.stopping import Signals
from seedcli.specs import EnvSpec
from seedcli.telemetry.exporter import Exporter, open_exporter
from seedcli.telemetry.live import View, make_view
from seedcli.telemetry.logs import setup_logging
from seedcli.telemetry.metrics import Profile
from seedcli.training.batches import PreparedBatch
from seedcli.training.checkpoint_files import Checkpoint, list_checkpoints, open_checkpoint, take_checkpoint
from seedcli.training.trainer import UpdateResult

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5  # between looks at whether training is over, while it waits for a batch
_STOP_SECONDS = 60.0  # what a thread gets to end: longer than any update takes


def fleet_settings(config: Config) -> FleetSettings:
    """What actors are told, from the configuration."""
    return FleetSettings(
        environment=config.environment.model_dump(mode="json"),
        seed=config.run.seed,
        max_envs=config.inference.max_envs,
        heartbeat_seconds=config.net.heartbeat_seconds,
        timeout_seconds=config.net.timeout_seconds,
        reconnect_timeout=config.net.reconnect_timeout,
        fleet_envs=config.actors.count * config.actors.envs,
        evaluation_envs=config.actors.evaluation_envs,
        compression=config.net.compression,
    )


class Learner:
    """One learner process.

    Args:
        resolved: the configuration with its sources.
        folder: the run folder, locked.
        transports: bound listeners; closed by the learner.
        checkpoint: where to continue, or None.
        deadline: seconds an inference batch waits; None: as configured.
        timeout: seconds of silence after which a peer counts as dead; None: as configured.

    Attributes:
        core: built on the first actor's specification, or from the checkpoint's.
    """

    def __init__(
        self,
        resolved: Resolved,
        folder: RunFolder,
        transports: Sequence[ServerTransport],
        checkpoint: Checkpoint | None,
        *,
        deadline: float | None = None,
        timeout: float | None = None,
    ) -> None:
        self._deadline = deadline
        self.config = resolved.config
        self._config_text = to_toml(resolved)
        self._folder = folder
        self.core: LearnerCore | None = None
        fleet = fleet_settings(self.config)
        if timeout is not None:
            fleet = dataclasses.replace(fleet, timeout_seconds=timeout)
        self.service = InferenceService(transports, fleet, self.engine_for)
        self.results: deque[UpdateResult] = deque(maxlen=100_000)
        self.training_profile = Profile()
        self.done = threading.Event()
        self.failure: BaseException | None = None
        self._built = threading.Event()
        self._stopping = threading.Event()
        self._batches: queue.Queue[PreparedBatch | None] = queue.Queue(maxsize=1)
        self._threads: list[threading.Thread] = []
        if checkpoint is not None:
            self._build(checkpoint.spec, self.service.fault)
            assert self.core is not None
            self.core.resume(checkpoint)
            self.service.reception.seeds_given = int(checkpoint.counters["seeds_given"])

    def _build(self, spec: EnvSpec, on_fault: Callable[[Stream, str], None]) -> LearnerCore:
        self.core = LearnerCore(
            self.config,
            self._config_text,
            self._folder.checkpoints,
            spec,
            on_release=self.service.wake,
            on_fault=on_fault,
            deadline=self._deadline,
        )
        self._built.set()
        return self.core

    def engine_for(self, spec: EnvSpec, on_fault: Callable[[Stream, str], None]) -> StepEngine:
        """The engine for an actor's environments; the first specification builds the agent.

        Raises:
            RefusedError: the specification differs from the agent's, by name of the field.
        """
        played = f"{self.config.environment.family}/{self.config.environment.id}"
        if spec.name != played:
            raise RefusedError(f"the actor has built {spec.name!r:.80} where {played} is played: use the same versions")
        core = self.core or self._build(spec, on_fault)
        difference = core.spec.difference(spec)
        if difference is not None:
            raise RefusedError(
                f"the actor's environment does not fit the agent: {difference}; use the same versions on both sides"
            )
        return core.engine

    # -- threads ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the inference, prefetch and training threads."""
        for name, target in (("inference", self.service.run), ("prefetch", self._prefetch), ("training", self._train)):
            self._start_thread(name, target)

    def _start_thread(self, name: str, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=self._guard, args=(target,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _guard(self, target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as error:  # handed to the main thread, which ends the run with it
            if self.failure is None:
                self.failure = error
            self.done.set()

    def _prefetch(self) -> None:
        self._built.wait()
        if self._stopping.is_set():
            return
        assert self.core is not None
        source = self.core.source
        for name, worker in source.workers().items():
            self._start_thread(name, worker)
        while not self._stopping.is_set():
            batch = source.next_batch(wait=True)
            if batch is None:
                break
            begun = time.perf_counter()
            self._batches.put(batch)
            source.profiles["prefetch thread"].add("waiting", time.perf_counter() - begun)

    def _train(self) -> None:
        self._built.wait()
        if self._stopping.is_set():
            return
        assert self.core is not None
        core = self.core
        while not core.finished:
            begun = time.perf_counter()
            try:
                batch = self._batches.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                # Batches may never come, where every unroll is dropped: the steps asked for end the run all the same.
                self.training_profile.add("waiting", time.perf_counter() - begun)
                continue
            taken = time.perf_counter()
            self.training_profile.add("waiting", taken - begun)
            if batch is None or self._stopping.is_set():
                return
            self.results.append(core.train(batch))
            self.training_profile.add("training", time.perf_counter() - taken)
            if core.checkpointer.due(self.config.training.checkpoint_seconds):
                begun = time.perf_counter()
                core.checkpointer.save(self.counters())
                self.training_profile.add("checkpoint", time.perf_counter() - begun)
        self.done.set()

    def stop(self, *, training_done: bool) -> None:
        """Stop the threads in order; actors are told that training is done, where it is."""
        self._stopping.set()
        self._built.set()
        if self.core is not None:
            self.core.source.close()
        threads = {thread.name: thread for thread in self._threads}
        # Prefetch may wait for room, training for a batch: the first is given room, the second an end.
        self._end(threads.get("prefetch"), lambda: self._batches.get_nowait())
        self._end(threads.get("training"), lambda: self._batches.put_nowait(None))
        self.service.stop(training_done=training_done)
        for thread in list(self._threads):
            self._end(thread, lambda: None)
        self.service.finish()

    @staticmethod
    def _end(thread: threading.Thread | None, nudge: Callable[[], object]) -> None:
        deadline = time.monotonic() + _STOP_SECONDS
        while thread is not None and thread.is_alive():
            with contextlib.suppress(queue.Empty, queue.Full):
                nudge()
            thread.join(timeout=0.02)
            if time.monotonic() > deadline:
                raise SeedError(f"the {thread.name} thread did not end within {_STOP_SECONDS:.0f} s: kill the process")

    def counters(self) -> dict[str, Any]:
        """What a checkpoint keeps besides variables."""
        assert self.core is not None
        return self.core.counters() | {"seeds_given": self.service.reception.seeds_given}

    def save(self) -> None:
        """Write a checkpoint of where the run stands and wait for it; nothing where there is nothing to keep yet."""
        if self.core is not None and (self.core.trainer.updates or self.core.source.capture() is not None):
            self.core.checkpointer.save(self.counters(), wait=True)


def resume_point(folder: RunFolder) -> Checkpoint | None:
    """The checkpoint a resumed run continues from; None for a new run, or one that made none yet."""
    return take_checkpoint(folder.path) if folder.resume else None


def check_steps(resolved: Resolved, checkpoint: Checkpoint | None) -> None:
    """Refuse a number of steps that a resumed run has long taken, before it is written down.

    Raises:
        UsageError: somebody asked for fewer than there are.
    """
    steps = resolved.config.run.steps
    if checkpoint is None or steps > checkpoint.env_steps:
        return
    # The same number again, from a script that starts a run as often as it takes, is a run that is done.
    if steps != from_toml_file(checkpoint.config_path).run.steps:
        raise UsageError(
            f"run.steps = {steps:,} must be above the {checkpoint.env_steps:,} that this run has taken: "
            "it counts from the run's beginning"
        )


def finished(resolved: Resolved, folder: RunFolder) -> str:
    """What is to be said of a run that has taken its steps; "" for one that has not.

    Raises:
        UsageError: fewer steps are asked for than it has taken.
    """
    found = list_checkpoints(folder.checkpoints) if folder.resume else []
    if not found:
        return ""
    try:
        checkpoint = open_checkpoint(found[-1])
    except CheckpointError:
        return ""  # which is told, and mended, as the run is gone on with
    check_steps(resolved, checkpoint)
    steps = resolved.config.run.steps
    if checkpoint.env_steps < steps:
        return ""
    return f"{folder.path} is finished ({checkpoint.env_steps:,} of {steps:,} steps): a larger --steps goes on with it"


def run_until_done(learner: Learner, reporter: Reporter, signals: Signals, tick: Callable[[], None]) -> None:
    """The main thread of a run: report, look after what `tick` looks after, return when the run is over.

    Raises:
        Whatever ended a thread of the learner, or what `tick` raises.
    """
    interval = learner.config.telemetry.interval_seconds
    next_report = time.monotonic() + interval
    while not learner.done.is_set() and not signals.raised.is_set():
        learner.done.wait(0.1)
        tick()
        reporter.refresh()
        if time.monotonic() >= next_report:
            next_report += interval
            reporter.report()
    if learner.failure is not None:
        raise learner.failure


def supervise(
    resolved: Resolved,
    folder: RunFolder,
    transports: Sequence[ServerTransport],
    view: View,
    *,
    announce: Callable[[Learner, View], None] = lambda learner, view: None,
    tick: Callable[[], None] = lambda: None,
    closing: Callable[[], dict[str, dict[str, float]]] = dict,
    exporter: Exporter | None = None,
) -> int:
    """Run a learner to its end, whatever the end is: report, stop, checkpoint, summarise.

    Args:
        resolved, folder, transports: see `Learner`.
        view: where progress is shown; started and stopped here.
        announce: called once the learner serves.
        tick: called ten times a second from the main thread.
        closing: called after actors were told to leave; gives their profiles for the table at the end.
        exporter: where metrics and health are asked for; started and closed here.

    Returns:
        The exit status.
    """
    share_cores()
    for value in without_effect(resolved):
        _log.warning(
            "%s = %s (from %s) has no effect with agent.algorithm %s and environment.family %s",
            value.key, format_value(value.value), value.source,
            resolved.config.agent.algorithm, resolved.config.environment.family,
        )  # fmt: skip
    signals = Signals()
    checkpoint = resume_point(folder)
    check_steps(resolved, checkpoint)
    learner = Learner(resolved, folder, transports, checkpoint)
    # Not earlier: a configuration that does not fit the checkpoint must not take the place of the one that does.
    folder.write_config(resolved)
    reporter = Reporter(learner, folder, view, resumed_at=checkpoint.env_steps if checkpoint else None)
    try:
        reporter.start()
        if exporter is not None:
            exporter.start(reporter)
            _log.info("metrics and health: %s/metrics", exporter.url)
        learner.start()
        training_done = False
        try:
            announce(learner, view)
            reporter.enter("serving")
            if checkpoint is not None:
                view.log(f"continuing from {checkpoint.path} at {checkpoint.env_steps:,} environment steps")
            run_until_done(learner, reporter, signals, tick)
            training_done = signals.status is None
        finally:
            reporter.enter("stopping")
            if signals.status is not None:
                view.log("stopping: writing a checkpoint (once more to stop at once)")
            # Whatever fails on the way, the rest is still done: no progress is lost, no actor left behind.
            try:
                learner.stop(training_done=training_done)
            finally:
                try:
                    learner.save()
                finally:
                    profiles = closing()
        reporter.finish(profiles)
    finally:
        if exporter is not None:
            exporter.close()
        reporter.close()
        signals.restore()
    return EXIT_DONE if signals.status is None else signals.status


def run_learner(resolved: Resolved, folder: RunFolder, *, live: bool) -> int:
    """`seed learner`: serve actors that connect, train, end when run.steps are taken."""
    config = resolved.config
    folder.remove_address()  # of a learner that was killed
    if done := finished(resolved, folder):
        print(f"seed: {done}", file=sys.stderr)
        return EXIT_DONE
    security = learner_security(config)
    # First of all: where a port is in use, the folder is left as it was.
    exporter = open_exporter(config.net)
    transports = open_transports(config, security)
    view = make_view(live)
    setup_logging(folder.log_path, view, debug=False)

    def announce(learner: Learner, view: View) -> None:
        folder.write_address(announcement(bound_host(config), ports(transports)))
        for line in how_to_join(config, security, transports):
            view.log(line)

    try:
        return supervise(resolved, folder, transports, view, announce=announce, exporter=exporter)
    finally:
        folder.remove_address()
