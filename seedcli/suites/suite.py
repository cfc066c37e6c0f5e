"""A suite: its TOML file, read and checked before anything starts."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from seedcli.config.faults import broken_rule
from seedcli.config.presets import read_toml, shipped_folder
from seedcli.config.sections import Name, PositiveInt, Section
from seedcli.config.sources import Resolved, load_config
from seedcli.config.toml_text import format_value
from seedcli.envs import scores
from seedcli.envs.registry import check_environment
from seedcli.errors import UsageError

_ROOT = Path("runs") / "benchmarks"  # of results, in the working folder


class Task(Section):
    """One task, as the file writes it.

    Attributes:
        preset: the preset that its runs start from.
        env: game, scenario, level or Gymnasium id; "" for the preset's own.
        steps: environment steps of each run.
        seeds: one run each.
        set: configuration key, such as "training.batch_size" → value.
        threshold: return whose first crossing is reported, of the mean of the last 100 training episodes.
        reference: a published return to compare with.
        source: who published it, with which algorithm and after how many steps.
    """

    preset: Name
    env: str = ""
    steps: PositiveInt
    seeds: Annotated[tuple[Annotated[int, Field(ge=0, le=2**31 - 1)], ...], Field(min_length=1)]
    set: dict[str, Any] = {}
    threshold: float | None = None
    reference: float | None = None
    source: str = ""


class _Head(Section):
    """The table [suite].

    Attributes:
        description: one line.
        episodes: of each evaluation.
        scores: the benchmark whose games or levels the tasks are (`seed eval --suite`); its human and random scores are
            then the references.
    """

    description: Name
    episodes: PositiveInt = 20
    scores: Literal["", "atari57", "dmlab30"] = ""


class _File(Section):
    """A suite's file: [defaults] holds keys of tasks, for tasks that do not set them; [slurm] options of seed slurm."""

    suite: _Head
    defaults: dict[str, Any] = {}
    slurm: dict[str, Any] = {}
    tasks: Annotated[dict[Annotated[str, Field(pattern=r"^\w[\w.-]*$")], Task], Field(min_length=1)]


@dataclass(frozen=True)
class Suite:
    """A suite whose tasks can be trained.

    Attributes:
        name: the file's name without its ending.
        path: the file.
        argument: the argument that names it on a command line, in any working folder.
        description: one line.
        episodes: of each evaluation.
        scores: human and random scores of the tasks; None if tasks have references of their own.
        tasks: by name.
        slurm: options of `seed slurm` for its jobs, by name.
    """

    name: str
    path: Path
    argument: str
    description: str
    episodes: int
    scores: scores.Suite | None
    tasks: Mapping[str, Task]
    slurm: Mapping[str, Any]

    @property
    def default_results(self) -> Path:
        """The folder of its results unless the user names one."""
        return _ROOT / self.name


def suite_names() -> list[str]:
    """Names of the suites that come with seed, sorted."""
    return sorted(path.stem for path in _folder().glob("*.toml"))


def load_suite(name: str) -> Suite:
    """Read a suite and check every task's configuration.

    Args:
        name: one of `suite_names`, or the path of a TOML file.

    Raises:
        UsageError: there is no such suite; it has an unknown key, a value out of range or a task that cannot be
            trained: unknown preset, environment or configuration key. One sentence.
    """
    path = _path(name)
    data = read_toml(path)
    defaults, tasks = data.get("defaults", {}), data.get("tasks", {})
    if isinstance(defaults, dict) and isinstance(tasks, dict):
        shared = {key: value for key, value in defaults.items() if key in Task.model_fields}
        data["tasks"] = {key: shared | task if isinstance(task, dict) else task for key, task in tasks.items()}
        if unknown := [key for key in defaults if key not in Task.model_fields]:
            hint = nearest_of(unknown[0], list(Task.model_fields))
            raise UsageError(f"{path}: unknown key defaults.{unknown[0]}: {hint}")
    try:
        file = _File.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        tables: dict[str, type[Section]] = {"": _File, "suite": _Head, "tasks": Task}
        raise UsageError(f"{path}: {describe_fault(error, tables)}") from error
    head = file.suite
    found = scores.load_suite(head.scores) if head.scores else None
    for key, task in file.tasks.items():
        try:
            check_task(task, found)
        except UsageError as error:
            raise UsageError(f"{path}, task {key}: {error}") from error
    argument = name if name == path.stem else str(path.absolute())
    return Suite(path.stem, path, argument, head.description, head.episodes, found, file.tasks, file.slurm)


