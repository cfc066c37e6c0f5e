"""Vector environments that are registered with Gymnasium as such."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from seedcli.envs.gymnasium.env import GymnasiumVectorEnv
from seedcli.envs.gymnasium.registered import RegisteredVectorEnv, make_registered
from seedcli.envs.registry import create_env
from seedcli.errors import EnvironmentFailed
from tests.envs.helpers import Played, gymnasium_config

E = 4


def test_cartpoles_are_stepped_together_as_one_alone_would_be() -> None:
    """The same states and actions lead to the same records, up to the end of the first episode of each."""
    config = gymnasium_config("CartPole-v1", max_episode_steps=20)
    with Played(config, E) as played:
        assert isinstance(played.env, RegisteredVectorEnv)
        played.reset(3)
        ones = [gymnasium.make("CartPole-v1", max_episode_steps=20) for _ in range(E)]
        for index, one in enumerate(ones):
            one.reset()
            one.unwrapped.state = played.env.envs[0].state[:, index].copy()  # type: ignore[attr-defined]
        ended = np.zeros(E, np.bool_)
        random = np.random.default_rng(1)
        ends = {"terminated": 0, "truncated": 0}
        for _ in range(21):
            actions = random.integers(0, 2, E).astype(np.int32)
            # The first balances until it is truncated, the second falls.
            actions[1] = 0
            actions[0] = int(played.out.observation[0, 2] + played.out.observation[0, 3] > 0)
            played.env.step(actions, played.out)
            for index in np.flatnonzero(~ended):
                observation, reward, terminated, truncated, _ = ones[index].step(int(actions[index]))
                np.testing.assert_allclose(played.out.observation[index], observation, rtol=1e-6, atol=1e-7)
                found = played.out.reward[index], played.out.terminated[index], played.out.truncated[index]
                assert found == (reward, terminated, truncated)
                ends["terminated"] += terminated
                ends["truncated"] += truncated
                ended[index] = terminated or truncated
    assert ended.all()
    assert ends["terminated"] and ends["truncated"]


class _Vector(VectorEnv[Any, Any, Any]):
    """Observes a Dict: a vector of what the actions were, and a category."""

    def __init__(self, num_envs: int, size: int = 2, mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> None:
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space = _spaces(size)
        self.single_action_space = Discrete(3)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.wrong: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._observe(np.zeros(self.num_envs)), {}

    def step(self, actions: npt.NDArray[Any]) -> Any:
        no = np.zeros(self.num_envs, np.bool_)
        return self._observe(actions), actions.astype(np.float64), no, no, {}

    def _observe(self, actions: npt.NDArray[Any]) -> Any:
        if self.wrong is not None:
            return self.wrong
        size = self.single_observation_space["seen"].shape[0]  # type: ignore[index]
        seen = np.repeat(actions[:, None].astype(np.float32), size, axis=1)
        return {"inner": {"kind": np.arange(self.num_envs) % 2 + 1}, "seen": seen}


def _spaces(size: int) -> Dict:
    return Dict({"seen": Box(-9, 9, (size,), np.float32), "inner": Dict({"kind": Discrete(2, start=1)})})


class _One(gymnasium.Env[Any, Any]):
    def __init__(self, size: int = 2) -> None:
        self.observation_space, self.action_space = _spaces(2), Discrete(3)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    monkeypatch.setattr(gymnasium, "registry", gymnasium.envs.registration.registry)
    gymnasium.register("Together-v0", entry_point=_One, vector_entry_point=_Vector)
    gymnasium.register(
        "SameStep-v0",
        entry_point=_One,
        vector_entry_point=lambda num_envs: _Vector(num_envs, mode=AutoresetMode.SAME_STEP),
    )
    gymnasium.register("Limited-v0", entry_point=_One, vector_entry_point=_Vector, max_episode_steps=5)


def test_dicts_are_read_in_batches() -> None:
    with Played(gymnasium_config("Together-v0"), E) as played:
        assert isinstance(played.env, RegisteredVectorEnv)
        played.reset(1)
        played.env.step(np.array([0, 1, 2, 1], np.int32), played.out)
        np.testing.assert_array_equal(played.out.observation["seen"], [[0, 0], [1, 1], [2, 2], [1, 1]])
        np.testing.assert_array_equal(played.out.observation["inner/kind"], [0, 1, 0, 1])
        np.testing.assert_array_equal(played.out.reward, [0, 1, 2, 1])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"inner": {"kind": np.ones(E, np.int64)}}, "KeyError"),
        ({"inner": {"kind": np.full(E, 3)}, "seen": np.zeros((E, 2), np.float32)}, "a category that does not exist"),
        ({"inner": {"kind": np.ones(E)}, "seen": np.zeros((E, 2), np.float32)}, "type float64"),
        ({"inner": {"kind": np.ones(E, np.int64)}, "seen": np.zeros((2,), np.float32)}, "shape"),
        ({"inner": {"kind": np.ones(E, np.int64)}, "seen": np.full((E, 2), np.nan)}, "environment 0 .* nan"),
    ],
)
def test_wrong_observations_are_refused(wrong: Any, says: str) -> None:
    with Played(gymnasium_config("Together-v0"), E) as played:
        played.reset(1)
        played.env.envs[0].wrong = wrong  # type: ignore[attr-defined]
        with pytest.raises(EnvironmentFailed, match=says):
            played.step(0)


@pytest.mark.parametrize(
    "config",
    [
        gymnasium_config("Together-v0", kwargs={"size": 3}),  # other spaces
        gymnasium_config("SameStep-v0"),  # another way to reset
        gymnasium_config("Limited-v0"),  # does not take max_episode_steps
        gymnasium_config("Pendulum-v1"),  # none is registered
    ],
    ids=["spaces", "resets", "keywords", "none"],
)
def test_instances_are_stepped_where_a_vector_cannot_stand_for_them(config: Any) -> None:
    assert make_registered(config, E) is None
    env = create_env(config, E)
    assert isinstance(env, GymnasiumVectorEnv)
    env.close()


def test_its_failures_are_named() -> None:
    with Played(gymnasium_config("Together-v0"), E) as played:
        played.reset(1)
        played.env.envs[0].step = lambda actions: 1 / 0  # type: ignore[attr-defined]
        with pytest.raises(EnvironmentFailed, match=r"Together-v0 failed in step: ZeroDivisionError.*test_registered"):
            played.step(0)
