"""The points of a sweep as a table, the best first."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from rich.console import Console

from seedcli.config.toml_text import format_value
from seedcli.suites.members import ACTIONS
from seedcli.suites.outcomes import SuiteOutcome, TaskOutcome
from seedcli.suites.sweep import Sweep, short_keys
from seedcli.suites.tables import Grid, state_line
from seedcli.telemetry.numbers import finite, number


def show_ranking(sweep: Sweep, outcome: SuiteOutcome, json_output: bool) -> None:
    """Print the points, by the return of their training, the best first, as a table or as JSON."""
    figures = {task.name: _figures(task) for task in outcome.tasks}
    tasks = sorted(
        outcome.tasks, key=lambda task: np.nan_to_num(figures[task.name]["training"], nan=-np.inf), reverse=True
    )
    if json_output:
        found = [
            {
                "point": task.name,
                "values": dict(sweep.points[task.name]),
                **{name: finite(value) for name, value in figures[task.name].items()},
                "runs": [run.to_dict() for run in task.runs],
            }
            for task in tasks
        ]
        print(json.dumps({"sweep": sweep.suite.name, "results": str(outcome.results), "points": found}))
        return
    labels = short_keys(list(sweep.points.values()))
    headings = (*labels.values(), "finished", "training, last 100", *ACTIONS)
    rows = []
    for task in tasks:
        values = sweep.points[task.name]
        cells = [format_value(values[key]) if key in values else "" for key in labels]
        rows.append([*cells, f"{task.finished} of {len(task.runs)}", *map(number, figures[task.name].values())])
    Console().print(Grid(headings, rows, left=len(labels)).table(f"{sweep.suite.name}: {state_line(outcome)}"))


def _figures(task: TaskOutcome) -> dict[str, float]:
    """Means over the runs of a point, NaN without any: of the last 100 training episodes, and of evaluations."""
    finals = [run.training_return for run in task.runs]
    return {"training": _mean(finals), **{actions: _mean(task.returns(actions)) for actions in ACTIONS}}


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else np.nan
