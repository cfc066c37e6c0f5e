"""Chooses the runs of `seed eval --suite`, and checks its arguments before TensorFlow is loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from seedcli.config.sources import from_toml_file
from seedcli.envs.scores import Suite, Task
from seedcli.errors import CheckpointError, SeedError, UsageError
from seedcli.files import check_folder
from seedcli.roles.run_folder import CHECKPOINTS, CONFIG
from seedcli.training.checkpoint_files import find_checkpoint

# Levels of subfolders searched. The runs of a sweep are four below runs/: sweeps/<name>/<values>/seed-1.
DEPTH = 6


@dataclass(frozen=True)
class Run:
    """A run that can be played.

    Attributes:
        path: its folder.
        task: the task that it was trained on.
        env_steps: environment steps of its newest good checkpoint.
    """

    path: Path
    task: Task
    env_steps: int


def find_runs(folder: Path) -> list[Path]:
    """Folders with a run (config.toml and checkpoints/): `folder` itself or up to `DEPTH` levels below, sorted.

    The folders of a run are not searched, nor are hidden ones.
    """
    searched: set[Path] = set()  # a link may lead to the same folder twice

    def search(path: Path, depth: int) -> Iterator[Path]:
        real = path.resolve()
        if real in searched:
            return
        if (path / CONFIG).is_file() and (path / CHECKPOINTS).is_dir():
            searched.add(real)
            yield path
        elif depth:
            searched.add(real)
            try:
                with os.scandir(path) as entries:
                    below = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
            except OSError as error:
                warn(f"{path} cannot be searched for runs ({error.strerror})")
                return
            for name in below:
                yield from search(path / name, depth - 1)

    return list(search(folder, DEPTH))


def choose_runs(folder: Path, suite: Suite) -> list[Run]:
    """Choose one run per task, in the suite's order: the one with the most environment steps.

    Every skipped run is named on stderr: it is unreadable, of no task of the suite, or has fewer steps.

    Raises:
        UsageError: the folder does not exist or holds no run at all.
        CheckpointError: none of its runs can be used.
    """
    if not folder.is_dir():
        raise UsageError(
            f"{folder} is not a folder: --suite takes the folder that holds the runs, one per {suite.unit}"
        )
    found = find_runs(folder)
    if not found:
        raise UsageError(
            f"{folder} holds no run, even {DEPTH} levels down: --suite takes a folder of runs, "
            f"each with {CONFIG} and {CHECKPOINTS}/"
        )
    tasks = {task.name: task for task in suite.tasks}
    chosen: dict[str, Run] = {}
    for path in found:
        try:
            checkpoint = find_checkpoint(path)
            environment = from_toml_file(checkpoint.config_path).environment
        except SeedError as error:
            warn(f"a run is left out: {error}")
            continue
        if environment.family != suite.family or environment.id not in tasks:
            warn(f"{path} is left out: {environment.family}/{environment.id} is not a {suite.unit} of {suite.name}")
            continue
        run = Run(path, tasks[environment.id], checkpoint.env_steps)
        other = chosen.get(environment.id)
        if other is not None:
            # Ties go to the later name, because folders are named by their time.
            run, other = (run, other) if run.env_steps >= other.env_steps else (other, run)
            warn(
                f"{environment.id} has several runs: {other.path} with {other.env_steps:,} environment steps is left "
                f"out in favour of {run.path} with {run.env_steps:,}"
            )
        chosen[environment.id] = run
    if not chosen:
        raise CheckpointError(f"none of the {len(found)} runs in {folder} can be played: give runs of {suite.name}")
    return [chosen[name] for name in tasks if name in chosen]


def check_output(flag: str, path: Path, *endings: str) -> None:
    """Raise UsageError if a file has another ending or cannot be written, before anything is played or computed."""
    if path.suffix.lower() not in endings:
        raise UsageError(f"{flag} {path} must end in {' or '.join(endings)}")
    check_folder(path, flag)
    if path.is_dir() or (path.exists() and not os.access(path, os.W_OK)):
        raise UsageError(f"{flag} {path} cannot be written: name a file in a folder you may write to")


def print_to_stderr(line: str) -> None:
    """Print a line to stderr."""
    print(line, file=sys.stderr, flush=True)


def warn(sentence: str) -> None:
    """Print a warning to stderr."""
    print_to_stderr(f"seed: {sentence}")
