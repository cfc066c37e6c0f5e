"""The bar chart of a suite's human-normalised scores, as a PNG file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seedcli.envs.scores import Estimate, Suite
from seedcli.errors import SeedError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation

_WIDTH = 9.0  # inches
_ROW = 0.26  # inches of height a bar takes
_MARGINS = 1.75  # inches of title and axis
_DPI = 150
_WIDE = 500.0  # percent; beyond it the axis is symmetric-logarithmic, linear within _LINEAR percent of random play
_LINEAR = 10.0
_PADDING = 4.0  # points on each side of a label
_ROOM = 0.11  # of the width, beyond the longest bar
_ABOVE, _BELOW, _INK = "#2a78b5", "#9dbfd9", "#333333"
_TITLES = {"median": "median", "mean": "mean", "iqm": "IQM", "capped_mean": "capped mean"}


def write_chart(path: Path, suite: Suite, scores: Mapping[str, float], estimates: Mapping[str, Estimate]) -> None:
    """Draw one bar per task, the best on top.

    Args:
        path: the PNG file; an existing one is replaced.
        suite: the benchmark.
        scores: human-normalised score by task, 1 is human; at least one.
        estimates: from `scores.aggregate`.

    Raises:
        SeedError: the file cannot be written.
    """
    # Imported here, because nothing else needs it. Figure and Agg directly, without pyplot: no window, no global state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator

    ordered = sorted(scores.items(), key=lambda item: item[1])
    percents = [100 * score for _, score in ordered]
    figure = Figure(figsize=(_WIDTH, _MARGINS + _ROW * len(ordered)), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    colors = [_ABOVE if percent >= 100 else _BELOW for percent in percents]
    bars = axes.barh([name.replace("_", " ") for name, _ in ordered], percents, height=0.72, color=colors, zorder=2)
    blank = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}  # keeps lines from crossing a number
    labels = [_percent(percent) for percent in percents]
    figures = axes.bar_label(bars, labels, padding=_PADDING, fontsize=8, color=_INK, bbox=blank, zorder=4)
    axes.axvline(0, color=_INK, linewidth=0.8, zorder=3)
    axes.axvline(100, color=_INK, linewidth=1, linestyle="--", zorder=3)
    axes.text(100, 1, "human", transform=axes.get_xaxis_transform(), ha="center", va="bottom", fontsize=9, color=_INK)

    low, high = min(0.0, percents[0]), max(100.0, percents[-1])
    if max(-low, high) > _WIDE:
        axes.set_xscale("symlog", linthresh=_LINEAR, linscale=0.5)
        axes.xaxis.set_minor_locator(NullLocator())
    # Room for the labels at the ends of the bars: a share of the width, whatever the scale.
    scale = axes.xaxis.get_transform()
    left, right = (float(x) for x in scale.transform(np.array([low, high])))
    room = _ROOM * (right - left)
    axes.set_xlim(*scale.inverted().transform(np.array([left - room if low else left, right + room])))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f} %"))
    axes.set_ylim(-0.6, len(ordered) - 0.4)
    axes.set_xlabel("human-normalised score")
    axes.grid(axis="x", color="#e3e3e3", linewidth=0.8)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)

    shown = [f"{title} {_percent(100 * estimates[name].value)}" for name, title in _TITLES.items() if name in estimates]
    _add_heading(
        axes, f"{suite.name}: {len(ordered)} of {suite.count(len(suite.tasks))}", 38, fontsize=13, fontweight="bold"
    )
    _add_heading(axes, "    ".join(shown), 20, fontsize=10)
    _clear_line(figure, axes, figures)
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise SeedError(
            f"--chart {path} could not be written ({error.strerror}): make room or name another file"
        ) from error


def _clear_line(figure: Figure, axes: Axes, labels: Sequence[Annotation]) -> None:
    """Move labels that would cross the human line to its right."""
    figure.draw_without_rendering()  # fixes the layout
    line = float(axes.transData.transform((100, 0))[0])
    points = 72 / figure.dpi
    for label in labels:
        box = label.get_window_extent()
        if box.x0 - _PADDING / points < line < box.x1 + _PADDING / points:
            left, up = label.xyann
            label.xyann = (left + (line - box.x0) * points + _PADDING, up)


def _percent(percent: float) -> str:
    return f"{percent:,.0f} %" if abs(percent) >= 10 else f"{percent:.1f} %"


def _add_heading(axes: Axes, text: str, points: float, **style: Any) -> None:
    """A line of text centred over the axes, `points` above them."""
    axes.annotate(
        text,
        (0.5, 1),
        xycoords="axes fraction",
        xytext=(0, points),
        textcoords="offset points",
        ha="center",
        va="bottom",
        color=_INK,
        **style,
    )
