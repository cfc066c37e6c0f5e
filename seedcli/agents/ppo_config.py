"""Configuration keys of PPO."""

from __future__ import annotations

from pydantic import Field

from seedcli.agents.actor_critic_config import ActorCriticConfig
from seedcli.config.sections import Fraction, NonNegative, Positive


class PPOConfig(ActorCriticConfig):
    """PPO (`seedcli/agents/ppo.py`); `training.epochs` and `training.minibatches` make its updates."""

    lambda_: Fraction = Field(0.95, alias="lambda", description="λ of the advantages and value targets")
    policy_clip: Positive = Field(0.2, description="ε, the ratio of policy to behaviour policy counts up to 1 ± this")
    value_clip: NonNegative = Field(
        0.0,
        description="values count up to ± this, with normalize_values in deviations of the targets, from those before "
        "the first update on a batch; 0: off",
    )
    normalize_advantages: bool = Field(
        True,
        description="advantages of each batch get mean 0 and deviation 1, less where values explain more than 99 % of "
        "the returns' variance and in batches without rewards; with normalize_values too",
    )
    target_kl: NonNegative = Field(
        0.0, description="updates on a batch end once the KL divergence from the behaviour policy is above this; 0: off"
    )
