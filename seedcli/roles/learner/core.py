"""The parts of a learner that depend on the environment: agent, policy, arena, engine, trainer, checkpoints."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from seedcli.agents.registry import create_agent
from seedcli.cluster.team import Team, local_share
from seedcli.config.schema import Config
from seedcli.errors import SeedError
from seedcli.inference.arena import Arena
from seedcli.inference.device_memory import bytes_of, out_of_memory
from seedcli.inference.engine import StepEngine
from seedcli.inference.pace import Pace
from seedcli.inference.policy import AgentPolicy, padded_sizes
from seedcli.inference.streams import Stream
from seedcli.roles.greedy_hint import training_returns
from seedcli.roles.run_folder import REPLAY
from seedcli.specs import EnvSpec
from seedcli.telemetry.logs import log_once_per
from seedcli.training.batches import TrainingBatch, zero_unrolls
from seedcli.training.checkpoint import Checkpoint, Checkpointer, restore
from seedcli.training.devices import Devices
from seedcli.training.sources import create_source
from seedcli.training.trainer import Trainer, UpdateResult

_log = logging.getLogger(__name__)

_DROPPED_BATCHES = 100  # in a row, after which training ends: as the weights no longer change, it would not recover


def padding(config: Config, devices: Devices) -> tuple[int, ...]:
    """The batch sizes that inference pads to: as configured, else four sizes on an accelerator, none on a CPU."""
    if config.inference.pad_to:
        return config.inference.pad_to
    if devices.plan is None or devices.plan.platform == "cpu":
        return ()
    envs = -(-config.inference.max_envs // len(devices.inference))
    return padded_sizes(envs)


def share_cores(config: Config) -> None:
    """Split the cores between inference and training, which run concurrently. Call before TensorFlow's first operation.

    By default every operation uses all cores, and the operations of training and inference compete for threads
    (docs/performance.md has the figures). With training.synchronous they alternate, and an update uses all cores: two
    operations at a time with half of the cores each (`TrainingConfig.parts_of_update`) or, if its unrolls cannot be
    halved, operations on all cores. TF_NUM_INTRAOP_THREADS and TF_NUM_INTEROP_THREADS take precedence.
    """
    threading = tf.config.threading
    synchronous, parts = config.training.synchronous, config.training.parts_of_update
    if "TF_NUM_INTRAOP_THREADS" not in os.environ:
        cores = os.cpu_count() or 1
        threading.set_intra_op_parallelism_threads(cores if synchronous and parts == 1 else max(1, cores // 2))
    if "TF_NUM_INTEROP_THREADS" not in os.environ:
        # More concurrent operations than there are cores for would evict each other's arrays from the caches.
        threading.set_inter_op_parallelism_threads(2 if synchronous and parts == 2 else 4)


class LearnerCore:
    """The parts of a learner for one environment specification.

    Args:
        config: the whole configuration.
        config_text: the same as TOML, saved with every checkpoint.
        checkpoints: folder for checkpoints.
        spec: the environment.
        on_release: called when an arena buffer is released, or streams that waited for training may continue.
        on_fault: see `StepEngine`.
        deadline: longest wait of an inference batch in seconds; None: as configured.
        devices: for training and inference; None: TensorFlow's default placement.
        team: the learner hosts that train together; None: a single host.

    Raises:
        SeedError: a device is out of memory.
    """

    def __init__(
        self,
        config: Config,
        config_text: str,
        checkpoints: Path,
        spec: EnvSpec,
        *,
        on_release: Callable[[], None],
        on_fault: Callable[[Stream, str], None],
        deadline: float | None = None,
        devices: Devices | None = None,
        team: Team | None = None,
    ) -> None:
        self.config = config
        self.spec = spec
        self.devices = devices = devices or Devices.default()
        self.team = team
        host = (0, 1) if team is None else (team.index, team.size)
        local = local_share(config, *host)
        with self._memory("while building the learner"):
            with devices.scope():
                self.agent = create_agent(
                    config.agent, config.training, spec, config.run.seed, precision=config.topology.precision
                )
            algorithm = self.agent.algorithm
            actors = config.actors
            self.policy = AgentPolicy(
                self.agent,
                spec,
                max_slots=config.inference.max_envs,
                seed=config.run.seed,
                devices=devices.inference,
                pad_to=padding(config, devices),
                training_envs=actors.count * actors.envs - actors.evaluation_envs,
                publish_every=config.topology.publish_every,
                xla=config.topology.xla,
                host=host,
            )
            self.arena = Arena(
                spec,
                algorithm.records,
                algorithm.recorded,
                # A replay takes one buffer at a time; for a queue the buffers must be able to form a batch.
                batch_size=local.training.batch_size if algorithm.source == "queue" else 1,
                queue_batches=config.training.queue_batches,
                on_release=on_release,
            )
            self.source = create_source(self.agent, spec, local, self.arena, checkpoints.parent / REPLAY, devices.place)
            self._pace = Pace(local.training.batch_size) if config.training.synchronous else None
            self._on_release = on_release
            self.engine = StepEngine(
                algorithm,
                spec,
                self.policy.devices,
                self.arena,
                max_envs=config.inference.max_envs,
                batch_size=config.inference.batch_size,
                deadline=config.inference.deadline_ms / 1000 if deadline is None else deadline,
                on_unroll=self.source.put,
                on_fault=on_fault,
                pace=self._pace,
            )
            self.trainer = Trainer(self.agent, config.training, config.run.steps, devices, seed=config.run.seed)
            self._dropped_batches = 0  # in a row
            if team is None:  # several hosts wait for each other here
                # Traced now, so that an algorithm with an invalid loss fails at the start, not during the run.
                self.trainer.trace(zero_unrolls(self.agent, spec, self.local_batch_size))
            self.checkpointer = Checkpointer(
                checkpoints,
                config_text,
                spec,
                {"agent": self.agent.variables(), "optimizer": self.trainer.variables()},
                keep=config.training.keep_checkpoints,
                keep_every_hours=config.training.keep_every_hours,
                attachment=self.source,
            )
            self._log_memory()

    @contextlib.contextmanager
    def _memory(self, doing: str) -> Iterator[None]:
        """Context that turns an out-of-memory error into a SeedError that lists what the device holds."""
        try:
            yield
        except tf.errors.ResourceExhaustedError as error:
            raise self._out_of_memory(error, doing) from error

    def _out_of_memory(self, error: tf.errors.ResourceExhaustedError, doing: str) -> SeedError:
        # During construction, the part that failed and those after it do not exist yet.
        max_envs = self.config.inference.max_envs
        held: dict[str, int | None] = {"the network's weights": None}
        lower = ""
        if "agent" in vars(self):
            network = self.agent.network
            held = {
                f"{network.count_params():,} parameters": bytes_of(self.agent.variables().values()),
                "the optimizer's state": bytes_of(self.trainer.variables().values())
                if "trainer" in vars(self)
                else None,
                "inference's copy of the weights": bytes_of(network.variables),
                f"the agent states of inference.max_envs = {max_envs} environments": self._state_bytes(),
            }
            lower = f"lower inference.max_envs = {max_envs}, "
        remedy = (
            f"{lower}make the network smaller (agent.network.hidden, agent.network.lstm), let other devices infer "
            "(topology.inference_devices), or stop other programs that use this one"
        )
        return out_of_memory(error, self.devices.training[0], doing, held, remedy)

    def _state_bytes(self) -> int:
        """Bytes of the agent states on an inference device, which has a row for each environment and one extra."""
        with tf.device("CPU:0"):  # an accelerator may be out of memory
            leaves = tf.nest.flatten(self.agent.initial_state(1))
        return (self.config.inference.max_envs + 1) * bytes_of(leaves)

    def _log_memory(self) -> None:
        envs = max(1, self.config.actors.envs // self.config.actors.streams)
        bound = self.arena.bound_bytes(self.config.inference.max_envs, envs)
        weights = sum(int(np.prod(variable.shape)) for variable in self.agent.network.trainable_variables)
        batch = self.local_batch_size * self.agent.algorithm.batch_records * self.spec.observation_bytes
        states = len(self.devices.inference) * self._state_bytes()
        _log.info(
            "agent for %s: %s parameters; memory: unrolls at most %.0f MB with all %d environments in streams of %d, "
            "agent states %.0f MB, a training batch %.1f MB",
            self.spec.name,
            f"{weights:,}",
            bound / 1e6,
            self.config.inference.max_envs,
            envs,
            states / 1e6,
            batch / 1e6,
        )

    @property
    def local_batch_size(self) -> int:
        """Number of columns in this host's share of a training batch."""
        return self.config.training.batch_size // (1 if self.team is None else self.team.size)

    def resume(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint: weights, optimizer, counters, random state.

        Raises:
            SeedError: a device is out of memory.
        """
        with self._memory(f"while restoring {checkpoint.path}"):
            restore(checkpoint, {"agent": self.agent.variables(), "optimizer": self.trainer.variables()})
        self.source.restore(checkpoint.path)
        self._restore_counters(checkpoint.counters)

    def _restore_counters(self, counters: Mapping[str, Any]) -> None:
        if self.team is None:  # with a team, these count only this host's share since the start
            self.engine.stats.env_steps = int(counters["env_steps"])
            self.engine.stats.episodes = int(counters["episodes"])
            self.engine.stats.evaluation_steps = int(counters["evaluation_steps"])
            self.engine.stats.evaluation_episodes = int(counters["evaluation_episodes"])
            self.trainer.trained_steps = int(counters["trained_steps"])
            # Checkpoints of older versions lack them.
            self.engine.stats.recent_returns.extend(counters.get("recent_returns", []))
            self.engine.stats.recent_evaluation_returns.extend(counters.get("recent_evaluation_returns", []))
        self.trainer.updates = int(counters["learner_updates"])
        self.trainer.dropped = int(counters["dropped_updates"])
        if self.trainer.loss_scale is not None and "loss_scale" in counters:
            self.trainer.loss_scale = float(counters["loss_scale"])
            self.trainer.good_updates = int(counters["good_updates"])
        self.policy.batches = int(counters["inference_batches"])
        self.policy.publish(self.trainer.updates)

    def join(self) -> None:
        """Copy the chief's weights, optimizer and counters, which may come from a checkpoint. All hosts must call this.

        Raises:
            SeedError: a device is out of memory.
        """
        assert self.team is not None
        if self.team.start_counters:
            self._restore_counters(self.team.start_counters)
        with self._memory("while copying the chief's weights"):
            self.trainer.broadcast([*self.agent.variables().values(), *self.trainer.variables().values()])
        self.policy.publish(self.trainer.updates)

    def counted(self) -> dict[str, int]:
        """The counters named in `team.COUNTERS`, for this host since it started."""
        stats = self.engine.stats
        return {
            "env_steps": stats.env_steps,
            "episodes": stats.episodes,
            "evaluation_steps": stats.evaluation_steps,
            "evaluation_episodes": stats.evaluation_episodes,
            "trained_steps": self.trainer.trained_steps,
        }

    @property
    def totals(self) -> dict[str, int]:
        """The same counters for the whole run: all hosts, including steps before a resume."""
        return self.counted() if self.team is None else self.team.totals

    def counters(self) -> dict[str, Any]:
        """The counters that a checkpoint saves besides variables."""
        totals, scale = self.totals, self.trainer.loss_scale
        scaling = {} if scale is None else {"loss_scale": int(scale), "good_updates": self.trainer.good_updates}
        return {
            **totals,
            "env_frames": totals["env_steps"] * self.spec.frames_per_step,
            "learner_updates": self.trainer.updates,
            "dropped_updates": self.trainer.dropped,
            "inference_batches": self.policy.batches,
            **scaling,
            **training_returns(tuple(self.engine.stats.recent_returns)),
            "recent_evaluation_returns": list(self.engine.stats.recent_evaluation_returns),
        }

    def train(self, batch: TrainingBatch | None, control: npt.NDArray[np.float64] | None = None) -> UpdateResult:
        """Make one update and publish the weights to inference.

        Args:
            batch: this host's share; None: it has no batch yet, as `control` states.
            control: vector summed over all hosts; None: a single host. See `team.Team.control`.

        Raises:
            SeedError: no update was applied on many batches in a row, because the loss or the gradients are non-finite.
        """
        result = self.trainer.update(batch, self.totals["env_steps"], control)
        if batch is None or (result.control is not None and result.control[0]):
            return result  # a host had no batch: the other hosts keep theirs for a later update
        self.source.trained(batch, result.priorities)
        if result.applied:
            self._dropped_batches = 0
            self.policy.publish(self.trainer.updates)
        elif result.fault is not None:
            self._dropped(result.fault)
        if self._pace is not None:
            self._pace.trained()
            self._on_release()
        return result

    def _dropped(self, fault: str) -> None:
        self._dropped_batches += 1
        log_once_per(
            "update dropped", 5.0, _log, logging.ERROR,
            "update dropped: %s is non-finite; %d dropped so far", fault, self.trainer.dropped,
        )  # fmt: skip
        if self._dropped_batches == _DROPPED_BATCHES:
            raise SeedError(
                f"{fault} was non-finite on {_DROPPED_BATCHES} batches in a row, so nothing is learned: lower "
                "training.learning_rate, or correct the loss if it is your own (seed doctor --agent checks it)"
            )

    def source_stats(self) -> dict[str, float]:
        """Statistics of the source, and the range of the exploration inputs if any are non-zero."""
        stats = self.source.stats()
        exploration = self.policy.exploration[:-1][self.engine.training_slots]
        if exploration.any():
            stats |= {"epsilon_min": float(exploration.min()), "epsilon_max": float(exploration.max())}
        return stats

    @property
    def finished(self) -> bool:
        """Whether the configured steps have been taken."""
        return self.totals["env_steps"] >= self.config.run.steps
