"""Configuration keys of SAC."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from seedcli.config.sections import AgentConfig, Positive, Sections


class SACConfig(AgentConfig):
    """Soft actor-critic (`seedcli/agents/sac.py`)."""

    source: ClassVar[Literal["queue", "replay"]] = "replay"
    sample_length: ClassVar[int | None] = 1

    tau: Annotated[float, Field(gt=0, le=1)] = Field(
        0.005, description="τ, fraction of the way to the critics that the target critics move after each update"
    )
    temperature: Literal["auto"] | Positive = Field(
        "auto", description="α, weight of the entropy against the reward; auto: learned, starting at 1"
    )
    target_entropy: Literal["auto"] | float = Field(
        "auto", description="target entropy of a learned temperature, nats; auto: minus the number of action dimensions"
    )
    critic_rate: Positive = Field(1.0, description="learning rate of the critics, relative to training.learning_rate")
    temperature_rate: Positive = Field(
        1.0, description="learning rate of the temperature, relative to training.learning_rate"
    )

    def conflicts(self, config: Sections) -> Iterator[str]:
        network = self.network
        remembers = (
            ("lstm", network.lstm, 0),
            ("frame_stack", network.frame_stack, 1),
            ("previous_action_reward", network.previous_action_reward, False),
        )
        for key, value, needed in remembers:
            if value != needed:
                yield (
                    f"agent.network.{key} = {str(value).lower()} must be {str(needed).lower()} with agent.algorithm "
                    f"{self.algorithm}: it trains on single transitions, so its networks cannot have a memory"
                )
        if config.training.burn_in:
            yield (
                f"training.burn_in = {config.training.burn_in} must be 0 with agent.algorithm {self.algorithm}: there "
                "is no recurrent state to warm up"
            )
        if self.temperature != "auto":
            for key in ("target_entropy", "temperature_rate"):
                value = getattr(self, key)
                if value != type(self).model_fields[key].default:
                    yield (
                        f'agent.{key} = {value:g} needs agent.temperature = "auto": a fixed temperature of '
                        f"{self.temperature:g} is not trained"
                    )
