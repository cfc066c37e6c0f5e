"""The results of a suite's runs, gathered from their records and folders."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from seedcli.envs.scores import Estimate, aggregate
from seedcli.envs.scores import Task as Scores
from seedcli.results.comparison import Reached, interval_dict
from seedcli.results.statistics import estimate, median_reached
from seedcli.suites.members import ACTIONS, Actions, members_of
from seedcli.suites.run_outcome import RunOutcome, Tables
from seedcli.suites.suite import Suite, Task

_TRAINED = ("finished", "to be evaluated")


@dataclass(frozen=True)
class TaskOutcome:
    """The results of one task's runs.

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
        done = [run for run in self.runs if run.state in _TRAINED and not np.isnan(run.threshold_steps)]
        if self.task.threshold is None or not done:
            return None
        steps = np.array([run.threshold_steps for run in done])
        return Reached(
            threshold=self.task.threshold,
            seeds=int(np.isfinite(steps).sum()),
            of=len(done),
            env_steps=median_reached(steps),
            minutes=median_reached(np.array([run.threshold_minutes for run in done])),
            within=max(run.env_steps for run in done),
        )

    @property
    def environment(self) -> str:
        """The environment that was trained on: the task's, or else the one recorded in a run."""
        return self.task.env or next((run.environment for run in self.runs if run.environment), "")

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
    """The results of a suite's runs.

    Attributes:
        suite: the suite.
        results: folder of its results.
        tasks: every task, or those that were asked for.
    """

    suite: Suite
    results: Path
    tasks: Sequence[TaskOutcome]

    def only(self, names: Collection[str]) -> SuiteOutcome:
        """The results of the named tasks' runs."""
        return replace(self, tasks=[task for task in self.tasks if task.name in names])

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


def gather(suite: Suite, results: Path, tables: Tables | None = None) -> SuiteOutcome:
    """Read the result of every run of a suite; runs without a folder are "not started".

    Args:
        suite: the suite.
        results: folder of its results.
        tables: runs that were made elsewhere; those in `results` take precedence.

    Raises:
        UsageError: a run's files are damaged, or are of other settings than the suite has now.
    """
    runs: dict[str, list[RunOutcome]] = {name: [] for name in suite.tasks}
    for member in members_of(suite.tasks, results):
        run = RunOutcome.of_folder(member, suite.episodes)
        if run.state == "not started" and tables is not None:
            run = tables.find(member, suite.episodes) or run
        runs[member.name].append(run)
    scores = {each.name: each for each in suite.scores.tasks} if suite.scores else {}
    tasks = [TaskOutcome(name, task, runs[name], scores.get(task.env)) for name, task in suite.tasks.items()]
    return SuiteOutcome(suite, results, tasks)
