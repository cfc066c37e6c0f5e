"""The example in the README of a model prepares observations of every form as the policy reads them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from seedcli.config.sources import load_config
from seedcli.envs.gymnasium.plain import PlainSpaces
from seedcli.envs.gymnasium.spaces import Actions, Observations
from seedcli.export.check import Checked
from seedcli.export.exporter import describe
from seedcli.export.readme import readme
from seedcli.specs import EnvSpec
from tests.export.helpers import function_of, random_agent

ARM = spaces.Dict(
    joints=spaces.Box(-5.0, 5.0, (2,), np.float64),
    tool=spaces.Discrete(3, start=-1),
    knobs=spaces.MultiDiscrete([2, 3], start=[4, 0]),
)
SPACES = {
    "dict": spaces.Dict(camera=spaces.Box(0, 255, (2, 3), np.uint8), arm=ARM, lamps=spaces.MultiBinary(3)),
    "numbers": spaces.Box(-1.0, 1.0, (4,), np.float64),
    "category": spaces.Discrete(5, start=2),
}


@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize("name", SPACES)
def test_prepared_observations_are_those_that_the_policy_reads(name: str, batch: int | None) -> None:
    space = SPACES[name]
    observations, actions = Observations(space, "test/env"), Actions(spaces.Discrete(2), "test/env")
    plain = PlainSpaces(EnvSpec("test/env", observations.spec, actions.spec), observations, actions)
    config = load_config("gymnasium_vtrace", sets=["agent.network.hidden=[8]"], environ={}).config
    function = function_of(random_agent(config, plain.spec), plain, batch=batch)
    description = describe(function, config, 70)
    text = readme("policy.onnx", "onnx", description, Checked(0.0, "action", 10))
    (code,) = re.findall(r"^def prepare.*?(?=^inputs)", text, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"np": np}
    exec(code, names)

    space.seed(1)
    given = [space.sample() for _ in range(batch or 1)]
    for observation in (_stacked(given) if batch else given[0], names["observation"]):
        read, rows = plain.read(observation)
        assert rows == batch
        prepared = names["prepare"](observation)
        parts = read if isinstance(read, dict) else {"": read}
        wanted = {f"observation_{key}".replace("/", "_").rstrip("_"): part for key, part in parts.items()}
        assert set(prepared) == set(wanted) == {each.name for each in description.inputs}
        for each in description.inputs:
            np.testing.assert_array_equal(prepared[each.name], wanted[each.name], strict=True)
            assert prepared[each.name].shape == (batch or 1, *each.shape) and prepared[each.name].dtype == each.dtype


def _stacked(values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return {key: _stacked([value[key] for value in values]) for key in values[0]}
    return np.stack(values)
