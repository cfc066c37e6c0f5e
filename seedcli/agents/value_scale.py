"""Running statistics of value targets and advantages, which normalise the predicted values."""

from __future__ import annotations

import keras
import tensorflow as tf

from seedcli.agents.replicas import assign, total

# Transitions after which a sample's weight has fallen to 1/e.
HORIZON = 20_000.0
_SMALLEST = 1e-6  # lower bound of scales, in units of rewards
# Lower bound of the deviation, relative to the targets' root mean square. In a solved task returns may be nearly
# constant: divided by their deviation, errors of the network's precision would dominate the gradient.
_SMALLEST_PART = 0.01
# Lower bound of the variance of advantages, relative to that of the returns of the same batch. Where values explain
# more of it, as in a solved task whose episodes all end in the same way, the remaining advantages are errors of the
# values. Scaled up to a deviation of 1, they would move the policy away from what it has learned.
UNEXPLAINED = 0.01


class ValueScale(keras.layers.Layer):
    """PopArt: van Hasselt et al., "Learning values across many orders of magnitude" (2016); Hessel et al. (2018).

    A value head outputs n(x), and the value is V(x) = σ·n(x) + μ, with the running mean μ and deviation σ of the value
    targets. When these change, the head's weights change so that V(x) is preserved. Before the first update μ is 0 and
    σ is 1. σ is at least a hundredth of the targets' root mean square. The second moment of a batch's advantages counts
    as at least a hundredth of the variance of its targets.

    The statistics are bias-corrected exponential averages over transitions in non-trainable variables: first and second
    moment of the targets, second moment of the advantages, and the total weights of both.
    """

    def __init__(self) -> None:
        super().__init__(name="value_scale", trainable=False)

        def statistic(name: str) -> keras.Variable:
            return self.add_weight(
                shape=(), initializer="zeros", dtype="float64", trainable=False, autocast=False, name=name
            )

        self.weight, self.first, self.second, self.advantage_weight, self.advantage_second = (
            statistic(name) for name in ("weight", "first", "second", "advantage_weight", "advantage_second")
        )
        self.built = True

    def known(self) -> tf.Tensor:
        """Whether there has been a reward, scalar bool; until then, μ and σ are not those of any targets."""
        return tf.convert_to_tensor(self.weight.value) > 0.0

    def moments(self) -> tuple[tf.Tensor, tf.Tensor]:
        """μ and σ, scalars float64."""
        return self._moments(*(tf.convert_to_tensor(v.value) for v in (self.weight, self.first, self.second)))

    @staticmethod
    def _moments(weight: tf.Tensor, first: tf.Tensor, second: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        known = weight > 0.0
        weight = tf.where(known, weight, 1.0)
        mean = first / weight
        square = second / weight
        variance = tf.maximum(square - tf.square(mean), _SMALLEST_PART**2 * square)
        return mean, tf.where(known, tf.maximum(tf.sqrt(variance), _SMALLEST), 1.0)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Values [M] float32 for outputs of the head [M] float32."""
        mean, deviation = self.moments()
        return x * tf.cast(deviation, tf.float32) + tf.cast(mean, tf.float32)

    def advantage_scale(self) -> tf.Tensor:
        """Running root mean square of the advantages, bounded from below; scalar float32, 1 before the first update."""
        weight, second = (tf.convert_to_tensor(v.value) for v in (self.advantage_weight, self.advantage_second))
        scale = tf.sqrt(second / tf.where(weight > 0.0, weight, 1.0))
        return tf.cast(tf.where(weight > 0.0, tf.maximum(scale, _SMALLEST), 1.0), tf.float32)

    def update(
        self,
        target_tm1: tf.Tensor,
        advantage_tm1: tf.Tensor,
        r_t: tf.Tensor,
        mask_tm1: tf.Tensor,
        head: keras.layers.Dense,
    ) -> None:
        """Update the statistics with a training batch and adjust the head so that its values are preserved.

        A batch with non-finite numbers is ignored. Targets of a batch without rewards, which has no information on
        their scale, are ignored too; its advantages are not: before the first reward they are the differences between
        the initial values, which move the policy enough to explore if they are divided by their own scale. If a batch
        is spread over devices, each device calls this with its own columns, and all get the statistics of the whole
        batch.

        Args:
            target_tm1: [T, B] float32, value targets.
            advantage_tm1: [T, B] float32.
            r_t: [T, B] float32, rewards of the transitions.
            mask_tm1: [T, B] float32, 1 where a transition counts, else 0.
            head: the linear layer whose outputs `call` takes.
        """
        mask = tf.cast(mask_tm1, tf.float64)
        target, advantage = (tf.where(mask > 0.0, tf.cast(x, tf.float64), 0.0) for x in (target_tm1, advantage_tm1))
        rewarded = tf.cast(tf.math.count_nonzero(r_t * mask_tm1), tf.float64)
        count, first, second, advantage_second, rewarded = total(
            [
                tf.reduce_sum(mask),
                tf.reduce_sum(target),
                tf.reduce_sum(tf.square(target)),
                tf.reduce_sum(tf.square(advantage)),
                rewarded,
            ]
        )
        steps = tf.maximum(count, 1.0)
        least = tf.where(rewarded > 0.0, UNEXPLAINED * (second - tf.square(first) / steps), 0.0)
        advantage_second = tf.maximum(advantage_second, least)
        keep = tf.exp(-count / HORIZON)
        part = (1.0 - keep) / steps
        statistics = [self.weight, self.first, self.second, self.advantage_weight, self.advantage_second]
        old = [tf.convert_to_tensor(v.value) for v in statistics]
        added = [count, first, second, count, advantage_second]
        new = [keep * before + part * batch for before, batch in zip(old, added, strict=True)]
        finite = tf.reduce_all(tf.math.is_finite(tf.stack(new)))
        usable = [finite & (rewarded > 0.0)] * 3 + [finite] * 2
        new = [tf.where(use, after, before) for use, after, before in zip(usable, new, old, strict=True)]
        old_mean, old_deviation = self._moments(*old[:3])
        mean, deviation = self._moments(*new[:3])
        kernel = tf.cast(old_deviation / deviation, tf.float32) * head.kernel.value
        bias = tf.cast((old_deviation * tf.cast(head.bias.value, tf.float64) + old_mean - mean) / deviation, tf.float32)
        assign([*(v.value for v in statistics), head.kernel.value, head.bias.value], [*new, kernel, bias])
