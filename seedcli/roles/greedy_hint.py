"""Detect that greedy play falls clearly short of the returns that training reached with sampled actions.

Let m, s and n be the mean, standard deviation and number of returns in training (t) and in the evaluation (e). Greedy
play falls short if

    m_t − m_e > max(3·√(s_t²/n_t + max(s_t, s_e)²/n_e), s_t/2, |m_t|/20)

The first term is three standard errors of the difference: chance does not explain it. The other two require an effect
size of half the standard deviation of episodes and a twentieth of the return. A small evaluation may happen to show no
variation, so its standard deviation counts as at least that of training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_EPISODES = 20  # least number of training episodes that the comparison needs


def training_returns(recent: Sequence[float]) -> dict[str, Any]:
    """The checkpoint counters that describe the newest training episodes, at most 100; empty if there are none.

    Args:
        recent: raw returns, with the exploration of training.

    Returns:
        "recent_returns", a copy of `recent`, and "episode_return_100", their mean.
    """
    return {"recent_returns": list(recent), "episode_return_100": float(np.mean(recent))} if recent else {}


def greedy_hint(counters: Mapping[str, Any], returns: Sequence[float]) -> str:
    """A one-line hint if greedy play falls clearly short of training; "" if it does not, or there is too little data.

    Args:
        counters: of the checkpoint; older versions lack the entries of `training_returns`.
        returns: raw returns of at least one greedy episode.
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
