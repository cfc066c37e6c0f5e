"""Optimizers, the learning-rate schedule, and the one step that applies gradients."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from seedcli.config import TrainingConfig


def make_optimizer(training: TrainingConfig) -> keras.optimizers.Optimizer:
    """The optimizer a configuration names: Adam (Kingma & Ba, 2015) or RMSprop (Hinton, 2012, ε inside the root).

    It starts at `training.learning_rate`; assign `learning_rate(...)` to its `learning_rate` between updates. Clipping
    is not its own, which would run before gradients of several devices are added up.
    """
    if training.optimizer == "adam":
        return keras.optimizers.Adam(
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


def learning_rate(training: TrainingConfig, steps_done: int, total_steps: int) -> float:
    """The learning rate after `steps_done` of `total_steps` environment steps; it stays at its end after those."""
    if training.learning_rate_schedule == "constant":
        return training.learning_rate
    done = min(1.0, max(0.0, steps_done / total_steps))
    return training.learning_rate + done * (training.learning_rate_end - training.learning_rate)


def apply_gradients(
    optimizer: keras.optimizers.Optimizer,
    gradients: Sequence[tf.Tensor],
    variables: Sequence[keras.Variable],
    clip_norm: float,
    loss: tf.Tensor | float = 0.0,
) -> tf.Tensor:
    """Clip aggregated gradients by their global norm (Pascanu et al., 2013) and apply them.

    Works inside a tf.function and outside. Where the norm or the loss is not finite nothing is changed, neither the
    variables nor the optimizer's state: the caller sees it in what is returned.

    Args:
        optimizer: made by `make_optimizer`.
        gradients: one for each variable, added up over devices.
        variables: what is trained, always in the same order.
        clip_norm: the largest norm applied; 0: any.
        loss: what the gradients are of.

    Returns:
        The global norm before clipping, scalar float32.
    """
    if not optimizer.built:
        with tf.init_scope():  # variables cannot be made inside the condition below
            optimizer.build(list(variables))
    gradients = list(gradients)
    norm = tf.linalg.global_norm(gradients)
    if clip_norm:
        gradients, _ = tf.clip_by_global_norm(gradients, clip_norm, use_norm=norm)

    def apply() -> tf.Tensor:
        optimizer.apply(gradients, list(variables))
        return tf.constant(True)

    tf.cond(tf.math.is_finite(norm) & tf.math.is_finite(loss), apply, lambda: tf.constant(False))
    return norm
