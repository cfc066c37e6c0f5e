"""Configuration keys of V-trace."""

from __future__ import annotations

from pydantic import Field

from seedcli.agents.actor_critic_config import ActorCriticConfig
from seedcli.config.sections import NonNegative, Positive


class VTraceConfig(ActorCriticConfig):
    """V-trace (`seedcli/agents/vtrace.py`)."""

    rho_clip: Positive = Field(1.0, description="ρ̄, clips importance weights of the TD errors")
    c_clip: Positive = Field(1.0, description="c̄, clips importance weights of the traces")
    policy_clip: NonNegative = Field(
        0.0, description="PPO clipping, no policy gradient that moves π/μ further outside 1 ± this; 0: off"
    )
    fixed_targets: bool = Field(
        False,
        description="compute targets once for each batch, not for each update, with advantages of mean 0; "
        "minibatches are then of single transitions, unless the network has an LSTM",
    )
