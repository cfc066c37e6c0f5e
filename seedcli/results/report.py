"""`seed report`: one self-contained HTML page about one or several runs of a task."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import datetime
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

from seedcli.errors import EXIT_DONE, SeedError
from seedcli.files import replacing
from seedcli.results.charts import chart_data
from seedcli.results.comparison import compare
from seedcli.results.groups import Selection, select
from seedcli.results.picture import check_one_task
from seedcli.results.report_parts import (
    comparison_part,
    configuration_part,
    evaluation_part,
    machine_part,
    profile_part,
    repeat_part,
    runs_part,
    video_part,
)
from seedcli.results.runs import RunData
from seedcli.roles.evaluator.suite_runs import check_output, print_to_stderr, warn
from seedcli.telemetry.numbers import counted


def write_report(paths: Sequence[Path], *, out: Path, group_by: str, thresholds: Sequence[float]) -> int:
    """Write a report of runs; returns the exit status.

    Args:
        paths, group_by: see `groups.select`.
        out: the .html file; an existing one is replaced.
        thresholds: returns to mark, and to be reached.

    Raises:
        UsageError: the runs cannot be shown together, or the file has a wrong name.
        SeedError: it cannot be written.
    """
    check_output("--out", out, ".html")
    selection = select(paths, group_by)
    check_one_task(selection)
    for sentence in selection.warnings:
        warn(sentence)
    page = make_page(selection, thresholds)
    try:
        with replacing(out) as made:
            made.write_text(page, encoding="utf-8")
    except OSError as error:
        raise SeedError(
            f"--out {out} could not be written ({error.strerror}): make room or name another file"
        ) from error
    print_to_stderr(f"{out}: {counted(len(selection.runs), 'run')}, {len(page) / 1e6:.1f} MB; open it in a browser")
    return EXIT_DONE


def make_page(selection: Selection, thresholds: Sequence[float]) -> str:
    """The page as text: no part of it is loaded from elsewhere.

    Args:
        selection: the groups.
        thresholds: returns to mark.
    """
    runs = selection.runs
    names = short_names(runs)
    data = chart_data(runs, names, thresholds)
    figures = compare(selection.groups, thresholds)
    parts = [
        runs_part([run for each in figures for run in each.runs], names, thresholds),
        comparison_part(figures) if len(runs) > 1 else "",
        _charts_part(names, own=any(chart["place"] == "own-charts" for chart in data["charts"])),
        configuration_part(runs, names),
        profile_part(runs, names),
        evaluation_part(runs, names),
        video_part(runs, names),
        machine_part(runs, names),
        repeat_part(runs, names),
    ]
    files = resources.files("seedcli.results") / "page"
    task = selection.tasks[0]
    made = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    return Template((files / "report.html").read_text(encoding="utf-8")).substitute(
        title=escape(f"{', '.join(dict.fromkeys(run.preset for run in runs))} on {task}"),
        subtitle=escape(f"{counted(len(runs), 'run')}; written by seed report on {made}"),
        style=(files / "report.css").read_text(encoding="utf-8"),
        script=(files / "report.js").read_text(encoding="utf-8"),
        body="\n".join(parts),
        # Nothing in it may end or open a script element.
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
    )


def short_names(runs: Sequence[RunData]) -> list[str]:
    """Names for the legend: the paths without their common part, or the one folder's name."""
    paths = [run.path.resolve() for run in runs]
    if len(paths) == 1:
        return [paths[0].name]
    common = os.path.commonpath(paths)
    return [str(path.relative_to(common)) for path in paths]


def _charts_part(names: Sequence[str], own: bool) -> str:
    buttons = "".join(
        f'<button data-run="{number}" aria-pressed="true"><span class="key" style="background:var(--c{number % 10})">'
        f"</span>{escape(name)}</button>"
        for number, name in enumerate(names)
    )
    mine = '<details><summary>Metrics of the algorithm</summary><div class="charts" id="own-charts"></div></details>'
    return f"""<section><h2>Curves</h2>
<p class="muted">Point at a curve to read its values; click a name to hide or show its run. Each point is the mean of
the lines of metrics.jsonl that it stands for.</p>
<div class="bar-controls axis"><button data-axis="steps" aria-pressed="true">environment steps</button>
<button data-axis="minutes" aria-pressed="false">minutes</button></div>
<div class="bar-controls">{buttons}</div>
<div class="charts" id="charts"></div>
{mine if own else ""}</section>"""
