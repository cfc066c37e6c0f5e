"""Environments for tests and diagnosis; importing this module registers them.

The id `seedcli.envs.testing:Counter-v0` works in any process: Gymnasium imports the module before the colon.
"""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

MAX_LENGTH = 30  # steps of the longest episode


def counter_reward(episode: npt.ArrayLike, step: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """The reward of a record of `Counter`, exact in float32; 0 on the first record of an episode."""
    step = np.asarray(step)
    return np.where(step == 0, 0.0, 1.0 + np.asarray(episode) % 16 + step / 64.0).astype(np.float32)


class Counter(gymnasium.Env[npt.NDArray[np.float32], np.int64]):
    """An environment whose observations identify their record, so that a test can check that each is in its place.

    The observation is [4] float32: a random number of this instance (a multiple of 2⁻²⁴ below 1), the episode, the
    step in the episode, and the previous action (-1 at step 0). The episode count continues through every reset.
    Episodes last 1 to `MAX_LENGTH` steps; even ones are terminated, odd ones truncated. The reward is
    `counter_reward`.

    Args:
        pause: minimum seconds of a step, for a run of known speed.
        lost_reward_period: the reward of every n-th step of an instance is NaN; 0: never.
        chatter: number of characters that each step prints.
    """

    def __init__(self, pause: float = 0.0, lost_reward_period: int = 0, chatter: int = 0) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 2.0**24, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(4)
        self._pause = pause
        self._lost_reward_period = lost_reward_period
        self._chatter = chatter
        self._steps = 0
        # Not from the seed, so that environments with the same seed still differ.
        self._number = int.from_bytes(os.urandom(3), "little") / 2.0**24
        self._episode = -1
        self._step = 0
        self._length = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Begin the next episode; its length is drawn from the seed."""
        super().reset(seed=seed)
        self._episode += 1
        self._step = 0
        self._length = int(self.np_random.integers(1, MAX_LENGTH + 1))
        return self._observation(-1), {}

    def step(self, action: np.int64) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Count one step."""
        if self._pause:
            time.sleep(self._pause)
        if self._chatter:
            print("." * self._chatter)
        self._step += 1
        over = self._step == self._length
        even = self._episode % 2 == 0
        reward = float(counter_reward(self._episode, self._step))
        self._steps += 1
        if self._lost_reward_period and self._steps % self._lost_reward_period == 0:
            reward = float("nan")
        return self._observation(int(action)), reward, over and even, over and not even, {}

    def _observation(self, action: int) -> npt.NDArray[np.float32]:
        return np.array([self._number, self._episode, self._step, action], np.float32)


class Recall(gymnasium.Env[npt.NDArray[np.float32], np.int64]):
    """Repeat at the end the cue shown at the beginning: a task that needs memory.

    The observation is [3] float32: the one-hot cue on the first record, zeros afterwards; and 1 on the record that
    asks for the answer, else 0. The next step terminates the episode, with reward 1 if the action was the number of
    the cue, else 0. Without memory the mean return is 0.5 (unless the inputs hold the previous action, which can
    carry the cue along).

    Args:
        delay: steps from the record with the cue to the one that asks for it, at least 1.
    """

    def __init__(self, delay: int = 5) -> None:
        if delay < 1:
            raise ValueError(f"delay is {delay}; at least one step must lie between cue and answer")
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._delay = delay
        self._cue = 0
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Draw a cue and show it."""
        super().reset(seed=seed)
        self._cue = int(self.np_random.integers(2))
        self._step = 0
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Wait, or reward the answer."""
        asked = self._step == self._delay
        self._step += 1
        return self._observation(), float(asked and int(action) == self._cue), asked, False, {}

    def _observation(self) -> npt.NDArray[np.float32]:
        observation = np.zeros(3, np.float32)
        if self._step == 0:
            observation[self._cue] = 1
        observation[2] = self._step == self._delay
        return observation


class Echo(gymnasium.Env[dict[str, Any], Any]):
    """Repeat each observation as the action: a task for every kind of action, with observations of several arrays.

    The observation holds "cue", MultiDiscrete [3, 3], and "target", Box (2,), which is 10 times the target plus 30, so
    that it needs normalising. The reward of the next step is the mean over both parts of the answer: for categories,
    whether it was the cue; for numbers, 1 less a quarter of the distance to the target, at least 0. Episodes are
    truncated after 8 steps. Without the observation the mean reward is at most 1/3 for categories and 1/2 for numbers.

    Args:
        answer: "multi_discrete", or "box": numbers from -2 to 6.
        hidden: the observation is constant.
    """

    _LENGTH = 8
    _LOW, _HIGH = -2.0, 6.0

    def __init__(self, answer: str = "box", hidden: bool = False) -> None:
        self._numbers = answer == "box"
        self._hidden = hidden
        self.observation_space = gymnasium.spaces.Dict(
            {
                "cue": gymnasium.spaces.MultiDiscrete([3, 3]),
                "target": gymnasium.spaces.Box(-100.0, 100.0, (2,), np.float32),
            }
        )
        self.action_space = (
            gymnasium.spaces.Box(self._LOW, self._HIGH, (2,), np.float32)
            if self._numbers
            else gymnasium.spaces.MultiDiscrete([3, 3])
        )
        self._cue: npt.NDArray[Any] = np.zeros(2, np.int64)
        self._target: npt.NDArray[Any] = np.zeros(2)
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self._step = 0
        return self._ask(), {}

    def step(self, action: npt.NDArray[Any]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Reward the answer and show the next cue and target."""
        if self._numbers:
            parts = 1.0 - np.minimum(1.0, np.abs(action - self._target) / 4.0)
        else:
            parts = action == self._cue
        self._step += 1
        return self._ask(), float(np.mean(parts)), False, self._step == self._LENGTH, {}

    def _ask(self) -> dict[str, Any]:
        self._cue = self.np_random.integers(0, 3, 2)
        self._target = self.np_random.uniform(self._LOW, self._HIGH, 2)
        shown = 0 if self._hidden else 1
        return {"cue": self._cue * shown, "target": (shown * (10.0 * self._target + 30.0)).astype(np.float32)}


gymnasium.register("Echo-v0", entry_point="seedcli.envs.testing:Echo", disable_env_checker=True)
gymnasium.register("Counter-v0", entry_point="seedcli.envs.testing:Counter", disable_env_checker=True)
gymnasium.register("Recall-v0", entry_point="seedcli.envs.testing:Recall", disable_env_checker=True)
