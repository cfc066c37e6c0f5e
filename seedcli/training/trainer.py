"""Updates: sum losses and gradients over all devices, clip, apply; drop non-finite updates."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from seedcli.agents.base import Agent, RecordStates, UnrollBatch
from seedcli.agents.calls import traced
from seedcli.agents.replicas import assign, total
from seedcli.config.sections import TrainingConfig
from seedcli.errors import SeedError, UsageError
from seedcli.inference.device_memory import bytes_of, out_of_memory
from seedcli.training.batch_update import BatchUpdate
from seedcli.training.batches import TrainingBatch
from seedcli.training.devices import Devices, batch_bytes
from seedcli.training.groups import group_variables, make_groups
from seedcli.training.optimizer import learning_rate

# Loss scale for mixed_float16, which would round small gradients to 0 (Micikevicius et al., "Mixed Precision
# Training", 2018).
_FIRST_SCALE = 2.0**15
_LARGEST_SCALE = 2.0**24
_GOOD_UPDATES = 2000  # consecutive ones, after which the scale is doubled


class UpdateResult(NamedTuple):
    """The result of the updates on a batch.

    Attributes:
        applied: whether the weights changed.
        loss: the loss of the batch of all hosts, summed over parameter groups, possibly non-finite; a mean over the
            updates on the batch, like the norm and the metrics.
        grad_norm: global norm over all parameter groups before clipping.
        learning_rate: the scheduled learning rate.
        policy_lag: mean over trained records of (updates made before this one − the record's policy version).
        policy_lag_max: the largest policy lag.
        metrics: the algorithm's own scalars, means over devices; with several parameter groups also "loss/<group>" and
            "grad_norm/<group>", with mixed_float16 "loss_scale", and if the agent may stop "updates_used", the share of
            the updates that were not skipped.
        fault: the quantity that was non-finite in a dropped update; None if no update was dropped, a host had no batch,
            or the loss scale of mixed_float16 was too large and was halved.
        priorities: [B] float32, the unrolls' new priorities in a replay; None if the algorithm has none.
        control: [C] float64, the argument `control` summed over hosts; None if it was None.
    """

    applied: bool
    loss: float
    grad_norm: float
    learning_rate: float
    policy_lag: float
    policy_lag_max: int
    metrics: dict[str, float]
    fault: str | None
    priorities: npt.NDArray[np.float32] | None = None
    control: npt.NDArray[np.float64] | None = None


class Trainer:
    """Owns the optimizers and the traced update of an agent.

    Args:
        agent: the agent to train; its variables were created in `devices.scope()`.
        config: optimizer, schedule, clipping.
        total_steps: environment steps at which the learning-rate schedule ends.
        devices: the training devices; None: TensorFlow's default device.
        seed: seed of the minibatches, the same on all hosts.

    Raises:
        UsageError: the agent's parameter groups are invalid, or it has a replay and a batch would be used repeatedly.

    Attributes:
        groups: the parameter groups with their optimizers.
        updates: updates applied; also the policy version of the weights.
        trained_steps: environment steps this host trained on: T·B per batch, without resets.
        dropped: updates dropped because of non-finite values.
        waited: seconds spent waiting for other hosts before updates.
        loss_scale: factor of the loss before gradients are taken, a power of two; None unless precision is
            mixed_float16.
        good_updates: consecutive good updates since the last change of `loss_scale`.
    """

    def __init__(
        self,
        agent: Agent,
        config: TrainingConfig,
        total_steps: int,
        devices: Devices | None = None,
        *,
        seed: int = 0,
    ) -> None:
        if agent.algorithm.source == "replay" and config.updates_per_batch > 1:
            raise UsageError(
                f"training.epochs = {config.epochs} and training.minibatches = {config.minibatches} must be 1 with "
                f"{type(agent).__name__}: replay.ratio sets how often an algorithm with a replay trains on an unroll"
            )
        if agent.algorithm.source == "replay" and config.synchronous:
            raise UsageError(
                f"training.synchronous = true must be false with {type(agent).__name__}: replay.ratio sets the pace of "
                "environments and training for an algorithm with a replay"
            )
        shuffles = agent.algorithm.shuffles and config.minibatches > 1
        if shuffles and tf.nest.flatten(agent.initial_state(1)) and not isinstance(agent, RecordStates):
            raise UsageError(
                f"{type(agent).__name__} has AlgorithmSpec.shuffles = True, but it also has a state, which is "
                "stored only for the start of an unroll: add record_states, return an empty initial_state, or leave "
                "shuffles out"
            )
        self._agent = agent
        self._config = config
        self._total_steps = total_steps
        self._devices = Devices.default() if devices is None else devices
        plan = self._devices.plan
        with self._devices.scope():
            self.groups = make_groups(agent, config)
            update = BatchUpdate(agent, config, self._devices, self.groups, seed)
            direct = plan is None or plan.xla == "off"
            self._update: Any = traced(update.train, reduce_retracing=True, direct=direct)
        self._sum_over_hosts = tf.function(self._sum_over_hosts_impl, autograph=False)
        self.loss_scale = _FIRST_SCALE if plan is not None and plan.precision == "mixed_float16" else None
        self.good_updates = 0
        self.updates = 0
        self.trained_steps = 0
        self.dropped = 0
        self.waited = 0.0

    # -- on the host --------------------------------------------------------------------------------------------

    def trace(self, unrolls: UnrollBatch) -> None:
        """Trace the update for batches of these shapes, so that the first update need not; runs nothing.

        Args:
            unrolls: this host's part of a batch, host arrays, such as of `batches.zero_unrolls`.

        Raises:
            SeedError: a device is out of memory.
            UsageError: the agent returns invalid losses or targets.
        """
        with self._devices.scope():
            self._update.get_concrete_function(*self._arguments(self._devices.place(unrolls), 0.0))

    def _arguments(self, unrolls: UnrollBatch, rate: float) -> tuple[Any, ...]:
        """The arguments of `BatchUpdate.train`."""
        # Arrays, because TensorFlow's fast function calls do not accept NumPy scalars.
        scale = None if self.loss_scale is None else np.asarray(self.loss_scale, np.float32)
        return unrolls, np.asarray(rate, np.float32), scale, np.asarray(self.updates, np.int64)

    def update(
        self, batch: TrainingBatch | None, env_steps: int, control: npt.NDArray[np.float64] | None = None
    ) -> UpdateResult:
        """Train on a batch, `training.updates_per_batch` times.

        All hosts must call this; they wait for each other. If the first element of the sum of `control` is not 0
        (a host has no batch), no host trains.

        Args:
            batch: this host's part, copied to its devices if it is still on the host. None: no batch.
            env_steps: position on the learning-rate schedule.
            control: [C] float64, summed over hosts.

        Raises:
            SeedError: a device is out of memory.
            UsageError: the agent returns invalid losses or targets.
            tf.errors.UnavailableError: another host is gone.
        """
        with self._devices.scope():
            rate = learning_rate(self._config, env_steps, self._total_steps)
            if control is not None:
                begun = time.perf_counter()
                (control,) = self.sum_over_hosts([control])
                self.waited += time.perf_counter() - begun
                if control[0]:
                    return UpdateResult(False, np.nan, np.nan, rate, np.nan, 0, {}, None, None, control)
            if batch is None:
                raise ValueError("an update without a batch, but control[0] is 0")
            unrolls = batch.unrolls
            if isinstance(unrolls.weights, np.ndarray):
                unrolls = self._devices.place(unrolls)
            scale = self.loss_scale
            try:
                report = self._update(*self._arguments(unrolls, rate))
                applied, evaluated, stopped, loss, norm, *values = report.scalars.numpy().tolist()
                used = round(evaluated - stopped)
                metrics = dict(zip(sorted(report.metrics), values, strict=True))
                if report.stop is not None:
                    metrics["updates_used"] = used / self._config.updates_per_batch
                priorities = np.concatenate([part.numpy() for part in report.priorities]) if report.priorities else None
                lag = self.updates - batch.versions[self._agent.algorithm.burn_in : -1]
                fault = self._count(round(applied), used - round(applied), loss, batch)
            except tf.errors.ResourceExhaustedError as error:
                raise self._out_of_memory(error, unrolls) from error
            if scale is not None:
                metrics["loss_scale"] = scale
            return UpdateResult(
                applied=bool(applied),
                loss=loss,
                grad_norm=norm,
                learning_rate=rate,
                policy_lag=float(lag.mean()),
                policy_lag_max=int(lag.max()),
                metrics=metrics,
                fault=fault,
                priorities=priorities,
                control=control,
            )

    def _count(self, applied: int, failed: int, loss: float, batch: TrainingBatch) -> str | None:
        """Count the updates of a batch.

        Args:
            applied: number of updates applied.
            failed: number of updates not applied because something was non-finite.
            loss: mean loss.
            batch: the batch.

        Returns:
            The fault of dropped updates, or None.
        """
        self.updates += applied
        if applied:
            self.trained_steps += self.num_transitions(batch)
        if failed and not np.isfinite(loss):
            self.dropped += failed
            return "the loss"
        if failed and (self.loss_scale is None or self.loss_scale <= 1.0):
            self.dropped += failed
            return "a gradient"
        if applied or failed:
            self._adapt_scale(not failed)
        return None

    def num_transitions(self, batch: TrainingBatch) -> int:
        """Number of transitions of a batch, without resets."""
        return int(np.count_nonzero(batch.counted[self._agent.algorithm.burn_in : -1]))

    def _adapt_scale(self, applied: bool) -> None:
        """Halve the loss scale after a non-finite gradient; double it after many good updates."""
        if self.loss_scale is None:
            return
        self.good_updates = self.good_updates + 1 if applied else 0
        if not applied:
            self.loss_scale /= 2.0
        elif self.good_updates == _GOOD_UPDATES:
            self.loss_scale = min(2.0 * self.loss_scale, _LARGEST_SCALE)
            self.good_updates = 0

    def _out_of_memory(self, error: tf.errors.ResourceExhaustedError, unrolls: UnrollBatch) -> SeedError:
        """Build the error to raise if a device runs out of memory during an update."""
        config, devices = self._config, self._devices
        number = devices.strategy.num_replicas_in_sync if devices.distributed else 1
        columns, evaluated = config.batch_size // number, config.columns_per_update // number
        weights = bytes_of(self._agent.variables().values()) + bytes_of(self.variables().values())
        held = {
            f"a batch of {columns} unrolls": batch_bytes(unrolls) // devices.replicas,
            f"{self._agent.network.count_params():,} parameters and the optimizer's state": weights,
            f"the activations of {evaluated * self._agent.algorithm.batch_records:,} records": None,
            "inference on the same device": None,
        }
        remedy = (
            f"lower training.batch_size = {config.batch_size}, training.unroll_length = {config.unroll_length} or "
            "inference.max_envs, or set topology.precision = mixed_bfloat16"
        )
        return out_of_memory(error, devices.training[0] or "the training device", "during an update", held, remedy)

    # -- between hosts ------------------------------------------------------------------------------------------

    def _sum_over_hosts_impl(self, values: list[tf.Tensor]) -> list[tf.Tensor]:
        devices = self._devices

        def replica(values: list[tf.Tensor]) -> list[tf.Tensor]:
            # Each host counts once, for any number of devices.
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            first = tf.equal(number % devices.replicas, 0)
            return total([tf.where(first, value, tf.zeros_like(value)) for value in values])

        return [devices.local(value)[0] for value in devices.run(replica, values)]

    def sum_over_hosts(self, values: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """Sum arrays over all hosts; all hosts must call this with the same shapes and dtypes."""
        if not self._devices.distributed:
            return list(values)
        with self._devices.scope():
            return [value.numpy() for value in self._sum_over_hosts([tf.convert_to_tensor(value) for value in values])]

    def broadcast(self, variables: Sequence[tf.Variable]) -> None:
        """Copy the chief's values of variables to all hosts; all hosts must call this."""
        if not self._devices.distributed:
            return
        chief = self._devices.chief
        values = [variable.numpy() for variable in variables]
        if not chief:
            values = [np.zeros_like(value) for value in values]
        with self._devices.scope():
            assign(variables, self.sum_over_hosts(values))

    def variables(self) -> dict[str, tf.Variable]:
        """The optimizers' variables by name; see `groups.group_variables`."""
        return group_variables(self._agent, self.groups)
