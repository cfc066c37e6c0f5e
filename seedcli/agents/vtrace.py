"""The V-trace actor-critic: Espeholt et al., "IMPALA" (2018), as SEED RL trains it (Espeholt et al., 2020)."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from seedcli.agents.actor_critic import ActorCriticAgent, Evaluation
from seedcli.agents.base import LossOutputs, UnrollBatch
from seedcli.agents.replicas import total
from seedcli.agents.targets import VTraceTargets, importance_weights, inside_trust_region, vtrace
from seedcli.agents.vtrace_config import VTraceConfig


class VTraceAgent(ActorCriticAgent):
    """An `ActorCriticAgent` and `agents.base.TargetsAgent` that corrects for the age of its data with importance
    weights."""

    Config = VTraceConfig
    config: VTraceConfig

    @staticmethod
    def fixes_targets(config: Any) -> bool:
        """With `agent.fixed_targets`."""
        return bool(config.fixed_targets)

    def targets(self, unrolls: UnrollBatch) -> dict[str, tf.Tensor]:
        """With `agent.fixed_targets`, quantities that all updates on a batch share, computed before the first; else {}.

        Advantages are centred: otherwise, where values lag behind the returns, every update would make all actions
        taken more probable, until the policy no longer explores.

        Returns:
            "vs" [T, B] float32, the value targets, and "error" [T, B], the advantages before their importance weights,
            less their weighted mean; 0 where masked.
        """
        if not self.config.fixed_targets:
            return {}
        batch = self.evaluate(unrolls)
        target = self._vtrace(batch)
        counts = tf.cast(unrolls.weights > 0.0, tf.float32)
        weight, advantage = total([tf.reduce_sum(x * counts) for x in (target.rho_tm1, target.pg_advantages)])
        error = tf.math.divide_no_nan(target.pg_advantages, target.rho_tm1)
        error -= tf.math.divide_no_nan(advantage, weight)
        return {"vs": target.vs_tm1, "error": error * batch.mask_tm1}

    def _vtrace(self, batch: Evaluation) -> VTraceTargets:
        return vtrace(
            log_rho_tm1=batch.log_pi - batch.log_mu,
            r_t=batch.r_t,
            discount_t=batch.discount_t,
            mask_tm1=batch.mask_tm1,
            values=batch.values,
            rho_clip=self.config.rho_clip,
            c_clip=self.config.c_clip,
            lambda_=self.config.lambda_,
        )

    def _target(self, batch: Evaluation, unrolls: UnrollBatch) -> VTraceTargets:
        """The targets of an update, always with the importance weights of the current policy."""
        if not self.config.fixed_targets:
            return self._vtrace(batch)
        ratio = importance_weights(batch.log_pi - batch.log_mu, batch.mask_tm1)
        rho, error = tf.minimum(ratio, self.config.rho_clip), unrolls.targets["error"]
        return VTraceTargets(unrolls.targets["vs"], rho * error, rho)

    def loss(self, unrolls: UnrollBatch) -> LossOutputs:
        """−log π(a)·advantage + baseline_cost·½(v_s − V)² − entropy_cost·H(π) + kl_cost·D, summed and divided by T·B.

        D is `Evaluation.divergence`, which brings back a policy that has left `agent.policy_clip`.

        T and B (`TrainingConfig.columns_per_update`) are those of the configuration, so the losses of parts of a batch
        add up to the loss of the batch. Actions on final records are masked.

        Returns:
            The loss, no priorities, and metrics, which are means over valid transitions: "advantage", "rho" (clipped
            importance weights), "advantage_scale" (divisor of advantages) and those of `value_metrics` and
            `loss_outputs`.
        """
        config, batch = self.config, self.evaluate(unrolls, last=not self.config.fixed_targets)
        target = self._target(batch, unrolls)
        value_unit, advantage_unit = self.units()
        policy_loss = -batch.log_pi * target.pg_advantages / advantage_unit
        if config.policy_clip:
            log_rho = batch.log_pi - batch.log_mu
            policy_loss *= inside_trust_region(log_rho, target.pg_advantages, config.policy_clip)
        squared_error = tf.square((target.vs_tm1 - batch.v_tm1) / value_unit)
        metrics = {
            "advantage": batch.mean(target.pg_advantages),
            "advantage_scale": advantage_unit,
            "rho": batch.mean(target.rho_tm1),
            **self.value_metrics(batch, target.vs_tm1),
        }
        return self.loss_outputs(batch, unrolls, policy_loss, squared_error, metrics)
