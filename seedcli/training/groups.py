"""Parameter groups of an agent: each with its own loss and optimizer. Faults of the agent's code are UsageErrors."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from seedcli.agents.base import Agent, LossOutputs
from seedcli.config.sections import TrainingConfig
from seedcli.errors import UsageError
from seedcli.telemetry.metrics import GENERAL_METRICS
from seedcli.training.optimizer import make_optimizer, optimizer_variables


class Group(NamedTuple):
    """A parameter group with its optimizer.

    Attributes:
        name: as in `Agent.parameter_groups`.
        variables: the trained variables.
        learning_rate: factor of the scheduled learning rate.
        optimizer: built.
    """

    name: str
    variables: list[keras.Variable]
    learning_rate: float
    optimizer: keras.optimizers.Optimizer


def make_groups(agent: Agent, config: TrainingConfig) -> list[Group]:
    """Make the optimizers of an agent's parameter groups, in the order of the groups.

    Raises:
        UsageError: there is no group, a group is empty, or a variable is in two groups.
    """
    kind = type(agent).__name__
    found = agent.parameter_groups()
    if not found:
        raise UsageError(f"{kind}.parameter_groups() returns no group: return at least one with trainable variables")
    groups: list[Group] = []
    owners: dict[int, str] = {}
    for name, (variables, learning_rate) in found.items():
        if not variables:
            raise UsageError(
                f'{kind}.parameter_groups() returns the group "{name}" without variables: remove the group, or build '
                "its network first"
            )
        for variable in variables:
            owner = owners.setdefault(id(variable), name)
            if owner != name:
                raise UsageError(
                    f'{kind}.parameter_groups() returns the variable {variable.path} in two groups, "{owner}" and '
                    f'"{name}": every variable must have one optimizer, so remove it from one of them'
                )
        optimizer = make_optimizer(config)
        optimizer.build(list(variables))
        groups.append(Group(name, list(variables), learning_rate, optimizer))
    return groups


def group_losses(agent: Agent, groups: Sequence[Group], outputs: LossOutputs) -> list[tf.Tensor]:
    """The losses of an agent in the order of its groups.

    Raises:
        UsageError: there are no `LossOutputs`, a group has no loss, a loss no group, or a loss is not a scalar float32.
    """
    kind = type(agent).__name__
    if not isinstance(outputs, LossOutputs):
        found = "None" if outputs is None else f"a {type(outputs).__name__}"
        own = _own_methods(type(agent), "loss")
        hint = f"; look for a `return` that is missing in {' or '.join(own)}" if own and outputs is None else ""
        raise UsageError(f"{kind}.loss returns {found}: it must return LossOutputs(loss, priorities, metrics){hint}")
    names = [group.name for group in groups]
    losses: Any = outputs.loss
    if not isinstance(losses, Mapping):
        if len(groups) > 1:
            raise UsageError(
                f"{kind}.loss returns one loss for {len(groups)} parameter groups: return a dict with a loss for each "
                f"of {', '.join(names)}"
            )
        losses = {names[0]: losses}
    for name in (*names, *losses):
        if name not in losses:
            raise UsageError(f'{kind}.loss returns no loss for the parameter group "{name}": add one to its dict')
        if name not in names:
            raise UsageError(
                f'{kind}.loss returns a loss "{name}", but {kind}.parameter_groups() has no such group: the groups are '
                f"{', '.join(names)}"
            )
        _check_scalar(f'{kind}.loss returns for the group "{name}"', losses[name])
    return [losses[name] for name in names]


def check_stop(agent: Agent, stop: Any) -> None:
    """Raise UsageError if `LossOutputs.stop` is neither None nor a scalar float32."""
    if stop is not None:
        _check_scalar(f"{type(agent).__name__}.loss returns as `stop`", stop)


def check_metrics(agent: Agent, metrics: Any) -> None:
    """Raise UsageError if `LossOutputs.metrics` are not scalars, or one has the name of a general metric."""
    kind = type(agent).__name__
    if not isinstance(metrics, Mapping):
        raise UsageError(f"{kind}.loss returns metrics as a {type(metrics).__name__}: return a dict of scalars by name")
    for name, value in metrics.items():
        if name in GENERAL_METRICS:
            raise UsageError(
                f'{kind}.loss: the metric "{name}" has the name of a built-in one, which every line of metrics has: '
                "rename it"
            )
        found = f"a {type(value).__name__}"
        if tf.is_tensor(value):
            found = f"{value.dtype.name} {list(value.shape) if value.shape.rank is not None else 'of unknown shape'}"
        if not (value.shape.rank == 0 if tf.is_tensor(value) else isinstance(value, float | int)):
            raise UsageError(f'{kind}.loss: the metric "{name}" is {found}: it must be a scalar, such as a mean')


def _own_methods(kind: type, method: str) -> list[str]:
    """Where a user's class overrides a method, or one that it calls: "loss_outputs (my_agent.py:12)"."""
    functions = [
        (base, function) for base in kind.__mro__ for function in vars(base).values() if inspect.isfunction(function)
    ]
    called = {method}.union(*(each.__code__.co_names for _, each in functions if each.__name__ == method))
    return [
        f"{each.__name__} ({Path(each.__code__.co_filename).name}:{each.__code__.co_firstlineno})"
        for base, each in functions
        if each.__name__ in called and not base.__module__.startswith("seedcli.")
    ]


