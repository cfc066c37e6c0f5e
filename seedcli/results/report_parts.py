"""The sections of a report below and above its charts, as HTML."""

from __future__ import annotations

import base64
import math
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any

from seedcli.config.toml_text import format_value
from seedcli.results.comparison import GroupFigures, RunFigures
from seedcli.results.formatting import (
    comparison_note,
    comparison_table,
    format_machine,
    format_minutes,
    format_versions,
)
from seedcli.results.groups import differences
from seedcli.results.runs import RunData
from seedcli.roles.evaluator.stored import read_evaluations
from seedcli.roles.run_folder import CONFIG
from seedcli.telemetry.numbers import NOTHING, count, duration, number, short

_SEED = "run.seed"


def runs_part(figures: Sequence[RunFigures], names: Sequence[str], thresholds: Sequence[float]) -> str:
    """A table with one line a run.

    Args:
        figures, names: of each run, in the same order.
        thresholds: those of the figures.
    """
    reached = [f"{name} to {each:g}" for each in thresholds for name in ("steps", "minutes")]
    heads = ["run", "state", "seed", "steps", "return", "steps/s", "time", *reached]
    rows = []
    for place, (each, name) in enumerate(zip(figures, names, strict=True)):
        run = each.run
        state = f'<span class="bad">failed</span>: {escape(run.error)}' if run.state == "failed" else run.state
        to = [
            cell
            for steps, minutes in zip(each.steps_to, each.minutes_to, strict=True)
            for cell in (
                short(steps) if math.isfinite(steps) else f"not reached in {short(run.env_steps)} steps",
                format_minutes(minutes),
            )
        ]
        rows.append(
            [
                f"{_key(place)}{escape(name)}",
                state,
                NOTHING if run.seed is None else str(run.seed),
                f"{short(run.env_steps)} of {short(run.total_steps)}",
                number(each.final_return),
                count(run.steps_per_second),
                duration(run.training_seconds),
                *to,
            ]
        )
    return _section("Runs", _table(heads, rows, left=2))


def comparison_part(figures: Sequence[GroupFigures]) -> str:
    """A table with one line a group, as `seed compare` prints it."""
    headings, rows = comparison_table(figures)
    cells = [[escape(row[0]), *row[1:]] for row in rows]
    note = f'<p class="muted">{escape(comparison_note(None))}</p>'
    return _section("Over seeds", _table(headings, cells, left=1) + note)


def configuration_part(runs: Sequence[RunData], names: Sequence[str]) -> str:
    """Values that differ between the runs, those that the user of a single run set, and every value in full."""
    parts = []
    found = differences(runs)
    if len(runs) > 1 and found.keys() <= {_SEED}:
        parts.append("<p>The runs differ only in their seed.</p>")
    elif len(runs) > 1:
        rows = [
            [escape(key), *(escape("-" if value is None else format_value(value)) for value in row)]
            for key, row in found.items()
        ]
        parts.append(_table(["differs", *map(escape, names)], rows, left=99))
    for run, name in zip(runs, names, strict=True):
        text = (run.path / CONFIG).read_text(encoding="utf-8", errors="replace")
        chosen = [line for line in text.splitlines() if _chosen(line)]
        if len(runs) == 1 and chosen:
            parts.append(f"<p>Set beyond preset and defaults:</p><pre>{escape(chr(10).join(chosen))}</pre>")
        parts.append(f"<details><summary>Every value of {escape(name)}</summary><pre>{escape(text)}</pre></details>")
    return _section("Configuration", "".join(parts))


def _chosen(line: str) -> bool:
    """Whether a line of config.toml was set by the user: its comment names the source."""
    source = line.rpartition("  # ")[2]
    return "  # " in line and source != "default" and not source.startswith("preset ")


def profile_part(runs: Sequence[RunData], names: Sequence[str]) -> str:
    """Where the time of each run's threads went, over all sessions that ended in order."""
    parts = []
    for place, (run, name) in enumerate(zip(runs, names, strict=True)):
        total: dict[str, dict[str, float]] = {}
        for session in run.sessions:
            for thread, profile in session.profile.items():
                kept = total.setdefault(thread, {})
                for part, seconds in profile.items():
                    kept[part] = kept.get(part, 0.0) + seconds
        if total:
            bars = "".join(_bar(thread, profile) for thread, profile in total.items())
            parts.append(
                f"<details{'' if place else ' open'}><summary>{_key(place)}{escape(name)}</summary>{bars}</details>"
            )
    body = "".join(parts) or '<p class="muted">Not recorded yet: it is written when a session of the run ends.</p>'
    return _section("Where the time went", body)


