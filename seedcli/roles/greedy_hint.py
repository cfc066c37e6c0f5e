"""Whether greedy play falls clearly short of what training reached with sampled actions.

With m, s and n the mean, standard deviation and number of the returns in training (t) and of the evaluation (e), it
does where

    m_t − m_e > max(3·√(s_t²/n_t + max(s_t, s_e)²/n_e), s_t/2, |m_t|/20)

The first term is three standard errors of the difference: chance does not explain it. The other two say that it
matters: it is at least half of what episodes differ by, and a twentieth of the return. Few episodes, which may all be
alike, are taken to vary as much as those of training did.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_EPISODES = 20  # of training at least: fewer say little, as after a short run


def training_returns(recent: Sequence[float]) -> dict[str, Any]:
    """What a checkpoint keeps of the returns of the newest training episodes, at most 100; empty where there are none.

    Args:
        recent: raw returns, with the exploration of training.

    Returns:
        "recent_returns", the same, and "episode_return_100", their mean.
    """
    return {"recent_returns": list(recent), "episode_return_100": float(np.mean(recent))} if recent else {}


def greedy_hint(counters: Mapping[str, Any], returns: Sequence[float]) -> str:
    """One line where greedy play falls clearly short of training; "" where it does not, or it cannot be told.

    Args:
        counters: of the checkpoint; those of older versions lack what `training_returns` gives.
        returns: raw returns of episodes that were played greedily, at least one.
    """
    trained = counters.get("recent_returns", [])
    if len(trained) < _EPISODES:
        return ""
    mean, std = float(np.mean(trained)), float(np.std(trained))
    reached, spread = float(np.mean(returns)), float(np.std(returns))
    error = math.sqrt(std**2 / len(trained) + max(std, spread) ** 2 / len(returns))
    if not mean - reached > max(3 * error, std / 2, abs(mean) / 20):
        return ""
    return f"greedy actions reach {reached:.2f} where training reached {mean:.2f} with sampled ones: try --sample"
