"""The tables of `seed runs` and `seed compare`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from seedcli.errors import EXIT_DONE, UsageError
from seedcli.results.comparison import compare
from seedcli.results.groups import Selection
from seedcli.results.runs import RunData, collect_runs, read_run
from seedcli.results.words import comparison_note, comparison_table
from seedcli.roles.evaluator.suite_runs import warn
from seedcli.telemetry.numbers import NOTHING, count, finite, number, short

_WIDTH = 1000  # of a table that goes to no terminal
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
    # A preset says which algorithm it has, unless it was given another one.
    own = any(":" in _algorithm(run) for run in runs)
    names = ("run", "preset", *(("algorithm",) if own else ()), "environment")
    table = _table(names, ("seed", "steps", "return", "steps/s"), "state")
    for run in runs:
        # Text, because a name in brackets is not markup.
        table.add_row(
            Text(str(run.path)),
            Text(run.preset),
            *((Text(_algorithm(run)),) if own else ()),
            Text(run.task.partition("/")[2]),
            NOTHING if run.seed is None else str(run.seed),
            short(run.env_steps) + ("" if run.state == "finished" else f" of {short(run.total_steps)}"),
            number(run.final_return),
            count(run.steps_per_second),
            Text(run.state, style=_STYLES[run.state]),
        )
    console = _console()
    console.print(table)
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
    (group, *headings), rows = comparison_table(found)
    several = len(selection.tasks) > 1
    table = _table((*(["task"] if several else []), group), headings)
    for figures, row in zip(found, rows, strict=True):
        cells = [*([figures.group.task.partition("/")[2]] if several else []), *row]
        table.add_row(*map(Text, cells))
    console = _console()
    if not several:
        console.print(Text(selection.tasks[0], style="bold"))
    console.print(table)
    console.print(Text(comparison_note(smooth), style="dim"), soft_wrap=True)
    return EXIT_DONE


def _table(left: Sequence[str], right: Sequence[str], *last: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in left:
        table.add_column(Text(name), overflow="fold")
    for name in right:
        table.add_column(Text(name), justify="right")
    for name in last:
        table.add_column(name, no_wrap=True)
    return table


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)
