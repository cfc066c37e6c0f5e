"""Checks of how an agent learns: statistics, targets, losses, gradients, priorities and updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from seedcli.agents.base import InitialPriorities, TargetsAgent, UnrollBatch
from seedcli.doctor.agent_acting import Result
from seedcli.doctor.agent_case import (
    COLUMNS,
    Case,
    Played,
    difference,
    random_observation,
    tensors,
    with_other_actions,
    with_other_recorded,
)
from seedcli.training.batches import TrainingBatch
from seedcli.training.groups import Group, check_metrics, check_stop, check_targets, group_losses, make_groups
from seedcli.training.trainer import Trainer

_UPDATES = 4
_ROUNDING = 1e-6  # tolerance of the same sums over the same numbers
_TOTAL_STEPS = 10**9  # so that the learning rate stays at its start


class Learning:
    """A batch with its targets, and the loss as a graph.

    Args:
        case: the agent.
        played: unrolls that it has acted on.
    """

    def __init__(self, case: Case, played: Played) -> None:
        self.case = case
        self.unrolls: UnrollBatch = tensors(played.unrolls)
        self._groups: list[Group] = []
        self._graph = tf.function(self._compute, autograph=False)

    @property
    def groups(self) -> list[Group]:
        """The parameter groups with optimizers that are never used."""
        if not self._groups:
            self._groups = make_groups(self.case.agent, self.case.training)
        return self._groups

    def compute(self, unrolls: UnrollBatch) -> tuple[dict[str, tf.Tensor], dict[str, dict[str, Any]], Any]:
        """Losses by group, gradients by group and variable (None: unconnected), and priorities.

        Raises:
            UsageError: a loss is missing or not a scalar.
        """
        found: tuple[dict[str, tf.Tensor], dict[str, dict[str, Any]], Any] = self._graph(unrolls)
        return found

    def _compute(self, unrolls: UnrollBatch) -> Any:
        agent, groups = self.case.agent, self.groups
        with tf.GradientTape(persistent=True) as tape:
            outputs = agent.loss(unrolls)
            losses = group_losses(agent, groups, outputs)
        check_stop(agent, outputs.stop)
        check_metrics(agent, outputs.metrics)
        gradients = {}
        for group, loss in zip(groups, losses, strict=True):
            found = tape.gradient(loss, [variable.value for variable in group.variables])
            gradients[group.name] = {
                f"{number} {variable.path}": None if gradient is None else tf.convert_to_tensor(gradient)
                for number, (variable, gradient) in enumerate(zip(group.variables, found, strict=True))
            }
        return {group.name: loss for group, loss in zip(groups, losses, strict=True)}, gradients, outputs.priorities

    def targets(self) -> Result:
        """Targets have columns on the second axis; they are part of the batch from now on."""
        agent = self.case.agent
        if not isinstance(agent, TargetsAgent):
            return "skipped", "the agent has no method targets"
        found = agent.targets(self.unrolls)
        check_targets(agent, found, COLUMNS)
        self.unrolls = self._with_targets(self.unrolls)
        if not found:
            return "skipped", "none are computed before the first update"
        listed = ", ".join(f"{name} {list(target.shape)}" for name, target in found.items())
        return "ok", f"{listed}, with the columns on the second axis"

    def _with_targets(self, unrolls: UnrollBatch) -> UnrollBatch:
        agent = self.case.agent
        return unrolls._replace(targets=dict(agent.targets(unrolls))) if isinstance(agent, TargetsAgent) else unrolls

    def observe(self) -> Result:
        """Columns of weight 0 do not affect the statistics."""
        case, half = self.case, COLUMNS // 2
        variables = case.agent.variables()
        before = {name: variable.numpy() for name, variable in variables.items()}
        rng = np.random.default_rng(6)
        length = case.agent.algorithm.batch_records
        others = self.unrolls._replace(
            observation=tensors(random_observation(case.spec, rng, length, COLUMNS)),
            reward=10.0 + 10.0 * self.unrolls.reward,
        )
        weights = tf.constant([1.0] * half + [0.0] * half)

        def statistics(unrolls: UnrollBatch) -> dict[str, npt.NDArray[Any]]:
            for name, variable in variables.items():
                variable.assign(before[name])
            case.agent.observe(unrolls._replace(weights=weights))
            return {name: variable.numpy() for name, variable in variables.items()}

        def mixed(mine: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
            return tf.concat([mine[:, :half], other[:, half:]], axis=1)

        changed = self.unrolls._replace(
            observation=tf.nest.map_structure(mixed, self.unrolls.observation, others.observation),
            reward=mixed(self.unrolls.reward, others.reward),
        )
        mine, theirs = statistics(self.unrolls), statistics(changed)
        for name, variable in variables.items():
            variable.assign(before[name])
        if found := difference(theirs, mine):
            return "failure", f"observe counts columns of weight 0 ({found}): they must leave no trace in statistics"
        moved = [name for name in mine if not np.array_equal(mine[name], before[name])]
        return ("ok", f"{len(moved)} statistics; columns of weight 0 do not count") if moved else _NO_STATISTICS

    def loss(self) -> Result:
        """One finite scalar for each group."""
        losses, _, priorities = self.compute(self.unrolls)
        for name, loss in losses.items():
            if not np.isfinite(loss.numpy()):
                return "failure", f'the loss of the group "{name}" is {loss.numpy()}: it must be finite'
        if priorities is not None and (wrong := _wrong_priorities(priorities)):
            return "failure", f"loss returns {wrong}"
        return "ok", ", ".join(f"{name} {loss.numpy():.4g}" for name, loss in losses.items())

    def gradients(self) -> Result:
        """Every variable of a group has a finite gradient of the group's loss."""
        _, gradients, _ = self.compute(self.unrolls)
        for group, found in gradients.items():
            for name, gradient in found.items():
                path = name.split(" ", 1)[1]
                if gradient is None:
                    return "failure", (
                        f'no gradient of the loss of the group "{group}" reaches {path}: use it in the loss, or remove '
                        "it from the group"
                    )
                if not np.isfinite(gradient.numpy()).all():
                    return "failure", f'the gradient of the group "{group}" for {path} is not finite'
        count = sum(map(len, gradients.values()))
        return "ok", f"finite for {count} variables of {', '.join(gradients)}"

    def final_records(self) -> Result:
        """Action and recorded fields of a final record, which the environment ignores, change no loss or gradient."""
        if not self.unrolls.terminated.numpy()[self.case.agent.algorithm.burn_in : -1].any():
            return "skipped", "unrolls of one transition have no final record among those trained on"
        rng = np.random.default_rng(7)
        expected = self._results(self.unrolls)
        if _changed(self._results(self.unrolls), expected):
            return "skipped", "the loss differs when it is computed again, as with random numbers"
        others = {"the action on a final record": with_other_actions(self.case, self.unrolls, rng)}
        for name in self.unrolls.recorded:
            others[f'the recorded "{name}" of a terminated record'] = with_other_recorded(self.unrolls, name, rng)
        for what, unrolls in others.items():
            if found := _changed(self._results(unrolls), expected):
                return "failure", (
                    f"{what} changes {found}: multiply every term of the loss by the mask (mask_tm1, of "
                    "agents.targets.transitions), which is 0 for the transition from a final record"
                )
        return "ok", "what is chosen there changes neither losses nor gradients"

    def _results(self, unrolls: UnrollBatch) -> list[tuple[str, Any]]:
        """Losses, priorities and gradients, each with its name; with the targets of these unrolls."""
        losses, gradients, priorities = self.compute(self._with_targets(unrolls))
        found = [(f'the loss of the group "{group}"', loss) for group, loss in losses.items()]
        found += [] if priorities is None else [("the priorities", priorities)]
        for each in gradients.values():
            found += [(f"the gradient for {name.split(' ', 1)[1]}", gradient) for name, gradient in each.items()]
        return found

    def halves(self) -> Result:
        """Losses and gradients of two halves of a batch add up to those of the whole."""

        def part(start: int, step: int = 1) -> UnrollBatch:
            stop = start + COLUMNS // 2 if step > 0 else None
            index = slice(start, stop, step)
            return self.unrolls.map_columns(lambda x, axis: x[index] if axis == 0 else x[:, index])

        whole = self.compute(self.unrolls)[:2]
        backwards = self.compute(part(COLUMNS - 1, -1))[:2]
        if difference(backwards, whole):
            return "skipped", "the loss depends on the order of the columns, as with random numbers drawn for each"
        first, second = (self.compute(part(start))[:2] for start in (0, COLUMNS // 2))
        added = tf.nest.map_structure(lambda a, b: a + b, first, second)
        if found := difference(added, whole):
            return "failure", (
                f"losses of two halves of a batch do not add up to the loss of the whole ({found}): divide sums by the "
                "fixed T times training.columns_per_update, never by what is in the batch"
            )
        return "ok", "two halves add up to the whole"

    def initial_priorities(self) -> Result:
        """Priorities of new unrolls, from rewards, ends and recorded fields alone."""
        agent = self.case.agent
        if agent.algorithm.source != "replay" or not isinstance(agent, InitialPriorities):
            return "skipped", "the agent has no replay, or no method initial_priorities"
        unrolls: Any = self.unrolls
        found = agent.initial_priorities(unrolls._replace(observation=None, action=None, state=None, weights=None))
        if wrong := _wrong_priorities(found):
            return "failure", f"initial_priorities returns {wrong}"
        return "ok", f"[{COLUMNS}], from rewards, ends and recorded fields alone"

    def updates(self) -> Result:
        """Several updates change the variables of every group, and all numbers stay finite."""
        case = self.case
        variables = case.agent.variables()
        trainer = Trainer(case.agent, case.training, _TOTAL_STEPS)
        before = {group.name: [v.numpy() for v in group.variables] for group in trainer.groups}
        batch = self._batch(case.training.minibatches)
        for number in range(1, _UPDATES + 1):
            result = trainer.update(batch, 0)
            if result.fault is not None:
                return "failure", f"update {number} is dropped, because {result.fault} is not finite"
        for group in trainer.groups:
            pairs = zip(before[group.name], group.variables, strict=True)
            if all(np.array_equal(old, new.numpy()) for old, new in pairs):
                return "failure", f'{trainer.updates} updates leave every variable of the group "{group.name}" as it is'
        for name, variable in variables.items():
            values = variable.numpy()
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                return "failure", f"{name} is not finite after {trainer.updates} updates"
        return "ok", f"{trainer.updates} updates changed the variables"

    def _batch(self, times: int) -> TrainingBatch:
        """The unrolls, repeated side by side once for each minibatch, on the host."""
        unrolls = self.unrolls._replace(targets={})
        host = unrolls.map_columns(lambda x, axis: np.concatenate([x.numpy()] * times, axis=axis))
        return TrainingBatch.of(host, np.zeros(host.reward.shape, np.int64))


_NO_STATISTICS: Result = ("skipped", "observe changes nothing")


def _changed(found: list[tuple[str, Any]], expected: list[tuple[str, Any]]) -> str | None:
    """The first of these numbers that differs, with both values; None: all are the same."""
    for (name, value), (_, before) in zip(found, expected, strict=True):
        if apart := difference(value, before, relative=_ROUNDING, absolute=_ROUNDING):
            return f"{name} ({apart})"
    return None


def _wrong_priorities(priorities: Any) -> str | None:
    """The fault of priorities; None: they are valid."""
    values = np.asarray(priorities)
    if values.shape != (COLUMNS,) or values.dtype != np.float32:
        return f"priorities of {values.dtype} {list(values.shape)}: they must be float32 [{COLUMNS}]"
    if not np.isfinite(values).all() or (values < 0.0).any():
        return f"the priority {values.min()}: it must be finite and at least 0"
    return None
