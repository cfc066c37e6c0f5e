"""What the training thread does: one update after the other, alone or in step with other hosts."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import tensorflow as tf

from seedcli.errors import SeedError
from seedcli.roles.team import Agreement, Team
from seedcli.training.batches import PreparedBatch

if TYPE_CHECKING:
    from seedcli.roles.core import LearnerCore
    from seedcli.roles.learner_threads import Learner

_LOOK_SECONDS = 0.5  # between looks at whether training is over, while it waits for a batch
_STEP_SECONDS = 1.0  # the other hosts wait so long for a host without a batch before all look around


class Ended(Exception):
    """There are no more batches: the learner is being stopped."""


def _next_batch(learner: Learner, seconds: float) -> PreparedBatch | None:
    """The next batch; None where none comes in time. Raises Ended."""
    begun = time.perf_counter()
    try:
        batch = learner.batches.get(timeout=seconds)
    except queue.Empty:
        return None
    finally:
        learner.training_profile.add("waiting", time.perf_counter() - begun)
    if batch is None or learner.stopping.is_set():
        raise Ended
    return batch


def _save_if_due(learner: Learner, core: LearnerCore) -> None:
    if core.checkpointer.due(learner.config.training.checkpoint_seconds):
        begun = time.perf_counter()
        core.checkpointer.save(learner.counters())
        learner.training_profile.add("checkpoint", time.perf_counter() - begun)


def train_alone(learner: Learner, core: LearnerCore) -> None:
    """Train until the steps asked for are taken, or the learner is stopped."""
    while not core.finished:
        # Batches may never come, where every unroll is dropped: the steps asked for end the run all the same.
        try:
            batch = _next_batch(learner, _LOOK_SECONDS)
        except Ended:
            return
        if batch is None:
            continue
        taken = time.perf_counter()
        learner.results.append(core.train(batch))
        learner.training_profile.add("training", time.perf_counter() - taken)
        _save_if_due(learner, core)


def train_together(learner: Learner, core: LearnerCore, team: Team) -> None:
    """The same on one host of several: all hosts make every step, and stop after the same one.

    A host without a batch takes part all the same, and nothing is done then; the others keep theirs for the next step.
    So nobody waits for long inside a step, and whoever is to stop can say so.

    Raises:
        SeedError: another host is gone, has stopped with a failure, or has been without a batch for too long.
    """
    batch: PreparedBatch | None = None
    while True:
        if batch is None and not learner.leaving:
            try:
                batch = _next_batch(learner, _STEP_SECONDS)
            except Ended:
                batch = None
        agreement = _step(learner, core, team, batch)
        if not agreement.missing:
            batch = None
        team.parted = bool(agreement.stopping) or core.finished
        if agreement.stopping:
            _stop_with(learner, team, agreement)
        if team.parted:
            return
        if team.chief:
            _save_if_due(learner, core)


def _step(learner: Learner, core: LearnerCore, team: Team, batch: PreparedBatch | None) -> Agreement:
    begun, waited = time.perf_counter(), core.trainer.waited
    counted = core.counted()
    if batch is not None:
        counted["trained_steps"] += core.trainer.worth(batch)
    control = team.control(counted, ready=batch is not None, status=learner.leaving)
    with failures_of(team):
        result = core.train(batch, control)
    assert result.control is not None
    agreement = team.agree(result.control)
    if not agreement.missing:
        learner.results.append(result)
    waited = core.trainer.waited - waited
    learner.training_profile.add("waiting", waited)
    learner.training_profile.add("training", time.perf_counter() - begun - waited)
    return agreement


@contextlib.contextmanager
def failures_of(team: Team) -> Iterator[None]:
    """Within it what TensorFlow says of hosts that are gone is told as that."""
    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.InternalError, tf.errors.CancelledError) as e:
        why = team.why_gone()
        if not why and isinstance(e, tf.errors.InternalError | tf.errors.CancelledError):
            raise  # of this host's own devices
        raise SeedError(
            f"{why or 'another learner host has gone, or cannot be reached any more'}: "
            "start all hosts again with --continue, they go on from the last checkpoint"
        ) from e


def _stop_with(learner: Learner, team: Team, agreement: Agreement) -> None:
    """Take note of why all stop, where it is not this host that wants to."""
    others = {host: status for host, status in agreement.stopping.items() if host != team.index}
    if learner.leaving or not others:
        return
    failed = tuple(host for host, status in others.items() if status < 128)
    if failed:
        raise SeedError(f"{team.named(failed)} has failed: see its log; this host stops too")
    learner.stopped_by = max(others.values())
