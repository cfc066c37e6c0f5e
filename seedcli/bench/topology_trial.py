"""A trial of one ratio of inference to training devices: real inference and real updates at the same time.

The two are coupled as in a learner: training waits until inference has acted the steps of its next batch, and
inference waits when it is two batches ahead. So on devices that do both, neither takes time that the other needs.
"""

from __future__ import annotations

import operator
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from seedcli.agents.base import UnrollBatch
from seedcli.agents.registry import create_agent
from seedcli.bench.generated import random_observation, random_unrolls
from seedcli.config.schema import Config
from seedcli.config.topology import Plan
from seedcli.inference.device_memory import building
from seedcli.inference.lane import share
from seedcli.inference.policy import AgentPolicy
from seedcli.roles.learner.core import padding
from seedcli.specs import EnvSpec
from seedcli.training.batches import TrainingBatch
from seedcli.training.devices import Devices, batch_bytes
from seedcli.training.trainer import Trainer

_WARM_UP = 3  # updates before the first that counts
_AT_LEAST = 3  # updates that count
_AHEAD = 2  # batches that inference may be ahead
_WAKE_SECONDS = 0.2  # between checks for another thread's failure


@dataclass(frozen=True)
class Trial:
    """The result of a ratio.

    Attributes:
        plan: which device did what.
        env_steps_per_second: the environment steps it sustains: the lesser of those acted and those trained on, the
            latter divided by the times a step is trained on.
        inference_rows_per_second: observations answered.
        trained_steps_per_second: transitions trained on.
        trainings: times a step is trained on.
        batch_rows: observations of an inference batch, of one device.
        inference_busy: share of the time in which each inference device was at work, in the order of the plan.
        training_busy: the same of the training devices, which work together.
        limit: the bottleneck: "inference", "training" or "transfer" of batches.
        transfer_ms: milliseconds to transfer a training batch to its devices, during the update on the previous batch.
        transfer_mb: megabytes (10⁶ bytes) of such a batch.
        seconds: measured.
    """

    plan: Plan
    env_steps_per_second: float
    inference_rows_per_second: float
    trained_steps_per_second: float
    trainings: float
    batch_rows: int
    inference_busy: tuple[float, ...]
    training_busy: float
    limit: Literal["inference", "training", "transfer"]
    transfer_ms: float
    transfer_mb: float
    seconds: float


class _Failed(Exception):
    """Another thread has failed; the cause is chained."""


class _Balance:
    """Environment steps acted and used up; each side waits for the other.

    Args:
        batch: environment steps that a training batch uses up.
        round: those that inference acts at once.
    """

    def __init__(self, batch: float, round: int) -> None:
        self._batch = batch
        self._most = _AHEAD * batch + round
        self._acted = 0.0
        self._used = 0.0
        self._changed = threading.Condition()
        self.error: BaseException | None = None
        self.stopped = False
        self.inference_waited = 0.0  # seconds, for training
        self.training_waited = 0.0  # seconds, for inference

    def acted(self, steps: int) -> None:
        """Inference has acted; returns when it may continue."""
        with self._changed:
            self._acted += steps
            self._changed.notify_all()
            begun = time.perf_counter()
            while not self.stopped and self._acted - self._used >= self._most:
                self._changed.wait()
            self.inference_waited += time.perf_counter() - begun

    def take(self) -> None:
        """Training uses a batch up; returns when there is one.

        Raises:
            _Failed: a thread has failed.
        """
        with self._changed:
            begun = time.perf_counter()
            while self._acted - self._used < self._batch and self.error is None:
                self._changed.wait()
            self.training_waited += time.perf_counter() - begun
            self.check()
            self._used += self._batch
            self._changed.notify_all()

    def check(self) -> None:
        """Raise the error of another thread, if any."""
        if self.error is not None:
            raise _Failed from self.error

    def stop(self, error: BaseException | None = None) -> None:
        """Stop all threads; `error` is the reason, if any."""
        with self._changed:
            self.error = self.error or error
            self.stopped = True
            self._changed.notify_all()