def task_flags(task: Task, seed: int) -> dict[str, str]:
    """Options of `seed train` and of `seed slurm`, without dashes, except the values of `set`."""
    flags = {"preset": task.preset, "env": task.env, "steps": str(task.steps), "seed": str(seed)}
    return {name: value for name, value in flags.items() if value}


def task_sets(task: Task) -> list[str]:
    """The values that a task sets, each as `--set` takes it."""
    return [f"{key}={format_value(value)}" for key, value in task.set.items()]


def task_config(task: Task, seed: int) -> Resolved:
    """The configuration of a run of a task.

    Raises:
        UsageError: an unknown preset or key, or a value out of range.
    """
    flags = {f"--{name}": value for name, value in task_flags(task, seed).items() if name != "preset"}
    # Environment variables are no layer here: a run depends only on the suite.
    return load_config(task.preset, environ={}, sets=task_sets(task), flags=flags)


def choose_tasks(suite: Suite, only: Sequence[str]) -> dict[str, Task]:
    """The named tasks of a suite, in its order; all of them if none is named.

    Raises:
        UsageError: the suite has no such task.
    """
    for name in only:
        if name not in suite.tasks:
            raise UsageError(f"{suite.name} has no task {name!r}: {nearest_of(name, suite.tasks)}")
    return {name: task for name, task in suite.tasks.items() if not only or name in only}


def check_task(task: Task, found: scores.Suite | None) -> None:
    """Refuse a task that cannot be trained or compared.

    Raises:
        UsageError: one sentence that names the value.
    """
    resolved = task_config(task, task.seeds[0])
    environment = resolved.config.environment
    check_environment(environment, resolved.sources.get("environment.kwargs", ""))
    if len(set(task.seeds)) < len(task.seeds):
        raise UsageError(f"seeds = {list(task.seeds)} must differ: each is one run")
    if task.reference is not None and not task.source:
        raise UsageError(f"reference = {task.reference:g} needs a source: name who published it and the method")
    if found is None:
        return
    if task.reference is not None:
        raise UsageError(f'reference = {task.reference:g} and scores = "{found.name}" both give one: leave one out')
    games = [each.name for each in found.tasks]
    if environment.family != found.family or task.env not in games:
        raise UsageError(
            f'env = "{task.env}" of {environment.family} is not a {found.unit} of scores = "{found.name}": '
            f"{nearest_of(task.env, games)}"
        )


def _folder() -> Path:
    return shipped_folder("benchmarks/suites", "benchmarks")


def _path(name: str) -> Path:
    if name.endswith(".toml") or "/" in name:
        return Path(name)
    names = suite_names()
    if name not in names:
        raise UsageError(
            f"unknown suite {name!r}: {nearest_of(name, names)}; a suite of your own is a path, such as my.toml"
        )
    return _folder() / f"{name}.toml"


def nearest_of(name: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    """A hint for a name that is not among the known ones."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"


def describe_fault(error: ValidationError, tables: Mapping[str, type[Section]]) -> str:
    """The first fault of a file as one sentence: key, value, rule.

    Args:
        error: of its values.
        tables: the file's section as "", and that of each of its tables by the table's name.
    """
    # An unknown key explains why another is missing.
    fault = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    place = [str(part) for part in fault["loc"] if part != "[key]"]
    key = ".".join(place)
    if fault["type"] == "extra_forbidden":
        table = tables[place[0] if len(place) > 1 else ""]
        return f"unknown key {key}: {nearest_of(place[-1], list(table.model_fields))}"
    if fault["type"] == "missing":
        return f"{key} is missing"
    if fault["type"] == "string_pattern_mismatch":
        return f"{key}: the name of a task may hold letters, digits, dots, dashes and underscores"
    if fault["type"] == "value_error":
        return f"{key} {broken_rule(fault)}".lstrip()
    return f"{key} = {format_value(fault['input'])} {broken_rule(fault)}"
