"""Configuration keys of R2D2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from seedcli.config.sections import AgentConfig, Fraction, NonNegative, Positive, PositiveInt, Sections


class R2D2Config(AgentConfig):
    """R2D2 (`seedcli/agents/r2d2.py`)."""

    source: ClassVar[Literal["queue", "replay"]] = "replay"
    evaluates: ClassVar[bool] = True

    dueling_hidden: Annotated[int, Field(ge=0)] = Field(
        512, description="units of the hidden layer of each dueling head; 0: no hidden layer"
    )
    n_step: PositiveInt = Field(5, description="n of the n-step targets")
    value_rescaling: bool = Field(True, description="Q values are rescaled by h(x)")
    value_rescaling_epsilon: Positive = Field(1e-3, description="ε of h(x)")
    target_period: PositiveInt = Field(2500, description="updates between copies to the target network")
    priority_max_weight: Fraction = Field(0.9, description="η, weight of the largest |TD| in a priority")
    epsilon_base: Annotated[float, Field(gt=0, le=1)] = Field(
        0.4, description="environment i of N explores with base^(1 + exponent·i/(N-1))"
    )
    epsilon_exponent: NonNegative = Field(7.0, description="the exponent in epsilon_base's formula")
    evaluation_epsilon: Fraction = Field(1e-3, description="ε of evaluation environments")

    def conflicts(self, config: Sections) -> Iterator[str]:
        training = config.training
        if self.n_step > training.unroll_length:
            yield (
                f"agent.n_step = {self.n_step} must be at most training.unroll_length = {training.unroll_length}: "
                "a target cannot reach beyond its unroll"
            )
        if training.burn_in and not self.network.lstm and self.network.frame_stack == 1:
            yield (
                f"training.burn_in = {training.burn_in} must be 0 with agent.network.lstm = 0 and "
                "agent.network.frame_stack = 1: there is no recurrent state to warm up"
            )
