"""Targets of Q-learning: pure functions on time-major tensors.

Names carry time as in `targets`: the action of a transition is chosen on record t-1, its reward arrives with record t.
"""

from __future__ import annotations

import tensorflow as tf


def rescale(x: tf.Tensor, epsilon: float) -> tf.Tensor:
    """h(x) = sign(x)·(√(|x| + 1) − 1) + ε·x: Pohlen et al., "Observe and Look Further" (2018), section 3.2.

    Computed as x/(√(|x| + 1) + 1) + ε·x, which is equal and exact for small x.

    Args:
        x: values, any shape, float32.
        epsilon: ε, above 0.
    """
    return x / (tf.sqrt(tf.abs(x) + 1.0) + 1.0) + epsilon * x


def inverse_rescale(y: tf.Tensor, epsilon: float) -> tf.Tensor:
    """The inverse of `rescale`, in closed form: Pohlen et al. (2018), proposition A.2 (iii).

    With s = √(1 + 4ε(|y| + 1 + ε)) the paper has sign(y)·(((s − 1)/2ε)² − 1). Computed as y·w·(2 + w·|y|) with
    w = 2/(s + 1 + 2ε), which is equal because (s − 1)/2ε = 1 + w·|y|, and avoids cancellation.

    Args:
        y: rescaled values, any shape, float32.
        epsilon: ε, above 0.
    """
    size = tf.abs(y)
    root = tf.sqrt(1.0 + 4.0 * epsilon * (size + 1.0 + epsilon))
    w = 2.0 / (root + 1.0 + 2.0 * epsilon)
    return y * w * (2.0 + w * size)


def n_step_returns(
    *, r_t: tf.Tensor, discount_t: tf.Tensor, mask_tm1: tf.Tensor, values: tf.Tensor, n: int
) -> tf.Tensor:
    """n-step returns that bootstrap from `values`: Sutton & Barto (2018), equation 7.1.

    G_t = r_{t+1} + γ·r_{t+2} + … + γ^{k-1}·r_{t+k} + γ^k·v_{t+k}, where k is the smallest of n, the steps to the
    bootstrap record and the steps to the end of the episode. A terminated record has discount 0, so nothing is
    bootstrapped from it; returns bootstrap from the value of a truncated one.

    Args:
        r_t: [T, B] float32, rewards.
        discount_t: [T, B] float32, γ, 0 into a terminated record.
        mask_tm1: [T, B] float32, 0 where record t-1 is final: there the return is the value itself.
        values: [T+1, B] float32, v of every record, the bootstrap record last.
        n: at least 1.

    Returns:
        [T, B] float32, the returns from records 0 … T-1; no gradient flows through them.
    """
    values = tf.stop_gradient(values)
    valid = mask_tm1 > 0.0
    returns = values
    # k-step returns from the (k - 1)-step returns of the next record.
    for _ in range(n):
        longer = tf.where(valid, r_t + discount_t * returns[1:], values[:-1])
        returns = tf.concat([longer, values[-1:]], axis=0)
    return returns[:-1]


def priorities(td_error_tm1: tf.Tensor, mask_tm1: tf.Tensor, max_weight: float) -> tf.Tensor:
    """η·max_t |TD| + (1 − η)·mean_t |TD| of each unroll: Kapturowski et al., "R2D2" (2019), section 2.3.

    Args:
        td_error_tm1: [T, B] float32, 0 where masked.
        mask_tm1: [T, B] float32, 1 where a transition counts.
        max_weight: η.

    Returns:
        [B] float32; 0 if no transition counts, NaN if an error that counts is NaN.
    """
    size = tf.abs(td_error_tm1)
    mean = tf.reduce_sum(size, axis=0) / tf.maximum(tf.reduce_sum(mask_tm1, axis=0), 1.0)
    return max_weight * tf.reduce_max(size, axis=0) + (1.0 - max_weight) * mean
