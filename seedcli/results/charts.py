"""The data behind the charts of a report: columns of metrics, thinned and rounded so that ten runs stay small."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from seedcli.results.metrics_file import Column, read_columns, read_lines
from seedcli.results.runs import RunData
from seedcli.roles.run_folder import METRICS
from seedcli.telemetry.metrics import Snapshot

POINTS = 500  # of a line
_DIGITS = 5  # of a number
# Columns of every run that has them, and their titles; the first is the wide one.
_CHARTS = {
    "episode_return_100": "return: mean of the last 100 training episodes",
    "evaluation_return_20": "return: mean of the last 20 evaluation episodes",
    "episode_length": "length of training episodes, environment steps",
    "env_steps_per_second": "environment steps per second",
    "loss": "loss",
    "learning_rate": "learning rate",
    "grad_norm": "gradient norm",
    "policy_lag": "policy lag, updates",
    "learner_memory_mb": "memory of the learner, MiB",
}


def chart_data(runs: Sequence[RunData], names: Sequence[str], thresholds: Sequence[float]) -> dict[str, Any]:
    """The data that the page's script draws.

    Args:
        runs: to be shown, with metrics.
        names: of the runs, in the same order.
        thresholds: returns marked in the first chart.

    Returns:
        "runs": name, steps, minutes (null where no time is kept) and series by key, all of one length, null where there
        is no value; "charts": key, title, wide and the id of the element they belong to; "thresholds".
    """
    own = dict.fromkeys(name for run in runs for name in _own_metrics(run.path / METRICS))
    shown: set[str] = set()
    drawn = []
    for run, name in zip(runs, names, strict=True):
        columns = read_columns(run.path / METRICS, [*_CHARTS, *own])
        length = min(len(run.seconds), len(columns["loss"]))  # a running run has more lines by now
        at = np.unique(np.linspace(0, length - 1, min(POINTS, length)).round().astype(np.int64))
        series = {
            key: _numbers(_means_between(column[:length], at))
            for key, column in columns.items()
            if not np.isnan(column).all()
        }
        shown |= series.keys()
        minutes = run.seconds[at] / 60
        drawn.append(
            {
                "name": name,
                "steps": _numbers(run.metrics["env_steps"][at]),
                "minutes": None if np.isnan(minutes).any() else _numbers(minutes),
                "series": series,
            }
        )
    charts = [
        {"key": key, "title": _CHARTS.get(key, key), "wide": key == next(iter(_CHARTS)), "place": place}
        for place, keys in (("charts", _CHARTS), ("own-charts", own))
        for key in keys
        if key in shown or key == next(iter(_CHARTS))
    ]
    return {"runs": drawn, "charts": charts, "thresholds": list(thresholds)}


def _own_metrics(path: Path) -> Iterator[str]:
    """Names of the algorithm's and the replay's metrics; a line without an update lacks those of the algorithm."""
    general = {field.name for field in fields(Snapshot)}
    for line in read_lines(path):
        yield from (name for name, value in line.items() if name not in general and isinstance(value, (int, float)))


def _means_between(column: Column, at: np.ndarray[Any, np.dtype[np.int64]]) -> Column:
    """Means of the lines from each index to the next, over the values present."""
    known = ~np.isnan(column)
    sums = np.add.reduceat(np.where(known, column, 0.0), at)
    counts = np.add.reduceat(known.astype(np.float64), at)
    return np.where(counts > 0, sums / np.maximum(counts, 1.0), np.nan)


def _numbers(column: Column) -> list[float | None]:
    """Rounded to five digits; None for NaN."""
    found: list[float | None] = []
    for value in column.tolist():
        rounded = float(f"{value:.{_DIGITS}g}") if value == value else None
        found.append(int(rounded) if rounded is not None and rounded.is_integer() else rounded)
    return found
