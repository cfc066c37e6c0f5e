"""Compares a written model with the function it was written from, on real observations."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seedcli.config.sections import EnvironmentConfig
from seedcli.envs.placement import create_env_beside_tensorflow
from seedcli.export.function import ActingFunction
from seedcli.models.description import ACTION
from seedcli.models.runtimes import Model
from seedcli.specs import RowLayout, aligned_empty

LIMIT = 1e-5  # largest difference that passes
STEPS = 100  # of each environment
_ENVS = 4  # where the model answers any number
_SEED = 1


class Checked(NamedTuple):
    """The largest difference found.

    Attributes:
        difference: |a - b| / max(1, max |b|) over all outputs and steps, where b is the original's output and max |b|
            is over its numbers for one environment; infinite where one is non-finite.
        output: name of the output that has it.
        observations: compared.
    """

    difference: float
    output: str
    observations: int


def compare(function: ActingFunction, model: Model, environment: EnvironmentConfig) -> Checked:
    """Play the environment with the original, and give every input to the model too.

    Every step is compared separately: the model gets the state of the original, so differences do not accumulate.

    Args:
        function: the original.
        model: written from it.
        environment: played for `STEPS` steps in several instances.

    Raises:
        UsageError, SimulatorMissing, EnvironmentFailed: the environment cannot be built or fails.
    """
    description = model.description
    rows = description.batch or _ENVS
    random = np.random.default_rng(_SEED)
    state = model.zeros("state", rows)
    worst = Checked(0.0, ACTION, STEPS * rows)
    env = create_env_beside_tensorflow(environment, rows)
    try:
        layout = RowLayout(env.spec, rows)
        out = layout.views(aligned_empty(layout.nbytes))
        first = np.ones(rows, np.bool_)
        env.reset(_SEED, out)
        for _ in range(STEPS):
            observation = out.observation if isinstance(out.observation, dict) else {"observation": out.observation}
            shapes = {each.of: (rows, *each.shape) for each in function.inputs if each.kind == "noise"}
            noise = {of: random.random(shape, np.float32) for of, shape in shapes.items()}
            given = {"observation": observation, "reward": {"": out.reward}, "first": {"": first}}
            given |= {"state": state, "noise": noise}
            inputs = {each.name: np.array(given[each.kind][each.of]) for each in function.inputs}
            expected = function(inputs)
            found = model.runtime.run(inputs)
            apart = {name: _difference(found[name], expected[name]) for name in expected}
            worst = max(worst, *(Checked(apart[name], name, STEPS * rows) for name in apart))
            state = {each.of: expected[each.name] for each in function.outputs if each.kind == "state"}
            first = (out.terminated | out.truncated) != 0
            env.step(description.spaces.from_native(expected[ACTION]), out)
    finally:
        env.close()
    return worst


def _difference(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return np.inf
    a, b = found.astype(np.float64), expected.astype(np.float64)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return np.inf
    a, b = a.reshape(len(a), -1), b.reshape(len(b), -1)
    scale = np.maximum(1.0, np.abs(b).max(axis=1, keepdims=True, initial=0.0))
    return float(np.max(np.abs(a - b) / scale, initial=0.0))
