"""A plot of returns as a picture file, drawn with Matplotlib."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from seedcli.errors import SeedError
from seedcli.files import replacing
from seedcli.results.picture import Picture
from seedcli.telemetry.numbers import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

ENDINGS = (".png", ".svg", ".pdf")
# Okabe and Ito's colours, which most colour-blind people tell apart; their yellow is too light for a line.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#444444")
_SIZE = (7.5, 4.3)  # inches, without the legend
_ROW = 0.18  # inches of height a line of the legend takes
_LONG = 45  # characters of a label, of which two do not fit beside each other
_DPI = 150


def draw_picture(picture: Picture, path: Path) -> None:
    """Write a plot.

    Args:
        picture: the plot.
        path: a .png, .svg or .pdf file; an existing one is replaced.

    Raises:
        SeedError: the file cannot be written.
    """
    # Figure directly, without pyplot: no window, no global state.
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    figure = Figure(figsize=_SIZE, dpi=_DPI, layout="constrained")
    axes = figure.subplots()
    entries = [*_draw_lines(axes, picture), *_draw_thresholds(axes, picture)]
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: short(x)))
    axes.set_xlabel(picture.x_label)
    axes.set_ylabel(picture.y_label)
    axes.set_xlim(left=0)
    axes.grid(color="#e3e3e3", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_title("\n".join([picture.title, *picture.notes]), fontsize=9, loc="left", parse_math=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    # The legend is below the axes, where it hides nothing, however many groups there are.
    handles, labels = zip(*entries, strict=True)
    columns = 1 if max(map(len, labels)) > _LONG else 2
    figure.set_figheight(_SIZE[1] + _ROW * -(-len(labels) // columns))
    # Names of runs are shown as they are: Matplotlib leaves out labels that begin with "_", and reads $ as mathematics.
    legend = figure.legend(handles, labels, loc="outside lower left", ncols=columns, frameon=False, fontsize=8)
    for text in legend.get_texts():
        text.set_parse_math(False)
    try:
        with replacing(path) as made:
            figure.savefig(made, format=path.suffix[1:])
    except OSError as error:
        raise SeedError(
            f"--out {path} could not be written ({error.strerror}): make room or name another file"
        ) from error


def _draw_lines(axes: Axes, picture: Picture) -> Iterator[tuple[Line2D, str]]:
    """Draw the curves; yields each with its label in the legend."""
    for line in picture.lines:
        color = COLORS[line.group % len(COLORS)]
        style = "--" if line.evaluation else "-"
        marker = "." if len(line.x) == 1 else None  # a line of one point would show nothing
        (drawn,) = axes.plot(line.x, line.y, color=color, linestyle=style, linewidth=1.6, marker=marker)
        yield drawn, line.label
        if np.isfinite(line.low).any():
            axes.fill_between(
                line.x, line.low, line.high, color=color, alpha=0.1 if line.evaluation else 0.2, linewidth=0
            )


def _draw_thresholds(axes: Axes, picture: Picture) -> Iterator[tuple[Line2D, str]]:
    """Draw the thresholds; yields each mark with its sentence in the legend."""
    for threshold in picture.thresholds:
        axes.axhline(threshold.value, color="#888888", linestyle=":", linewidth=1)
        for number, (x, sentence) in enumerate(zip(threshold.reached, threshold.sentences, strict=True)):
            # Without a point the sentence is still in the legend.
            at = ([x], [threshold.value]) if np.isfinite(x) else ([], [])
            marker = "o" if np.isfinite(x) else "x"
            color = COLORS[number % len(COLORS)]
            (mark,) = axes.plot(*at, marker, color=color, markersize=5, zorder=5)
            yield mark, sentence
