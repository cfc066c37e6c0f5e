"""Checks that algorithm and configuration support short training columns, before anything is allocated."""

from __future__ import annotations

import tensorflow as tf

from seedcli.agents.base import Agent
from seedcli.config.schema import Config
from seedcli.errors import UsageError


def check_replay(agent: Agent, config: Config) -> None:
    """Raise UsageError if the agent's training columns contradict its source or the configuration."""
    if agent.algorithm.sample_length is not None:
        _check_sample_length(agent, config)


def _check_sample_length(agent: Agent, config: Config) -> None:
    algorithm, name = agent.algorithm, type(agent).__name__
    length, unroll_length = algorithm.sample_length, algorithm.unroll_length
    asked = f"{name} has AlgorithmSpec.sample_length = {length}"
    if algorithm.source != "replay":
        raise UsageError(
            f'{asked}, which is for source = "replay": a queue gives out whole unrolls, so leave sample_length out'
        )
    if length is None or not 1 <= length <= unroll_length:
        raise UsageError(
            f"{asked}, which must be at least 1 and at most training.unroll_length = {unroll_length}: change one of "
            "the two"
        )
    if length == unroll_length:
        return
    if algorithm.burn_in:
        raise UsageError(
            f"training.burn_in = {algorithm.burn_in} must be 0 with {name}, which trains on {length} of an unroll's "
            f"{unroll_length} transitions: there is nothing to warm up before a random record"
        )
    if tf.nest.flatten(agent.initial_state(1)):
        raise UsageError(
            f"{asked}, but it also has a state, which is stored only for the start of an unroll: return an "
            "empty initial_state (no LSTM, no frame stack, no previous action), or leave sample_length out"
        )
    if config.replay.sampling == "prioritized":
        raise UsageError(
            f'replay.sampling = "prioritized" must be "uniform" with {name}, which trains on {length} of an '
            f"unroll's {unroll_length} transitions: priorities are those of whole unrolls"
        )
