"""Plays whole episodes of an environment with any function that chooses actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from seedcli.envs.base import VectorEnv
from seedcli.envs.checks import check_finite
from seedcli.roles.evaluator.video import VideoWriter
from seedcli.roles.stopping import raise_if_stopped
from seedcli.specs import RowLayout, Rows, aligned_empty

# Records [E, ...] and a mask of those that begin an episode → actions [E, ...].
Act = Callable[[Rows, npt.NDArray[np.bool_]], npt.NDArray[Any]]


def play(
    env: VectorEnv, act: Act, episodes: int, seed: int, video: VideoWriter | None = None
) -> tuple[list[float], list[int]]:
    """Play `episodes` episodes, assigned to the environments beforehand.

    Counting the episodes that end first would favour short ones.

    Returns:
        Raw return and environment steps of each episode, in the order of environments and episodes.
    """
    raise_if_stopped()  # while the environments were built
    envs = env.num_envs
    layout = RowLayout(env.spec, envs)
    out = layout.views(aligned_empty(layout.nbytes))
    quota = np.array([episodes // envs + (i < episodes % envs) for i in range(envs)])
    played: list[list[tuple[float, int]]] = [[] for _ in range(envs)]
    finished = np.zeros(envs, np.int64)
    total: npt.NDArray[np.float64] = np.zeros(envs)
    length = np.zeros(envs, np.int64)
    first = np.ones(envs, np.bool_)
    env.reset(seed, out)
    while True:
        if video is not None:
            video.add(env.render())
        check_finite(out.reward, "reward", env.spec.name)
        total = np.where(first, 0.0, total) + out.reward
        length = np.where(first, 0, length + 1)
        ended = (out.terminated | out.truncated) != 0
        for i in np.flatnonzero(ended & (finished < quota)):
            played[i].append((float(total[i]), int(length[i])))
            finished[i] += 1
        if (finished >= quota).all():
            break
        actions = act(out, first)
        first = ended
        env.step(actions, out)
    flat = [episode for one in played for episode in one]
    return [episode[0] for episode in flat], [episode[1] for episode in flat]
