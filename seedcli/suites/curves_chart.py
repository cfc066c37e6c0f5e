"""The learning curves of a suite's runs: axes for each environment, a line for each run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from seedcli.errors import SeedError
from seedcli.files import replacing
from seedcli.results.drawing import COLORS
from seedcli.suites.outcomes import SuiteOutcome, TaskOutcome
from seedcli.telemetry.numbers import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 3
_SIZE = (3.4, 2.3)  # inches of the axes of an environment
_CHARACTERS = 42  # of the title above each column
_DPI = 150
_INK, _GRID, _REFERENCE = "#333333", "#e3e3e3", "#888888"


def write_curves(path: Path, outcome: SuiteOutcome) -> bool:
    """Draw the mean return of the last 100 training episodes over environment steps.

    Args:
        path: the PNG file; an existing one is replaced.
        outcome: the suite's.

    Returns:
        Whether any run has a curve; otherwise nothing is written.

    Raises:
        SeedError: the file cannot be written.
    """
    # Figure directly, without pyplot: no window, no global state.
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    tasks: dict[str, list[TaskOutcome]] = {}
    for task in outcome.tasks:
        if any(run.curve for run in task.runs):
            tasks.setdefault(task.environment, []).append(task)
    if not tasks:
        return False
    presets = list(dict.fromkeys(task.task.preset for each in tasks.values() for task in each))
    # Presets tell the lines of an environment apart, unless it has two tasks with one preset.
    by_name = any(len({task.task.preset for task in each}) < len(each) for each in tasks.values())
    columns = min(_COLUMNS, len(tasks))
    rows = -(-len(tasks) // columns)
    figure = Figure(figsize=(_SIZE[0] * columns, _SIZE[1] * rows + 0.8), dpi=_DPI, layout="constrained")
    places = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, (environment, each) in zip(places, tasks.items(), strict=False):
        numbers = range(len(each)) if by_name else [presets.index(task.task.preset) for task in each]
        _draw(axes, environment, each, [_style(number) for number in numbers], named=by_name)
    for axes in places[len(tasks) :]:
        axes.set_axis_off()
    title = "mean return of the last 100 training episodes by environment steps, a line for a seed"
    figure.suptitle(fill(f"{outcome.suite.name}: {title}", _CHARACTERS * columns), color=_INK, fontsize=10)
    names = [] if by_name else presets
    handles = [Line2D([], [], **_style(number)) for number in range(len(names))]
    if any(task.task.threshold is not None for each in tasks.values() for task in each):
        handles.append(Line2D([], [], color=_REFERENCE, linestyle=":"))
        names = [*names, "threshold"]
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    try:
        with replacing(path) as made:
            figure.savefig(made, format="png")
    except OSError as error:
        raise SeedError(f"{path} cannot be written ({error.strerror}): make room or give another --out") from error
    return True


def _style(number: int) -> dict[str, Any]:
    """Colour and line style of a preset or task; dashes distinguish those that share a colour."""
    again, color = divmod(number, len(COLORS))
    return {"color": COLORS[color], "linestyle": ("-", "--", "-.")[min(again, 2)]}


def _draw(
    axes: Axes, environment: str, tasks: Sequence[TaskOutcome], styles: Sequence[dict[str, Any]], *, named: bool
) -> None:
    """Draw the runs of tasks of one environment, each task in its style; `named`: with a legend of its own."""
    for task, style in zip(tasks, styles, strict=True):
        label = task.name if named else None
        for run in task.runs:
            if run.curve:
                steps, returns = (np.array(run.curve[name], np.float64) for name in ("env_steps", "returns"))
                axes.plot(steps, returns, **style, linewidth=1.1, label=label)
                label = None
        if task.task.threshold is not None:
            axes.axhline(task.task.threshold, color=_REFERENCE, linestyle=":", linewidth=1)
    if named:
        axes.legend(fontsize=6, frameon=False, loc="best")
    axes.set_title(environment, fontsize=8, color=_INK, parse_math=False)
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=5)  # more labels would touch each other
    axes.xaxis.set_major_formatter(lambda value, _: short(value) if value else "0")
    axes.tick_params(labelsize=7)
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