class _Actors:
    """Simulates a fleet: feeds each inference device batch after batch.

    Args:
        rows: observations of a device's batch.
    """

    def __init__(self, policy: AgentPolicy, spec: EnvSpec, rows: int) -> None:
        self._policy = policy
        self._observation = random_observation(spec, [rows])
        self._reward = np.zeros(rows, np.float32)
        self._first = np.zeros(rows, np.bool_)
        self._slots = [np.arange(rows, dtype=np.int32) + rows * i for i in range(len(policy.devices))]
        for device, slots in zip(policy.devices, self._slots, strict=True):
            device.assign(slots, "training", slots.astype(np.int64))
        self.rows = rows * len(policy.devices)
        self.answered = 0

    def act(self) -> int:
        """One batch on each device, all begun before any is waited for, as the step engine does; returns the rows."""
        devices = self._policy.devices
        begun = [
            device.begin(self._observation, self._reward, self._first, slots)
            for device, slots in zip(devices, self._slots, strict=True)
        ]
        for device, promise in zip(devices, begun, strict=True):
            device.finish(promise)
        self.answered += self.rows
        return self.rows


class _Prefetch:
    """Transfers batches to the training devices, one ahead."""

    def __init__(self, devices: Devices, unrolls: UnrollBatch) -> None:
        self._devices = devices
        self._unrolls = unrolls
        self._ready: queue.Queue[UnrollBatch] = queue.Queue(maxsize=1)
        self.seconds = 0.0
        self.batches = 0

    def fetch(self, balance: _Balance) -> None:
        """Transfer one batch and queue it for `take`."""
        begun = time.perf_counter()
        placed = self._devices.place(self._unrolls)
        self.seconds += time.perf_counter() - begun
        self.batches += 1
        while not balance.stopped:
            try:
                self._ready.put(placed, timeout=_WAKE_SECONDS)
                return
            except queue.Full:
                continue

    def take(self, balance: _Balance) -> UnrollBatch:
        """The next batch.

        Raises:
            _Failed: a thread has failed.
        """
        while True:
            balance.check()
            try:
                return self._ready.get(timeout=_WAKE_SECONDS)
            except queue.Empty:
                continue


