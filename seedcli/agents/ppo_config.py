"""Configuration keys of PPO."""

from __future__ import annotations

from pydantic import Field

from seedcli.agents.actor_critic_config import ActorCriticConfig
from seedcli.config.sections import Fraction, NonNegative, Positive


class PPOConfig(ActorCriticConfig):
    """PPO (`seedcli/agents/ppo.py`); `training.epochs` and `training.minibatches` make its updates."""

    lambda_: Fraction = Field(0.95, alias="lambda", description="λ of the advantages and value targets")
    policy_clip: Positive = Field(0.2, description="ε, the ratio of policy to behaviour policy is clipped to 1 ± this")
    value_clip: NonNegative = Field(
        0.0,
        description="values are clipped to ± this around those before the first update on a batch, in standard "
        "deviations of the targets with normalize_values; 0: off",
    )
    normalize_advantages: bool = Field(
        True,
        description="scale advantages of each batch to mean 0 and standard deviation 1, or less where values explain "
        "more than 99 % of the returns' variance and, with normalize_values, in batches without rewards",
    )
    target_kl: NonNegative = Field(
        0.0, description="updates on a batch end once the KL divergence from the behaviour policy is above this; 0: off"
    )
