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

from seedcli.envs.conformance import check_environment
from seedcli.envs.gymnasium.env import GymnasiumVectorEnv
from seedcli.envs.gymnasium.registered import RegisteredVectorEnv
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
    """Observes a Dict: a vector of the last actions, and a category."""

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


class _Jax(_Vector):
    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.metadata = {**self.metadata, "jax": True}


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
    gymnasium.register("Jax-v0", entry_point=_One, vector_entry_point=_Jax)
    gymnasium.register("Two-v0", entry_point=_One, vector_entry_point=lambda num_envs: _Vector(2 * num_envs))
    gymnasium.register("Broken-v0", entry_point=_One, vector_entry_point=lambda num_envs: 1 / 0)
    gymnasium.register(
        "Wrapped-v0",
        entry_point=_One,
        vector_entry_point=_Vector,
        additional_wrappers=(gymnasium.wrappers.Autoreset.wrapper_spec(),),
    )


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
    ("config", "why"),
    [
        (gymnasium_config("Together-v0", kwargs={"size": 3}), "its observation_space is Dict"),
        (gymnasium_config("SameStep-v0"), "does not reset in the step after an end"),
        (gymnasium_config("Jax-v0"), "set all environments back by a step"),
        (gymnasium_config("Two-v0"), "it makes 2 environments when asked for 1"),
        (gymnasium_config("Limited-v0"), "unexpected keyword argument 'max_episode_steps'"),
        (gymnasium_config("Broken-v0"), "ZeroDivisionError"),
        (gymnasium_config("Wrapped-v0"), "registered with wrappers"),
        (gymnasium_config("Pendulum-v1"), ""),  # none is registered
    ],
    ids=["spaces", "resets", "jax", "number", "keywords", "fails", "wrappers", "none"],
)
def test_instances_are_stepped_where_a_vector_cannot_stand_for_them(
    config: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="seedcli"):
        env = create_env(config, E)
    assert isinstance(env, GymnasiumVectorEnv)
    env.close()
    said = [message for message in caplog.messages if "without the vector environment" in message]
    assert len(said) == bool(why) and all(why in message for message in said)


@pytest.mark.parametrize("given", [np.float32(1), np.ones(1), np.ones((E, 1))])
@pytest.mark.parametrize("name", ["reward", "terminated", "truncated"])
def test_rewards_and_ends_of_another_shape_are_refused(name: str, given: Any) -> None:
    parts = {"reward": np.zeros(E), "terminated": np.zeros(E, np.bool_), "truncated": np.zeros(E, np.bool_)}
    with Played(gymnasium_config("Together-v0"), E) as played:
        played.reset(1)
        vector: Any = played.env.envs[0]  # type: ignore[attr-defined]
        vector.step = lambda actions: (vector._observe(actions), *(parts | {name: given}).values(), {})
        with pytest.raises(EnvironmentFailed, match=f"{name} has shape"):
            played.step(0)


def test_keyword_arguments_reach_it() -> None:
    with Played(gymnasium_config("CartPole-v1", kwargs={"sutton_barto_reward": True}), E) as played:
        assert isinstance(played.env, RegisteredVectorEnv)
        assert set(np.unique(played.run(4, 60).reward)) == {-1.0, 0.0}


class _Joined(_Vector):
    """The action of environment 0 moves all environments."""

    def _observe(self, actions: npt.NDArray[Any]) -> Any:
        return super()._observe(np.full(self.num_envs, actions[0]))


def test_environments_that_move_each_other_fail_the_conformance_suite() -> None:
    gymnasium.register("Joined-v0", entry_point=_One, vector_entry_point=_Joined)
    for name, status in (("Together-v0", "ok"), ("Joined-v0", "failure")):
        found = check_environment(lambda envs, name=name: create_env(gymnasium_config(name), envs), seconds=0.3)
        assert {finding.name: finding.status for finding in found}["isolation"] == status


@pytest.mark.parametrize("where", ["reset", "step"])
def test_its_failures_are_named(where: str) -> None:
    with Played(gymnasium_config("Together-v0"), E) as played:
        played.reset(1)
        setattr(played.env.envs[0], where, lambda *_, **__: 1 / 0)  # type: ignore[attr-defined]
        with pytest.raises(
            EnvironmentFailed, match=rf"Together-v0 failed in {where}: ZeroDivisionError.*test_registered"
        ):
            played.step(0) if where == "step" else played.reset(2)