def _bar(thread: str, profile: Mapping[str, float]) -> str:
    whole = sum(profile.values()) or 1.0
    ordered = sorted(profile.items(), key=lambda item: (item[0] == "waiting", -item[1]))
    spans = "".join(
        f'<span style="width:{100 * seconds / whole:.2f}%;background:'
        f'{"transparent" if part == "waiting" else f"var(--c{place % 10})"}" '
        f'title="{escape(part)} {seconds:,.1f} s"></span>'
        for place, (part, seconds) in enumerate(ordered)
    )
    words = ", ".join(f"{part} {100 * seconds / whole:.0f} %" for part, seconds in ordered if seconds >= 0.005 * whole)
    return (
        f'<div class="thread"><span>{escape(thread)}</span><div class="bar">{spans}</div>'
        f"<small>{escape(words)} of {duration(whole)}</small></div>"
    )


def evaluation_part(runs: Sequence[RunData], names: Sequence[str]) -> str:
    """The results of `seed eval`, the newest of each checkpoint last."""
    rows = []
    for place, (run, name) in enumerate(zip(runs, names, strict=True)):
        for found in read_evaluations(run.path):
            rows.append(
                [
                    f"{_key(place)}{escape(name)}",
                    escape(str(found.get("actions", NOTHING))),
                    short(_figure(found, "env_steps")),
                    count(_figure(found, "episodes")),
                    number(_figure(found, "return_mean")),
                    number(_figure(found, "return_std")),
                    number(_figure(found, "length_mean")),
                    _when(found.get("time")),
                ]
            )
    heads = ["run", "actions", "checkpoint", "episodes", "return", "std", "length", "played"]
    hint = (
        f"<p class='muted'>None yet: <code>{escape(_eval(runs[0]))}</code> plays a checkpoint and saves the result.</p>"
    )
    return _section("Evaluation", _table(heads, rows, left=2) if rows else hint)


def video_part(runs: Sequence[RunData], names: Sequence[str]) -> str:
    """The .mp4 files in the runs' folders, inside the page."""
    parts = []
    for place, (run, name) in enumerate(zip(runs, names, strict=True)):
        for path in sorted(run.path.glob("*.mp4")):
            data = base64.b64encode(path.read_bytes()).decode()
            parts.append(
                f"<p>{_key(place)}{escape(name)}: {escape(path.name)}</p>"
                f'<video controls loop muted playsinline src="data:video/mp4;base64,{data}"></video>'
            )
    film = f"{_eval(runs[0])} --video {shlex.quote(str(runs[0].path / 'play.mp4'))}"
    hint = f"<p class='muted'>None in the runs' folders: <code>{escape(film)}</code> records one.</p>"
    return _section("Video", "".join(parts) or hint)


def machine_part(runs: Sequence[RunData], names: Sequence[str]) -> str:
    """Machine and versions of each run's last session; equal ones once."""
    groups: dict[str, list[str]] = {}
    for run, name in zip(runs, names, strict=True):
        session = run.sessions[-1] if run.sessions else None
        lines = (
            ["Not recorded."]
            if session is None
            else [format_machine(session.machine), format_versions(session.versions)]
        )
        groups.setdefault("".join(f"<p>{escape(line)}</p>" for line in lines), []).append(name)
    parts = [f"<h3>{escape(', '.join(members))}</h3>{lines}" for lines, members in groups.items()]
    return _section("Machine and versions", "".join(parts) if len(groups) > 1 else next(iter(groups)))


def repeat_part(runs: Sequence[RunData], names: Sequence[str]) -> str:
    """The commands that made the runs, and the one that repeats a run from its values."""
    parts = []
    for run, name in zip(runs, names, strict=True):
        commands = [shlex.join(session.command) for session in run.sessions]
        again = f"seed train --config {shlex.quote(str(run.path / CONFIG))}"
        shown = "\n".join(dict.fromkeys([*commands, f"{again}    # the same values, in a new folder"]))
        parts.append(
            f"<h3>{escape(name)}</h3><pre>{escape(shown)}</pre>" if len(runs) > 1 else f"<pre>{escape(shown)}</pre>"
        )
    return _section("Repeat it", "".join(parts))


def _eval(run: RunData) -> str:
    return f"seed eval {shlex.quote(str(run.path))}"


def _figure(found: Mapping[str, Any], name: str) -> float | None:
    value = found.get(name)
    return value if isinstance(value, (int, float)) else None


def _when(seconds: Any) -> str:
    if not isinstance(seconds, (int, float)):
        return NOTHING
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def _key(place: int) -> str:
    return f'<span class="key" style="background:var(--c{place % 10})"></span>'


def _section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>{body}</section>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    """A table that scrolls sideways where it is too wide.

    Args:
        heads: of the columns.
        rows: cells of HTML.
        left: columns of text; those after it hold numbers.
    """
    kinds = ["label" if place < left else "n" for place in range(len(heads))]
    head = "".join(f'<th class="{kind}">{text}</th>' for kind, text in zip(kinds, heads, strict=True))
    body = "".join(
        "<tr>" + "".join(f'<td class="{kind}">{cell}</td>' for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
