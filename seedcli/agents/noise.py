"""Random numbers for acting: drawn from a seed, or passed in by the caller, as in an exported policy.

Everything that samples in `Agent.act` draws through these functions. `source` is then `ActInputs.seed`: a seed [2]
int32 for TensorFlow's stateless generators, or a `Noise`, because no random operation exists in every format of
exported models.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import tensorflow as tf

from seedcli.errors import UsageError

# Uniform numbers are kept this far from 0, whose logarithm is infinite; float32 has no number between 1 - 2⁻²⁴ and 1.
_LEAST = 2.0**-24


class Noise:
    """Uniform random numbers in [0, 1) given as an array, one row for each row of the batch, used column by column.

    Args:
        numbers: [N, D] float32, D at least as many as acting uses.

    Attributes:
        used: columns used so far.
    """

    def __init__(self, numbers: tf.Tensor) -> None:
        self._numbers = numbers
        self.used = 0

    def take(self, columns: int) -> tf.Tensor:
        """The next `columns` numbers of each row, [N, columns] float32."""
        begin, self.used = self.used, self.used + columns
        return tf.ensure_shape(self._numbers[:, begin : self.used], [None, columns])

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        raise UsageError(
            "the agent's act gives inputs.seed to a random operation of TensorFlow, which exported models cannot hold: "
            "draw with seedcli.agents.noise, or export greedy actions"
        )


# A seed [2] int32, or given numbers.
Source: TypeAlias = tf.Tensor | Noise


def split(source: Source, count: int) -> list[Source]:
    """`count` independent sources."""
    if isinstance(source, Noise):
        return [source] * count
    return tf.unstack(tf.random.split(source, count), count)


def uniform(source: Source, rows: tf.Tensor) -> tf.Tensor:
    """Numbers in [0, 1), [N] float32; `rows` is N."""
    if isinstance(source, Noise):
        return source.take(1)[:, 0]
    return tf.random.stateless_uniform([rows], source)


def above_zero(source: Source, rows: tf.Tensor, size: int) -> tf.Tensor:
    """Numbers in (0, 1), [N, size] float32; `rows` is N."""
    numbers = source.take(size) if isinstance(source, Noise) else tf.random.stateless_uniform([rows, size], source)
    return tf.maximum(numbers, _LEAST)


def integers(source: Source, rows: tf.Tensor, count: int) -> tf.Tensor:
    """Integers from 0 to count - 1, all equally likely, [N] int32."""
    if isinstance(source, Noise):
        return tf.minimum(tf.cast(source.take(1)[:, 0] * count, tf.int32), count - 1)
    return tf.random.stateless_uniform([rows], source, 0, count, tf.int32)


def normal(source: Source, rows: tf.Tensor, size: int) -> tf.Tensor:
    """Standard normal numbers, [N, size] float32; from uniform ones by the method of Box and Muller (1958)."""
    if isinstance(source, Noise):
        radius = tf.sqrt(-2.0 * tf.math.log(tf.maximum(source.take(size), _LEAST)))
        return radius * tf.cos(2.0 * math.pi * source.take(size))
    return tf.random.stateless_normal([rows, size], source)


def categorical(source: Source, logits: tf.Tensor) -> tf.Tensor:
    """Categories [N] int32 with the probabilities softmax(logits), logits [N, n]."""
    if isinstance(source, Noise):
        return quantile(logits, source.take(1))
    return tf.random.stateless_categorical(logits, 1, source, dtype=tf.int32)[:, 0]


def quantile(logits: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """The first category whose cumulative probability exceeds a number [N, 1] in [0, 1): [N] int32."""
    below = tf.cumsum(tf.nn.softmax(logits), axis=-1) <= numbers
    return tf.minimum(tf.reduce_sum(tf.cast(below, tf.int32), axis=-1), logits.shape[-1] - 1)
