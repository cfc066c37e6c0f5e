"""Configuration keys that algorithms with a policy and a value share."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from seedcli.config.sections import AgentConfig, Decay, Fraction, NonNegative, Positive, Sections


class ActorCriticConfig(AgentConfig):
    """An algorithm that trains a policy and a value on unrolls in the order in which they were played."""

    lambda_: Fraction = Field(1.0, alias="lambda", description="λ of the advantages and value targets")
    baseline_cost: NonNegative = Field(0.5, description="weight of the value loss")
    entropy_cost: NonNegative = Field(0.01, description="weight of the entropy bonus")
    kl_cost: NonNegative = Field(
        0.0,
        description="weight of the KL divergence from the behaviour policy, which pulls back a policy that the "
        "optimizer's momentum takes beyond policy_clip; 0: off",
    )
    normalize_values: bool = Field(
        False, description="normalize value targets (PopArt), and advantages by their root mean square"
    )
    separate_value: bool = Field(False, description="separate networks for policy and value")
    bound_cost: NonNegative = Field(0.0, description="Box actions: weight of the penalty on means outside the bounds")
    initial_std: Positive = Field(1.0, description="Box actions: initial standard deviation of the policy")
    noise_correlation: Decay = Field(
        0.0, description="Box actions: correlation of the noise of successive actions; higher values explore further"
    )
    noise_persistence: Decay = Field(
        0.0,
        description="discrete actions: probability that an action reuses the random number of the previous one; "
        "higher values explore further",
    )

    def conflicts(self, config: Sections) -> Iterator[str]:
        if config.training.burn_in:
            yield (
                f"training.burn_in = {config.training.burn_in} must be 0 with agent.algorithm {self.algorithm}: "
                "only replayed unrolls have stale states"
            )
