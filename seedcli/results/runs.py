"""Finds and reads runs: how each ended, and the metrics that plots and tables need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from seedcli.config.presets import read_toml
from seedcli.errors import EXIT_DONE, UsageError
from seedcli.results.metrics_file import Column, read_columns
from seedcli.roles.evaluator.suite_runs import DEPTH, find_runs
from seedcli.roles.run_folder import CHECKPOINTS, CONFIG, METRICS
from seedcli.roles.run_lock import is_running
from seedcli.roles.sessions import Session, read_sessions
from seedcli.training.checkpoint_files import list_checkpoints

# The fields that are read from each line of metrics; see `telemetry.metrics.Snapshot`.
FIELDS = (
    "time",
    "env_steps",
    "episodes",
    "episode_return",
    "episode_return_100",
    "evaluation_episodes",
    "evaluation_return",
    "evaluation_return_20",
)
State = Literal["running", "finished", "resumable", "failed"]
_SIGNALS = 128  # statuses above it are of processes stopped by a signal


@dataclass(frozen=True)
class RunData:
    """A run, as read once.

    Attributes:
        path: its folder, as given.
        config: every value, by section and name, as in config.toml.
        metrics: `FIELDS` → [lines] float64, NaN where a line has no value.
        seconds: [lines] float64, seconds of training until each line: counted from the first step, without the time
            between a stop and the resume, and without that of steps lost at a stop. NaN in deterministic runs, which
            keep no time.
        sessions: its learner processes, oldest first.
        state: "running": a learner holds the folder; "finished": run.steps are taken, also by its newest checkpoint;
            "failed": it ended with an error or without a checkpoint; "resumable": stopped or killed, and has one.
        error: the sentence with which a failed run ended; "" if there is none.
    """

    path: Path
    config: Mapping[str, Any]
    metrics: Mapping[str, Column]
    seconds: Column
    sessions: Sequence[Session]
    state: State
    error: str

    def value(self, key: str) -> Any:
        """A value of the configuration, e.g. of "training.batch_size"; None if the run has no such key."""
        found: Any = self.config
        for name in key.split("."):
            found = found.get(name) if isinstance(found, dict) else None
        return found

    @property
    def preset(self) -> str:
        """Name of the preset; "custom" without one."""
        return str(self.value("run.preset") or "custom")

    @property
    def task(self) -> str:
        """The task trained on: family and id of the environment, "atari/pong"."""
        return f"{self.value('environment.family') or '?'}/{self.value('environment.id') or '?'}"

    @property
    def seed(self) -> int | None:
        """The seed; None if the configuration has none."""
        seed = self.value("run.seed")
        return seed if isinstance(seed, int) else None

    @property
    def total_steps(self) -> int:
        """Environment steps at which training ends."""
        return _total_steps(self.config)

    @property
    def env_steps(self) -> int:
        """Environment steps taken, by the last line of metrics."""
        steps = self.metrics["env_steps"]
        return int(steps[-1]) if len(steps) else 0

    @property
    def final_return(self) -> float:
        """Mean return of the last 100 training episodes; NaN if none has ended."""
        known = self.metrics["episode_return_100"]
        known = known[~np.isnan(known)]
        return float(known[-1]) if len(known) else np.nan

    @property
    def training_seconds(self) -> float:
        """Seconds of training so far; NaN if unknown."""
        return float(self.seconds[-1]) if len(self.seconds) else np.nan

    @property
    def steps_per_second(self) -> float:
        """Environment steps a second from the first line of metrics to the last; NaN if unknown."""
        if len(self.seconds) < 2 or not self.seconds[-1] > self.seconds[0]:
            return np.nan
        steps = self.metrics["env_steps"]
        return float((steps[-1] - steps[0]) / (self.seconds[-1] - self.seconds[0]))


def collect_runs(paths: Sequence[Path]) -> list[Path]:
    """Folders of runs: each path itself, or those up to `DEPTH` levels below it; without duplicates.

    Raises:
        UsageError: a path is no folder, or holds no run.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise UsageError(f"{path} is not a folder: give the folder of a run, or one that holds runs")
        below = [path] if (path / CONFIG).is_file() else find_runs(path)
        if not below:
            raise UsageError(
                f"{path} holds no run (a folder with {CONFIG}), even {DEPTH} levels down: give the "
                "folder of a run, or one that holds runs"
            )
        for run in below:
            found.setdefault(run.resolve(), run)
    return list(found.values())


def read_run(path: Path) -> RunData:
    """Read the run in folder `path`.

    Raises:
        UsageError: the folder holds no run, or its config.toml or metrics.jsonl is damaged.
    """
    if not (path / CONFIG).is_file():
        raise UsageError(f"{path} holds no run: it has no {CONFIG}")
    running = is_running(path)  # before its metrics: a run that ends meanwhile is not taken for a stopped one
    config = read_toml(path / CONFIG)
    metrics = read_columns(path / METRICS, FIELDS)
    sessions = read_sessions(path)
    steps = metrics["env_steps"]
    if np.isnan(steps).any():
        raise UsageError(f"{path / METRICS} line {np.isnan(steps).argmax() + 1} has no env_steps: remove that line")
    # A run that was killed between its last line and its last checkpoint is not done: it must be resumed.
    taken = [*steps[-1:], *(int(checkpoint.name) for checkpoint in list_checkpoints(path / CHECKPOINTS)[-1:])]
    done = len(steps) > 0 and min(taken) >= _total_steps(config)
    state, error = _state(path, running, done, sessions)
    seconds = _seconds(metrics["time"], steps, [session.started for session in sessions])
    return RunData(path, config, metrics, seconds, sessions, state, error)


def _total_steps(config: Mapping[str, Any]) -> int:
    steps = config.get("run", {}).get("steps", 0)
    return steps if isinstance(steps, int) else 0


def _state(path: Path, running: bool, done: bool, sessions: Sequence[Session]) -> tuple[State, str]:
    if running or done:
        return "running" if running else "finished", ""
    last = sessions[-1] if sessions else None
    if last is not None and last.status is not None and EXIT_DONE < last.status <= _SIGNALS:
        return "failed", last.error
    if list_checkpoints(path / CHECKPOINTS):
        return "resumable", ""
    return "failed", "it ended before its first checkpoint"


def _seconds(time: Column, env_steps: Column, started: Sequence[float]) -> Column:
    """See `RunData.seconds`.

    Args:
        time: [lines] Unix seconds.
        env_steps: [lines].
        started: Unix seconds at which each session began, ascending; may be empty.
    """
    if not len(time):
        return time
    since = np.concatenate([time[:1], time[:-1]])
    if started:
        begun = np.concatenate([[-np.inf], started])
        since = np.maximum(since, begun[np.searchsorted(started, time, side="right")])
    elapsed = np.maximum(time - since, 0.0)
    # The clock starts with the last line before the first step, or else with the first session.
    waiting = env_steps <= 0
    elapsed[waiting] = 0.0
    if not waiting[0] and started:
        elapsed[0] = max(0.0, time[0] - started[0])
    return np.cumsum(elapsed)
