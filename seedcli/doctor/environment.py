"""`seed doctor --env`: check one environment, in a separate process that may hang or die."""

from __future__ import annotations

import json
import multiprocessing
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from seedcli.config.schema import make_environment_config
from seedcli.config.sections import EnvironmentConfig
from seedcli.envs.conformance import Finding, check_environment
from seedcli.envs.registry import family_of
from seedcli.errors import EXIT_DONE, EXIT_FAILED

_CHECK_SECONDS = 120.0  # timeout of a check: a simulator may compile its level first
_PROGRESS_SECONDS = 10.0
_SIGNS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "failure": ("✗", "bold red"), "skipped": ("-", "dim")}


def run_doctor_env(config: EnvironmentConfig, preset: str | None, sets: Sequence[str], json_output: bool) -> int:
    """Check an environment and print the findings to stdout.

    Args:
        config: the environment.
        preset: that it came from, if any; the suggested command names it, or one that fits.
        sets: `--set` values that it came from; the suggested command repeats them.
        json_output: print JSON instead of a table.

    Returns:
        1 if a check failed, else 0.
    """
    name = f"{config.family}/{config.id}"
    if not json_output:
        print(f"playing {name} (some seconds)", file=sys.stderr)
    findings = examine(config, say=lambda line: print(line, file=sys.stderr))
    failed = [finding.name for finding in findings if finding.status == "failure"]
    if json_output:
        report = {"environment": name, "ok": not failed, "findings": [asdict(finding) for finding in findings]}
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        print_findings(Console(), name, findings, "" if failed else training_command(config, preset, sets))
    return EXIT_FAILED if failed else EXIT_DONE


def training_command(config: EnvironmentConfig, preset: str | None, sets: Sequence[str]) -> str:
    """The `seed train` command, quoted for a shell, that trains an environment which passed the checks."""
    words = [
        "seed",
        "train",
        "--preset",
        preset or family_of(config).preset_for(config) or "gymnasium_vtrace",
        "--env",
        config.id,
    ]
    for value in sets:
        words += ["--set", value]
    return shlex.join(words)


def examine(
    config: EnvironmentConfig,
    *,
    seconds: float = 1.0,
    limit: float = _CHECK_SECONDS,
    say: Callable[[str], None] = lambda line: None,
) -> list[Finding]:
    """Run the conformance checks in a separate process.

    Args:
        config: the environment.
        seconds: of play for each check.
        limit: timeout of a check in seconds.
        say: called with a progress line for a check that takes long.

    Returns:
        The findings; if the process hangs or dies, those made before and one about that.
    """
    context = multiprocessing.get_context("spawn")  # a fork would share the simulators' resources
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_examine, args=(theirs, config.model_dump(), seconds), daemon=True)
    process.start()
    theirs.close()
    findings: list[Finding] = []
    current = "play"
    try:
        while True:
            waited = 0.0
            while not ours.poll(min(_PROGRESS_SECONDS, limit - waited)):
                waited += _PROGRESS_SECONDS
                if waited >= limit:
                    break
                say(f"still in the check {current!r} after {waited:.0f} of at most {limit:.0f} s")
            if waited >= limit:
                detail = f"did not end within {limit:g} s: a reset or step hangs or is very slow"
                return [*findings, Finding(current, "failure", detail)]
            message = ours.recv()
            if message is None:
                return findings
            if isinstance(message, str):
                current = message
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


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"died with {signal.Signals(-code).name}"
    return f"ended with status {code}"


def _examine(connection: Connection, config: dict[str, Any], seconds: float) -> None:
    from seedcli.envs.registry import create_env

    # The output of simulators must not mix with results.
    os.dup2(2, 1)
    environment = make_environment_config(config)
    check_environment(
        lambda envs: create_env(environment, envs), seconds=seconds, begin=connection.send, found=connection.send
    )
    connection.send(None)


def print_findings(console: Console, name: str, findings: list[Finding], command: str) -> None:
    """Print findings as a table.

    Args:
        console: the output.
        name: the environment.
        findings: from `examine`.
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
