"""Optimizers, the learning-rate schedule, clipping and the application of gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from seedcli.config.sections import TrainingConfig


class FusedAdam(keras.optimizers.Adam):
    """Keras' Adam with one TensorFlow operation for each variable instead of twenty, equal up to rounding."""

    def update_step(self, gradient: tf.Tensor, variable: Any, learning_rate: Any) -> None:
        """Update a `tf.Variable` of any device, and its moments there."""
        place = self._get_variable_index(variable)
        step = tf.cast(self.iterations + 1, gradient.dtype)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[place].value.handle,
            v=self._velocities[place].value.handle,
            beta1_power=tf.pow(tf.constant(self.beta_1, gradient.dtype), step),
            beta2_power=tf.pow(tf.constant(self.beta_2, gradient.dtype), step),
            lr=tf.cast(learning_rate, gradient.dtype),
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon,
            grad=gradient,
        )


def make_optimizer(training: TrainingConfig) -> keras.optimizers.Optimizer:
    """Make the configured optimizer: Adam (Kingma & Ba, 2015) or RMSprop (Hinton, 2012, ε inside the root).

    It starts at `training.learning_rate`; assign `learning_rate(...)` to its `learning_rate` between updates. Keras'
    own clipping is not used, because it would run before gradients of several devices are summed.
    """
    if training.optimizer == "adam":
        return FusedAdam(
            training.learning_rate,
            beta_1=training.adam_beta1,
            beta_2=training.adam_beta2,
            epsilon=training.epsilon,
        )
    return keras.optimizers.RMSprop(
        training.learning_rate,
        rho=training.rmsprop_decay,
        momentum=training.rmsprop_momentum,
        epsilon=training.epsilon,
    )


def optimizer_variables(optimizer: keras.optimizers.Optimizer, trained: Sequence[str]) -> dict[str, tf.Variable]:
    """All variables of an optimizer by name: {"iterations": ..., "momentums/network/policy/kernel": ...}.

    Args:
        optimizer: built.
        trained: the names of the variables that it was built with, in their order.

    Raises:
        ValueError: the optimizer has a variable that is neither an attribute nor in a list parallel to `trained`.
    """
    own = {id(variable) for variable in optimizer.variables}
    found: dict[str, tf.Variable] = {}
    for attribute, value in vars(optimizer).items():
        name = attribute.lstrip("_")
        if id(value) in own:
            found[name] = value.value
        elif isinstance(value, list) and value and attribute != "_variables" and own.issuperset(map(id, value)):
            found |= {f"{name}/{of}": each.value for of, each in zip(trained, value, strict=True)}
    if len(found) != len(own):
        raise ValueError(
            f"the optimizer {optimizer.name} has {len(own)} variables, and {len(found)} of them have names"
        )
    return found


def learning_rate(training: TrainingConfig, steps_done: int, total_steps: int) -> float:
    """The learning rate after `steps_done` of `total_steps` environment steps; constant afterwards."""
    if training.learning_rate_schedule == "constant":
        return training.learning_rate
    done = min(1.0, max(0.0, steps_done / total_steps))
    return training.learning_rate + done * (training.learning_rate_end - training.learning_rate)


def clip_gradients(gradients: Sequence[tf.Tensor], clip_norm: float) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Clip aggregated gradients by their global norm (Pascanu et al., 2013).

    Args:
        gradients: summed over devices.
        clip_norm: the largest norm; 0: no clipping.

    Returns:
        The clipped gradients, and their global norm before clipping, scalar float32: finite if and only if all elements
        are.
    """
    norm = tf.linalg.global_norm(gradients)
    if clip_norm:
        return tf.clip_by_global_norm(gradients, clip_norm, use_norm=norm)
    return list(gradients), norm


class Step(NamedTuple):
    """A step of an optimizer.

    Attributes:
        optimizer: made by `make_optimizer`, built.
        gradients: one per variable; under a `tf.distribute` strategy, outside replica context, per-replica values:
            every device updates its own copies.
        variables: the trained variables, always in the same order.
    """

    optimizer: keras.optimizers.Optimizer
    gradients: Sequence[Any]
    variables: Sequence[keras.Variable]


def apply_where(condition: tf.Tensor, steps: Sequence[Step], after: Callable[[], None] = lambda: None) -> None:
    """Apply steps if a condition holds; otherwise neither variables nor optimizers' states change.

    Args:
        condition: scalar bool.
        steps: applied one after the other.
        after: called after the steps, under the same condition.
    """

    def apply() -> tf.Tensor:
        for step in steps:
            _apply(step)
        after()
        return tf.constant(True)

    tf.cond(condition, apply, lambda: tf.constant(False))


def _apply(step: Step) -> None:
    optimizer, gradients, variables = step
    if not tf.distribute.has_strategy():
        optimizer.apply(list(gradients), list(variables))
        return
    # The optimizer's own update enters replica context, which is not possible inside a condition.
    rate = tf.convert_to_tensor(optimizer.learning_rate)
    for variable, gradient in zip(variables, gradients, strict=True):
        tf.distribute.get_strategy().extended.update(
            variable.value, lambda copy, g: optimizer.update_step(g, copy, rate), args=(gradient,), group=False
        )
    optimizer.iterations.assign_add(1)