def check_targets(agent: Agent, targets: Any, columns: int | None, transitions: int | None = None) -> None:
    """Raise UsageError if what `TargetsAgent.targets` returned cannot be split by columns, or by transitions.

    Args:
        agent: the agent, for the message.
        targets: name → tensor.
        columns: columns of the batch; None: not known while tracing.
        transitions: T, where minibatches consist of single transitions; None: of columns.
    """
    kind = type(agent).__name__
    if not isinstance(targets, Mapping):
        raise UsageError(f"{kind}.targets returns a {type(targets).__name__}: return a dict of tensors by name")
    for name, target in targets.items():
        shape = tf.TensorShape(target.shape)
        if shape.rank is None or shape.rank < 2 or shape[1] not in (columns, None):
            raise UsageError(
                f'{kind}.targets returns "{name}" of shape {shape}: the second axis must be the '
                f"{columns or ''} columns of the batch, as in [T, B]"
            )
        if transitions is not None and shape[0] not in (transitions, None):
            raise UsageError(
                f'{kind}.targets returns "{name}" of shape {shape}: with AlgorithmSpec.shuffles the first axis must be '
                f"the {transitions} transitions of an unroll, as in [T, B]"
            )


def _check_scalar(what: str, value: Any) -> None:
    if not tf.is_tensor(value) or value.shape.rank != 0 or value.dtype != tf.float32:
        found = f"{value.dtype.name} of shape {value.shape}" if tf.is_tensor(value) else f"a {type(value).__name__}"
        raise UsageError(f"{what} {found}: it must be a scalar float32 tensor")


def group_variables(agent: Agent, groups: Sequence[Group]) -> dict[str, tf.Variable]:
    """The optimizers' variables by name: {"network/iterations": ..., "network/momentums/network/policy/kernel": ...}.

    Names begin with that of the group; the last part is the agent's name of the trained variable.

    Raises:
        UsageError: a trained variable is not in `Agent.variables`, so it would be missing in checkpoints.
    """
    names = {id(variable): name for name, variable in agent.variables().items()}
    found: dict[str, tf.Variable] = {}
    for group in groups:
        for variable in group.variables:
            if id(variable.value) not in names:
                raise UsageError(
                    f"{type(agent).__name__}.variables() does not return the variable {variable.path} of the parameter "
                    f'group "{group.name}": checkpoints must hold every trained variable'
                )
        trained = [names[id(variable.value)] for variable in group.variables]
        own = optimizer_variables(group.optimizer, trained)
        found |= {f"{group.name}/{name}": variable for name, variable in own.items()}
    return found
