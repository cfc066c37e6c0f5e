"""Axes of character charts have round, evenly spaced values and cover every value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedcli.telemetry.axis import round_ticks, tick_labels, vertical_axis


def test_marks_are_round_and_evenly_spaced() -> None:
    assert vertical_axis(0, 500, 1).marks == ["500"]
    assert vertical_axis(32.5, 32.5, 4).marks == ["", "", "", "32.5"]
    assert vertical_axis(-3, 2.5, 2) == (-3, 2.5, ["2.5", "-3"])
    assert vertical_axis(0, 500, 3).marks == ["500", "250", "0"]
    assert vertical_axis(-20, 20, 5).marks == ["20", "", "0", "", "-20"]
    assert vertical_axis(0, 9, 10).marks == ["", "8", "", "6", "", "4", "", "2", "", "0"]
    low, high, marks = vertical_axis(9.3, 498, 6)
    assert (low, high, marks) == (0, 500, ["", "400", "", "200", "", "0"])
    assert vertical_axis(-21, 19.8, 10).marks == ["20", "", "10", "", "0", "", "-10", "", "-20", ""]


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(3, 24))
def test_an_axis_holds_its_values_and_its_labels_are_true(low: float, size: float, height: int) -> None:
    axis = vertical_axis(low, low + size, height)
    assert len(axis.marks) == height
    tolerance = 1e-6 * max(size, abs(low))
    assert axis.low <= low + tolerance and axis.high >= low + size - tolerance
    lines = [line for line, mark in enumerate(axis.marks) if mark]
    assert len({after - before for before, after in zip(lines, lines[1:], strict=False)}) <= 1
    for line in lines:
        value = axis.high - (axis.high - axis.low) * line / (height - 1)
        assert float(axis.marks[line].replace(",", "")) == pytest.approx(value, abs=max(tolerance, 1e-9))


def test_round_ticks_and_their_labels() -> None:
    assert round_ticks(400_000, 6) == [100_000, 200_000, 300_000, 400_000]
    assert list(tick_labels(round_ticks(1.7, 4), 0.5)) == ["0.5", "1.0", "1.5"]
    assert list(tick_labels([0.25, 0.5], 0.25)) == ["0.25", "0.50"]
    assert round_ticks(0, 6) == round_ticks(5, 0) == []
