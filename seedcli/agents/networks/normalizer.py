"""Running mean and variance of observations."""

from __future__ import annotations

import keras
import tensorflow as tf

from seedcli.agents.replicas import assign, total

_EPSILON = 1e-8
_LIMIT = 10.0


class Normalizer(keras.layers.Layer):
    """clip((x − mean) / √(variance + 10⁻⁸), ±10); until the first update x · unit, clipped.

    The mean is that of each number. So is the variance, but for images: what never moves in them has none, so all
    pixels are divided by the mean of their variances. Without its mean what moves stands out: in Atari Pong the
    background is 23 times as large as the root of that variance.

    The statistics are variables that are not trained: number of records, mean, and sum of squared differences from
    it, in float64, so that many small updates are not lost in a large sum.

    Args:
        shape: of one frame.
        image: one variance for all numbers.
        unit: what x is multiplied by until there are statistics.

    Attributes:
        image: as given.
    """

    def __init__(self, shape: tuple[int, ...], *, image: bool = False, unit: float = 1.0) -> None:
        super().__init__(name="normalizer", trainable=False)
        self.image = image
        self._unit = unit

        def statistic(name: str, size: tuple[int, ...]) -> keras.Variable:
            return self.add_weight(
                shape=size, initializer="zeros", dtype="float64", trainable=False, autocast=False, name=name
            )

        self.count = statistic("count", ())
        self.mean = statistic("mean", shape)
        self.squares = statistic("squares", shape)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Frames x [..., *shape] of any numbers, normalized, float32."""
        count, mean, squares = (tf.convert_to_tensor(v.value) for v in (self.count, self.mean, self.squares))
        variance = squares / tf.maximum(count, 1.0)
        if self.image:
            variance = tf.reduce_mean(variance)
        scale = tf.where(count > 0.0, tf.math.rsqrt(variance + _EPSILON), self._unit)
        mean, scale = tf.cast(mean, tf.float32), tf.cast(scale, tf.float32)
        return tf.clip_by_value((tf.cast(x, tf.float32) - mean) * scale, -_LIMIT, _LIMIT)

    def update(self, frames: tf.Tensor, keep: tf.Tensor) -> None:
        """Add frames [T, B, *shape] of the columns of `keep` [B] bool to the statistics.

        Both are merged as Chan, Golub & LeVeque, "Algorithms for Computing the Sample Variance" (1983), section 2,
        merge two samples. Frames that are not all finite are left out together. Where a batch is spread over devices
        each calls this with its own columns, and all get the statistics of the whole.
        """
        x = tf.cast(frames, tf.float64)
        mask = tf.reshape(keep, [1, -1] + [1] * (len(x.shape) - 2))
        added = tf.cast(tf.shape(x)[0] * tf.math.count_nonzero(keep, dtype=tf.int32), tf.float64)
        # What is not kept may be anything, also not a number: it is replaced, not multiplied by 0.
        added, added_sum = total([added, tf.reduce_sum(tf.where(mask, x, 0.0), axis=[0, 1])])
        added_mean = added_sum / tf.maximum(added, 1.0)
        (added_squares,) = total([tf.reduce_sum(tf.square(tf.where(mask, x - added_mean, 0.0)), axis=[0, 1])])
        count, mean, squares = (tf.convert_to_tensor(v.value) for v in (self.count, self.mean, self.squares))
        both = tf.maximum(count + added, 1.0)
        delta = added_mean - mean
        new_mean = mean + delta * (added / both)
        new_squares = squares + added_squares + tf.square(delta) * (count * added / both)
        finite = tf.reduce_all(tf.math.is_finite(new_mean) & tf.math.is_finite(new_squares))
        pairs = ((count + added, count), (new_mean, mean), (new_squares, squares))
        assign(
            [self.count.value, self.mean.value, self.squares.value],
            [tf.where(finite, new, old) for new, old in pairs],
        )
