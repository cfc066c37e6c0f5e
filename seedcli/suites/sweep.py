"""A sweep: a TOML file whose points, each a set of values, are the tasks of a suite.

[grid] has every combination of its values, [[list]] one point for each of its tables, [random] draws `samples` points;
where several are given, each point of one is combined with each of the others.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field, ValidationError, model_validator

from seedcli.config.layers import flatten
from seedcli.config.presets import read_toml
from seedcli.config.sections import Name, PositiveInt, Section
from seedcli.config.sources import load_config
from seedcli.config.toml_text import format_value
from seedcli.errors import UsageError
from seedcli.suites.suite import Suite, Task, check_task, describe_fault

ROOT = Path("runs") / "sweeps"  # of results, in the working folder
_NAME = 100  # characters of a point's folder; longer names end with a checksum

Values = Mapping[str, Any]
Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]


class Head(Section):
    """The table [sweep].

    Attributes:
        preset: the preset that every run starts from.
        env: game, scenario, level or Gymnasium id; "" for the preset's own.
        steps: environment steps of each run; 0: the preset's.
        seeds: one run of each point for each; empty: 1 to `repetitions`.
        repetitions: runs of each point, unless `seeds` are given.
        episodes: of each evaluation.
        samples: points that [random] draws.
        draw: seed of these draws: the same file has the same points.
    """

    preset: Name
    env: str = ""
    steps: Annotated[int, Field(ge=0)] = 0
    seeds: tuple[Seed, ...] = ()
    repetitions: PositiveInt = 1
    episodes: PositiveInt = 20
    samples: Annotated[int, Field(ge=0)] = 0
    draw: Seed = 1

    @model_validator(mode="after")
    def _check_seeds(self) -> Self:
        if self.seeds and "repetitions" in self.model_fields_set:
            raise ValueError("seeds and repetitions both say how many runs a point has: give one of the two")
        return self

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """The seeds of each point."""
        return self.seeds or tuple(range(1, self.repetitions + 1))


class Range(Section):
    """A value that [random] draws: one of `choices`, or from `low` to `high`, an integer if both are.

    Attributes:
        log: uniform in the logarithm.
    """

    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    choices: tuple[Any, ...] = ()

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if bool(self.choices) == (self.low is not None or self.high is not None):
            raise ValueError("must have either low and high, or choices")
        if self.choices:
            return self
        if self.low is None or self.high is None or self.low >= self.high:
            raise ValueError(f"must have a low below its high, not low = {self.low} and high = {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"must have a low above 0 with log = true, not {self.low}")
        return self

    def value(self, share: float) -> Any:
        """The value at a share of the range, at least 0 and below 1; if not an integer, with four digits."""
        if self.choices:
            return self.choices[int(share * len(self.choices))]
        assert self.low is not None and self.high is not None
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        low, high = (self.low, self.high + 1) if whole else (self.low, self.high)
        drawn = low * math.exp(share * math.log(high / low)) if self.log else low + share * (high - low)
        # Rounding may lead out of the range.
        return min(int(drawn), self.high) if whole else min(max(float(f"{drawn:.4g}"), self.low), self.high)


class ArrayOptions(Section):
    """The table [slurm]: options of the job array.

    Attributes:
        cpus: of each run.
        gpus: of each run.
        at_once: runs at a time; 0: as many as the cluster has room for.
        time, mem, partition, account: as sbatch takes them; "" leaves the option out.
        sbatch: additional options of sbatch.
        setup: shell lines to run first.
    """

    cpus: PositiveInt = 2
    gpus: Annotated[int, Field(ge=0)] = 0
    at_once: Annotated[int, Field(ge=0)] = 0
    time: str = ""
    mem: str = ""
    partition: str = ""
    account: str = ""
    sbatch: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()


class _File(Section):
    sweep: Head
    set: dict[str, Any] = {}
    grid: dict[str, Any] | None = None
    list: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)] | None = None
    random: dict[str, Any] | None = None
    slurm: ArrayOptions = ArrayOptions()


@dataclass(frozen=True)
class Sweep:
    """A sweep whose points can be trained.

    Attributes:
        suite: its runs; a task for each point.
        points: name of a task → the values that vary, by key.
        slurm: options of its job array.
    """

    suite: Suite
    points: Mapping[str, Values]
    slurm: ArrayOptions

    @property
    def default_results(self) -> Path:
        """The folder of its results unless the user names one."""
        return ROOT / self.suite.name


def load_sweep(path: Path) -> Sweep:
    """Read a sweep and check the configuration of every point.

    Raises:
        UsageError: the file has an unknown key, a value out of range, an empty grid, or a point that cannot be trained.
    """
    file = _read(path)
    head, fixed = file.sweep, dict(_keys(file.set))
    found = list(_points(path, file))
    points = dict(zip(_names(found), found, strict=True))
    if len(points) < len(found):
        raise UsageError(f"{path} has the same point twice: each combination of values is one point")
    steps = head.steps or load_config(head.preset, environ={}).config.run.steps
    tasks = {}
    for name, values in points.items():
        task = Task(preset=head.preset, env=head.env, steps=steps, seeds=head.all_seeds, set={**fixed, **values})
        try:
            _check_decided(task)
            check_task(task, None)
        except UsageError as error:
            raise UsageError(f"{path}, point {name}: {error}") from error
        tasks[name] = task
    suite = Suite(path.stem, path, str(path), f"{len(points)} points", head.episodes, None, tasks, {})
    return Sweep(suite, points, file.slurm)


def _read(path: Path) -> _File:
    data = read_toml(path)
    try:
        return _File.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        tables: dict[str, type[Section]] = {"": _File, "sweep": Head, "slurm": ArrayOptions}
        raise UsageError(f"{path}: {describe_fault(error, tables)}") from error


def _points(path: Path, file: _File) -> Iterator[dict[str, Any]]:
    """The values that vary, one point after the other."""
    parts: list[list[dict[str, Any]]] = []
    if file.grid is not None:
        parts.append(list(_grid(path, file.grid)))
    if file.list is not None:
        parts.append([dict(_keys(values)) for values in file.list])
    if file.random is None and file.sweep.samples:
        raise UsageError(f"{path}: sweep.samples = {file.sweep.samples} draws points from [random]: add that table")
    if file.random is not None:
        parts.append(list(_draws(path, file)))
    if not parts and len(file.sweep.all_seeds) == 1:
        raise UsageError(f"{path} varies nothing: give it a table [grid], [[list]] or [random], or several sweep.seeds")
    for combination in itertools.product(*parts):
        keys = [key for values in combination for key in values]
        if twice := next((key for key in keys if keys.count(key) > 1), ""):
            raise UsageError(f"{path}: {twice} is in two of [grid], [[list]] and [random]: leave it in one")
        yield {key: value for values in combination for key, value in values.items()}


def _grid(path: Path, table: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    axes = dict(_keys(table))
    if not axes:
        raise UsageError(f"{path}: [grid] is empty: give it lists of values, such as training.batch_size = [16, 32]")
    for key, values in axes.items():
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise UsageError(
                f"{path}: grid.{key} = {format_value(values)} must be a list of at least one value, such as [1, 2]"
            )
    for combination in itertools.product(*axes.values()):
        yield dict(zip(axes, combination, strict=True))


def _draws(path: Path, file: _File) -> Iterator[dict[str, Any]]:
    """Points of [random]; each key has its own draws, so that adding a key or samples changes none of them."""
    assert file.random is not None
    if not file.random or not file.sweep.samples:
        missing = "sweep.samples, how many points to draw" if file.random else "keys, such as training.learning_rate"
        raise UsageError(f"{path}: [random] needs {missing}")
    ranges, shares = {}, {}
    for key, values in _keys(file.random):
        if not isinstance(values, Mapping):
            raise UsageError(
                f"{path}: random.{key} = {format_value(values)} must be a table, such as {{ low = 1, high = 9 }}"
            )
        try:
            ranges[key] = Range.model_validate_json(json.dumps(values), strict=True)
        except ValidationError as error:
            sentence = describe_fault(error, {"": Range})
            raise UsageError(f"{path}: random.{key} = {format_value(values)}: {sentence}") from error
        generator = np.random.default_rng((file.sweep.draw, zlib.crc32(key.encode())))
        shares[key] = generator.random(file.sweep.samples)
    for number in range(file.sweep.samples):
        yield {key: ranges[key].value(float(shares[key][number])) for key in ranges}


def _keys(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Configuration key → value, from "training.batch_size" in quotes or without."""
    for name, value in table.items():
        if "." in name:
            yield name, value
        else:
            yield from ((entry.key, entry.value) for entry in flatten({name: value}, ""))


