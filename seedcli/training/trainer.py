"""Updates: sum losses and gradients over all devices, clip, apply; drop non-finite updates."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from seedcli.agents.base import Agent, UnrollBatch
from seedcli.agents.calls import traced
from seedcli.agents.replicas import assign, total
from seedcli.config.sections import TrainingConfig
from seedcli.errors import SeedError
from seedcli.inference.device_memory import bytes_of, out_of_memory
from seedcli.training.batches import TrainingBatch
from seedcli.training.devices import Devices, batch_bytes
from seedcli.training.optimizer import apply_where, clip_gradients, learning_rate, make_optimizer, optimizer_variables

# Loss scale for mixed_float16, which would round small gradients to 0 (Micikevicius et al., "Mixed Precision
# Training", 2018).
_FIRST_SCALE = 2.0**15
_LARGEST_SCALE = 2.0**24
_GOOD_UPDATES = 2000  # consecutive ones, after which the scale is doubled


class UpdateResult(NamedTuple):
    """The result of an update.

    Attributes:
        applied: whether the weights changed.
        loss: the loss of the batch of all hosts, possibly non-finite; a mean over the uses of the batch, like the norm
            and the metrics.
        grad_norm: global norm before clipping.
        learning_rate: the learning rate used.
        policy_lag: mean over trained records of (updates made before this one − the record's policy version).
        policy_lag_max: the largest policy lag.
        metrics: the algorithm's own scalars, means over devices; with mixed_float16 also "loss_scale".
        fault: the non-finite quantity; None if the weights changed, a host had no batch, or the loss scale of
            mixed_float16 was too large and was halved.
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


class _Gradients(NamedTuple):
    """Results of one device for its columns."""

    loss: tf.Tensor
    gradients: list[tf.Tensor]
    metrics: dict[str, tf.Tensor]
    priorities: tf.Tensor | None


class _Outcome(NamedTuple):
    """Results of an update; all but the priorities are the same on all devices."""

    finite: tf.Tensor
    loss: tf.Tensor
    norm: tf.Tensor
    metrics: dict[str, tf.Tensor]
    priorities: tf.Tensor | None


class _Report(NamedTuple):
    """The results of an update for the host.

    Attributes:
        scalars: [3 + metrics] float32, means over the uses of the batch: 1 if the update was applied, else 0; loss;
            norm; the metrics in the order of their names. One tensor is faster to fetch than one per scalar.
        metrics: metrics by name; only the names are read.
        priorities: one tensor per training device of this host; () if the algorithm has none.
    """

    scalars: tf.Tensor
    metrics: dict[str, tf.Tensor]
    priorities: tuple[tf.Tensor, ...]


class Trainer:
    """Owns the optimizer and the traced update of an agent.

    Args:
        agent: the agent to train; its variables were created in `devices.scope()`.
        config: optimizer, schedule, clipping.
        total_steps: environment steps at which the learning-rate schedule ends.
        devices: the training devices; None: TensorFlow's default device.

    Attributes:
        updates: updates applied; also the policy version of the weights.
        trained_steps: environment steps this host trained on: T·B per batch, without resets.
        dropped: updates dropped because of non-finite values.
        waited: seconds spent waiting for other hosts before updates.
        loss_scale: factor of the loss before gradients are taken, a power of two; None unless precision is
            mixed_float16.
        good_updates: consecutive good updates since the last change of `loss_scale`.
    """

    def __init__(self, agent: Agent, config: TrainingConfig, total_steps: int, devices: Devices | None = None) -> None:
        self._agent = agent
        self._config = config
        self._total_steps = total_steps
        self._devices = Devices.default() if devices is None else devices
        plan = self._devices.plan
        with self._devices.scope():
            self.optimizer = make_optimizer(config)
            self.optimizer.build(agent.network.trainable_variables)
            xla = plan is not None and plan.xla != "off"
            self._gradients: Any = traced(self._gradients_impl, jit_compile=True) if xla else self._gradients_impl
            self._update = traced(self._update_impl, reduce_retracing=True, direct=not xla)
        self._sum_over_hosts = tf.function(self._sum_over_hosts_impl, autograph=False)
        self.loss_scale = _FIRST_SCALE if plan is not None and plan.precision == "mixed_float16" else None
        self.good_updates = 0
        self.updates = 0
        self.trained_steps = 0
        self.dropped = 0
        self.waited = 0.0

    # -- on the devices -----------------------------------------------------------------------------------------

    def _gradients_impl(self, unrolls: UnrollBatch, scale: tf.Tensor | None) -> _Gradients:
        with tf.GradientTape() as tape:
            outputs = self._agent.loss(unrolls)
            scaled = outputs.loss if scale is None else outputs.loss * scale
        gradients = tape.gradient(scaled, self._agent.network.trainable_variables)
        return _Gradients(outputs.loss, gradients, dict(outputs.metrics), outputs.priorities)

    def _replica(
        self, unrolls: UnrollBatch, scale: tf.Tensor | None, *, observes: bool
    ) -> tuple[_Outcome, list[tf.Tensor]]:
        """Compute one device's update; gradients are summed before clipping, so all devices clip by the same norm."""
        if observes:
            self._agent.observe(unrolls)
        mine = self._gradients(unrolls, scale)
        loss, metrics, gradients = self._total(mine)
        if scale is not None:
            gradients = [gradient / scale for gradient in gradients]
        gradients, norm = clip_gradients(gradients, self._config.clip_norm)
        # The norm is finite if and only if all gradient elements are.
        finite = tf.math.is_finite(loss) & tf.math.is_finite(norm)
        return _Outcome(finite, loss, norm, metrics, mine.priorities), gradients

    def _total(self, mine: _Gradients) -> tuple[tf.Tensor, dict[str, tf.Tensor], list[tf.Tensor]]:
        """Sum loss and gradients over all devices, and average the metrics."""
        if not self._devices.distributed:
            return mine.loss, mine.metrics, mine.gradients
        loss, *rest = total([mine.loss, *mine.metrics.values(), *mine.gradients])
        number = self._devices.strategy.num_replicas_in_sync
        metrics = {name: value / number for name, value in zip(mine.metrics, rest, strict=False)}
        return loss, metrics, rest[len(metrics) :]

    def _update_impl(self, unrolls: UnrollBatch, rate: tf.Tensor, scale: tf.Tensor | None) -> _Report:
        devices = self._devices
        self.optimizer.learning_rate.assign(rate)
        scalars: list[tf.Tensor] = []
        for use in range(self._config.reuse):
            replica = functools.partial(self._replica, observes=use == 0)
            outcome, gradients = devices.run(replica, unrolls, scale)
            priorities = () if outcome.priorities is None else devices.local(outcome.priorities)
            same = tf.nest.map_structure(lambda x: devices.local(x)[0], outcome._replace(priorities=None))
            apply_where(same.finite, self.optimizer, gradients, self._agent.network.trainable_variables)
            metrics = [same.metrics[name] for name in sorted(same.metrics)]
            each = (same.finite, same.loss, same.norm, *metrics)
            scalars.append(tf.stack([tf.cast(value, tf.float32) for value in each]))
        return _Report(tf.add_n(scalars) / len(scalars), same.metrics, priorities)

    # -- on the host --------------------------------------------------------------------------------------------

    def update(
        self, batch: TrainingBatch | None, env_steps: int, control: npt.NDArray[np.float64] | None = None
    ) -> UpdateResult:
        """Train on a batch, `training.reuse` times.

        All hosts must call this; they wait for each other. If the first element of the sum of `control` is not 0
        (a host has no batch), no host trains.

        Args:
            batch: this host's part, copied to its devices if it is still on the host. None: no batch.
            env_steps: position on the learning-rate schedule.
            control: [C] float64, summed over hosts.

        Raises:
            SeedError: a device is out of memory.
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
                report = self._update(unrolls, np.float32(rate), None if scale is None else np.float32(scale))
                share, loss, norm, *values = report.scalars.numpy().tolist()
                applied = round(share * self._config.reuse)
                metrics = dict(zip(sorted(report.metrics), values, strict=True))
                priorities = np.concatenate([part.numpy() for part in report.priorities]) if report.priorities else None
                lag = self.updates - batch.versions[self._agent.algorithm.burn_in : -1]
                fault = self._count(applied, loss, batch)
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

    def _count(self, applied: int, loss: float, batch: TrainingBatch) -> str | None:
        """Count the updates of a batch; returns the fault of those that were not applied, or None."""
        for _ in range(applied):
            self.updates += 1
            self._agent.after_update(self.updates)
        if applied:
            self.trained_steps += self.num_transitions(batch)
        failed = self._config.reuse - applied
        if failed and not np.isfinite(loss):
            self.dropped += failed
            return "the loss"
        if failed and (self.loss_scale is None or self.loss_scale <= 1.0):
            self.dropped += failed
            return "a gradient"
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
        columns = config.batch_size // (devices.strategy.num_replicas_in_sync if devices.distributed else 1)
        weights = bytes_of(self._agent.variables().values()) + bytes_of(self.variables().values())
        held = {
            f"a batch of {columns} unrolls": batch_bytes(unrolls) // devices.replicas,
            f"{self._agent.network.count_params():,} parameters and the optimizer's state": weights,
            f"the activations of {columns * self._agent.algorithm.batch_records:,} records": None,
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
        """The optimizer's variables by name; the names contain those of the agent's variables."""
        names = {id(variable): name for name, variable in self._agent.variables().items()}
        trained = [names[id(variable.value)] for variable in self._agent.network.trainable_variables]
        return optimizer_variables(self.optimizer, trained)
