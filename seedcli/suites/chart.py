"""The chart of a suite: every run's evaluations against the reference, a row for each task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from seedcli.errors import SeedError
from seedcli.files import replacing
from seedcli.suites.members import ACTIONS, Actions
from seedcli.suites.outcomes import SuiteOutcome, TaskOutcome

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

_WIDTH = 9.0  # inches
_ROW = 0.62  # inches of height of a row with an axis of its own
_SHARED_ROW = 0.26  # inches, of rows that share one axis
_MARGINS = 1.3  # inches of title, legend and axis
_DPI = 150
_INK, _GRID, _REFERENCE, _THRESHOLD = "#333333", "#e3e3e3", "#c0392b", "#7a8a3a"
_MARK, _FACE = {"greedy": "o", "sampled": "D"}, {"greedy": "#2a78b5", "sampled": "white"}
_EDGE = {"greedy": "white", "sampled": "#2a78b5"}
_HEIGHT = {"greedy": 0.17, "sampled": -0.17}  # above the middle of a row


def write_chart(path: Path, outcome: SuiteOutcome) -> None:
    """Draw the chart.

    Tasks of suites with human scores share an axis of human-normalised percent; others have one each, of returns.

    Args:
        path: the PNG file; an existing one is replaced.
        outcome: the suite's.

    Raises:
        SeedError: the file cannot be written.
    """
    # Figure directly, without pyplot: no window, no global state.
    from matplotlib.figure import Figure

    tasks = outcome.tasks
    shared = outcome.suite.scores is not None
    height = _MARGINS + len(tasks) * (_SHARED_ROW if shared else _ROW)
    figure = Figure(figsize=(_WIDTH, height), dpi=_DPI, layout="constrained")
    if shared:
        axes = figure.subplots()
        _draw_shared(axes, tasks)
        rows = [axes]
    else:
        rows = list(figure.subplots(len(tasks), 1, squeeze=False)[:, 0])
        for axes, task in zip(rows, tasks, strict=True):
            _draw_own(axes, task)
    done = sum(task.finished for task in tasks)
    figure.suptitle(
        f"{outcome.suite.name}: {done} of {len(outcome.runs)} runs, a mark each", color=_INK, fontweight="bold"
    )
    figure.legend(*_legend(shared, tasks), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    try:
        with replacing(path) as made:
            figure.savefig(made, format="png")
    except OSError as error:
        raise SeedError(f"{path} cannot be written ({error.strerror}): make room or give another --out") from error


def _draw_own(axes: Axes, task: TaskOutcome) -> None:
    """One task on axes of its own, in units of its returns."""
    known = [value for value in (task.reference, task.task.threshold) if value is not None]
    for actions in ACTIONS:
        returns = task.returns(actions)
        _dots(axes, returns, 0, actions)
        known += returns
    if task.reference is not None:
        axes.axvline(task.reference, color=_REFERENCE, linewidth=1.5, zorder=2)
    if task.task.threshold is not None:
        axes.axvline(task.task.threshold, color=_THRESHOLD, linewidth=1.2, linestyle=":", zorder=1)
    if known:
        low, high = min(known), max(known)
        room = 0.06 * (high - low) or max(1.0, 0.1 * abs(high))
        axes.set_xlim(low - room, high + room)
    else:
        axes.set_xticks([])
    if not task.returns("greedy"):
        axes.text(
            0.5, 0.5, "no run evaluated", transform=axes.transAxes, ha="center", va="center", fontsize=8, color=_INK
        )
    _style(axes)
    axes.set_ylim(-0.5, 0.5)
    axes.set_yticks([0], [_label(task)])
    axes.tick_params(axis="x", labelsize=7, pad=1)


def _draw_shared(axes: Axes, tasks: Sequence[TaskOutcome]) -> None:
    """All tasks on one axis, in percent of humans."""
    for row, task in enumerate(reversed(tasks)):
        for actions in ACTIONS:
            _dots(axes, [100 * share for share in task.normalised(actions)], row, actions)
        axes.axhline(row, color=_GRID, linewidth=0.8, zorder=0)
    axes.axvline(100, color=_REFERENCE, linewidth=1.5, zorder=2)
    axes.axvline(0, color=_INK, linewidth=0.8, zorder=1)
    _style(axes)
    axes.set_ylim(-0.6, len(tasks) - 0.4)
    axes.set_yticks(range(len(tasks)), [_label(task) for task in reversed(tasks)])
    axes.set_xlabel("human-normalised score, %")
    shares = [abs(share) for task in tasks for actions in ACTIONS for share in task.normalised(actions)]
    if shares and max(shares) > 5:  # a few games far above human level must not squeeze all others together
        axes.set_xscale("symlog", linthresh=100)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _label(task: TaskOutcome) -> str:
    failed = sum(run.state == "failed" for run in task.runs)
    return f"{task.name} ({failed} failed)" if failed else task.name


def _dots(axes: Axes, values: Sequence[float], row: int, actions: Actions) -> None:
    heights = np.full(len(values), row + _HEIGHT[actions])
    marks = axes.scatter(values, heights, marker=_MARK[actions], s=26, linewidth=0.9, zorder=3, clip_on=False)
    marks.set(facecolor=_FACE[actions], edgecolor=_EDGE[actions])


def _style(axes: Axes) -> None:
    axes.grid(axis="x", color=_GRID, linewidth=0.8, zorder=0)
    axes.tick_params(axis="y", length=0, labelsize=8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _legend(shared: bool, tasks: Sequence[TaskOutcome]) -> tuple[list[Artist], list[str]]:
    """Handles and labels of the chart's elements."""
    from matplotlib.lines import Line2D

    handles: list[Artist] = []
    for actions in ACTIONS:
        line = Line2D([], [], marker=_MARK[actions], linestyle="", markersize=6)
        line.set(markerfacecolor=_FACE[actions], markeredgecolor=_EDGE[actions])
        handles.append(line)
    labels = [f"{actions} evaluation" for actions in ACTIONS]
    if shared or any(task.reference is not None for task in tasks):
        handles.append(Line2D([], [], color=_REFERENCE, linewidth=1.5))
        labels.append("human" if shared else "reference")
    if not shared and any(task.task.threshold is not None for task in tasks):
        handles.append(Line2D([], [], color=_THRESHOLD, linewidth=1.2, linestyle=":"))
        labels.append("threshold")
    return handles, labels
