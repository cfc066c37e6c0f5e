"""`seed benchmark run --slurm`: the runs of a suite as jobs of a cluster, each from `seed slurm`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from seedcli.config.faults import broken_rule
from seedcli.config.toml_text import format_value
from seedcli.errors import UsageError
from seedcli.slurm.job import Job, command
from seedcli.slurm.request import check
from seedcli.suites.members import Member, is_trained, members_of
from seedcli.suites.suite import Suite, Task, nearest_of, task_flags, task_sets

_OF_RUNS = ("preset", "env", "steps", "seed", "set", "logdir")  # options that a run's task decides

_HEAD = """\
#!/bin/bash
# Submits a job for each run of the suite {name} that has not finished training: {runs}.
# SLURM's variables apply to all of them, e.g. SBATCH_ACCOUNT=lab SBATCH_PARTITION=long.
# When they are done, on any machine that sees {results}:
#   {evaluate}
set -euo pipefail
"""


def submit_script(suite: Suite, tasks: Mapping[str, Task], results: Path) -> str:
    """A script that submits a job for each run that has not taken its steps.

    Args:
        suite: the suite; its [slurm] table has the options of every job.
        tasks: those of its tasks whose runs are wanted.
        results: folder of its results, on a disk that all nodes share.

    Raises:
        UsageError: an option is unknown or invalid, or the folder holds runs of other settings.
    """
    jobs = [_job_of(suite, member) for member in members_of(tasks, results.absolute()) if not is_trained(member)]
    for job in {job.preset: job for job in jobs}.values():
        _check(suite, job)
    evaluate = ["seed", "benchmark", "run", suite.argument, "--results", str(results.absolute()), "--evaluate-only"]
    head = _HEAD.format(
        name=suite.name, runs=f"{len(jobs)} of them", results=results.absolute(), evaluate=shlex.join(evaluate)
    )
    return head + "".join(f"{command(job)} | sbatch\n" for job in jobs)


def _job_of(suite: Suite, member: Member) -> Job:
    flags: dict[str, Any] = {**task_flags(member.task, member.seed), "set": task_sets(member.task)}
    return _make_job(suite, {**_options(suite), **flags, "logdir": str(member.folder)})


def _options(suite: Suite) -> dict[str, Any]:
    """The suite's own options, by the fields of `Job`."""
    known = [option.name for option in fields(Job) if option.name not in _OF_RUNS]
    options = {name.replace("-", "_"): value for name, value in suite.slurm.items()}
    for name in options:
        if name not in known:
            raise UsageError(f"{suite.path}: unknown key slurm.{name}: {nearest_of(name, known)}")
    return options


def _make_job(suite: Suite, options: Mapping[str, Any]) -> Job:
    try:
        job = TypeAdapter(Job).validate_json(json.dumps(options, default=str), strict=True)
    except ValidationError as error:
        fault = error.errors()[0]
        key = f"slurm.{fault['loc'][0]}"
        raise UsageError(f"{suite.path}: {key} = {format_value(fault['input'])} {broken_rule(fault)}") from error
    for name, hint in get_type_hints(Job, include_extras=True).items():
        value, least = getattr(job, name), hint.__metadata__[0].min
        if isinstance(value, int) and least is not None and value < least:
            raise UsageError(f"{suite.path}: slurm.{name} = {value} must be at least {least:g}")
    return job


def _check(suite: Suite, job: Job) -> None:
    try:
        check(job)
    except UsageError as error:
        raise UsageError(f"{suite.path}, table slurm: {error}") from error
