"""Suites and the results of their runs, written without training."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from seedcli.suites.members import Actions, Member, Record, members_of
from seedcli.suites.suite import Suite, load_suite
from tests.results.helpers import line, make_run

SUITE = """
[suite]
description = "two tasks"
episodes = 2

[defaults]
preset = "cartpole_vtrace"
steps = 1_000
set = { "training.batch_size" = 8 }

[tasks.easy]
seeds = [1, 2, 3]
threshold = 50
reference = 500
source = "made up, PPO"

[tasks.hard]
env = "Acrobot-v1"
seeds = [7]
steps = 2_000
"""


def write_suite(folder: Path, text: str = SUITE, name: str = "mine") -> Suite:
    """A suite from the text of its file."""
    path = folder / f"{name}.toml"
    path.write_text(text)
    return load_suite(str(path))


def members(suite: Suite, results: Path) -> dict[tuple[str, int], Member]:
    """Task and seed → the run."""
    return {(each.name, each.seed): each for each in members_of(suite.tasks, results)}


def played(returns: list[float], normalised: float | None = None) -> dict[str, Any]:
    """An evaluation, as a record keeps it."""
    mean = sum(returns) / len(returns)
    return {"environment": None, "returns": returns, "return_mean": mean, "return_std": 0.0, "normalised": normalised}


def finish(member: Member, evaluations: dict[Actions, dict[str, Any]], returns: list[float | None]) -> Record:
    """Write a run with these mean returns, a line for each 500 steps, and its record."""
    lines = [line(500 * number, mean, episodes=50 * number) for number, mean in enumerate([None, *returns])]
    make_run(member.folder, lines, steps=member.task.steps, seed=member.seed, checkpoint=500 * len(returns))
    record = replace(Record(member.command(), trained=True), evaluations=evaluations)
    member.write(record)
    return record


def path_with(folder: Path, programs: Mapping[str, str]) -> str:
    """A PATH that begins with a folder of these bash scripts, by name."""
    folder.mkdir()
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"
