"""CartPole with hidden velocities, compared with CartPole."""

from __future__ import annotations

import gymnasium
import numpy as np

from seedcli.specs import ActionSpec, ArraySpec
from tests.envs.helpers import POSITIONS, Played, gymnasium_config, play

# CartPole without its vector environment, which draws initial states in another order.
_ONE_BY_ONE = "CartPoleOneByOne-v0"
gymnasium.register(_ONE_BY_ONE, "gymnasium.envs.classic_control.cartpole:CartPoleEnv", max_episode_steps=500)


def test_positions_equal_those_of_cartpole() -> None:
    hidden = play(gymnasium_config(POSITIONS), 3, seed=4, steps=120)
    full = play(gymnasium_config(_ONE_BY_ONE), 3, seed=4, steps=120)
    assert full.terminated.sum() > 5
    np.testing.assert_array_equal(hidden.observation, full.observation[..., [0, 2]])
    for name in ("reward", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(hidden, name), getattr(full, name))


def test_the_specification_and_the_registered_limit() -> None:
    with Played(gymnasium_config(POSITIONS), 1) as played:
        assert played.env.spec.observation == ArraySpec((2,), "float32")
        assert played.env.spec.action == ActionSpec((2,))
        (env,) = played.env.envs
        assert env.spec.max_episode_steps == 500
        space = env.observation_space
        np.testing.assert_allclose(space.high, [4.8, 0.418879], rtol=1e-5)


def test_keyword_arguments_reach_cartpole() -> None:
    """With this argument the reward is 0 a step and -1 at the fall."""
    rewards = play(gymnasium_config(POSITIONS, kwargs={"sutton_barto_reward": True}), 1, seed=4, steps=60).reward
    assert set(np.unique(rewards)) == {-1.0, 0.0}
