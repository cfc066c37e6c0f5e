"""The tables of a suite's outcome: Markdown for a file, and the same rows for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from seedcli.envs.scores import TITLES, Estimate, interquartile_mean
from seedcli.results.formatting import format_machine, format_reached, format_versions
from seedcli.suites.members import ACTIONS
from seedcli.suites.outcomes import SuiteOutcome, TaskOutcome
from seedcli.suites.run_outcome import RunOutcome
from seedcli.telemetry.numbers import NOTHING, count, counted, duration, number, short


@dataclass(frozen=True)
class Grid:
    """A table of text.

    Attributes:
        headings: of the columns.
        rows: [rows][columns].
        left: columns of text, which are aligned to the left; all others hold numbers.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int

    def markdown(self) -> Iterator[str]:
        """Lines of a Markdown table."""
        rules = ["---" if index < self.left else "---:" for index in range(len(self.headings))]
        for row in (self.headings, rules, *self.rows):
            cells = (" ".join(cell.split()).replace("|", "\\|") for cell in row)
            yield f"| {' | '.join(cells)} |"

    def table(self, title: str) -> Table:
        """A table for a terminal."""
        table = Table(title=Text(title, style="bold"), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        for index, heading in enumerate(self.headings):
            table.add_column(
                Text(heading), justify="left" if index < self.left else "right", no_wrap=index == 0, overflow="fold"
            )
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table


def state_line(outcome: SuiteOutcome) -> str:
    """The number of runs in each state, and the number of tasks if not all are included."""
    states = Counter(run.state for run in outcome.runs)
    chosen, tasks = len(outcome.tasks), len(outcome.suite.tasks)
    part = f" of {chosen} of {counted(tasks, 'task')}" if chosen < tasks else ""
    return f"{counted(len(outcome.runs), 'run')}{part}: " + ", ".join(f"{n} {state}" for state, n in states.items())


def task_grid(outcome: SuiteOutcome) -> Grid:
    """A row for each task."""
    unit = "human" if outcome.suite.scores else "reference"
    headings = ("task", "preset", "environment", "steps", "runs", *ACTIONS, unit, "threshold", "reached after")
    return Grid(headings, [_task_row(task) for task in outcome.tasks], left=3)


def run_grid(outcome: SuiteOutcome) -> Grid:
    """A row for each run."""
    headings = ("task", "state", "seed", "training, last 100", *ACTIONS, "threshold reached", "steps/s", "time")
    return Grid(headings, [_run_row(task, run) for task in outcome.tasks for run in task.runs], left=2)


def markdown(outcome: SuiteOutcome, chart: str, curves: str = "") -> str:
    """The whole page.

    Args:
        outcome: the suite's.
        chart: file name of the chart, beside the page.
        curves: the same of the learning curves; "" without.
    """
    return "\n".join(_page(outcome, chart, curves)) + "\n"


def aggregate_lines(outcome: SuiteOutcome) -> list[str]:
    """Statistics of the human-normalised scores, one sentence for each kind of actions; empty without scores."""
    lines = []
    for actions in ACTIONS:
        found = outcome.aggregate(actions)
        shares = [
            f"{TITLES[name]} {value:.1%}" + (f" [{low:.1%} to {high:.1%}]" if np.isfinite(low) else "")
            for name, (value, low, high) in found.items()
        ]
        if shares:
            tasks = f"{len(outcome.evaluated(actions))} of {counted(len(outcome.tasks), 'task')}"
            lines.append(f"Human-normalised, {actions}, over {tasks}: {', '.join(shares)}.")
    return lines


def _page(outcome: SuiteOutcome, chart: str, curves: str) -> Iterator[str]:
    suite = outcome.suite
    yield f"# {suite.name}: {suite.description}\n"
    yield f"{state_line(outcome)}. Each evaluation has {suite.episodes} episodes. Greedy and sampled: interquartile"
    yield "mean over seeds, with fewer than four the mean [95 % bootstrap interval]. A threshold is reached when the"
    yield "mean return of the last 100 training episodes is; its steps are the median over seeds.\n"
    yield from task_grid(outcome).markdown()
    yield ""
    for line in aggregate_lines(outcome):
        yield f"{line}\n"
    for source, tasks in _sources(outcome.tasks).items():
        yield f"- {', '.join(tasks)}: {source}"
    yield f"\n![returns against references]({chart})\n"
    if curves:
        yield f"![learning curves]({curves})\n"
    yield "## Runs\n"
    yield from run_grid(outcome).markdown()
    failed = [run for run in outcome.runs if run.error]
    if failed:
        yield "\n### Failed\n"
    for run in failed:
        yield f"- {run.member}: {run.error} (`{run.member.log.relative_to(outcome.results)}`)"
    yield "\n## How each was made\n"
    rows = [(run.member.name, *_provenance(run), f"`{run.command}`") for run in outcome.runs]
    yield from Grid(("task", "seed", "duration", "versions", "machine", "command"), rows, left=6).markdown()


def _task_row(task: TaskOutcome) -> list[str]:
    figures = [_interval(task.estimate(actions)) for actions in ACTIONS]
    for index, actions in enumerate(ACTIONS):
        if shares := task.normalised(actions):
            figures[index] += f", {interquartile_mean(np.array(shares)):.0%}"
    reached = task.reached()
    return [
        task.name,
        task.task.preset,
        task.environment or NOTHING,
        short(task.task.steps),
        f"{task.finished} of {len(task.runs)}",
        *figures,
        number(task.reference),
        number(task.task.threshold),
        format_reached(reached) if reached else NOTHING,
    ]


def _run_row(task: TaskOutcome, run: RunOutcome) -> list[str]:
    played = []
    for actions in ACTIONS:
        found = run.evaluation(actions)
        played.append(f"{number(found['return_mean'])} ± {number(found['return_std'])}" if found else NOTHING)
    figures = [
        number(run.training_return),
        *played,
        _reached(run),
        count(run.steps_per_second),
        duration(run.seconds),
    ]
    return [task.name, run.state, str(run.member.seed), *figures]


def _reached(run: RunOutcome) -> str:
    steps, minutes = run.threshold_steps, run.threshold_minutes
    if np.isnan(steps):
        return NOTHING
    if np.isinf(steps):
        return f"not reached in {short(run.env_steps)} steps"
    return short(steps) + ("" if np.isnan(minutes) else f", {duration(60 * minutes)}")


def _interval(found: Estimate | None) -> str:
    if found is None:
        return NOTHING
    bounds = f" [{number(found.low)} to {number(found.high)}]" if np.isfinite(found.low) else ""
    return number(found.value) + bounds


def _sources(tasks: Sequence[TaskOutcome]) -> dict[str, list[str]]:
    """Source of a reference → the tasks that have it, with their references."""
    found: dict[str, list[str]] = {}
    for task in tasks:
        if task.task.source:
            found.setdefault(task.task.source, []).append(f"{task.name} {number(task.reference)}")
    return found


def _provenance(run: RunOutcome) -> tuple[str, str, str, str]:
    versions, machine = format_versions(run.versions), format_machine(run.machine) if run.machine else ""
    return str(run.member.seed), duration(run.seconds), versions or NOTHING, machine or NOTHING
