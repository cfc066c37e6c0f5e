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
from seedcli.results.comparison import Reached, compare, interval_dict
from seedcli.results.curves import curve_of, reached_at
from seedcli.results.groups import Group
from seedcli.results.runs import RunData, read_run
from seedcli.results.statistics import estimate
from seedcli.roles.run_folder import CONFIG
from seedcli.roles.sessions import Session
from seedcli.suites.members import ACTIONS, Actions, Member, Record, members_of
from seedcli.suites.suite import Suite, Task
from seedcli.telemetry.numbers import finite

State = Literal["finished", "failed", "running", "interrupted", "to be evaluated", "not started"]


@dataclass(frozen=True)
class RunOutcome:
    """What one run has reached.

    Attributes:
        member: the run.
        state: "to be evaluated": it has taken its steps; "interrupted": it can be resumed.
        record: its record, of evaluations as long as the suite's; None before it was begun by `seed benchmark run`.
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
        """Seconds of training so far; None or NaN if unknown."""
        return self.data.training_seconds if self.data else None

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
    def session(self) -> Session:
        """Its last session; an empty one if none is recorded."""
        return self.data.sessions[-1] if self.data and self.data.sessions else Session(np.nan)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        steps, minutes = self.reached
        return {
            "seed": self.member.seed,
            "state": self.state,
            "error": self.error,
            "folder": str(self.member.folder.relative_to(self.member.results)),
            "command": self.command,
            "versions": self.session.versions,
            "machine": self.session.machine,
            "sessions": len(self.data.sessions) if self.data else 0,
            "seconds": finite(self.seconds),
            "env_steps": self.data.env_steps if self.data else 0,
            "env_steps_per_second": finite(self.data.steps_per_second) if self.data else None,
            "training_return": finite(self.data.final_return) if self.data else None,
            "threshold_steps": finite(steps),
            "threshold_minutes": finite(minutes),
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
    def finished(self) -> int:
        """Number of runs that are trained and evaluated."""
        return sum(run.state == "finished" for run in self.runs)

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
            **{actions: interval_dict(found) if (found := self.estimate(actions)) else None for actions in ACTIONS},
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
        """Statistics of the human-normalised scores over `evaluated` tasks; empty without scores.

        Median, mean and capped mean are of the tasks' means over seeds, the interquartile mean of all runs of all
        tasks, as in rliable. With one seed a task there are no intervals: NaN.
        """
        scores = [np.array(task.normalised(actions)) for task in self.evaluated(actions)]
        if self.suite.scores is None or not scores or not min(map(len, scores)):
            return {}
        found = aggregate(scores, 0, self.suite.scores.statistics) | {"iqm": estimate(scores)}
        if max(map(len, scores)) > 1:
            return found
        return {name: Estimate(each.value, np.nan, np.nan) for name, each in found.items()}

    def evaluated(self, actions: Actions) -> list[TaskOutcome]:
        """The tasks whose runs are all evaluated."""
        return [task for task in self.tasks if len(task.returns(actions)) == len(task.runs)]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "suite": self.suite.name,
            "description": self.suite.description,
            "episodes": self.suite.episodes,
            "tasks": [task.to_dict() for task in self.tasks],
            "aggregate": {
                actions: {name: interval_dict(found) for name, found in self.aggregate(actions).items()}
                for actions in ACTIONS
            },
        }


def gather(suite: Suite, results: Path) -> SuiteOutcome:
    """Read what every run of a suite has reached; runs without a folder are "not started".

    Raises:
        UsageError: a run's files are damaged, or are of other settings than the suite has now.
    """
    runs: dict[str, list[RunOutcome]] = {name: [] for name in suite.tasks}
    for member in members_of(suite.tasks, results):
        runs[member.name].append(_outcome(member, suite.episodes))
    scores = {each.name: each for each in suite.scores.tasks} if suite.scores else {}
    tasks = [TaskOutcome(name, task, runs[name], scores.get(task.env)) for name, task in suite.tasks.items()]
    return SuiteOutcome(suite, results, tasks)


def _outcome(member: Member, episodes: int) -> RunOutcome:
    record = member.read()
    record = record.of_length(episodes) if record else None
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
