"""Output at the end of a run: the time profile and the summary."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from seedcli.telemetry.metrics import PARTS
from seedcli.telemetry.numbers import count, counted, duration, tenth


def _parts(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (PARTS.index(name) if name in PARTS else len(PARTS), name))


def print_profile(console: Console, profiles: Mapping[str, Mapping[str, float]], wall: float) -> None:
    """Print where the time went.

    Shares are of the wall-clock time, or of the profile's own sum if that is larger (several processes). Time that a
    thread did not account for is shown as "other" from half a percent on.

    Args:
        console: output.
        profiles: thread or role → name of a part (see `metrics.PARTS`) → seconds.
        wall: seconds the run took.
    """
    table = Table(title=f"where the time went, of {duration(wall)}", title_justify="left", title_style="bold", box=None)
    for heading in ("thread", "part"):
        table.add_column(heading, no_wrap=True)
    for heading in ("seconds", "share"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    block = "#" if console.options.ascii_only else "█"
    for thread, profile in profiles.items():
        spent = sum(profile.values())
        whole = max(wall, spent, 1e-9)
        rows = [(name, profile[name]) for name in _parts(profile)]
        if whole - spent > 0.005 * whole:
            rows.append(("other", whole - spent))
        for index, (name, seconds) in enumerate(rows):
            share = seconds / whole
            bar = Text(block * round(24 * share), style="dim" if name in ("waiting", "other") else "cyan")
            label = Text(thread if index == 0 else "", style="bold")
            table.add_row(label, name, f"{seconds:,.1f}", f"{100 * share:.1f}%", bar)
    console.print(table)


def print_largest_parts(console: Console, profiles: Mapping[str, Mapping[str, float]], wall: float) -> None:
    """Print the three largest parts of the time, except waiting, in one sentence; arguments as for `print_profile`."""
    parts = [
        (seconds / max(wall, sum(profile.values()), 1e-9), name, thread)
        for thread, profile in profiles.items()
        for name, seconds in profile.items()
        if name != "waiting"
    ]
    if parts:
        largest = (f"{name} {share:.0%} ({thread})" for share, name, thread in sorted(parts, reverse=True)[:3])
        found = Text(f"largest shares of a thread's time: {', '.join(largest)}; --profile shows all")
        console.print(found, soft_wrap=not console.is_terminal)


@dataclass(frozen=True)
class Summary:
    """Summary of a run.

    Attributes:
        env_steps: environment steps of the run so far.
        total: environment steps at which training ends.
        seconds: time since the last start.
        resumed_at: environment steps at the last start, 0 for a new run.
        episode_return_100: mean raw return of the last 100 episodes; None if none has ended.
        dropped_unrolls: unrolls dropped because of non-finite rewards or priorities.
        dropped_updates: updates dropped because of a non-finite loss or gradient.
        folder: the run folder.
        playable: whether it holds a checkpoint.
        how_to_resume: end of the sentence for a run that stopped early.
        warning: the training warning at the end; "": none.
    """

    env_steps: int
    total: int
    seconds: float
    episode_return_100: float | None
    dropped_unrolls: int
    dropped_updates: int
    folder: Path
    playable: bool
    resumed_at: int = 0
    how_to_resume: str = ""
    warning: str = ""


def summary_lines(summary: Summary) -> list[Text]:
    """Lines of the summary, with the command that plays the agent."""
    folder = shlex.quote(str(summary.folder))
    steps = counted(summary.env_steps - summary.resumed_at, "environment step")
    resumed = f", {count(summary.env_steps)} in all" if summary.resumed_at else ""
    mean = summary.episode_return_100
    ended = tenth(mean) if mean is not None else "no episode has ended" + (" since it was resumed" if resumed else "")
    lines = [
        Text.assemble("trained for ", (steps, "bold"), f" in {duration(summary.seconds)}{resumed}"),
        Text.assemble("mean return of the last 100 episodes: ", (ended, "bold")),
    ]
    if summary.env_steps < summary.total:
        lines.insert(0, Text(f"stopped before its {counted(summary.total, 'step')}; {summary.how_to_resume}"))
    if summary.dropped_unrolls:
        dropped = f"not trained on: {counted(summary.dropped_unrolls, 'unroll')}"
        lines.append(Text(f"{dropped}, with non-finite rewards or priorities, see the log", style="bold red"))
    if summary.dropped_updates:
        dropped = f"not applied: {counted(summary.dropped_updates, 'update')}"
        lines.append(Text(f"{dropped}, with a non-finite loss or gradient, see the log", style="bold red"))
    if summary.warning:
        lines.append(Text(f"warning: {summary.warning}", style="bold yellow"))
    lines.append(Text(f"run folder: {summary.folder}"))
    if summary.playable:
        lines.append(Text.assemble("play it: ", (f"seed eval {folder}", "bold cyan")))
    return lines


def print_summary(console: Console, summary: Summary) -> None:
    """Print the summary."""
    for line in summary_lines(summary):
        console.print(line, soft_wrap=True)
