"""Tasks that only an agent with memory solves; importing this module registers them.

The id `seedcli.envs.memory:CartPolePositions-v0` works in any process, because Gymnasium imports the module before the
colon.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

_POSITIONS = [0, 2]  # of CartPole's observation: cart position, cart velocity, pole angle, angular velocity


class Positions(gymnasium.ObservationWrapper[Any, Any, Any]):
    """CartPole that observes positions without velocities.

    The observation is [2] float32, cart position and pole angle: the task of Wierstra et al., "Solving Deep Memory
    POMDPs with Recurrent Policy Gradients" (2007), with CartPole-v1's limits and 500 steps.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        full = env.observation_space
        assert isinstance(full, Box)
        self.observation_space = Box(full.low[_POSITIONS], full.high[_POSITIONS], dtype=np.float32)

    def observation(self, observation: Any) -> Any:
        """The positions in CartPole's observation."""
        return np.asarray(observation, np.float32)[_POSITIONS]


def make_cartpole_positions(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    """CartPole-v1's dynamics behind `Positions`; keyword arguments are CartPole's."""
    from gymnasium.envs.classic_control.cartpole import CartPoleEnv

    return Positions(CartPoleEnv(**kwargs))


gymnasium.register(
    "CartPolePositions-v0",
    entry_point="seedcli.envs.memory:make_cartpole_positions",
    max_episode_steps=500,
    disable_env_checker=True,
)
