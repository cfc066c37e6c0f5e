"""The axis of a chart made of characters: round values at even distances."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_STEPS = (1.0, 2.0, 2.5, 5.0)  # and these times powers of ten
_LOST = 1e-9  # relative differences below this are rounding errors


class Axis(NamedTuple):
    """A vertical axis.

    Attributes:
        low, high: values of its last and its first line.
        marks: [lines] the label of each line from the top; "" where there is none.
    """

    low: float
    high: float
    marks: Sequence[str]


def vertical_axis(low: float, high: float, height: int) -> Axis:
    """The smallest axis of `height` lines that holds all from `low` to `high` and has round values on whole lines.

    A single value is on the last line. With fewer than three lines, the labels are the values themselves.
    """
    flat = high - low <= _LOST * max(abs(low), abs(high))
    if flat or height < 3:
        ends = [_plain(high), *([] if flat or height < 2 else [_plain(low)])]
        return Axis(low, max(low, high), [*[""] * (height - len(ends)), *ends])
    *_, step, lines, bottom = min(_fits(low, high, height - 1))
    values = {height - 1 - line: (bottom + line) / lines for line in range(height) if (bottom + line) % lines == 0}
    labels = dict(zip(values, tick_labels([value * step for value in values.values()], step), strict=True))
    unit = step / lines
    return Axis(bottom * unit, (bottom + height - 1) * unit, [labels.get(line, "") for line in range(height)])


def _plain(value: float) -> str:
    """A value with up to two decimals."""
    return f"{value:,.2f}".rstrip("0").rstrip(".")


def _fits(low: float, high: float, gaps: int) -> Iterator[tuple[bool, float, int, float, int, int]]:
    """Axes that hold the values, as tuples of which the least is the best axis: whether it has few labels, its range,
    its difference from five labels; then its step, the lines per step, and its last line in units of step / lines."""
    wanted = 3 if gaps > 3 else 2
    for lines in range(2 if gaps > 3 else 1, gaps + 1):
        for step in _round_steps((high - low) * lines / gaps):
            unit = step / lines
            bottom = math.floor(low / unit + _LOST)
            labels = sum((bottom + line) % lines == 0 for line in range(gaps + 1))
            if (bottom + gaps) * unit >= high - _LOST * unit:
                yield labels < wanted, float(f"{gaps * unit:.9g}"), abs(labels - 5), step, lines, bottom
                break


def _round_steps(least: float) -> Iterator[float]:
    """Round steps from about `least` on."""
    power = math.floor(math.log10(least))
    for exponent in range(power, power + 3):
        yield from (step * 10.0**exponent for step in _STEPS if step * 10.0**exponent >= least * (1 - _LOST))


def round_ticks(high: float, count: int) -> list[float]:
    """At most `count` round values above 0 at even distances, up to `high`; none if it is not above 0."""
    if high <= 0 or count < 1:
        return []
    step = next(_round_steps(high / (count + 1 - _LOST)))
    return [index * step for index in range(1, math.floor(high / step + _LOST) + 1)]


def tick_labels(values: Sequence[float], step: float) -> Iterator[str]:
    """The values with as many decimals as `step` has."""
    power = math.floor(math.log10(step) + _LOST)
    decimals = max(0, -power + (round(step / 10.0**power, 6) == 2.5))
    yield from (f"{round(value, decimals) + 0.0:,.{decimals}f}" for value in values)
