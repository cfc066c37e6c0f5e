"""The V-trace actor-critic: Espeholt et al., "IMPALA" (2018), as SEED RL trains it (Espeholt et al., 2020)."""

from __future__ import annotations

import tensorflow as tf

from seedcli.agents import targets
from seedcli.agents.actor_critic import ActorCriticAgent
from seedcli.agents.base import LossOutputs, UnrollBatch
from seedcli.agents.vtrace_config import VTraceConfig


class VTraceAgent(ActorCriticAgent):
    """An `ActorCriticAgent` that corrects for the age of its data with importance weights."""

    Config = VTraceConfig
    config: VTraceConfig

    def loss(self, unrolls: UnrollBatch) -> LossOutputs:
        """−log π(a)·advantage + baseline_cost·½(v_s − V)² − entropy_cost·H(π), summed and divided by T·B.

        T and B (`TrainingConfig.columns_per_update`) are those of the configuration, so the losses of parts of a batch
        add up to the loss of the batch. Actions on final records are masked.

        Returns:
            The loss, no priorities, and metrics, which are means over valid transitions: "advantage", "rho" (clipped
            importance weights), "advantage_scale" (divisor of advantages) and those of `value_metrics` and
            `loss_outputs`.
        """
        config, batch = self.config, self.evaluate(unrolls)
        log_rho = batch.log_pi - batch.log_mu
        target = targets.vtrace(
            log_rho_tm1=log_rho,
            r_t=batch.r_t,
            discount_t=batch.discount_t,
            mask_tm1=batch.mask_tm1,
            values=batch.values,
            rho_clip=config.rho_clip,
            c_clip=config.c_clip,
            lambda_=config.lambda_,
        )
        value_unit, advantage_unit = self.units()
        policy_loss = -batch.log_pi * target.pg_advantages / advantage_unit
        if config.policy_clip:
            policy_loss *= targets.inside_trust_region(log_rho, target.pg_advantages, config.policy_clip)
        squared_error = tf.square((target.vs_tm1 - batch.v_tm1) / value_unit)
        metrics = {
            "advantage": batch.mean(target.pg_advantages),
            "advantage_scale": advantage_unit,
            "rho": batch.mean(target.rho_tm1),
            **self.value_metrics(batch, target.vs_tm1),
        }
        return self.loss_outputs(batch, unrolls, policy_loss, squared_error, metrics)
