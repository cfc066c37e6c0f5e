"""Targets: pure functions on time-major tensors [T, B].

Names carry time. Records t-1 and t are the ends of a transition: the action is chosen on record t-1 (`v_tm1`,
`log_rho_tm1`, `mask_tm1`), the reward and the discount arrive with record t (`r_t`, `discount_t`, `v_t`).
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf


def scaled_rewards(reward: tf.Tensor, scale: float, clip: float) -> tf.Tensor:
    """Rewards for a loss: multiplied by `scale`, then clipped to ± `clip`; a clip of 0 means no clipping.

    Args:
        reward: any shape, float32, raw.
        scale: `agent.reward_scale`, above 0.
        clip: `agent.reward_clip`, at least 0.
    """
    reward = reward * scale
    return tf.clip_by_value(reward, -clip, clip) if clip else reward


class Transitions(NamedTuple):
    """The T transitions between T+1 records.

    Attributes:
        r_t: [T, B] float32, reward of the transition; 0 where masked.
        discount_t: [T, B] float32, γ·(1 − terminated_t); 0 where masked.
        mask_tm1: [T, B] float32, 1 where an action was taken on record t-1; 0 where that record is final, so that
            record t belongs to the next episode.
    """

    r_t: tf.Tensor
    discount_t: tf.Tensor
    mask_tm1: tf.Tensor


def transitions(reward: tf.Tensor, terminated: tf.Tensor, truncated: tf.Tensor, discount: float) -> Transitions:
    """Rewards, discounts and validity of the transitions between records.

    A truncated episode keeps its discount into the final record, so that targets bootstrap from the value of the
    final observation; a terminated one does not. The step out of a final record is masked in either case.

    Args:
        reward: [T+1, B] float32; reward_t arrived with record t.
        terminated: [T+1, B] bool.
        truncated: [T+1, B] bool.
        discount: γ.
    """
    mask_tm1 = tf.cast(tf.logical_not(tf.logical_or(terminated[:-1], truncated[:-1])), tf.float32)
    going_on = tf.cast(tf.logical_not(terminated[1:]), tf.float32)
    return Transitions(reward[1:] * mask_tm1, discount * going_on * mask_tm1, mask_tm1)


class VTraceTargets(NamedTuple):
    """Outputs of V-trace; no gradient flows through them.

    Attributes:
        vs_tm1: [T, B] float32, the value targets v_s; V itself where masked.
        pg_advantages: [T, B] float32, ρ_s·(r_s + γ_s·v_{s+1} − V(x_s)); 0 where masked.
        rho_tm1: [T, B] float32, the importance weights clipped at ρ̄; 0 where masked.
    """

    vs_tm1: tf.Tensor
    pg_advantages: tf.Tensor
    rho_tm1: tf.Tensor


def importance_weights(log_rho_tm1: tf.Tensor, mask_tm1: tf.Tensor) -> tf.Tensor:
    """π/μ [T, B] float32 without a gradient, 0 where masked: the ratio of a masked action may be infinite or NaN."""
    return tf.where(mask_tm1 > 0.0, tf.exp(tf.stop_gradient(log_rho_tm1)), 0.0)


def vtrace(
    *,
    log_rho_tm1: tf.Tensor,
    r_t: tf.Tensor,
    discount_t: tf.Tensor,
    mask_tm1: tf.Tensor,
    values: tf.Tensor,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    lambda_: float = 1.0,
) -> VTraceTargets:
    """V-trace targets and policy-gradient advantages.

    Espeholt et al., "IMPALA" (2018), equation 1, with c_s = λ·min(c̄, ρ_s) (its remark 2), written as the recursion
    v_s − V(x_s) = δ_s + γ_s·c_s·(v_{s+1} − V(x_{s+1})). The advantages are ρ_s·(r_s + γ_s·q_{s+1} − V(x_s)) with
    q = λ·v + (1 − λ)·V: those of its section 4.2 where λ = 1, and on-policy those of Schulman et al., "High-Dimensional
    Continuous Control Using Generalized Advantage Estimation" (2016), for any λ.

    Args:
        log_rho_tm1: [T, B] float32, log π(a)/μ(a) of the actions taken on records 0 … T-1.
        r_t: [T, B] float32, rewards.
        discount_t: [T, B] float32, γ, 0 into a terminated record.
        mask_tm1: [T, B] float32, 0 where record t-1 is final: there ρ, c and γ are 0.
        values: [T+1, B] float32, V of every record, the bootstrap record last.
        rho_clip: ρ̄.
        c_clip: c̄.
        lambda_: λ.

    Returns:
        The targets; T must be static.
    """
    values = tf.stop_gradient(values)
    v_tm1, v_t = values[:-1], values[1:]
    ratio = importance_weights(log_rho_tm1, mask_tm1)
    rho_tm1 = tf.minimum(ratio, rho_clip)
    c_tm1 = lambda_ * tf.minimum(ratio, c_clip)

    td_error = rho_tm1 * (r_t + discount_t * v_t - v_tm1)
    correction = _discounted_sum(td_error, discount_t * c_tm1)
    vs_tm1 = v_tm1 + correction
    vs_t = tf.concat([vs_tm1[1:], v_t[-1:]], axis=0)
    q_t = lambda_ * vs_t + (1.0 - lambda_) * v_t
    advantages = rho_tm1 * (r_t + discount_t * q_t - v_tm1)
    return VTraceTargets(vs_tm1, advantages, rho_tm1)


class GaeTargets(NamedTuple):
    """Outputs of generalized advantage estimation; no gradient flows through them.

    Attributes:
        advantages_tm1: [T, B] float32; 0 where masked.
        returns_tm1: [T, B] float32, the value targets, V plus the advantage; V itself where masked.
    """

    advantages_tm1: tf.Tensor
    returns_tm1: tf.Tensor


def gae(*, r_t: tf.Tensor, discount_t: tf.Tensor, mask_tm1: tf.Tensor, values: tf.Tensor, lambda_: float) -> GaeTargets:
    """Generalized advantage estimates and λ-returns.

    Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation" (2016), equation 16,
    written as the recursion A_s = δ_s + γ_s·λ·A_{s+1} with δ_s = r_s + γ_s·V(x_{s+1}) − V(x_s); the value targets are
    those of TD(λ). A truncated episode bootstraps from the value of its final observation.

    Args:
        r_t: [T, B] float32, rewards.
        discount_t: [T, B] float32, γ, 0 into a terminated record.
        mask_tm1: [T, B] float32, 0 where record t-1 is final: there δ and γ are 0.
        values: [T+1, B] float32, V of every record, the bootstrap record last.
        lambda_: λ.

    Returns:
        The targets; T must be static.
    """
    values = tf.stop_gradient(values)
    v_tm1, v_t = values[:-1], values[1:]
    td_error = (r_t + discount_t * v_t - v_tm1) * mask_tm1
    advantages = _discounted_sum(td_error, discount_t * lambda_)
    return GaeTargets(advantages, v_tm1 + advantages)


def inside_trust_region(log_rho_tm1: tf.Tensor, advantages: tf.Tensor, clip: float) -> tf.Tensor:
    """1 where the policy gradient is not clipped, else 0, [T, B] float32; no gradient flows through it.

    The clipped objective of Schulman et al., "Proximal Policy Optimization Algorithms" (2017), equation 7, has no
    gradient where the ratio π/μ is above 1 + ε and the advantage would raise it, or below 1 − ε and the advantage would
    lower it.

    Args:
        log_rho_tm1: [T, B] float32, log π(a)/μ(a).
        advantages: [T, B] float32.
        clip: ε.
    """
    ratio = tf.exp(log_rho_tm1)
    passed = tf.where(advantages > 0.0, ratio > 1.0 + clip, ratio < 1.0 - clip)
    return tf.stop_gradient(tf.cast(tf.logical_not(passed), tf.float32))


def _discounted_sum(x: tf.Tensor, decay: tf.Tensor) -> tf.Tensor:
    """y_t = x_t + decay_t·y_{t+1} with y_T = 0, for x and decay [T, B].

    By recursive doubling (Hillis & Steele, 1986): ⌈log2 T⌉ steps over the whole array instead of T small ones.
    """
    length = int(x.shape[0])
    reach = 1
    while reach < length:
        later = [[0, reach], [0, 0]]
        x = x + decay * tf.pad(x[reach:], later)
        decay = decay * tf.pad(decay[reach:], later)
        reach *= 2
    return x
