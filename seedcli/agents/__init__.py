"""Algorithms: their protocol, networks, targets and distributions as pure functions, and one file per algorithm.
It imports TensorFlow, and of this package only `config`, `specs` and `errors`. Where records come from and how
gradients are applied is outside of it.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

# The agents need TensorFlow: override the backend in the user's Keras settings.
os.environ["KERAS_BACKEND"] = "tensorflow"

if TYPE_CHECKING:
    from seedcli.agents.actor_critic import ActorCriticAgent
    from seedcli.agents.base import (
        ActInputs,
        ActOutputs,
        Agent,
        AlgorithmSpec,
        LossOutputs,
        ParameterGroup,
        Role,
        State,
        Symptom,
        UnrollBatch,
    )
    from seedcli.agents.ppo import PPOAgent
    from seedcli.agents.r2d2 import R2D2Agent
    from seedcli.agents.sac import SACAgent
    from seedcli.agents.vtrace import VTraceAgent
    from seedcli.config.sections import AgentConfig, NetworkConfig

# Loaded when they are first used, since they import TensorFlow.
_NAMES = {
    **dict.fromkeys(("ActorCriticAgent",), "seedcli.agents.actor_critic"),
    **dict.fromkeys(("PPOAgent",), "seedcli.agents.ppo"),
    **dict.fromkeys(("R2D2Agent",), "seedcli.agents.r2d2"),
    **dict.fromkeys(("SACAgent",), "seedcli.agents.sac"),
    **dict.fromkeys(("VTraceAgent",), "seedcli.agents.vtrace"),
    **dict.fromkeys(("AgentConfig", "NetworkConfig"), "seedcli.config.sections"),
    **dict.fromkeys(
        (
            "ActInputs",
            "ActOutputs",
            "Agent",
            "AlgorithmSpec",
            "LossOutputs",
            "ParameterGroup",
            "Role",
            "State",
            "Symptom",
            "UnrollBatch",
        ),
        "seedcli.agents.base",
    ),
}

__all__ = [
    "ActInputs",
    "ActOutputs",
    "ActorCriticAgent",
    "Agent",
    "AgentConfig",
    "AlgorithmSpec",
    "LossOutputs",
    "NetworkConfig",
    "PPOAgent",
    "ParameterGroup",
    "R2D2Agent",
    "Role",
    "SACAgent",
    "State",
    "Symptom",
    "UnrollBatch",
    "VTraceAgent",
]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'seedcli.agents' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *globals()})
