"""The contents of a plot of returns, for any output: lines with intervals, thresholds, and the text around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seedcli.errors import UsageError
from seedcli.results.comparison import compare
from seedcli.results.curves import Axis, Kind, curve_of, mean_of, smoothing
from seedcli.results.formatting import describe_reached
from seedcli.results.groups import Group, Selection
from seedcli.results.metrics_file import Column
from seedcli.telemetry.numbers import counted, short

_AXES: dict[Axis, str] = {"env_steps": "environment steps", "minutes": "minutes of training"}
_SHORT = 0.9  # of the longest run of a group: the plot names runs that end earlier


@dataclass(frozen=True)
class Line:
    """One line of a plot: the mean over the runs of a group.

    Attributes:
        label: its name in the legend.
        x, y: [points], at least one.
        low, high: [points], the 95 % interval; NaN for one run.
        group: number of its group, which sets the colour.
        evaluation: it shows evaluation episodes.
    """

    label: str
    x: Column
    y: Column
    low: Column
    high: Column
    group: int
    evaluation: bool


@dataclass(frozen=True)
class Threshold:
    """A return to be reached.

    Attributes:
        value: the return.
        sentences: when each group reaches it.
        reached: where on the horizontal axis each group does, the median of its runs; inf where it does not.
    """

    value: float
    sentences: Sequence[str]
    reached: Sequence[float]


@dataclass(frozen=True)
class Picture:
    """A plot of returns.

    Attributes:
        title: the task.
        notes: what the lines are, each a phrase.
        x_label, y_label: of the axes.
        lines: at least one.
        thresholds: to be marked.
        warnings: for the user, one sentence each.
    """

    title: str
    notes: Sequence[str]
    x_label: str
    y_label: str
    lines: Sequence[Line]
    thresholds: Sequence[Threshold]
    warnings: Sequence[str]


def make_picture(
    selection: Selection, *, axis: Axis = "env_steps", thresholds: Sequence[float] = (), smooth: int | None = None
) -> Picture:
    """Compute a plot.

    Args:
        selection: runs of one task, in groups.
        axis: the horizontal axis.
        thresholds: returns to mark.
        smooth: see `curves.curve_of`.

    Raises:
        UsageError: runs of different tasks, runs that keep no time, or no episode has ended yet.
    """
    check_one_task(selection)
    warnings: list[str] = []
    lines = [
        line
        for number, group in enumerate(selection.groups)
        for kind in ("training", "evaluation")
        if (line := _line(group, number, kind, axis, smooth, warnings)) is not None
    ]
    if not lines:
        raise UsageError(
            "no episode has ended yet in any of these runs, so there is no return to plot: try again later"
        )
    notes = [smoothing("training", smooth)]
    if any(line.evaluation for line in lines):
        notes.append(f"dashed: {smoothing('evaluation', smooth)}")
    if any(np.isfinite(line.low).any() for line in lines):
        notes.append("95 % bootstrap interval over runs")
    return Picture(
        title=selection.tasks[0],
        notes=notes,
        x_label=_AXES[axis],
        y_label="return (raw)",
        lines=lines,
        thresholds=_thresholds(selection, axis, thresholds, smooth),
        warnings=warnings,
    )


def check_one_task(selection: Selection) -> None:
    """Raise UsageError if runs of different tasks were selected: their returns do not compare."""
    first, *others = selection.tasks
    if others:
        examples = {group.task: group.runs[0].path for group in reversed(selection.groups)}
        raise UsageError(
            f"{examples[first]} was trained on {first} and {examples[others[0]]} on {others[0]}: returns of different "
            "tasks cannot share an axis; plot the runs of one task at a time, or list all of them with seed compare"
        )


def _line(group: Group, number: int, kind: Kind, axis: Axis, smooth: int | None, warnings: list[str]) -> Line | None:
    found = [(run, curve_of(run, kind, smooth)) for run in group.runs]
    some = [(run, curve) for run, curve in found if len(curve.returns)]
    if kind == "training":
        warnings += [
            f"no episode of {run.path} has ended yet: it is left out" for run, curve in found if not len(curve.returns)
        ]
    if not some:
        return None
    curves = [curve for _, curve in some]
    for run, curve in some:
        if np.isnan(curve.over(axis)).any():
            raise UsageError(f"{run.path} is a deterministic run, which records no time: use --x env_steps")
    middle = mean_of(curves, axis)
    if not len(middle.x):
        warnings.append(f"the runs of {group.label} have no {_AXES[axis]} in common: they are left out")
        return None
    steps = [run.env_steps for run, _ in some]
    if kind == "training" and axis == "env_steps" and min(steps) < _SHORT * max(steps):
        warnings.append(
            f"{some[int(np.argmin(steps))][0].path} has {short(min(steps))} steps and the longest run of {group.label} "
            f"{short(max(steps))}: the mean ends with the shorter; leave that run out, or plot each alone with "
            "--group-by run"
        )
    runs = "" if len(curves) == 1 else f" ({counted(len(curves), 'run')})"
    label = f"{group.label}{runs}" if kind == "training" else f"{group.label}, evaluation"
    return Line(label, middle.x, middle.mean, middle.low, middle.high, number, kind == "evaluation")


def _thresholds(selection: Selection, axis: Axis, thresholds: Sequence[float], smooth: int | None) -> list[Threshold]:
    if not thresholds:
        return []
    figures = compare(selection.groups, thresholds, smooth)
    marks = []
    for index, value in enumerate(thresholds):
        reached = [each.reached[index] for each in figures]
        labels = [group.label for group in selection.groups]
        marks.append(
            Threshold(
                value,
                [describe_reached(label, each, axis) for label, each in zip(labels, reached, strict=True)],
                [each.env_steps if axis == "env_steps" else each.minutes for each in reached],
            )
        )
    return marks
