"""The tables of `seed runs` and `seed compare`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from seedcli.errors import EXIT_DONE, UsageError
from seedcli.results.comparison import compare
from seedcli.results.fitting import Column, fitted
from seedcli.results.formatting import INTERVAL, comparison_note, comparison_table
from seedcli.results.groups import Selection
from seedcli.results.runs import RunData, collect_runs, read_run
from seedcli.roles.evaluator.suite_runs import warn
from seedcli.telemetry.numbers import NOTHING, count, finite, number, short

_WIDTH = 1000  # of a table that is not printed to a terminal
# Columns of a comparison that a narrow terminal leaves out, those with 1 first.
_OPTIONAL = {"IQM": 1, "runs": 3, "steps": 2, "steps/s": 4}
_STYLES = {"running": "cyan", "finished": "green", "resumable": "yellow", "failed": "red"}


def list_runs(folder: Path, json_output: bool) -> int:
    """`seed runs`: print the runs in a folder, oldest name first; returns the exit status.

    Damaged runs are named on stderr.

    Raises:
        UsageError: the folder does not exist or holds no run.
    """
    runs = []
    for path in collect_runs([folder]):
        try:
            runs.append(read_run(path))
        except UsageError as error:
            warn(f"a run is left out: {error}")
    if json_output:
        print(json.dumps([_run_dict(run) for run in runs]))
        return EXIT_DONE
    # A preset implies its algorithm, unless the run chose another one.
    own = any(":" in _algorithm(run) for run in runs)
    columns = [
        Column("run", "path", least=20),
        Column("preset", "text", optional=1),
        *([Column("algorithm", "path")] if own else []),
        Column("environment", "path", least=11),
        Column("seed", optional=2),
        Column("steps"),
        Column("return"),
        Column("steps/s", optional=3),
        Column("state", "text", least=max(map(len, _STYLES))),
    ]
    rows = []
    for run in runs:
        cells = (
            str(run.path),
            run.preset,
            *((_algorithm(run),) if own else ()),
            run.task.partition("/")[2],
            NOTHING if run.seed is None else str(run.seed),
            short(run.env_steps) + ("" if run.state == "finished" else f" of {short(run.total_steps)}"),
            number(run.final_return),
            count(run.steps_per_second),
        )
        rows.append([*map(Text, cells), Text(run.state, style=_STYLES[run.state])])
    console = _console()
    _print_table(console, columns, rows)
    for run in runs:
        if run.error:
            console.print(Text(f"{run.path} failed: {run.error}"), soft_wrap=True)
    return EXIT_DONE


def _algorithm(run: RunData) -> str:
    return str(run.value("agent.algorithm"))


def _run_dict(run: RunData) -> dict[str, Any]:
    return {
        "path": str(run.path),
        "preset": run.preset,
        "algorithm": _algorithm(run),
        "environment": run.task,
        "seed": run.seed,
        "env_steps": run.env_steps,
        "total_steps": run.total_steps,
        "final_return": finite(run.final_return),
        "steps_per_second": finite(run.steps_per_second),
        "state": run.state,
        "error": run.error,
    }


def print_comparison(
    selection: Selection, *, thresholds: Sequence[float], smooth: int | None, json_output: bool
) -> int:
    """`seed compare`: print the figures of groups of runs; returns the exit status.

    Args:
        selection: the groups.
        thresholds, smooth: see `comparison.compare`.
        json_output: print JSON instead of a table.
    """
    for sentence in selection.warnings:
        warn(sentence)
    found = compare(selection.groups, thresholds, smooth)
    if json_output:
        print(json.dumps([figures.to_dict() for figures in found]))
        return EXIT_DONE
    (group, *headings), cells = comparison_table(found)
    several = len(selection.tasks) > 1
    columns = [
        *([Column("task", "path", least=11)] if several else []),
        Column(group, "path", least=24),
        *(
            Column(name, "words" if name.startswith("reaches") else "number", 8, _OPTIONAL.get(name, 0))
            for name in headings
        ),
    ]
    second = [index for index, column in enumerate(columns) if column.name == INTERVAL][-1]
    columns[second] = replace(columns[second], optional=_OPTIONAL["IQM"])  # of the interquartile mean
    rows = []
    for figures, row in zip(found, cells, strict=True):
        task = [figures.group.task.partition("/")[2]] if several else []
        rows.append([Text(cell) for cell in (*task, _short_label(figures.group.label), *row[1:])])
    console = _console()
    if not several:
        console.print(Text(selection.tasks[0], style="bold"))
    _print_table(console, columns, rows)
    console.print(Text(comparison_note(smooth), style="dim"), soft_wrap=not console.is_terminal)
    return EXIT_DONE


def _short_label(label: str) -> str:
    """A group's label without the section of its key: "learning_rate = 0.001"."""
    key, equals, value = label.partition(" = ")
    return f"{key.rsplit('.', 1)[-1]} = {value}" if equals else label


def _print_table(console: Console, columns: Sequence[Column], rows: Sequence[Sequence[Text]]) -> None:
    table, left_out = fitted(columns, rows, console.width)
    console.print(table)
    if left_out:
        names = ", ".join(dict.fromkeys(left_out))
        console.print(Text(f"a wider terminal, or --json, shows {names} as well", style="dim"))


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)
