"""Builds the configured algorithm for an environment."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import tensorflow as tf

from seedcli.agents.base import Agent, AlgorithmSpec
from seedcli.agents.networks.frame_stack import normalized_arrays
from seedcli.config.choices import ALGORITHMS
from seedcli.config.sections import AgentConfig, TrainingConfig
from seedcli.errors import SeedError, UsageError, first_line, place_of
from seedcli.specs import EnvSpec

# The methods of `agents.base.Agent`.
METHODS = (
    "make_network",
    "initial_state",
    "exploration",
    "act",
    "parameter_groups",
    "observe",
    "loss",
    "after_update",
    "variables",
)

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
    _check_class(made, agent.algorithm, (agent, training, spec, seed, precision))
    try:
        built: Agent = made(agent, training, spec, seed, precision)
    except (SeedError, tf.errors.OpError):
        raise
    except Exception as error:
        raise UsageError(
            f'agent.algorithm = "{agent.algorithm}" cannot be built: {first_line(error)}{place_of(error)}'
        ) from error
    _check_attributes(built, agent.algorithm)
    _check_source(built.algorithm, agent)
    return built


def _check_class(made: type, name: str, arguments: tuple[Any, ...]) -> None:
    """Raise UsageError if a class lacks a method of the protocol, or is built with other arguments."""
    for method in METHODS:
        if not callable(getattr(made, method, None)):
            raise UsageError(
                f'agent.algorithm = "{name}" has no method {method}: an agent needs {", ".join(METHODS)} '
                "(docs/writing-an-agent.md)"
            )
    try:
        inspect.signature(made).bind(*arguments)
    except TypeError as error:
        raise UsageError(
            f'agent.algorithm = "{name}" cannot be built with (config, training, spec, seed, precision): {error}'
        ) from error


def _check_attributes(built: Any, name: str) -> None:
    """Raise UsageError if an agent lacks an attribute of the protocol."""
    if not isinstance(getattr(built, "algorithm", None), AlgorithmSpec):
        raise UsageError(f'agent.algorithm = "{name}" must set the attribute algorithm to an AlgorithmSpec when built')
    if not hasattr(getattr(built, "network", None), "variables"):
        raise UsageError(
            f'agent.algorithm = "{name}" must set the attribute network to its trained network, which has variables, '
            "when built"
        )


def _check_source(algorithm: AlgorithmSpec, config: AgentConfig) -> None:
    """Raise UsageError if `config`, which decides which keys count, names another source of batches than the agent."""
    for name in ("source", "sample_length"):
        own, declared = getattr(algorithm, name), getattr(config, name)
        if own != declared:
            raise UsageError(
                f'agent.algorithm = "{config.algorithm}" has AlgorithmSpec.{name} = {own!r}, but its '
                f"{type(config).__name__}.{name} is {declared!r}: give both the same"
            )
