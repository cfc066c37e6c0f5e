"""The model of every preset's agent, in every format, acts as the agent does and keeps its own state."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from seedcli.config.presets import preset_layers, preset_names
from seedcli.config.sources import load_config
from seedcli.envs.gymnasium.plain import PlainSpaces, spaces_of
from seedcli.envs.placement import plain_spaces
from seedcli.envs.registry import create_env, family_of
from seedcli.errors import EnvironmentFailed
from seedcli.export.exporter import describe
from seedcli.export.writing import WRITERS
from seedcli.inference.policy import AgentPolicy
from seedcli.models.acting import ModelActor
from seedcli.models.runtimes import open_model
from tests.export.helpers import function_of, observations, paths, random_agent

ROWS, STEPS = 3, 12
# Variants have the agent of their base.
PRESETS = [name for name in preset_names() if len(list(preset_layers(name))) == 1]
ENVS = {"gymnasium_sac": "Pendulum-v1"}  # where the preset's environment has actions that its agent does not support


def spaces(preset: str) -> PlainSpaces:
    environment = load_config(preset, flags={"--env": ENVS.get(preset)}, environ={}).config.environment
    try:
        env = create_env(environment, 1)
    except EnvironmentFailed:  # its simulator is in no package registry
        expected = family_of(environment).expected_spec(environment)
        assert expected is not None
        return spaces_of(expected)
    env.close()
    return plain_spaces(environment, env.spec)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("preset", PRESETS)
def test_the_agent_of_every_preset_in_every_format(preset: str, tmp_path: Path) -> None:
    config, plain = load_config(preset, flags={"--env": ENVS.get(preset)}, environ={}).config, spaces(preset)
    agent = random_agent(config, plain.spec)
    function = function_of(agent, plain)
    description = describe(function, config, 70)
    actors = {}
    for name, path in paths(tmp_path).items():
        WRITERS[name](function, description, path)
        actors[name] = ModelActor(open_model(path), seed=1)
    policy = AgentPolicy(agent, plain.spec, max_slots=ROWS, seed=1, greedy=True, detailed=True).devices[0]
    rng = np.random.default_rng(4)
    first, seen = np.ones(ROWS, bool), []
    for _ in range(STEPS):
        observation = observations(plain.spec, ROWS, rng)
        reward = np.where(first, 0.0, rng.normal(size=ROWS)).astype(np.float32)
        decision = policy.act(observation, reward, first, np.arange(ROWS, dtype=np.int32))
        expected = plain.write(decision.action)
        seen.append(np.concatenate([x.reshape(ROWS, -1) for x in decision.details.values()], axis=1))
        for name, actor in actors.items():
            acted = actor.act(observation, reward, first)
            np.testing.assert_allclose(acted.action, expected, rtol=1e-4, atol=1e-5, err_msg=name)
            assert set(acted.details) == set(decision.details) - {"greedy_action"}
            for detail, values in acted.details.items():
                wanted = decision.details[detail]
                scale = max(1.0, float(np.abs(wanted).max()))
                np.testing.assert_allclose(values, wanted, rtol=0, atol=2e-5 * scale, err_msg=f"{name} {detail}")
        first = rng.random(ROWS) < 0.2
    assert np.std(np.concatenate(seen), axis=0).max() > 0.02, "an agent that always does the same shows nothing"
