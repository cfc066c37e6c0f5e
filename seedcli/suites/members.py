"""The runs of a suite, one for each task and seed: their files, commands and outcomes.

Beside the folder of a run are its record, `seed-1.json`, and the output of its commands, `seed-1.log`. The record is
replaced as a whole at each step, so that after a kill of the suite a run continues from its last complete step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from seedcli.config.presets import read_toml
from seedcli.config.sources import describe
from seedcli.config.toml_text import format_value
from seedcli.errors import UsageError
from seedcli.files import replacing
from seedcli.results.runs import read_run
from seedcli.roles.run_folder import CONFIG
from seedcli.suites.suite import Suite, Task, task_config, task_flags, task_sets

Actions = Literal["greedy", "sampled"]
ACTIONS: Mapping[Actions, str] = {"greedy": "--greedy", "sampled": "--sample"}  # and the flag of `seed eval`


@dataclass(frozen=True)
class Record:
    """The progress and outcome of a run.

    Attributes:
        command: arguments of its training, without the folder; a different command means a different run.
        trained: whether it has taken its steps.
        evaluations: greedy and sampled: {"environment", "returns", "return_mean", "return_std", "normalised"}; the last
            is the mean human-normalised score, for suites with `scores`.
        error: the sentence with which it failed; "" if it has not.
    """

    command: Sequence[str]
    trained: bool = False
    evaluations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    error: str = ""

    @property
    def finished(self) -> bool:
        """Whether all its evaluations are made."""
        return set(self.evaluations) == set(ACTIONS)

    def of_length(self, episodes: int) -> Record:
        """The record without evaluations of another number of episodes, so that they are made again."""
        kept = {actions: played for actions, played in self.evaluations.items() if len(played["returns"]) == episodes}
        return replace(self, evaluations=kept)


@dataclass(frozen=True)
class Member:
    """One run of a suite.

    Attributes:
        name: of its task.
        task: its task.
        seed: of the run.
        results: folder of the suite's results.
    """

    name: str
    task: Task
    seed: int
    results: Path

    def __str__(self) -> str:
        return f"{self.name}, seed {self.seed}"

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.results / self.name / f"seed-{self.seed}"

    @property
    def log(self) -> Path:
        """Output of its commands."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def record_path(self) -> Path:
        """Its record."""
        return self.folder.with_name(f"{self.folder.name}.json")

    def command(self) -> list[str]:
        """Arguments of `seed` that train it, without its folder."""
        words = ["train"]
        for name, value in task_flags(self.task, self.seed).items():
            words += [f"--{name}", value]
        for value in task_sets(self.task):
            words += ["--set", value]
        return words

    def train_command(self) -> list[str]:
        """Arguments of `seed` that begin or resume its training."""
        return [*self.command(), "--logdir", str(self.folder), "--continue", "--no-live"]

    def eval_command(self, actions: Actions, suite: Suite) -> list[str]:
        """Arguments of `seed` that evaluate it, with JSON on stdout."""
        scores = ["--suite", suite.scores.name] if suite.scores else []
        return ["eval", *scores, str(self.folder), "--episodes", str(suite.episodes), ACTIONS[actions], "--json"]

    def read(self) -> Record | None:
        """Its record; None before it was begun.

        Raises:
            UsageError: the record is damaged, or it (or the folder, without one) belongs to a different training than
            the suite describes now.
        """
        try:
            data = json.loads(self.record_path.read_bytes())
            record = Record(**data)
        except FileNotFoundError:
            self._check_folder()
            return None
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(
                f"{self.record_path} cannot be read ({error}): remove it to evaluate the run again"
            ) from error
        if record.command != self.command():
            raise UsageError(
                f"{self.folder} was started as seed {' '.join(record.command)}, but its file now says seed "
                f"{' '.join(self.command())}: give another --results, or remove {self.folder}*"
            )
        return record

    def _check_folder(self) -> None:
        """Refuse a run with other settings that was trained by a job, which leaves no record."""
        if not (self.folder / CONFIG).is_file():
            return
        trained = read_toml(self.folder / CONFIG)
        for key, value, source, _ in describe(task_config(self.task, self.seed)):
            section, name = key.rsplit(".", 1)
            found: Any = trained
            for part in section.split("."):
                found = found.get(part, {})
            # Other values may differ: the jobs' options set some of them.
            if (source.startswith("--") or key == "run.preset") and found.get(name) != value:
                raise UsageError(
                    f"{self.folder} was started with {key} = {format_value(found.get(name))}, but its file now says "
                    f"{format_value(value)}: give another --results, or remove {self.folder}*"
                )

    def write(self, record: Record) -> None:
        """Replace its record, also across a power failure."""
        self.record_path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.record_path) as made:
            made.write_text(json.dumps(vars(record), indent=1), encoding="utf-8")


def members_of(tasks: Mapping[str, Task], results: Path) -> Iterator[Member]:
    """The runs of tasks: the first seed of every task, then the second, so that early results cover all tasks."""
    for number in range(max(len(task.seeds) for task in tasks.values())):
        for name, task in tasks.items():
            if number < len(task.seeds):
                yield Member(name, task, task.seeds[number], results)


def is_trained(member: Member) -> bool:
    """Whether a run has taken its steps, here or as a job of a cluster.

    Raises:
        UsageError: its record or its folder is damaged.
    """
    record = member.read()
    if record and record.trained:
        return True
    return (member.folder / CONFIG).is_file() and read_run(member.folder).state == "finished"
