"""`seed doctor --env`: check one environment, in a separate process that may hang or die."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

from rich.console import Console

from seedcli.config.schema import make_environment_config
from seedcli.config.sections import EnvironmentConfig
from seedcli.doctor.examination import CHECK_SECONDS, examine_in_process, print_findings
from seedcli.envs.base import VectorEnv
from seedcli.envs.conformance import Finding, check_environment
from seedcli.envs.placement import create_env_in_actor
from seedcli.envs.registry import family_of
from seedcli.errors import EXIT_DONE, EXIT_FAILED
from seedcli.specs import Rows


def run_doctor_env(
    config: EnvironmentConfig, preset: str | None, sets: Sequence[str], json_output: bool, *, family: str | None = None
) -> int:
    """Check an environment and print the findings to stdout.

    Args:
        config: the environment.
        preset: the one that it came from, if any; the suggested command names it, or one that fits.
        sets: `--set` values that it came from; the suggested command repeats them.
        json_output: print JSON instead of a table.
        family: `--family` that it came from, if any; the suggested command repeats it.

    Returns:
        1 if a check failed, else 0.
    """
    name = f"{config.family}/{config.id}"
    if not json_output:
        print(f"playing {name} (some seconds)", file=sys.stderr)
    findings = examine(config, progress=lambda line: print(line, file=sys.stderr))
    failed = [finding.name for finding in findings if finding.status == "failure"]
    if json_output:
        report = {"environment": name, "ok": not failed, "findings": [asdict(finding) for finding in findings]}
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        command = "" if failed else training_command(config, preset, sets, family)
        print_findings(Console(), name, findings, command)
    return EXIT_FAILED if failed else EXIT_DONE


def training_command(
    config: EnvironmentConfig, preset: str | None, sets: Sequence[str], family: str | None = None
) -> str:
    """The `seed train` command, quoted for a shell, that trains an environment which passed the checks."""
    words = [
        "seed",
        "train",
        "--preset",
        preset or family_of(config).preset_for(config) or "gymnasium_vtrace",
        "--env",
        config.id,
    ]
    if family is not None:
        words += ["--family", family]
    for value in sets:
        words += ["--set", value]
    return shlex.join(words)


def examine(
    config: EnvironmentConfig,
    *,
    seconds: float = 1.0,
    limit: float | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Finding]:
    """Run the conformance checks in a separate process.

    Args:
        config: the environment.
        seconds: of play for each check.
        limit: timeout of a check, or of a reset in it, in seconds; None: `environment.step_timeout`, but at least
            `CHECK_SECONDS`.
        progress: called with a progress line for a check that takes long.

    Returns:
        The findings; if the process hangs or dies, those made before and one about that.
    """
    return examine_in_process(
        _examine,
        (config.model_dump(), seconds),
        first="play",
        hangs="a reset or step hangs or is very slow",
        limit=max(CHECK_SECONDS, config.step_timeout) if limit is None else limit,
        progress=progress,
    )


def _examine(connection: Connection, config: dict[str, Any], seconds: float) -> None:
    # The output of simulators must not mix with results.
    os.dup2(2, 1)
    environment = make_environment_config(config)
    current = [""]

    def begin(check: str) -> None:
        current[0] = check
        connection.send(check)

    def make(envs: int) -> VectorEnv:
        env = create_env_in_actor(environment, envs)
        reset = env.reset

        def reset_and_report(seed: int, out: Rows) -> None:
            reset(seed, out)
            begin(current[0])  # a simulator may take long to compile its levels: each reset has the whole limit

        env.reset = reset_and_report  # type: ignore[method-assign]
        return env

    check_environment(
        make,
        seconds=seconds,
        clock_terminates=family_of(environment).clock_terminates,
        begin=begin,
        found=connection.send,
    )
    connection.send(None)
