"""Statistics over seeds and tasks: interquartile means and bootstrap intervals, in the definitions of rliable.

Agarwal et al., "Deep RL at the Edge of the Statistical Precipice" (NeurIPS 2021, arXiv 2108.13264); rliable is their
library (github.com/google-research/rliable).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from seedcli.envs.scores import CONFIDENCE, Estimate, interquartile_mean

RESAMPLES = 10_000  # of a table's figure
CURVE_RESAMPLES = 2_000  # of a curve: each resample is a whole curve

Array = npt.NDArray[np.float64]
_SEED = 0  # of the resampling: the same runs have the same interval
_TAILS = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
_CHUNK = 2_000_000  # resampled values held at a time


def mean(scores: Array) -> Array:
    """The mean over the last axis."""
    return np.asarray(scores.mean(axis=-1), np.float64)


def estimate(scores: Sequence[Array], statistic: Callable[[Array], Array] = interquartile_mean) -> Estimate:
    """A statistic over all runs of all tasks, with a 95 % interval of a stratified bootstrap.

    A resample draws, within each task, as many runs with replacement as the task has; the interval lies between the
    percentiles of 10,000 resampled statistics (Agarwal et al., section 4.1; rliable's `get_interval_estimates` with
    `StratifiedBootstrap` and the percentile method). One run a task has no interval: it is NaN.

    Args:
        scores: for each task its runs' scores [R]; of different tasks only if they are normalised. At least one task,
            each with at least one run.
        statistic: reduces [..., N] to [...]; the default is the interquartile mean over runs and tasks, rliable's
            `aggregate_iqm`.
    """
    value = float(statistic(np.concatenate(scores)))
    if max(map(len, scores)) < 2:
        return Estimate(value, np.nan, np.nan)
    random = np.random.default_rng(_SEED)
    runs = sum(map(len, scores))
    drawn = []
    for start in range(0, RESAMPLES, max(1, _CHUNK // runs)):
        count = min(max(1, _CHUNK // runs), RESAMPLES - start)
        drawn.append(statistic(np.concatenate([_resample(random, task, count) for task in scores], axis=1)))
    low, high = np.quantile(np.concatenate(drawn), _TAILS)
    return Estimate(value, float(low), float(high))


def _resample(random: np.random.Generator, runs: Array, count: int) -> Array:
    """[count, R]: as many draws with replacement from [R]."""
    return runs[random.integers(len(runs), size=(count, len(runs)))]


def mean_curve(curves: Array) -> tuple[Array, Array, Array]:
    """The mean of curves, with a pointwise 95 % bootstrap interval over seeds.

    A resample draws as many whole curves with replacement; the interval at a point lies between the percentiles of the
    resampled means there.

    Args:
        curves: [seeds, points].

    Returns:
        Mean, low and high, [points] each; low and high are NaN for a single curve.
    """
    middle = curves.mean(axis=0)
    seeds = len(curves)
    if seeds < 2:
        nothing = np.full_like(middle, np.nan)
        return middle, nothing, nothing
    random = np.random.default_rng(_SEED)
    # How often each curve is drawn, as a share: a resampled mean is a weighted one.
    shares = random.multinomial(seeds, np.full(seeds, 1 / seeds), size=CURVE_RESAMPLES) / seeds
    low, high = np.quantile(shares @ curves, _TAILS, axis=0)
    return middle, low, high


def median_reached(values: Array) -> float:
    """The median of steps or minutes to a threshold [R], inf where it was not reached; inf if half never reached it."""
    ordered = np.sort(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return float(low if low == high else (low + high) / 2)
