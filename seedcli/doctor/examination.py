"""Shared by `seed doctor --env` and `seed doctor --agent`: checks of users' code in a separate process, and the table
of their findings.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from seedcli.envs.conformance import Finding

CHECK_SECONDS = 120.0  # timeout of a check: a simulator may compile its level first
_PROGRESS_SECONDS = 10.0
_SIGNS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "failure": ("✗", "bold red"), "skipped": ("-", "dim")}


def examine_in_process(
    target: Callable[..., None],
    arguments: tuple[Any, ...],
    *,
    first: str,
    hangs: str,
    loading: str = "",
    limit: float = CHECK_SECONDS,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Finding]:
    """Run checks in a separate process, which may hang or die.

    Args:
        target: called there with a connection and `arguments`; sends the name of each check before it begins, each
            `Finding`, and None at the end.
        arguments: can be pickled.
        first: name of the first check.
        hangs: what is wrong when a check does not end, a clause.
        loading: what takes long to load before the first check; "": nothing.
        limit: timeout of a check in seconds.
        progress: called with a progress line for a check that takes long.

    Returns:
        The findings; if the process hangs or dies, those made before and one about that.
    """
    context = multiprocessing.get_context("spawn")  # a fork would share the resources of simulators and of TensorFlow
    ours, theirs = context.Pipe(duplex=False)
    # Not a daemon, which could not start the process of an isolated environment.
    process = context.Process(target=target, args=(theirs, *arguments))
    process.start()
    theirs.close()
    findings: list[Finding] = []
    current, doing = first, f"loading {loading}" if loading else f"in the check {first!r}"
    failed = f"did not begin within {limit:g} s: this machine may be too busy to load {loading}" if loading else ""
    try:
        while True:
            if not _wait(ours, doing, limit, progress):
                failed = failed or f"did not end within {limit:g} s: {hangs}"
                return [*findings, Finding(current, "failure", failed)]
            message = ours.recv()
            if message is None:
                return findings
            if isinstance(message, str):
                current, doing, failed = message, f"in the check {message!r}", ""
            else:
                findings.append(message)
    except EOFError:
        process.join(limit)
        return [*findings, Finding(current, "failure", f"the process {_ending(process.exitcode)} in the middle of it")]
    finally:
        if process.is_alive():
            process.kill()
        process.join(limit)
        ours.close()


def _wait(connection: Connection, doing: str, limit: float, progress: Callable[[str], None]) -> bool:
    """Wait for a message; returns whether one came within `limit` seconds. `doing`: the activity, for progress."""
    waited = 0.0
    while not connection.poll(min(_PROGRESS_SECONDS, limit - waited)):
        waited += _PROGRESS_SECONDS
        if waited >= limit:
            return False
        progress(f"still {doing} after {waited:.0f} of at most {limit:.0f} s")
    return True


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"died with {signal.Signals(-code).name}"
    return f"ended with status {code}"


def print_findings(console: Console, name: str, findings: list[Finding], command: str) -> None:
    """Print findings as a table.

    Args:
        console: the output.
        name: what was checked.
        findings: of the checks.
        command: suggested if no check failed.
    """
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for finding in findings:
        sign, style = _SIGNS[finding.status]
        plain = finding.status in ("ok", "skipped")
        table.add_row(Text(sign, style=style), finding.name, Text(finding.detail, style="" if plain else style))
    console.print(Text(name, style="bold"))
    console.print(table)
    failed = [finding.name for finding in findings if finding.status == "failure"]
    warnings = sum(finding.status == "warning" for finding in findings)
    if failed:
        console.print(Text(f"not ready: fix {' and '.join(failed)} first", style="bold red"), soft_wrap=True)
    else:
        rest = f" ({warnings} warning{'s' if warnings > 1 else ''} above)" if warnings else ""
        console.print(Text(f"ready{rest}: {command}", style="bold"), soft_wrap=True)
