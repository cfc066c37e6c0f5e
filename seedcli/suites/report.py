"""`seed benchmark table`: a suite's results, as files and on stdout."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from rich.console import Console

from seedcli.errors import UsageError
from seedcli.files import replacing
from seedcli.suites.chart import write_chart
from seedcli.suites.curves_chart import write_curves
from seedcli.suites.outcomes import SuiteOutcome
from seedcli.suites.tables import aggregate_lines, markdown, run_grid, state_line, task_grid


def write_files(outcome: SuiteOutcome, folder: Path) -> list[Path]:
    """Write `<suite>.md`, `<suite>.json`, `<suite>.png` and, if any run has a curve, `<suite>-curves.png`.

    The folder is created.

    Returns:
        The files written.

    Raises:
        UsageError: the folder cannot be written.
    """
    name = outcome.suite.name
    page, data, chart, curves = (folder / f"{name}{ending}" for ending in (".md", ".json", ".png", "-curves.png"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        charts = [chart, curves] if write_curves(curves, outcome) else [chart]
        texts = {data: to_json(outcome) + "\n", page: markdown(outcome, *(each.name for each in charts))}
        for path, text in texts.items():
            with replacing(path) as made:
                made.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{folder} cannot be written ({error.strerror}): give another --out") from error
    write_chart(chart, outcome)
    return [page, data, *charts]


def to_json(outcome: SuiteOutcome) -> str:
    """The JSON form as text, every list of numbers on one line."""
    text = json.dumps(outcome.to_dict(), indent=1)
    return re.sub(r"\[\s+([^][{}\"]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)


def show(outcome: SuiteOutcome) -> None:
    """Print the tables: as Markdown unless stdout is a terminal."""
    suite, grids = outcome.suite, (task_grid(outcome), run_grid(outcome))
    if not sys.stdout.isatty():
        print("\n\n".join("\n".join(grid.markdown()) for grid in grids))
        return
    console = Console()
    console.print(grids[0].table(f"{suite.name}: {suite.description}"))
    console.print(grids[1].table(state_line(outcome)))
    for line in aggregate_lines(outcome):
        console.print(line, highlight=False, markup=False)
