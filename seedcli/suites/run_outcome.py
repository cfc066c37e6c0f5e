"""The result of one run of a suite, read from its folder or from the JSON of a table."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from seedcli.errors import UsageError
from seedcli.results.curves import Curve, curve_of, reached_at
from seedcli.results.runs import RunData, read_run
from seedcli.roles.run_folder import CONFIG
from seedcli.suites.members import Actions, Member, Record
from seedcli.telemetry.numbers import finite

State = Literal["finished", "failed", "running", "interrupted", "to be evaluated", "not started"]
POINTS = 100  # of a curve in JSON


@dataclass(frozen=True)
class RunOutcome:
    """The result of one run.

    Attributes:
        member: the run.
        state: "to be evaluated": it has taken its steps; "interrupted": it can be resumed.
        error: the sentence with which it failed; "" if it has not.
        environment: id of the environment that it was trained on; "" if unknown.
        versions, machine: of its last session, see `roles.sessions.Session`; empty if none is recorded.
        sessions: number of learner processes.
        seconds: of training so far; NaN if unknown.
        env_steps: environment steps taken.
        steps_per_second: environment steps a second; NaN if unknown.
        training_return: mean of the last 100 training episodes; NaN if none has ended.
        threshold_steps, threshold_minutes: where training reached the threshold of the task; inf if it did not, NaN
            without a threshold, before the run was begun, and for minutes where no time is kept.
        evaluations: see `Record`, those as long as the suite's.
        curve: "env_steps", "minutes" and "returns", at most `POINTS` values each; empty if unknown.
    """

    member: Member
    state: State
    error: str = ""
    environment: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    sessions: int = 0
    seconds: float = np.nan
    env_steps: int = 0
    steps_per_second: float = np.nan
    training_return: float = np.nan
    threshold_steps: float = np.nan
    threshold_minutes: float = np.nan
    evaluations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    curve: Mapping[str, Sequence[float | None]] = field(default_factory=dict)

    @classmethod
    def of_folder(cls, member: Member, episodes: int) -> Self:
        """Read a run from its record and its folder; "not started" if there are none.

        Args:
            member: the run.
            episodes: of an evaluation.

        Raises:
            UsageError: its files are damaged, or are of other settings than the suite has now.
        """
        record = member.read()
        record = record.of_length(episodes) if record else None
        data = read_run(member.folder) if (member.folder / CONFIG).is_file() else None
        state = _state(record, data)
        error = record.error if record else ""
        evaluations = record.evaluations if record else {}
        if data is None:
            return cls(member, state, error, evaluations=evaluations)
        curve, threshold = curve_of(data), member.task.threshold
        reached = (np.nan, np.nan)
        if threshold is not None:
            reached = reached_at(curve, threshold), reached_at(curve, threshold, "minutes")
        session = data.sessions[-1] if data.sessions else None
        return cls(
            member,
            state,
            error or (data.error if state == "failed" else ""),
            environment=str(data.value("environment.id") or ""),
            versions=session.versions if session else {},
            machine=session.machine if session else {},
            sessions=len(data.sessions),
            seconds=data.training_seconds,
            env_steps=data.env_steps,
            steps_per_second=data.steps_per_second,
            training_return=data.final_return,
            threshold_steps=reached[0],
            threshold_minutes=reached[1],
            evaluations=evaluations,
            curve=_thinned(curve),
        )

    @classmethod
    def of_dict(cls, member: Member, found: Mapping[str, Any], episodes: int) -> Self:
        """Read a run from its `to_dict`.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        begun, threshold = found["env_steps"] > 0, member.task.threshold
        steps, minutes = found["threshold_steps"], found["threshold_minutes"]
        unknown = np.inf if begun and threshold is not None else np.nan
        evaluations = {name: each for name, each in found["evaluations"].items() if len(each["returns"]) == episodes}
        state: State = found["state"]
        return cls(
            member,
            "to be evaluated" if state == "finished" and len(evaluations) < len(found["evaluations"]) else state,
            found["error"],
            environment=found["environment"],
            versions=found["versions"],
            machine=found["machine"],
            sessions=found["sessions"],
            seconds=_number(found["seconds"]),
            env_steps=found["env_steps"],
            steps_per_second=_number(found["env_steps_per_second"]),
            training_return=_number(found["training_return"]),
            threshold_steps=unknown if steps is None else steps,
            threshold_minutes=(unknown if steps is None else np.nan) if minutes is None else minutes,
            evaluations=evaluations,
            curve=found["curve"],
        )

    def evaluation(self, actions: Actions) -> Mapping[str, Any] | None:
        """Its evaluation, see `Record`; None if it has none."""
        return self.evaluations.get(actions)

    @property
    def command(self) -> str:
        """The command that trains it again, in a folder of its own."""
        return command_of(self.member)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "seed": self.member.seed,
            "state": self.state,
            "error": self.error,
            "folder": str(self.member.folder.relative_to(self.member.results)),
            "command": self.command,
            "environment": self.environment,
            "versions": self.versions,
            "machine": self.machine,
            "sessions": self.sessions,
            "seconds": finite(self.seconds),
            "env_steps": self.env_steps,
            "env_steps_per_second": finite(self.steps_per_second),
            "training_return": finite(self.training_return),
            "threshold_steps": finite(self.threshold_steps),
            "threshold_minutes": finite(self.threshold_minutes),
            "evaluations": self.evaluations,
            "curve": self.curve,
        }


