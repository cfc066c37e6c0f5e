"""Target networks: copies of a trained network that follow it, at intervals or as a moving average.

All functions work on one device and under a `tf.distribute` strategy, eagerly and in a graph: each device changes its
own copy. Both networks have the same architecture.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from seedcli.agents.replicas import assign, change


def copy_to(target: keras.layers.Layer, source: keras.layers.Layer) -> None:
    """Copy all variables of a network, including its statistics.

    Args:
        target: the network to change.
        source: the trained network, with its variables in the same order.
    """
    assign(*([variable.value for variable in network.variables] for network in (target, source)))


def copy_every(period: int, update: tf.Tensor | int, target: keras.layers.Layer, source: keras.layers.Layer) -> None:
    """Copy all variables of a network after every `period` updates (Mnih et al., "Human-level control", 2015).

    Args:
        period: updates between copies, at least 1.
        update: number of the update, from 1, scalar int64.
        target: see `copy_to`.
        source: see `copy_to`.
    """

    def copy() -> tf.Tensor:
        copy_to(target, source)
        return tf.constant(True)

    due = tf.equal(tf.math.floormod(tf.cast(update, tf.int64), period), 0)
    tf.cond(due, copy, lambda: tf.constant(False))


def polyak(target: keras.layers.Layer, source: keras.layers.Layer, tau: float) -> None:
    """Move a network towards another: target ← (1 − τ)·target + τ·source.

    Source: Lillicrap et al., "Continuous control with deep reinforcement learning" (2016), algorithm 1.

    Variables that the source does not train, such as statistics of observations, are copied: their average over time
    would not describe any set of observations.

    Args:
        target: see `copy_to`.
        source: see `copy_to`.
        tau: τ, in (0, 1].
    """
    trained = {id(variable) for variable in source.trainable_variables}

    def average(copy: Any, value: Any) -> Any:
        return copy.assign((1.0 - tau) * copy + tau * tf.convert_to_tensor(value))

    pairs = list(zip(target.variables, source.variables, strict=True))
    followed = [(old.value, new.value) for old, new in pairs if id(new) in trained]
    copied = [(old.value, new.value) for old, new in pairs if id(new) not in trained]
    change([old for old, _ in followed], average, [new for _, new in followed])
    assign([old for old, _ in copied], [new for _, new in copied])