def batch_rows(config: Config, lanes: int) -> int:
    """Observations of an inference batch on each of `lanes` devices, for the configured fleet."""
    fleet = config.actors.count * config.actors.envs
    return share(min(config.inference.batch_size, fleet) or (fleet + 1) // 2, lanes)


def try_plan(config: Config, spec: EnvSpec, plan: Plan, seconds: float) -> Trial:
    """Measure a plan for at least `seconds`, and three updates.

    Raises:
        SeedError: a device is out of memory.
    """
    devices = Devices(plan)
    rows = batch_rows(config, len(devices.inference))
    with building("at this ratio", "lower actors.count, actors.envs or training.batch_size"):
        with devices.scope():
            agent = create_agent(config.agent, config.training, spec, config.run.seed, precision=plan.precision)
        policy = AgentPolicy(
            agent,
            spec,
            max_slots=rows * len(devices.inference),
            seed=config.run.seed,
            devices=devices.inference,
            pad_to=padding(config, devices),
            training_envs=config.actors.count * config.actors.envs,
            publish_every=plan.publish_every,
            xla=plan.xla,
        )
        trainer = Trainer(agent, config.training, config.run.steps, devices)
    unrolls = random_unrolls(agent, spec, config.training.batch_size)
    trainings = config.replay.ratio if agent.algorithm.source == "replay" else 1.0
    actors, prefetch = _Actors(policy, spec, rows), _Prefetch(devices, unrolls)
    batch_steps = agent.algorithm.batch_length * config.training.batch_size
    balance = _Balance(batch_steps / trainings, actors.rows)
    threads = [
        _thread("inference", balance, lambda: balance.acted(actors.act())),
        _thread("prefetch", balance, lambda: prefetch.fetch(balance)),
    ]
    try:
        window = _Training(trainer, policy, unrolls).window(balance, prefetch, actors, seconds)
    except _Failed as failed:
        assert failed.__cause__ is not None
        raise failed.__cause__ from None
    finally:
        balance.stop()
        for thread in threads:
            thread.join()
    acted, trained = window.rows / window.seconds, window.batches * batch_steps / window.seconds
    return Trial(
        plan=plan,
        env_steps_per_second=min(acted, trained / trainings),
        inference_rows_per_second=acted,
        trained_steps_per_second=trained,
        trainings=trainings,
        batch_rows=rows,
        inference_busy=tuple(float(busy) for busy in np.minimum(1.0, window.inference / window.seconds)),
        training_busy=min(1.0, window.training / window.seconds),
        limit=window.limit,
        transfer_ms=1e3 * prefetch.seconds / max(1, prefetch.batches),
        transfer_mb=batch_bytes(unrolls) / 1e6,
        seconds=window.seconds,
    )


def _thread(name: str, balance: _Balance, turn: Callable[[], object]) -> threading.Thread:
    """A thread, started, that takes turns until the balance is stopped, and stops it if it fails."""

    def run() -> None:
        try:
            while not balance.stopped:
                turn()
        except BaseException as error:  # of any type: the training thread raises it
            balance.stop(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


class _Counts(NamedTuple):
    """Totals so far.

    Attributes:
        seconds: of the clock.
        batches: trained on.
        rows: answered.
        training: seconds in updates.
        inference: [devices] seconds at work.
        training_waited, inference_waited: seconds, for each other.
        transfer_waited: seconds that training waited for the transfer of a batch.
    """

    seconds: float
    batches: int
    rows: int
    training: float
    inference: npt.NDArray[np.float64]
    training_waited: float
    inference_waited: float
    transfer_waited: float

    def since(self, before: _Counts) -> _Counts:
        """The difference to an earlier count."""
        differences: Iterator[Any] = map(operator.sub, self, before)
        return _Counts(*differences)

    @property
    def limit(self) -> Literal["inference", "training", "transfer"]:
        """The bottleneck: what the others waited for."""
        if self.training_waited > self.inference_waited:
            return "inference"
        return "transfer" if self.transfer_waited > self.training else "training"


class _Training:
    """Updates and publishes, as a learner's training thread does."""

    def __init__(self, trainer: Trainer, policy: AgentPolicy, unrolls: UnrollBatch) -> None:
        self._trainer = trainer
        self._policy = policy
        records, columns = unrolls.reward.shape
        self._versions = np.zeros((records, columns), np.int64)
        self._counted = np.ones((records, columns), np.bool_)
        self._batches = 0
        self._busy = 0.0
        self._transfer_waited = 0.0

    def update(self, balance: _Balance, prefetch: _Prefetch) -> None:
        """One update, once inference has acted for it and its batch has been transferred."""
        balance.take()
        begun = time.perf_counter()
        unrolls = prefetch.take(balance)
        brought = time.perf_counter()
        self._trainer.update(TrainingBatch(unrolls, self._versions, self._counted), 0)
        self._policy.publish(self._trainer.updates)
        self._batches += 1
        self._busy += time.perf_counter() - brought
        self._transfer_waited += brought - begun

    def window(self, balance: _Balance, prefetch: _Prefetch, actors: _Actors, seconds: float) -> _Counts:
        """Totals from the end of one update to the end of another."""
        for _ in range(_WARM_UP):
            self.update(balance, prefetch)
        begun = now = self._counts(balance, actors)
        while now.batches - begun.batches < _AT_LEAST or now.seconds - begun.seconds < seconds:
            self.update(balance, prefetch)
            now = self._counts(balance, actors)
        return now.since(begun)

    def _counts(self, balance: _Balance, actors: _Actors) -> _Counts:
        return _Counts(
            seconds=time.perf_counter(),
            batches=self._batches,
            rows=actors.answered,
            training=self._busy,
            inference=np.array([device.meter.busy for device in self._policy.devices]),
            training_waited=balance.training_waited,
            inference_waited=balance.inference_waited,
            transfer_waited=self._transfer_waited,
        )
