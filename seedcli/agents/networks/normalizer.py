"""Running mean and variance of observations."""

from __future__ import annotations

import keras
import tensorflow as tf

from seedcli.agents.replicas import assign, total

_EPSILON = 1e-8
_LIMIT = 10.0


class Normalizer(keras.layers.Layer):
    """clip((x − mean) / √(variance + 10⁻⁸), ±10); before the first update clip(x · unit, ±10).

    Mean and variance are per element. Images use a single variance, the mean over all pixels, because constant pixels
    have no variance. Subtracting the mean emphasises moving objects: in Atari Pong the background is 23 times as large
    as the root of that variance.

    The statistics are non-trainable variables: number of records, mean, and sum of squared deviations from it. They
    are float64 to keep small updates of large sums.

    Args:
        shape: shape of one frame.
        image: use one variance for all elements.
        unit: scale of x before the first update.

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
        """Normalize frames x [..., *shape] of any numeric dtype; float32."""
        count, mean, squares = (tf.convert_to_tensor(v.value) for v in (self.count, self.mean, self.squares))
        variance = squares / tf.maximum(count, 1.0)
        if self.image:
            variance = tf.reduce_mean(variance)
        scale = tf.where(count > 0.0, tf.math.rsqrt(variance + _EPSILON), self._unit)
        mean, scale = tf.cast(mean, tf.float32), tf.cast(scale, tf.float32)
        return tf.clip_by_value((tf.cast(x, tf.float32) - mean) * scale, -_LIMIT, _LIMIT)

    def update(self, frames: tf.Tensor, keep: tf.Tensor) -> None:
        """Add frames [T, B, *shape] of the columns `keep` [B] bool to the statistics.

        Merges as in Chan, Golub & LeVeque, "Algorithms for Computing the Sample Variance" (1983), section 2.
        A batch with a non-finite number is ignored. If a batch is spread over devices, each device calls this with its
        own columns, and all get the statistics of the whole batch.
        """
        x = tf.cast(frames, tf.float64)
        mask = tf.reshape(keep, [1, -1] + [1] * (len(x.shape) - 2))
        added = tf.cast(tf.shape(x)[0] * tf.math.count_nonzero(keep, dtype=tf.int32), tf.float64)
        # Columns that are not kept may hold NaN, so they are replaced rather than multiplied by 0.
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
