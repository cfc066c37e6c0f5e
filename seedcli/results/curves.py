"""Curves of returns: which values they have, how they are smoothed, and when they reach a threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from seedcli.results.metrics_file import Column
from seedcli.results.runs import RunData
from seedcli.results.statistics import mean_curve

Kind = Literal["training", "evaluation"]
Axis = Literal["env_steps", "minutes"]

# Fields for each kind of episode: the count, the mean of a line, the run's own mean over the newest episodes, and how
# many these are.
_FIELDS: dict[Kind, tuple[str, str, str, int]] = {
    "training": ("episodes", "episode_return", "episode_return_100", 100),
    "evaluation": ("evaluation_episodes", "evaluation_return", "evaluation_return_20", 20),
}
POINTS = 400  # of a mean over seeds


@dataclass(frozen=True)
class Curve:
    """The returns of one run.

    Attributes:
        env_steps: [points] environment steps, ascending.
        minutes: [points] minutes of training, see `RunData.seconds`; NaN where no time is kept.
        returns: [points] smoothed return, never NaN.
        episodes: [points] episodes ended so far.
        window: episodes that a point is the mean of, once there are as many.
    """

    env_steps: Column
    minutes: Column
    returns: Column
    episodes: Column
    window: int

    def over(self, axis: Axis) -> Column:
        """The values of an axis, [points]."""
        return self.env_steps if axis == "env_steps" else self.minutes


def smoothing(kind: Kind, smooth: int | None) -> str:
    """A description of the points of a curve."""
    return f"mean of the last {smooth or _FIELDS[kind][3]} {kind} episodes"


def curve_of(run: RunData, kind: Kind = "training", smooth: int | None = None) -> Curve:
    """The curve of a run.

    Args:
        run: the run.
        kind: of training or of evaluation episodes.
        smooth: episodes that a point is the mean of. None: the run's own mean of the last 100 training or 20
            evaluation episodes, which counts each episode. Otherwise it is computed from the means of whole lines,
            each weighted by its episodes; the oldest line counts only for the episodes still missing.

    Returns:
        The curve; without points if no such episode has ended.
    """
    count_name, line_name, own_name, own_window = _FIELDS[kind]
    episodes = run.metrics[count_name]
    values = run.metrics[own_name] if smooth is None else _last_episodes(run.metrics[line_name], episodes, smooth)
    known = ~np.isnan(values)
    return Curve(
        run.metrics["env_steps"][known],
        run.seconds[known] / 60,
        values[known],
        episodes[known],
        smooth or own_window,
    )


def _last_episodes(returns: Column, episodes: Column, window: int) -> Column:
    """Means over the last `window` episodes, [lines].

    Args:
        returns: [lines] mean return of the episodes of each line; NaN where none ended.
        episodes: [lines] episodes ended so far.
        window: at least 1.
    """
    # The sum of returns as a function of episodes is assumed to be linear within a line.
    new = np.diff(episodes, prepend=0.0)
    new = np.where(np.isnan(returns) | np.isnan(new), 0.0, np.maximum(new, 0.0))
    count = np.concatenate([[0.0], np.cumsum(new)])
    total = np.concatenate([[0.0], np.cumsum(np.where(new > 0, returns, 0.0) * new)])
    begin = np.maximum(count - window, 0.0)
    # Lines without episodes repeat a count: interpolate between distinct ones.
    distinct = np.concatenate([[True], new > 0])
    covered = count - begin
    sums = total - np.interp(begin, count[distinct], total[distinct])
    return np.where(covered > 0, sums / np.where(covered > 0, covered, 1.0), np.nan)[1:]


def reached_at(curve: Curve, threshold: float, axis: Axis = "env_steps") -> float:
    """Where a curve first reaches a threshold: steps or minutes; inf if it never does.

    A point counts once it is a mean of the whole window, so that one lucky first episode does not count.
    """
    reached = np.flatnonzero((curve.returns >= threshold) & (curve.episodes >= curve.window))
    return float(curve.over(axis)[reached[0]]) if len(reached) else np.inf


@dataclass(frozen=True)
class MeanCurve:
    """The mean of the curves of several seeds.

    Attributes:
        x: [points] environment steps or minutes.
        mean, low, high: [points] return, and its 95 % bootstrap interval over seeds; NaN with one seed.
    """

    x: Column
    mean: Column
    low: Column
    high: Column


def mean_of(curves: Sequence[Curve], axis: Axis = "env_steps") -> MeanCurve:
    """The mean of curves of one setting, where all of them have values.

    Curves are interpolated linearly between points. The mean ends with the shortest curve, because beyond that point it
    would be over a different set of seeds.

    Args:
        curves: at least one, each with at least one point.
        axis: over environment steps or minutes.
    """
    xs = [curve.over(axis) for curve in curves]
    low, high = max(x[0] for x in xs), min(x[-1] for x in xs)
    if len(curves) == 1 or high < low:
        grid = xs[0] if len(curves) == 1 else np.empty(0)
    else:
        grid = np.linspace(low, high, POINTS)
    table = np.stack([np.interp(grid, x, curve.returns) for x, curve in zip(xs, curves, strict=True)])
    return MeanCurve(grid, *mean_curve(table))
