"""Builds the configured algorithm for an environment."""

from __future__ import annotations

import logging
from typing import Any

from seedcli.agents.base import Agent
from seedcli.agents.networks.frame_stack import normalized_arrays
from seedcli.config.choices import ALGORITHMS
from seedcli.config.sections import AgentConfig, TrainingConfig
from seedcli.specs import EnvSpec

_log = logging.getLogger(__name__)


def create_agent(
    agent: AgentConfig, training: TrainingConfig, spec: EnvSpec, seed: int, *, precision: str = "float32"
) -> Agent:
    """Build the configured agent for an environment; the same seed gives the same initial variables.

    Logs a warning if `agent.network.normalize_observations` is on and there is nothing to normalize.

    Args:
        agent: the algorithm and its network, an instance of the algorithm's `Config`.
        training: K, T and B; losses are divided by T·B.
        spec: the environment.
        seed: seed of the initial variables, at least 0.
        precision: precision of torso and LSTM, see `topology.precision`; variables are float32 in any.

    Raises:
        UsageError: the algorithm or torso does not exist or cannot be imported, the network does not support the
            environment's observations, or the algorithm its actions.
    """
    if agent.network.normalize_observations and not normalized_arrays(agent.network, spec):
        _log.warning(
            "agent.network.normalize_observations = true has no effect: observations of %s contain no numeric arrays",
            spec.name,
        )
    made: Any = ALGORITHMS.load(agent.algorithm)
    built: Agent = made(agent, training, spec, seed, precision)
    return built
