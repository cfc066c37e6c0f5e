"""The environments that all peers train on, for each peer's Gymnasium; seed's atari family preprocesses identically."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class _Array(gymnasium.ObservationWrapper):
    """Observations as arrays: Gymnasium 0.29 returns frame stacks as LazyFrames."""

    def observation(self, observation: Any) -> np.ndarray:
        return np.asarray(observation)


def make_pong() -> gymnasium.Env:
    """Pong: 4 frames a step, the maximum of the last two, up to 30 no-ops; the last 4, grey, [4, 84, 84] uint8."""
    import ale_py

    if hasattr(gymnasium, "register_envs"):
        gymnasium.register_envs(ale_py)
    wrappers = gymnasium.wrappers
    env = gymnasium.make("PongNoFrameskip-v4")
    env = wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84, terminal_on_life_loss=False)
    if hasattr(wrappers, "FrameStackObservation"):
        return wrappers.FrameStackObservation(env, 4)
    return _Array(wrappers.FrameStack(env, 4))


def make_env(name: str) -> gymnasium.Env:
    """Pong as above for "pong"; otherwise Gymnasium's own environment of that id."""
    return make_pong() if name == "pong" else gymnasium.make(name)
