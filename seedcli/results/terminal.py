"""A plot of returns in the terminal: lines of braille dots, in colours, or of letters where there are none."""

from __future__ import annotations

import string
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.text import Text

from seedcli.results.picture import Line, Picture
from seedcli.telemetry.live_layout import axis_marks
from seedcli.telemetry.numbers import number, short

_COLORS = ("cyan", "red", "green", "magenta", "yellow", "blue", "white")
_WIDTH, _HEIGHT = 100, 20  # characters at most
# Bits of a braille character by its rows and columns of dots, Unicode 2800.
_DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])


def print_picture(picture: Picture, console: Console | None = None) -> None:
    """Draw a plot on a terminal, or as plain text elsewhere.

    Args:
        picture: the plot.
        console: where to; None: stdout.
    """
    console = console or Console()
    letters = console.options.ascii_only or (console.color_system is None and len(picture.lines) > 1)
    ends = np.concatenate([[line.y.min(), line.y.max()] for line in picture.lines])
    values = [*ends, *(threshold.value for threshold in picture.thresholds)]
    low, high = min(values), max(values)
    right = max(line.x[-1] for line in picture.lines)
    height = max(
        5,
        min(_HEIGHT, console.height - 6 - len(picture.lines) - sum(len(each.sentences) for each in picture.thresholds)),
    )
    marks = axis_marks(low, high, height)
    margin = max(map(len, marks))
    width = max(10, min(_WIDTH, console.width - margin - 3))
    canvas = _Canvas(width, height, (0.0, right), (low, high), letters)
    for threshold in picture.thresholds:
        canvas.level(threshold.value)
    for index, line in enumerate(picture.lines):
        canvas.line(line, index)
    console.print(Text.assemble((picture.title, "bold"), f"  {', '.join(picture.notes)}"), soft_wrap=True)
    tick, axis, corner, floor = ("+", "|", "+", "-") if console.options.ascii_only else ("┤", "│", "└", "─")
    for mark, row in zip(marks, canvas.rows(), strict=True):
        console.print(Text.assemble(f"{mark:>{margin}} {tick if mark else axis}", row), no_wrap=True, overflow="crop")
    console.print(f"{'':{margin}} {corner}{floor * width}", highlight=False)
    console.print(f"{'':{margin}}  0{f'{short(right)} {picture.x_label}':>{width - 1}}", highlight=False, no_wrap=True)
    for index, line in enumerate(picture.lines):
        console.print(Text.assemble(canvas.sample(index), f" {line.label}: {_ending(line)}"), soft_wrap=True)
    for threshold in picture.thresholds:
        for sentence in threshold.sentences:
            console.print(Text(sentence), soft_wrap=True)


def _ending(line: Line) -> str:
    interval = f" ({number(line.low[-1])} to {number(line.high[-1])})" if np.isfinite(line.low[-1]) else ""
    return f"{number(line.y[-1])}{interval} at the end"


class _Canvas:
    """Characters, each with the line that was drawn there last.

    Args:
        width, height: characters.
        x, y: what the edges stand for.
        letters: draw letters instead of braille dots, the line's own one each.
    """

    def __init__(self, width: int, height: int, x: tuple[float, float], y: tuple[float, float], letters: bool) -> None:
        self._fine = (1, 1) if letters else (4, 2)  # dots of a character
        self._letters = letters
        self._x, self._y = x, y
        self._dots = np.zeros((height * self._fine[0], width * self._fine[1]), np.bool_)
        self._owner: npt.NDArray[np.int64] = np.full((height, width), -1)

    def _rows_of(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        low, high = self._y
        share = (values - low) / (high - low) if high > low else np.zeros(len(values))
        return np.rint((1 - share) * (len(self._dots) - 1)).astype(np.int64)

    def line(self, line: Line, index: int) -> None:
        """Draw a line, connected from column to column."""
        columns = np.arange(self._dots.shape[1])
        low, high = self._x
        at = low + (high - low) * columns / max(1, len(columns) - 1)
        inside = np.flatnonzero((at >= line.x[0]) & (at <= line.x[-1]))
        if not len(inside):  # shorter than a column
            inside = np.array([np.argmin(abs(at - line.x[-1]))])
        rows = self._rows_of(np.interp(at[inside], line.x, line.y))
        before = np.concatenate([rows[:1], rows[:-1]])
        for column, row, last in zip(columns[inside], rows, before, strict=True):
            # From the neighbour of the last column's row, so that steep parts stay thin.
            start = row if row == last else last + np.sign(row - last)
            for each in range(min(start, row), max(start, row) + 1):
                self._dots[each, column] = True
                self._owner[each // self._fine[0], column // self._fine[1]] = index

    def level(self, value: float) -> None:
        """Draw a dotted horizontal line."""
        row = int(self._rows_of(np.array([value]))[0])
        self._dots[row, :: 2 * self._fine[1]] = True

    def sample(self, index: int) -> Text:
        """How a line looks, for the legend."""
        return Text(self._letter(index) if self._letters else "⣀⣀", style=_COLORS[index % len(_COLORS)])

    @staticmethod
    def _letter(index: int) -> str:
        return "." if index < 0 else string.ascii_lowercase[index % 26]

    def rows(self) -> Sequence[Text]:
        """The drawing, a text for each line of characters."""
        tall, wide = self._fine
        height, width = self._owner.shape
        cells = self._dots.reshape(height, tall, width, wide).transpose(0, 2, 1, 3)
        codes = (cells * _DOTS[:tall, :wide]).sum(axis=(2, 3))
        drawn = []
        for row in range(height):
            text = Text()
            for code, owner in zip(codes[row], self._owner[row], strict=True):
                character = self._letter(owner) if self._letters else chr(0x2800 + code)
                text.append(character if code else " ", style=_COLORS[owner % len(_COLORS)] if owner >= 0 else "dim")
            drawn.append(text)
        return drawn
