"""All updates on one batch as one TensorFlow graph: losses, sums over devices, clipping, application, early stop."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from seedcli.agents.base import Agent, TargetsAgent, UnrollBatch, transitions_of
from seedcli.agents.calls import traced
from seedcli.agents.replicas import total
from seedcli.config.sections import TrainingConfig
from seedcli.training.devices import Devices, columns_of
from seedcli.training.groups import Group, check_metrics, check_stop, check_targets, group_losses
from seedcli.training.optimizer import Step, apply_where, clip_gradients

# Up to this many updates are traced one after the other; more run in a loop, whose graph does not grow with their
# number.
_MOST_UNROLLED = 4


class Report(NamedTuple):
    """The results of the updates on a batch, for the host.

    Attributes:
        scalars: [5 + metrics] float32: number of updates applied; number evaluated, including one that stopped; 1 if
            one stopped, else 0; then means over the evaluated updates: loss; norm; the metrics in the order of their
            names. One tensor is faster to fetch than one per scalar.
        metrics: metrics by name; only the names are read.
        priorities: of the first update, one tensor per training device of this host; () if the algorithm has none.
        stop: `LossOutputs.stop` of the first update; None if the agent never stops. Only its presence is read.
    """

    scalars: tf.Tensor
    metrics: dict[str, tf.Tensor]
    priorities: tuple[tf.Tensor, ...]
    stop: tf.Tensor | None


class Gradients(NamedTuple):
    """Results of one device for its columns; losses and gradients in the order of the groups."""

    losses: list[tf.Tensor]
    gradients: list[list[tf.Tensor]]
    metrics: dict[str, tf.Tensor]
    priorities: tf.Tensor | None
    stop: tf.Tensor | None


def _leaves(mine: Gradients) -> list[tf.Tensor]:
    """All tensors that are summed over devices and parts: all but the priorities."""
    return [leaf for leaf in tf.nest.flatten(mine._replace(priorities=None)) if leaf is not None]


def _with_leaves(mine: Gradients, leaves: Sequence[tf.Tensor]) -> Gradients:
    """The inverse of `_leaves`, with the priorities of `mine`."""
    given, structure = iter(leaves), mine._replace(priorities=None)
    flat = [None if leaf is None else next(given) for leaf in tf.nest.flatten(structure)]
    found: Gradients = tf.nest.pack_sequence_as(structure, flat)
    return found._replace(priorities=mine.priorities)


def _averaged(sums: Gradients, number: int) -> Gradients:
    """Sums over `number` devices or parts, with the means of the metrics and of `stop`, which are no sums."""
    return sums._replace(
        metrics={name: value / number for name, value in sums.metrics.items()},
        stop=None if sums.stop is None else sums.stop / number,
    )


class _Outcome(NamedTuple):
    """Results of an update; all but the priorities are the same on all devices."""

    finite: tf.Tensor
    loss: tf.Tensor
    norm: tf.Tensor
    metrics: dict[str, tf.Tensor]
    priorities: tf.Tensor | None
    stop: tf.Tensor | None


class _Progress(NamedTuple):
    """The state passed from one update on a batch to the next.

    Attributes:
        applied: updates applied, scalar int64.
        stopped: whether the agent stopped, scalar bool.
        sums: [3 + metrics] float32, sums over the evaluated updates: 1; loss; norm; metrics. None before the first.
    """

    applied: tf.Tensor
    stopped: tf.Tensor
    sums: tf.Tensor | None


def column_orders(
    seed: int, updates: tf.Tensor, epochs: int, replica: tf.Tensor | int, columns: tf.Tensor | int
) -> tf.Tensor:
    """A random order of columns, or of transitions, for each pass over a batch; a pure function of its arguments.

    Args:
        seed: `run.seed`.
        updates: updates made before the batch, scalar int64.
        epochs: passes over the batch.
        replica: number of the training device over all hosts.
        columns: columns of the device, or transitions.

    Returns:
        [epochs, columns] int32, a permutation in each row.
    """
    key = tf.random.fold_in(tf.stack([tf.constant(seed, tf.int64), updates]), tf.cast(replica, tf.int64))
    return tf.argsort(tf.random.stateless_uniform([epochs, columns], key), stable=True)


class BatchUpdate:
    """Makes all updates on a batch.

    Args:
        agent: the agent to train.
        config: clipping, epochs and minibatches.
        devices: the training devices.
        groups: the agent's parameter groups.
        seed: seed of the minibatches.
    """

    def __init__(
        self, agent: Agent, config: TrainingConfig, devices: Devices, groups: Sequence[Group], seed: int
    ) -> None:
        self._agent = agent
        self._config = config
        self._devices = devices
        self._groups = groups
        self._seed = seed
        on_cpu = devices.plan is None or devices.plan.platform == "cpu"
        self._parts = config.parts_of_update if on_cpu and not devices.distributed else 1
        self._shuffles = agent.algorithm.shuffles and config.minibatches > 1
        xla = devices.plan is not None and devices.plan.xla != "off"
        self._gradients: Any = traced(self.gradients, jit_compile=True) if xla else self.gradients

    def train(self, unrolls: UnrollBatch, rate: tf.Tensor, scale: tf.Tensor | None, updates: tf.Tensor) -> Report:
        """Train on a batch, `training.updates_per_batch` times; to be traced and called outside of replicas.

        Args:
            unrolls: placed by `Devices.place`.
            rate: the learning rate, scalar float32.
            scale: factor of the losses before gradients are taken, scalar float32; None: 1.
            updates: updates made before, scalar int64.
        """
        for group in self._groups:
            group.optimizer.learning_rate.assign(rate * group.learning_rate)
        targets = self._devices.run(self._prepare, unrolls)
        unrolls = unrolls._replace(targets=targets)
        parts = self._devices.run(self._minibatches, unrolls, updates) if self._config.minibatches > 1 else None
        step = functools.partial(self._step, unrolls, parts, scale, updates)
        progress, first = step(0, _Progress(tf.constant(0, tf.int64), tf.constant(False), None))
        count = self._config.updates_per_batch
        if count <= _MOST_UNROLLED:
            for number in range(1, count):
                progress, _ = step(number, progress)
        else:
            _, progress = tf.while_loop(
                lambda number, progress: (number < count) & ~progress.stopped,
                lambda number, progress: (number + 1, step(number, progress)[0]),
                (tf.constant(1, tf.int64), progress),
                parallel_iterations=1,
            )
        assert progress.sums is not None
        evaluated = progress.sums[0]
        counts = [tf.cast(progress.applied, tf.float32), evaluated, tf.cast(progress.stopped, tf.float32)]
        scalars = tf.concat([tf.stack(counts), progress.sums[1:] / evaluated], axis=0)
        return Report(scalars, first.metrics, first.priorities, first.stop)

    def _step(
        self,
        unrolls: UnrollBatch,
        parts: tf.Tensor | None,
        scale: tf.Tensor | None,
        updates: tf.Tensor,
        number: tf.Tensor | int,
        progress: _Progress,
    ) -> tuple[_Progress, Any]:
        """Make update `number`, from 0, on the batch; returns its outcome with the priorities of all local devices."""
        devices = self._devices
        outcome, gradients = devices.run(self._replica, unrolls, parts, scale, number)
        priorities = () if outcome.priorities is None else devices.local(outcome.priorities)
        same = tf.nest.map_structure(lambda x: devices.local(x)[0], outcome._replace(priorities=None))
        stopped = progress.stopped if same.stop is None else progress.stopped | (same.stop > 0.0)
        applies = same.finite & ~stopped
        applied = progress.applied + tf.cast(applies, tf.int64)
        steps = [Step(g.optimizer, gs, g.variables) for g, gs in zip(self._groups, gradients, strict=True)]
        apply_where(applies, steps, lambda: self._agent.after_update(updates + progress.applied + 1))
        metrics = [same.metrics[name] for name in sorted(same.metrics)]
        sums = tf.stack([tf.constant(1.0), same.loss, same.norm, *(tf.cast(value, tf.float32) for value in metrics)])
        if progress.sums is not None:
            sums = progress.sums + tf.where(progress.stopped, tf.zeros_like(sums), sums)
        return _Progress(applied, stopped, sums), same._replace(priorities=priorities)

    # -- on each device -----------------------------------------------------------------------------------------

    def _prepare(self, unrolls: UnrollBatch) -> Mapping[str, tf.Tensor]:
        """Update the agent's statistics, and compute its targets for all updates on the batch."""
        self._agent.observe(unrolls)
        if not isinstance(self._agent, TargetsAgent):
            return {}
        targets = self._agent.targets(unrolls)
        transitions = self._config.unroll_length if self._shuffles else None
        check_targets(self._agent, targets, unrolls.weights.shape[0], transitions)
        return dict(targets)

    def _minibatches(self, unrolls: UnrollBatch, updates: tf.Tensor) -> tf.Tensor:
        """The device's columns, or transitions, of all updates on a batch, [updates, columns] int32."""
        config = self._config
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group if self._devices.distributed else 0
        size = tf.shape(unrolls.weights)[0] * (config.unroll_length if self._shuffles else 1)
        orders = column_orders(self._seed, updates, config.epochs, replica, size)
        return tf.reshape(orders, [config.updates_per_batch, -1])

    def _minibatch(self, unrolls: UnrollBatch, part: tf.Tensor) -> UnrollBatch:
        if self._shuffles:
            return transitions_of(self._agent, unrolls, part)
        return unrolls.map_columns(lambda array, axis: tf.gather(array, part, axis=axis))

    def gradients(self, unrolls: UnrollBatch, scale: tf.Tensor | None) -> Gradients:
        """Losses of columns, and the gradient of each with respect to its group's variables."""
        groups = self._groups
        with tf.GradientTape(persistent=len(groups) > 1) as tape:
            outputs = self._agent.loss(unrolls)
            losses = group_losses(self._agent, groups, outputs)
            scaled = losses if scale is None else [loss * scale for loss in losses]
        check_stop(self._agent, outputs.stop)
        check_metrics(self._agent, outputs.metrics)
        gradients = [
            tape.gradient(loss, [v.value for v in group.variables], unconnected_gradients="zero")
            for loss, group in zip(scaled, groups, strict=True)
        ]
        return Gradients(losses, gradients, dict(outputs.metrics), outputs.priorities, outputs.stop)

    def _of_all_parts(self, unrolls: UnrollBatch, scale: tf.Tensor | None) -> Gradients:
        """The `gradients` of an update's columns, summed over independent parts."""
        columns = self._config.columns_per_update * (self._config.unroll_length if self._shuffles else 1)
        size = columns // self._parts
        parts: list[Gradients] = [
            self._gradients(columns_of(unrolls, slice(start, start + size)) if self._parts > 1 else unrolls, scale)
            for start in range(0, size * self._parts, size)
        ]
        if len(parts) == 1:
            return parts[0]
        sums = [tf.add_n(leaves) for leaves in zip(*map(_leaves, parts), strict=True)]
        added = _averaged(_with_leaves(parts[0], sums), self._parts)
        if added.priorities is None:
            return added
        return added._replace(priorities=tf.concat([part.priorities for part in parts], axis=0))

    def _replica(
        self, unrolls: UnrollBatch, parts: tf.Tensor | None, scale: tf.Tensor | None, number: tf.Tensor | int
    ) -> tuple[_Outcome, list[list[tf.Tensor]]]:
        """Compute one device's update; gradients are summed before clipping, so all devices clip by the same norm."""
        minibatch = unrolls if parts is None else self._minibatch(unrolls, parts[number])
        mine = self._total(self._of_all_parts(minibatch, scale))
        gradients, norms = [], []
        for each in mine.gradients:
            unscaled = each if scale is None else [gradient / scale for gradient in each]
            clipped, norm = clip_gradients(unscaled, self._config.clip_norm)
            gradients.append(clipped)
            norms.append(norm)
        # A norm is finite if and only if all elements of its gradients are.
        finite = tf.reduce_all(tf.math.is_finite(tf.stack([*mine.losses, *norms])))
        metrics = dict(mine.metrics)
        if len(self._groups) == 1:
            return _Outcome(finite, mine.losses[0], norms[0], metrics, mine.priorities, mine.stop), gradients
        for group, loss, norm in zip(self._groups, mine.losses, norms, strict=True):
            metrics |= {f"loss/{group.name}": loss, f"grad_norm/{group.name}": norm}
        loss, norm = tf.add_n(mine.losses), tf.linalg.norm(tf.stack(norms))
        return _Outcome(finite, loss, norm, metrics, mine.priorities, mine.stop), gradients

    def _total(self, mine: Gradients) -> Gradients:
        """Sum losses and gradients over all devices, and average the metrics and `stop`."""
        if not self._devices.distributed:
            return mine
        return _averaged(_with_leaves(mine, total(_leaves(mine))), self._devices.strategy.num_replicas_in_sync)
