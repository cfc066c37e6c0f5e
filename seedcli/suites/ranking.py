"""The points of a sweep as a table, the best first."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console

from seedcli.config.toml_text import format_value
from seedcli.suites.members import ACTIONS
from seedcli.suites.outcomes import SuiteOutcome, TaskOutcome
from seedcli.suites.sweep import Sweep, Values, short_keys
from seedcli.suites.tables import Grid, state_line
from seedcli.telemetry.numbers import number


@dataclass(frozen=True)
class Point:
    """What the runs of one point have reached.

    Attributes:
        values: those that vary, by key.
        outcome: of its runs.
        training: mean over runs of the mean return of their last 100 training episodes; NaN without any.
    """

    values: Values
    outcome: TaskOutcome
    training: float

    @property
    def evaluations(self) -> dict[str, float]:
        """Kind of actions → mean over runs of their evaluations; NaN without any."""
        return {actions: _mean(self.outcome.returns(actions)) for actions in ACTIONS}

    @property
    def finished(self) -> int:
        """Number of runs that are trained and evaluated."""
        return sum(run.state == "finished" for run in self.outcome.runs)


def rank(sweep: Sweep, outcome: SuiteOutcome) -> list[Point]:
    """The points by the return of their training, the best first, those without one last."""
    points = []
    for task in outcome.tasks:
        finals = [run.data.final_return for run in task.runs if run.data]
        points.append(Point(sweep.points[task.name], task, _mean([each for each in finals if not np.isnan(each)])))
    return sorted(points, key=lambda point: -np.inf if np.isnan(point.training) else point.training, reverse=True)


def show_ranking(sweep: Sweep, outcome: SuiteOutcome, json_output: bool) -> None:
    """Print the points, the best first, as a table or as JSON."""
    points = rank(sweep, outcome)
    if json_output:
        found = [_json(point) for point in points]
        print(json.dumps({"sweep": sweep.suite.name, "results": str(outcome.results), "points": found}))
        return
    labels = short_keys([point.values for point in points])
    headings = (*labels.values(), "finished", "training, last 100", *ACTIONS)
    rows = [
        [
            *(format_value(point.values[key]) if key in point.values else "" for key in labels),
            f"{point.finished} of {len(point.outcome.runs)}",
            number(point.training),
            *map(number, point.evaluations.values()),
        ]
        for point in points
    ]
    console = Console()
    console.print(Grid(headings, rows, left=len(labels)).table(f"{sweep.suite.name}: {state_line(outcome)}"))


def _json(point: Point) -> dict[str, Any]:
    figures = {"training": point.training, **point.evaluations}
    known = {name: None if np.isnan(value) else value for name, value in figures.items()}
    runs = [run.to_dict() for run in point.outcome.runs]
    return {"point": point.outcome.name, "values": dict(point.values), **known, "runs": runs}


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else np.nan
