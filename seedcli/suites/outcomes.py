"""What the runs of a suite have reached, gathered from their records and folders."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from seedcli.envs.scores import Estimate, aggregate
from seedcli.envs.scores import Task as Scores
from seedcli.results.comparison import Reached, compare
from seedcli.results.curves import curve_of, reached_at
from seedcli.results.groups import Group
from seedcli.results.runs import RunData, read_run
from seedcli.results.statistics import estimate
from seedcli.roles.run_folder import CONFIG
from seedcli.suites.members import ACTIONS, Actions, Member, Record, members_of
from seedcli.suites.suite import Suite, Task

State = Literal["finished", "failed", "running", "interrupted", "to be evaluated", "not started"]


@dataclass(frozen=True)
class RunOutcome:
    """What one run has reached.

    Attributes:
        member: the run.
        state: "to be evaluated": it has taken its steps; "interrupted": it can be resumed.
        record: its record; None before it was begun by `seed benchmark run`.
        data: its folder; None if there is none.
    """

    member: Member
    state: State
    record: Record | None
    data: RunData | None

    def evaluation(self, actions: Actions) -> Mapping[str, Any] | None:
        """Its evaluation, see `Record`; None if it has none."""
        return self.record.evaluations.get(actions) if self.record else None

    @property
    def error(self) -> str:
        """The sentence with which it failed; "" if it has not."""
        if self.record and self.record.error:
            return self.record.error
        return self.data.error if self.data and self.state == "failed" else ""

    @property
    def seconds(self) -> float | None:
        """Seconds of training so far; None if unknown."""
        return float(self.data.seconds[-1]) if self.data and len(self.data.seconds) else None

    @cached_property
    def reached(self) -> tuple[float, float]:
        """Steps and minutes at which training reached the threshold; inf if it did not, NaN without one."""
        threshold = self.member.task.threshold
        if threshold is None or self.data is None:
            return np.nan, np.nan
        curve = curve_of(self.data)
        return reached_at(curve, threshold), reached_at(curve, threshold, "minutes")

    @property
    def command(self) -> str:
        """The command that trains it again, in a folder of its own."""
        return shlex.join(["seed", *self.member.command()])

    @property
    def versions(self) -> Mapping[str, str]:
        """Package → version, of its last session; empty if none is recorded."""
        return self.data.sessions[-1].versions if self.data and self.data.sessions else {}

    @property
    def machine(self) -> Mapping[str, Any]:
        """The machine of its last session, see `roles.sessions.Session`; empty if none is recorded."""
        return self.data.sessions[-1].machine if self.data and self.data.sessions else {}

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        steps, minutes = self.reached
        return {
            "seed": self.member.seed,
            "state": self.state,
            "error": self.error,
            "folder": str(self.member.folder.relative_to(self.member.results)),
            "command": self.command,
            "versions": self.versions,
            "machine": self.machine,
            "sessions": len(self.data.sessions) if self.data else 0,
            "seconds": _known(self.seconds),
            "env_steps": self.data.env_steps if self.data else 0,
            "env_steps_per_second": _known(self.data.steps_per_second) if self.data else None,
            "training_return": _known(self.data.final_return) if self.data else None,
            "threshold_steps": _known(steps),
            "threshold_minutes": _known(minutes),
            "evaluations": self.record.evaluations if self.record else {},
        }


@dataclass(frozen=True)
class TaskOutcome:
    """What the runs of one task have reached.

    Attributes:
        name: of the task.
        task: the task.
        runs: one for each seed.
        scores: returns of random play and of humans; None without.
    """

    name: str
    task: Task
    runs: Sequence[RunOutcome]
    scores: Scores | None

    @property
    def reference(self) -> float | None:
        """The published return to compare with, of humans if the suite has their scores; None without."""
        return self.scores.human if self.scores else self.task.reference

    def returns(self, actions: Actions) -> list[float]:
        """Mean evaluation return of each run that has one."""
        return [float(found["return_mean"]) for run in self.runs if (found := run.evaluation(actions))]

    def normalised(self, actions: Actions) -> list[float]:
        """Human-normalised score of each run that has one."""
        evaluations = [found for run in self.runs if (found := run.evaluation(actions))]
        return [float(found["normalised"]) for found in evaluations if found["normalised"] is not None]

    def estimate(self, actions: Actions) -> Estimate | None:
        """Interquartile mean of the evaluations over seeds, with its 95 % bootstrap interval; None without any."""
        returns = self.returns(actions)
        return estimate([np.array(returns)]) if returns else None

    def reached(self) -> Reached | None:
        """How the runs that have taken their steps reached the threshold; None without one, or without such a run."""
        done = [run.data for run in self.runs if run.data and run.data.state == "finished"]
        if self.task.threshold is None or not done:
            return None
        return compare([Group(self.name, self.task.env, done)], [self.task.threshold])[0].reached[0]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "task": self.name,
            "preset": self.task.preset,
            "env": self.task.env,
            "steps": self.task.steps,
            "threshold": self.task.threshold,
            "reference": self.reference,
            "source": self.task.source,
            **{actions: _plain(self.estimate(actions)) for actions in ACTIONS},
            "runs": [run.to_dict() for run in self.runs],
        }


@dataclass(frozen=True)
class SuiteOutcome:
    """What the runs of a suite have reached.

    Attributes:
        suite: the suite.
        results: folder of its results.
        tasks: every task.
    """

    suite: Suite
    results: Path
    tasks: Sequence[TaskOutcome]

    @property
    def runs(self) -> list[RunOutcome]:
        """Every run."""
        return [run for task in self.tasks for run in task.runs]

    def aggregate(self, actions: Actions) -> dict[str, Estimate]:
        """Statistics of the human-normalised scores over tasks whose runs are all evaluated; empty without scores."""
        scores = [task.normalised(actions) for task in self.tasks]
        whole = [each for each, task in zip(scores, self.tasks, strict=True) if len(each) == len(task.runs)]
        if self.suite.scores is None or not whole or len(set(map(len, whole))) > 1:
            return {}
        return aggregate(np.array(whole), 0, self.suite.scores.statistics)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "suite": self.suite.name,
            "description": self.suite.description,
            "episodes": self.suite.episodes,
            "tasks": [task.to_dict() for task in self.tasks],
            "aggregate": {
                actions: {name: _plain(found) for name, found in self.aggregate(actions).items()} for actions in ACTIONS
            },
        }


def gather(suite: Suite, results: Path) -> SuiteOutcome:
    """Read what every run of a suite has reached; runs without a folder are "not started".

    Raises:
        UsageError: a run's files are damaged, or are of other settings than the suite has now.
    """
    runs: dict[str, list[RunOutcome]] = {name: [] for name in suite.tasks}
    for member in members_of(suite.tasks, results):
        runs[member.name].append(_outcome(member))
    scores = {each.name: each for each in suite.scores.tasks} if suite.scores else {}
    tasks = [TaskOutcome(name, task, runs[name], scores.get(task.env)) for name, task in suite.tasks.items()]
    return SuiteOutcome(suite, results, tasks)


def _outcome(member: Member) -> RunOutcome:
    record = member.read()
    data = read_run(member.folder) if (member.folder / CONFIG).is_file() else None
    return RunOutcome(member, _state(record, data), record, data)


def _state(record: Record | None, data: RunData | None) -> State:
    if record and record.finished:
        return "finished"
    if record and record.error:
        return "failed"
    if data is None:
        return "interrupted" if record else "not started"
    if data.state == "finished":
        return "to be evaluated"
    return "interrupted" if data.state == "resumable" else data.state


def _known(value: float | None) -> float | None:
    """A number, or None where it is unknown or infinite, which JSON cannot say."""
    return value if value is not None and np.isfinite(value) else None


def _plain(found: Estimate | None) -> dict[str, float | None] | None:
    return {name: _known(value) for name, value in found._asdict().items()} if found else None
