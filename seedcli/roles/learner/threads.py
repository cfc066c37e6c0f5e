"""The learner's threads: inference, prefetch and training, and how they end."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from seedcli.cluster.team import Team, local_share
from seedcli.config.schema import Config
from seedcli.config.sources import Resolved, to_toml
from seedcli.errors import EXIT_FAILED, RefusedError, SeedError
from seedcli.inference.engine import StepEngine
from seedcli.inference.streams import Stream
from seedcli.net.base import ServerTransport
from seedcli.roles.learner.core import LearnerCore
from seedcli.roles.learner.training_loop import TrainingState, failures_of, train_alone, train_together
from seedcli.roles.run_folder import RunFolder
from seedcli.serving.service import InferenceService
from seedcli.serving.sessions import FleetSettings
from seedcli.specs import EnvSpec
from seedcli.telemetry.metrics import COUNTERS
from seedcli.training.checkpoint_files import Checkpoint
from seedcli.training.devices import Devices

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5  # between checks for a stop
_LEAVE_SECONDS = 10.0  # timeout of the last common step of all hosts
_STOP_SECONDS = 60.0  # timeout for a thread to end: longer than any update


def fleet_settings(config: Config, hosts: int = 1) -> FleetSettings:
    """The settings that this learner host sends to actors, from its configuration."""
    return FleetSettings(
        environment=config.environment.model_dump(mode="json"),
        seed=config.run.seed,
        max_envs=config.inference.max_envs,
        heartbeat_seconds=config.net.heartbeat_seconds,
        timeout_seconds=config.net.timeout_seconds,
        step_timeout=config.environment.step_timeout,
        reconnect_timeout=config.net.reconnect_timeout,
        fleet_envs=-(-config.actors.count * config.actors.envs // hosts),
        evaluation_envs=config.actors.evaluation_envs,
        compression=config.net.compression,
    )


class Learner:
    """One learner process.

    Args:
        resolved: the configuration with its sources.
        folder: the run folder, locked.
        transports: bound listeners; closed by the learner.
        checkpoint: to resume from, or None.
        deadline: longest wait of an inference batch in seconds; None: as configured.
        timeout: seconds without a message after which a peer counts as lost; None: as configured.
        devices: for training and inference; None: TensorFlow's default placement.
        team: the learner hosts that train together; None: a single host.

    Attributes:
        core: built from the first actor's specification, or the checkpoint's.
        training: state that the training thread shares with the others.
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
        devices: Devices | None = None,
        team: Team | None = None,
    ) -> None:
        self._deadline = deadline
        self.devices = devices or Devices.default()
        self.team = team
        self.config = resolved.config
        self._config_text = to_toml(resolved)
        self._folder = folder
        self.core: LearnerCore | None = None
        hosts = (0, 1) if team is None else (team.index, team.size)
        fleet = fleet_settings(local_share(self.config, *hosts), hosts[1])
        if timeout is not None:
            fleet = dataclasses.replace(fleet, timeout_seconds=timeout)
        self.service = InferenceService(transports, fleet, self.engine_for)
        if team is not None:
            team.serve(self.service)
            # The chief's number on every host; each host assigns seeds from its own range.
            self.service.handshakes.seeds_given = int(team.start_counters.get("seeds_given", 0))
        elif checkpoint is not None:
            self.service.handshakes.seeds_given = int(checkpoint.counters["seeds_given"])
        self.training = TrainingState(
            self.config.training.checkpoint_seconds, self.counters, saved=checkpoint is not None
        )
        self.done = threading.Event()
        self.failure: BaseException | None = None
        self._checkpoint = checkpoint
        self._built = threading.Event()
        self._threads: list[threading.Thread] = []
        if checkpoint is not None and team is None:
            self._build(checkpoint.spec, self.service.fault)

    def _build(self, spec: EnvSpec, on_fault: Callable[[Stream, str], None]) -> LearnerCore:
        core = LearnerCore(
            self.config,
            self._config_text,
            self._folder.checkpoints,
            spec,
            on_release=self.service.wake,
            on_fault=on_fault,
            deadline=self._deadline,
            devices=self.devices,
            team=self.team,
        )
        if self._checkpoint is not None:
            core.resume(self._checkpoint)
        if self.team is not None:
            core.join()
        self.core = core
        self._built.set()
        return core

    def _build_together(self, team: Team) -> None:
        """Build the core at the same time as the other hosts: creating variables is a collective operation."""
        if self._checkpoint is not None:
            team.rendezvous.update(spec=self._checkpoint.spec.to_dict())
        while not self.training.stopping.is_set() and not self.training.leaving:
            spec = team.rendezvous.wait_spec(_LOOK_SECONDS)
            if spec is not None:
                with failures_of(team):
                    self._build(EnvSpec.from_dict(spec), self.service.fault)
                return

    @property
    def has_stepped(self) -> bool:
        """Whether the run has ever taken a step."""
        return self.core is not None and self.core.totals["env_steps"] > 0

    @property
    def resumed_at(self) -> int | None:
        """Environment steps of the checkpoint that a resumed run continues from; None for a new run."""
        if self.team is not None:
            return self.team.start_counters.get("env_steps")
        return None if self._checkpoint is None else self._checkpoint.env_steps

    @property
    def start_counters(self) -> dict[str, int]:
        """The metrics counters at the start of this learner; all 0 in a new run."""
        counters: Mapping[str, Any] = {}
        if self.team is not None:
            counters = self.team.start_counters
        elif self._checkpoint is not None:
            counters = self._checkpoint.counters
        return {name: int(counters.get(name, 0)) for name in COUNTERS}

    def engine_for(self, spec: EnvSpec, on_fault: Callable[[Stream, str], None]) -> StepEngine:
        """The engine for an actor's environments; the first specification builds the agent.

        Raises:
            RefusedError: the specification differs from the agent's; the message names the field.
        """
        played = f"{self.config.environment.family}/{self.config.environment.id}"
        if spec.name != played:
            raise RefusedError(
                f"the actor has built {spec.name!r:.80}, but the run plays {played}: use the same versions"
            )
        if self.core is None and self.team is not None:
            self.team.rendezvous.update(spec=spec.to_dict())
            self._built.wait()  # for the training thread, which builds with the other hosts; `stop` also sets it
        core = self.core or (self._build(spec, on_fault) if self.team is None else None)
        if core is None:
            raise RefusedError("the learner is stopping")
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
        except BaseException as error:  # the main thread raises it
            if self.failure is None:
                self.failure = error
            self.done.set()

    def _prefetch(self) -> None:
        self._built.wait()
        if self.training.stopping.is_set():
            return
        assert self.core is not None
        source = self.core.source
        for name, worker in source.workers().items():
            self._start_thread(name, worker)
        while not self.training.stopping.is_set():
            batch = source.next_batch(wait=True)
            if batch is None:
                break
            begun = time.perf_counter()
            self.training.batches.put(batch)
            source.profiles["prefetch thread"].add("waiting", time.perf_counter() - begun)

    def _train(self) -> None:
        if self.team is not None:
            self._build_together(self.team)
        else:
            self._built.wait()
        if self.training.stopping.is_set() or self.core is None:
            return
        if self.team is not None:
            train_together(self.training, self.core, self.team)
        else:
            train_alone(self.training, self.core)
        self.done.set()

    def stop(self, *, training_done: bool) -> None:
        """Stop the threads in order; if training is done, tell the actors."""
        if self.team is not None:
            self._stop_all_hosts()
        self.training.stopping.set()
        self._built.set()
        if self.core is not None:
            self.core.source.close()
        threads = {thread.name: thread for thread in self._threads}
        # Prefetch may block on a full queue, training on an empty one: drain the queue, then put the end marker.
        self._end(threads.get("prefetch"), lambda: self.training.batches.get_nowait())
        self._end(threads.get("training"), lambda: self.training.batches.put_nowait(None))
        self.service.stop(training_done=training_done)
        for thread in list(self._threads):
            self._end(thread, lambda: None)
        self.service.finish()

    def _stop_all_hosts(self) -> None:
        """Have all hosts stop after the same step; a step that cannot complete ends by TensorFlow's timeouts."""
        training = next((thread for thread in self._threads if thread.name == "training"), None)
        if training is None or not training.is_alive():
            return
        self.training.leaving = self.training.leaving or EXIT_FAILED
        training.join(timeout=_LEAVE_SECONDS)
        if training.is_alive():
            _log.warning("the other learner hosts have not agreed on a last step within %.0f s", _LEAVE_SECONDS)

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
        """The counters that a checkpoint saves besides variables."""
        assert self.core is not None
        return self.core.counters() | {"seeds_given": self.service.handshakes.seeds_given}

    def save(self) -> None:
        """Write a checkpoint and wait for it; does nothing before the first update or stored unroll."""
        if self.team is not None and not self.team.chief:
            return
        if self.core is not None and (self.core.trainer.updates or self.core.source.capture() is not None):
            self.core.checkpointer.save(self.counters(), wait=True)
