"""A plot of returns in the terminal: lines of braille dots, in colours, or of letters where there are none."""

from __future__ import annotations

import string
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.text import Text

from seedcli.results.picture import Line, Picture
from seedcli.telemetry.axis import round_ticks, tick_labels, vertical_axis
from seedcli.telemetry.numbers import number, short

_COLORS = ("cyan", "red", "green", "magenta", "yellow", "blue", "white")
_WIDTH, _HEIGHT = 100, 20  # characters at most
_LETTERS = 3  # of a line among several
# Bits of a braille character by its rows and columns of dots, Unicode 2800.
_DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])


def print_picture(picture: Picture, console: Console | None = None) -> None:
    """Draw a plot on a terminal, or as plain text elsewhere.

    Args:
        picture: the plot.
        console: the destination; None: stdout.
    """
    console = console or Console()
    letters = console.options.ascii_only or (console.color_system is None and len(picture.lines) > 1)
    ends = np.concatenate([[line.y.min(), line.y.max()] for line in picture.lines])
    values = [*ends, *(threshold.value for threshold in picture.thresholds)]
    low, high = min(values), max(values)
    right = max(line.x[-1] for line in picture.lines)
    below = len(picture.lines) + sum(len(each.sentences) for each in picture.thresholds)
    height = max(5, min(_HEIGHT, console.height - 7 - below))
    # Fewer lines may give a better axis.
    axes = [vertical_axis(low, high, lines) for lines in range(height, max(4, height - 5), -1)]
    bottom, top, marks = min(axes, key=lambda each: each.high - each.low)
    margin = max(map(len, marks))
    width = max(10, min(_WIDTH, console.width - margin - 3))
    canvas = _Canvas(width, len(marks), (0.0, right), (bottom, top), letters)
    for threshold in picture.thresholds:
        canvas.level(threshold.value)
    for index, line in enumerate(picture.lines):
        canvas.line(line, index)
    if len(picture.lines) > 1 and not letters:
        for index in range(len(picture.lines)):
            canvas.mark(index, len(picture.lines))
    console.print(Text.assemble((picture.title, "bold"), f"  {', '.join(picture.notes)}"), soft_wrap=True)
    tick, axis, corner, floor = ("+", "|", "+", "-") if console.options.ascii_only else ("┤", "│", "└", "─")
    for mark, row in zip(marks, canvas.rows(), strict=True):
        console.print(Text.assemble(f"{mark:>{margin}} {tick if mark else axis}", row), no_wrap=True, overflow="crop")
    rule, labels = _horizontal_axis(right, width, floor, "+" if console.options.ascii_only else "┴")
    console.print(f"{'':{margin}} {corner}{rule}", highlight=False)
    console.print(f"{'':{margin}}  {labels}", highlight=False, no_wrap=True)
    console.print(f"{'':{margin}}  {picture.x_label:>{width}}", highlight=False, no_wrap=True)
    for index, line in enumerate(picture.lines):
        console.print(Text.assemble(canvas.sample(index), f" {line.label}: {_ending(line)}"), soft_wrap=True)
    for threshold in picture.thresholds:
        for sentence in threshold.sentences:
            console.print(Text(sentence), soft_wrap=True)


def _ending(line: Line) -> str:
    interval = f" ({number(line.low[-1])} to {number(line.high[-1])})" if np.isfinite(line.low[-1]) else ""
    return f"{number(line.y[-1])}{interval} at the end"


def _horizontal_axis(right: float, width: int, floor: str, tick: str) -> tuple[str, str]:
    """The axis from 0 to `right`, and its labels: 0 and round values."""
    rule, labels = [floor] * width, "0".ljust(width)
    ticks = round_ticks(right, width // 14)
    plain = tick_labels(ticks, ticks[0]) if ticks else ()
    for value, label in zip(ticks, plain, strict=True):
        column = round(value / right * (width - 1))
        text = short(value) if value >= 1000 else label
        start = min(column - len(text) // 2, width - len(text))
        if labels[start - 1 : start + len(text)].strip():
            continue
        rule[column] = tick
        labels = f"{labels[:start]}{text}{labels[start + len(text) :]}"
    return "".join(rule), labels


class _Canvas:
    """Characters, each with the line that was drawn there last.

    Args:
        width, height: characters.
        x, y: what the edges stand for.
        letters: draw letters instead of braille dots, a different one for each line.
    """

    def __init__(self, width: int, height: int, x: tuple[float, float], y: tuple[float, float], letters: bool) -> None:
        self._fine = (1, 1) if letters else (4, 2)  # dots of a character
        self._letters = letters
        self._x, self._y = x, y
        self._dots = np.zeros((height * self._fine[0], width * self._fine[1]), np.bool_)
        self._owner: npt.NDArray[np.int64] = np.full((height, width), -1)
        self._marked: dict[tuple[int, int], str] = {}  # row and column → the letter of a line

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

    def mark(self, index: int, lines: int) -> None:
        """Write the letter of one of several lines on it in a few places, so that lines differ in more than colour."""
        rows, columns = np.nonzero(self._owner == index)
        for part in range(_LETTERS if len(columns) else 0):
            wanted = self._owner.shape[1] * (part + (index + 1) / (lines + 1)) / _LETTERS
            at = int(np.argmin(abs(columns - wanted)))
            self._marked[int(rows[at]), int(columns[at])] = self._letter(index)

    def sample(self, index: int) -> Text:
        """How a line looks, for the legend."""
        marked = f"{self._letter(index)} ⣀⣀" if self._marked else "⣀⣀"
        return Text(self._letter(index) if self._letters else marked, style=_COLORS[index % len(_COLORS)])

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
            for column, (code, owner) in enumerate(zip(codes[row], self._owner[row], strict=True)):
                character = self._letter(owner) if self._letters else chr(0x2800 + code)
                character = self._marked.get((row, column), character)
                text.append(character if code else " ", style=_COLORS[owner % len(_COLORS)] if owner >= 0 else "dim")
            drawn.append(text)
        return drawn
