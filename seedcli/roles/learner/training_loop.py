"""The training thread: update after update, alone or in lock-step with other hosts."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from seedcli.cluster.team import Agreement, Team
from seedcli.errors import SeedError
from seedcli.roles.learner.core import LearnerCore
from seedcli.telemetry.metrics import Profile
from seedcli.training.batches import TrainingBatch
from seedcli.training.trainer import UpdateResult

_LOOK_SECONDS = 0.5  # between checks for the end of training, while waiting for a batch
_STEP_SECONDS = 1.0  # how long a step waits for a host without a batch


class Ended(Exception):
    """No more batches: the learner is stopping."""


@dataclass
class TrainingState:
    """State that the training thread shares with the other threads of a learner.

    Attributes:
        checkpoint_seconds: between checkpoints; the first one is written at the first update.
        counters: returns the counters that a checkpoint saves besides variables.
        batches: holds one batch ahead; None marks the end.
        stopping: the learner is being stopped.
        results: of updates not yet reported.
        profile: of the thread's time.
        leaving: exit status with which this host asks all hosts to stop; 0: no request.
        stopped_by: exit status of another host's stop request; None: no request.
        saved: the run has a checkpoint.
    """

    checkpoint_seconds: float
    counters: Callable[[], dict[str, Any]]
    batches: queue.Queue[TrainingBatch | None] = field(default_factory=lambda: queue.Queue(maxsize=1))
    stopping: threading.Event = field(default_factory=threading.Event)
    results: deque[UpdateResult] = field(default_factory=lambda: deque(maxlen=100_000))
    profile: Profile = field(default_factory=Profile)
    leaving: int = 0
    stopped_by: int | None = None
    saved: bool = False


def _next_batch(state: TrainingState, seconds: float) -> TrainingBatch | None:
    """The next batch; None after a timeout of `seconds`. Raises Ended."""
    begun = time.perf_counter()
    try:
        batch = state.batches.get(timeout=seconds)
    except queue.Empty:
        return None
    finally:
        state.profile.add("waiting", time.perf_counter() - begun)
    if batch is None or state.stopping.is_set():
        raise Ended
    return batch


def save_if_due(state: TrainingState, core: LearnerCore) -> None:
    """Write a checkpoint if one is due. The first is due at once, so that a learner that dies early can resume."""
    if core.checkpointer.due(state.checkpoint_seconds if state.saved else 0.0):
        state.saved = True
        begun = time.perf_counter()
        core.checkpointer.save(state.counters())
        state.profile.add("checkpoint", time.perf_counter() - begun)


def train_alone(state: TrainingState, core: LearnerCore) -> None:
    """Train until run.steps are taken or the learner is stopped."""
    while not core.finished:
        # Batches may never arrive if every unroll is dropped: run.steps must end the run even then.
        try:
            batch = _next_batch(state, _LOOK_SECONDS)
        except Ended:
            return
        if batch is None:
            continue
        taken = time.perf_counter()
        state.results.append(core.train(batch))
        state.profile.add("training", time.perf_counter() - taken)
        save_if_due(state, core)


def train_together(state: TrainingState, core: LearnerCore, team: Team) -> None:
    """Train on one of several hosts: all hosts take part in every step, and stop after the same step.

    A host without a batch takes part too; the step then makes no update, and the other hosts keep their batches for the
    next step. So no host blocks long inside a step, and any host can announce that it must stop.

    Raises:
        SeedError: another host is lost, has failed, or has had no batch for too long.
    """
    batch: TrainingBatch | None = None
    while True:
        if batch is None and not state.leaving:
            try:
                batch = _next_batch(state, _STEP_SECONDS)
            except Ended:
                batch = None
        agreement = _step(state, core, team, batch)
        if not agreement.missing:
            batch = None
        team.finished = bool(agreement.stopping) or core.finished
        if agreement.stopping:
            _stop_with(state, team, agreement)
        if team.finished:
            return
        if team.chief:
            save_if_due(state, core)


def _step(state: TrainingState, core: LearnerCore, team: Team, batch: TrainingBatch | None) -> Agreement:
    begun, waited = time.perf_counter(), core.trainer.waited
    counted = core.counted()
    if batch is not None:
        counted["trained_steps"] += core.trainer.num_transitions(batch)
    control = team.control(counted, ready=batch is not None, status=state.leaving)
    with failures_of(team):
        result = core.train(batch, control)
    assert result.control is not None
    agreement = team.agree(result.control)
    if not agreement.missing:
        state.results.append(result)
    waited = core.trainer.waited - waited
    state.profile.add("waiting", waited)
    state.profile.add("training", time.perf_counter() - begun - waited)
    return agreement


@contextlib.contextmanager
def failures_of(team: Team) -> Iterator[None]:
    """Context that turns TensorFlow's errors for lost hosts into a SeedError that names the host."""
    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.InternalError, tf.errors.CancelledError) as e:
        why = team.find_lost_host()
        if not why and isinstance(e, tf.errors.InternalError | tf.errors.CancelledError):
            raise  # an error of this host's devices
        raise SeedError(
            f"{why or 'another learner host is lost, or can no longer be reached'}: "
            "start all hosts again with --continue to resume from the last checkpoint"
        ) from e


def _stop_with(state: TrainingState, team: Team, agreement: Agreement) -> None:
    """Record why all hosts stop, if this host did not ask for it."""
    others = {host: status for host, status in agreement.stopping.items() if host != team.index}
    if state.leaving or not others:
        return
    failed = tuple(host for host, status in others.items() if status < 128)
    if failed:
        raise SeedError(f"{team.named(failed)} has failed: see its log; this host stops too")
    state.stopped_by = max(others.values())