def command_of(member: Member) -> str:
    """The command that trains a run, in a folder of its own."""
    return shlex.join(["seed", *member.command()])


class Tables:
    """The runs of JSON files that `seed benchmark table` has written, on this machine or others.

    Args:
        files: if several hold the same run, the first one counts.

    Raises:
        UsageError: a file is missing or is not such a file.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._found = [(file, _runs_of(file)) for file in files]

    def find(self, member: Member, episodes: int) -> RunOutcome | None:
        """A run of a suite; None if no file has it.

        Args:
            member: the run.
            episodes: of an evaluation.

        Raises:
            UsageError: it was made with other settings than the suite has now.
        """
        for file, runs in self._found:
            found = runs.get((member.name, member.seed))
            if found is None:
                continue
            for name, value in (("command", command_of(member)), ("threshold", member.task.threshold)):
                if found.get(name) != value:
                    raise UsageError(
                        f"--with {file}: {member} has the {name} {found.get(name)}, but the suite says {value}: leave "
                        "the file out, or delete the run from it"
                    )
            try:
                return RunOutcome.of_dict(member, found, episodes)
            except (KeyError, TypeError, ValueError) as error:
                raise UsageError(f"--with {file}: {member} cannot be read ({error}): write the table again") from error
        return None


def _runs_of(file: Path) -> dict[tuple[str, int], Mapping[str, Any]]:
    """Task and seed → each run of a file that was begun, and the "threshold" of its task."""
    try:
        tasks = json.loads(file.read_bytes())["tasks"]
        runs = [(task, run) for task in tasks for run in task["runs"] if run["state"] != "not started"]
        return {(task["task"], run["seed"]): {**run, "threshold": task["threshold"]} for task, run in runs}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"--with {file} cannot be read ({error}): name the JSON file of a seed benchmark table"
        ) from error


def _number(value: float | None) -> float:
    return np.nan if value is None else value


def _thinned(curve: Curve) -> dict[str, list[float | None]]:
    """At most `POINTS` points of a curve, the first and the last among them, rounded for a file."""
    number = len(curve.returns)
    chosen = np.unique(np.linspace(0, number - 1, min(number, POINTS)).round().astype(int))
    columns = {"env_steps": curve.env_steps, "minutes": curve.minutes, "returns": curve.returns}
    return {name: [_rounded(column[index]) for index in chosen] for name, column in columns.items()}


def _rounded(value: float) -> float | None:
    return float(f"{value:.5g}") if np.isfinite(value) else None


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
