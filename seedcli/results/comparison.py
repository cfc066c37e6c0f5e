"""The figures of each group of runs in `seed compare`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from seedcli.envs.scores import Estimate
from seedcli.results.curves import Curve, curve_of, reached_at
from seedcli.results.groups import Group
from seedcli.results.runs import RunData
from seedcli.results.statistics import estimate, mean, median_reached
from seedcli.telemetry.numbers import finite


@dataclass(frozen=True)
class RunFigures:
    """The figures of one run.

    Attributes:
        run: the run.
        final_return: mean of its last episodes, as its curve is smoothed; NaN if none has ended.
        evaluation_return: the same of evaluation episodes; NaN likewise.
        steps_to: environment steps to each threshold; inf where it is not reached.
        minutes_to: minutes to each; inf likewise, NaN where no time is kept.
    """

    run: RunData
    final_return: float
    evaluation_return: float
    steps_to: Sequence[float]
    minutes_to: Sequence[float]


@dataclass(frozen=True)
class Reached:
    """How a group reached a threshold.

    Attributes:
        threshold: return.
        seeds: runs that reached it.
        of: runs.
        env_steps: median over the runs, where one that never reached it counts as inf.
        minutes: likewise.
        within: environment steps of the longest run.
    """

    threshold: float
    seeds: int
    of: int
    env_steps: float
    minutes: float
    within: int


@dataclass(frozen=True)
class GroupFigures:
    """The figures of a group.

    Attributes:
        group: its runs.
        runs: their figures, in the same order.
        final_return: mean over runs, with a 95 % bootstrap interval.
        iqm: interquartile mean over runs, likewise.
        evaluation_return: mean over runs that evaluate; NaN if none does.
        steps_per_second: median over runs.
        reached: for each threshold.
    """

    group: Group
    runs: Sequence[RunFigures]
    final_return: Estimate
    iqm: Estimate
    evaluation_return: float
    steps_per_second: float
    reached: Sequence[Reached]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: null for what is unknown or not reached."""
        return {
            "group": self.group.label,
            "task": self.group.task,
            "final_return": interval_dict(self.final_return),
            "iqm": interval_dict(self.iqm),
            "evaluation_return": finite(self.evaluation_return),
            "steps_per_second": finite(self.steps_per_second),
            "thresholds": [
                {
                    "threshold": each.threshold,
                    "reached": each.seeds,
                    "of": each.of,
                    "env_steps": finite(each.env_steps),
                    "minutes": finite(each.minutes),
                    "within_env_steps": each.within,
                }
                for each in self.reached
            ],
            "runs": [
                {
                    "path": str(each.run.path),
                    "seed": each.run.seed,
                    "state": each.run.state,
                    "env_steps": each.run.env_steps,
                    "final_return": finite(each.final_return),
                    "evaluation_return": finite(each.evaluation_return),
                    "steps_per_second": finite(each.run.steps_per_second),
                    "env_steps_to_threshold": [finite(value) for value in each.steps_to],
                    "minutes_to_threshold": [finite(value) for value in each.minutes_to],
                }
                for each in self.runs
            ],
        }


def compare(groups: Sequence[Group], thresholds: Sequence[float] = (), smooth: int | None = None) -> list[GroupFigures]:
    """The figures of each group.

    Args:
        groups: of runs.
        thresholds: returns to be reached by the smoothed training return.
        smooth: see `curves.curve_of`.
    """
    return [_group_figures(group, thresholds, smooth) for group in groups]


def _group_figures(group: Group, thresholds: Sequence[float], smooth: int | None) -> GroupFigures:
    runs = [_run_figures(run, thresholds, smooth) for run in group.runs]
    finals = _known([run.final_return for run in runs])
    evaluations = _known([run.evaluation_return for run in runs])
    speeds = _known([run.run.steps_per_second for run in runs])
    nothing = Estimate(math.nan, math.nan, math.nan)
    return GroupFigures(
        group=group,
        runs=runs,
        final_return=estimate([finals], mean) if len(finals) else nothing,
        iqm=estimate([finals]) if len(finals) else nothing,
        evaluation_return=float(evaluations.mean()) if len(evaluations) else math.nan,
        steps_per_second=float(np.median(speeds)) if len(speeds) else math.nan,
        reached=[_reached(runs, index, threshold) for index, threshold in enumerate(thresholds)],
    )


def _run_figures(run: RunData, thresholds: Sequence[float], smooth: int | None) -> RunFigures:
    curve = curve_of(run, smooth=smooth)
    return RunFigures(
        run=run,
        final_return=_last(curve),
        evaluation_return=_last(curve_of(run, "evaluation", smooth)),
        steps_to=[reached_at(curve, threshold) for threshold in thresholds],
        minutes_to=[reached_at(curve, threshold, "minutes") for threshold in thresholds],
    )


def _reached(runs: Sequence[RunFigures], index: int, threshold: float) -> Reached:
    steps = np.array([run.steps_to[index] for run in runs])
    minutes = np.array([run.minutes_to[index] for run in runs])
    return Reached(
        threshold=threshold,
        seeds=int(np.isfinite(steps).sum()),
        of=len(runs),
        env_steps=median_reached(steps),
        minutes=median_reached(minutes),
        within=max(run.run.env_steps for run in runs),
    )


def _last(curve: Curve) -> float:
    return float(curve.returns[-1]) if len(curve.returns) else math.nan


def _known(values: Sequence[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    array = np.array(values, np.float64)
    return array[~np.isnan(array)]


def interval_dict(found: Estimate) -> dict[str, float | None]:
    """The JSON form of an estimate: null for what is unknown."""
    return {name: finite(value) for name, value in found._asdict().items()}
