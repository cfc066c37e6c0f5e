"""Proximal policy optimization: Schulman et al., "Proximal Policy Optimization Algorithms" (2017).

Details follow Andrychowicz et al., "What Matters In On-Policy Reinforcement Learning?" (2020), and Huang et al., "The
37 Implementation Details of Proximal Policy Optimization" (2022).
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from seedcli.agents import targets
from seedcli.agents.actor_critic import ActorCriticAgent, Evaluation
from seedcli.agents.base import LossOutputs, Symptom, UnrollBatch
from seedcli.agents.networks.models import evaluate
from seedcli.agents.ppo_config import PPOConfig
from seedcli.agents.replicas import total
from seedcli.agents.value_scale import UNEXPLAINED
from seedcli.config.sections import TrainingConfig
from seedcli.specs import EnvSpec

_SMALLEST = 1e-6  # lower bound of the deviation of advantages, in units of the values


class PPOAgent(ActorCriticAgent):
    """An `ActorCriticAgent` and `agents.base.TargetsAgent` that passes over each batch several times.

    The denominator of the policy ratio is the recorded behaviour policy, so the ratio is also correct for older data.
    """

    Config = PPOConfig
    config: PPOConfig

    def __init__(
        self, config: PPOConfig, training: TrainingConfig, spec: EnvSpec, seed: int, precision: str = "float32"
    ) -> None:
        """Build the agent; raises UsageError if the network does not support the environment's observations."""
        super().__init__(config, training, spec, seed, precision)
        self._synchronous = training.synchronous

    @staticmethod
    def records_values(config: Any, training: TrainingConfig) -> bool:
        """With normalised values, and with `training.synchronous`, for `targets`."""
        return bool(config.normalize_values or training.synchronous)

    @staticmethod
    def fixes_targets(config: Any) -> bool:
        """Always."""
        return True

    def symptoms(self, config: Any) -> tuple[Symptom, ...]:
        """Those of all actor-critic agents, and updates of a batch that are mostly clipped."""
        clipped = Symptom(
            metric="clip_fraction",
            above=0.5,
            sentence="{:.0%} of the policy's ratios are clipped, so most of a batch no longer trains it",
            settings=("training.synchronous", "training.learning_rate", "training.epochs"),
        )
        return (*super().symptoms(config), clipped)

    def targets(self, unrolls: UnrollBatch) -> dict[str, tf.Tensor]:
        """Quantities that all updates on a batch share, computed before the first.

        Returns:
            "value" [T, B] float32, V(x); "return" [T, B], the value targets; "advantage" [T, B], in units of
            "advantage_scale" [T, B], and 0 where masked.
        """
        values = self._values(unrolls)
        r_t, discount_t, mask_tm1 = self._transitions(
            tf.ensure_shape(unrolls.reward, [self.algorithm.records, None]), unrolls
        )
        target = targets.gae(
            r_t=r_t, discount_t=discount_t, mask_tm1=mask_tm1, values=values, lambda_=self.config.lambda_
        )
        advantage, scale = target.advantages_tm1, self.units()[1]
        if self.config.normalize_advantages:
            counted = mask_tm1 * tf.cast(unrolls.weights > 0.0, tf.float32)
            mean, scale = self._moments(advantage, target.returns_tm1, r_t, counted)
            advantage = (advantage - mean) * mask_tm1
        return {
            "value": values[:-1],
            "return": target.returns_tm1,
            "advantage": advantage / scale,
            "advantage_scale": tf.fill(tf.shape(advantage), scale),
        }

    def _values(self, unrolls: UnrollBatch) -> tf.Tensor:
        """V of every record before the first update, [T+1, B] float32.

        With `training.synchronous`, the same weights have already predicted the recorded values of all but the first
        record.
        """
        if not self._synchronous:
            return self.evaluate(unrolls).values
        first = unrolls.map_columns(lambda array, axis: array[:1] if axis else array)
        return tf.concat([evaluate(self.network, first, 0).value, unrolls.recorded["value"][1:]], axis=0)

    def _moments(
        self, advantage: tf.Tensor, returns: tf.Tensor, r_t: tf.Tensor, mask: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and deviation of advantages [T, B] where the mask [T, B] is 1, over all devices, scalars float32.

        The deviation is bounded from below, see `value_scale.UNEXPLAINED`. The returns of a batch without rewards
        hardly vary either. With normalised values, the running deviation therefore replaces theirs once it is known:
        where rewards are rare, errors of the values would otherwise undo what was learned from them.
        """

        def sums(*each: tf.Tensor) -> list[tf.Tensor]:
            return total([tf.reduce_sum(tf.where(mask > 0.0, x, 0.0)) for x in each])

        count, of_advantages, of_returns, rewards = sums(mask, advantage, returns, tf.cast(r_t != 0.0, tf.float32))
        count = tf.maximum(count, 1.0)
        mean = of_advantages / count
        second, second_of_returns = sums(tf.square(advantage - mean), tf.square(returns - of_returns / count))
        unit, running = self.units()[0], self.network.value_scale
        if running is not None:
            second_of_returns = tf.where(running.known() & (rewards == 0.0), count * tf.square(unit), second_of_returns)
        variance = tf.maximum(second, UNEXPLAINED * second_of_returns) / count
        return mean, tf.maximum(tf.sqrt(variance), _SMALLEST * unit)

    def loss(self, unrolls: UnrollBatch) -> LossOutputs:
        """−L^CLIP + baseline_cost·½(R − V)² − entropy_cost·H(π) + kl_cost·D, summed and divided by T·B.

        L^CLIP = min(r·A, clip(r, 1 − ε, 1 + ε)·A) with r = π/μ (equation 7 of the paper), where μ is the recorded
        behaviour policy; A and R are those of `targets`. D is `Evaluation.divergence`, which equation 8 uses instead of
        the clip. L^CLIP has no gradient beyond the clip; D brings r back. With `agent.value_clip` c the error is the
        larger of those of V and of clip(V, V_old ± c), in units of the values (Huang et al., detail 9).

        T and B (`TrainingConfig.columns_per_update`) are those of the configuration, so the losses of parts of a batch
        add up to the loss of the batch. Actions on final records are masked.

        Returns:
            The loss, no priorities, with `agent.target_kl` the distance to it, and metrics, which are means over
            valid transitions: "advantage", "advantage_scale" (divisor of advantages), "rho" (r), "clip_fraction" (of
            ratios beyond 1 ± ε) and those of `value_metrics` and `loss_outputs`.
        """
        config, batch, target = self.config, self.evaluate(unrolls, last=False), unrolls.targets
        epsilon, advantage = config.policy_clip, target["advantage"]
        ratio = tf.exp(batch.log_ratio)
        clipped = tf.clip_by_value(ratio, 1.0 - epsilon, 1.0 + epsilon)
        policy_loss = -tf.minimum(ratio * advantage, clipped * advantage)
        metrics = {
            "advantage": batch.mean(target["return"] - target["value"]),
            "advantage_scale": tf.reduce_mean(target["advantage_scale"]),
            "rho": batch.mean(ratio),
            "clip_fraction": batch.mean(tf.cast(tf.abs(ratio - 1.0) > epsilon, tf.float32)),
            **self.value_metrics(batch, target["return"]),
        }
        stop = tf.stop_gradient(batch.mean(batch.divergence)) - config.target_kl if config.target_kl else None
        return self.loss_outputs(batch, unrolls, policy_loss, self._squared_error(batch, unrolls), metrics, stop)

    def _squared_error(self, batch: Evaluation, unrolls: UnrollBatch) -> tf.Tensor:
        """Squared errors of the values, in their units, [T, B] float32."""
        unit, _ = self.units()
        v_tm1, old, returns = batch.v_tm1, unrolls.targets["value"], unrolls.targets["return"]
        error = tf.square((returns - v_tm1) / unit)
        if not self.config.value_clip:
            return error
        most = self.config.value_clip * unit
        near = old + tf.clip_by_value(v_tm1 - old, -most, most)
        return tf.maximum(error, tf.square((returns - near) / unit))
