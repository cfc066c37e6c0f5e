"""Valid random observations and unrolls, which `seed bench` feeds to the parts of a learner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from seedcli.agents.base import Agent, UnrollBatch
from seedcli.config.sections import EnvironmentConfig
from seedcli.envs.placement import create_env_beside_tensorflow
from seedcli.envs.registry import family_of
from seedcli.errors import SimulatorMissing
from seedcli.specs import ArraySpec, EnvSpec, map_arrays
from seedcli.training.batches import zero_unrolls


def environment_spec(config: EnvironmentConfig) -> EnvSpec:
    """The specification of an environment, even if its simulator is not installed.

    Raises:
        SimulatorMissing: only the simulator can tell, and it is not installed.
        UsageError, EnvironmentFailed: as of `envs.create_env`.
    """
    try:
        probe = create_env_beside_tensorflow(config, 1)
    except SimulatorMissing:
        expected = family_of(config).expected_spec(config)
        if expected is None:
            raise
        return expected
    spec = probe.spec
    probe.close()
    return spec


def random_observation(spec: EnvSpec, shape: Sequence[int]) -> Any:
    """Numbers that are valid in every type, [*shape, *observation], by name where the specification has names."""
    rng = np.random.default_rng(1)

    def one(array: ArraySpec) -> Any:
        categories = np.array(array.categories).reshape(array.shape) if array.categories else None
        high = categories if categories is not None else 2 if array.dtype == "bool" else 128
        return rng.integers(0, high, (*shape, *array.shape)).astype(array.dtype)

    return map_arrays(one, spec.observation)


def random_unrolls(agent: Agent, spec: EnvSpec, columns: int) -> UnrollBatch:
    """A training batch of `columns` columns, in arrays of the host: random observations and actions, no rewards."""
    unrolls = zero_unrolls(agent, spec, columns)
    shape = unrolls.reward.shape
    action = spec.action.sample(np.random.default_rng(1), *shape)
    return unrolls._replace(observation=random_observation(spec, shape), action=action)