def short_keys(points: Sequence[Values]) -> dict[str, str]:
    """The keys that vary → "learning_rate" of "training.learning_rate", if no other key has the same ending."""
    keys = list(dict.fromkeys(key for values in points for key in values))
    leaves = [key.rsplit(".", 1)[-1] for key in keys]
    return {key: leaf if leaves.count(leaf) == 1 else key for key, leaf in zip(keys, leaves, strict=True)}


def _names(points: Sequence[Values]) -> Iterator[str]:
    """A name for each point, for its folder: from its values alone, so that the names of other points never change."""
    labels = short_keys(points)
    for values in points:
        whole = ",".join(f"{labels[key]}={_text(value)}" for key, value in values.items()) or "all"
        name = re.sub(r"[^\w.,=+-]+", "_", whole)
        if name != whole or len(name) > _NAME:
            name = f"{name[: _NAME - 9]}-{zlib.crc32(whole.encode()):08x}"
        yield name


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "x".join(map(_text, value))
    return value if isinstance(value, str) else format_value(value)


def _check_decided(task: Task) -> None:
    """Refuse values of keys that [sweep] decides for every run."""
    decided = {"run.seed": "sweep.seeds", "run.steps": "sweep.steps"}
    decided |= {"environment.id": "sweep.env"} if task.env else {}
    for key, value in task.set.items():
        if key in decided:
            raise UsageError(f"{key} = {format_value(value)} must not be set: give {decided[key]} instead")
