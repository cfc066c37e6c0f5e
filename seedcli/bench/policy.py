"""`seed bench policy`: one observation in, an action out, on one core."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seedcli.bench.output import machine, print_progress, show, table
from seedcli.errors import UsageError
from seedcli.models.acting import ModelActor
from seedcli.models.formats import FORMATS
from seedcli.models.runtimes import Model, open_model
from seedcli.specs import ArraySpec, EnvSpec, map_arrays

_WARM_UP = 0.2  # of the seconds of a measurement
_OBSERVATIONS = 16  # different ones, in rotation

# Observation [1, ...], reward [1], first [1] → anything.
Act = Callable[[Any, npt.NDArray[np.float32], npt.NDArray[np.bool_]], Any]


class Subject(NamedTuple):
    """What is measured: its name and what it does with one observation."""

    name: str
    act: Act


def on_one_core() -> None:
    """Pin this process to one of its cores, before a runtime starts its threads."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def run_bench_model(path: Path, *, seconds: float, json_output: bool) -> int:
    """Measure a model in the runtime of its format.

    Args:
        path: of the model.
        seconds: length of the measurement.
        json_output: print JSON instead of a table.

    Raises:
        CheckpointError, UsageError: the model cannot be used, or answers several environments at once.
    """
    on_one_core()
    model = open_model(path)
    if model.description.batch not in (None, 1):
        raise UsageError(
            f"{path} has a fixed batch size of {model.description.batch} and this measures 1: export the run "
            "without --batch"
        )
    return run_bench_policy(
        model.description.env_spec, [of_model(model)], str(path), seconds=seconds, json_output=json_output
    )


def of_model(model: Model) -> Subject:
    """A model with its state, in the runtime of its format."""
    found = FORMATS[model.format]
    return Subject(f"{found.runtime}, {found.name}", ModelActor(model, seed=1).act)


def run_bench_policy(
    spec: EnvSpec, subjects: Iterable[Subject], source: str, *, seconds: float, json_output: bool
) -> int:
    """Measure the subjects one after another and print the figures.

    Args:
        spec: of the environment.
        subjects: what is measured, each built just before its measurement.
        source: where they come from.
        seconds: length of each measurement.
        json_output: print JSON instead of a table.
    """
    found = {}
    for subject in subjects:
        print_progress(f"{subject.name}: {seconds:g} s")
        found[subject.name] = measure(subject.act, spec, seconds)
    result = {"bench": "policy", "policy": source, "environment": spec.name, "machine": machine(), "runtimes": found}
    shown = table(f"{spec.name}: one observation, one core", "runtime", "p50", "p99", "calls/s")
    for name, figures in found.items():
        shown.add_row(
            name, f"{figures['p50_ms']:.3f} ms", f"{figures['p99_ms']:.3f} ms", f"{figures['calls_per_second']:,.0f}"
        )
    return show(result, json_output, [shown])


def measure(act: Act, spec: EnvSpec, seconds: float) -> dict[str, float]:
    """Time single calls.

    Args:
        act: chooses an action for one environment.
        spec: of the environment; observations are random.
        seconds: length of the measurement.

    Returns:
        "p50_ms" and "p99_ms", percentiles of the time of a call; "calls_per_second"; "calls".
    """
    random = np.random.default_rng(1)
    observations = [map_arrays(lambda array: _sample(array, random), spec.observation) for _ in range(_OBSERVATIONS)]
    reward, first = np.zeros(1, np.float32), np.ones(1, np.bool_)
    act(observations[0], reward, first)
    first = np.zeros(1, np.bool_)

    def calls(length: float) -> npt.NDArray[np.int64]:
        times: list[int] = []
        before, end = 0, time.perf_counter_ns() + int(length * 1e9)
        while before < end:
            observation = observations[len(times) % _OBSERVATIONS]
            before = time.perf_counter_ns()
            act(observation, reward, first)
            times.append(time.perf_counter_ns() - before)
        return np.array(times)

    calls(_WARM_UP * seconds)
    took = calls(seconds)
    p50, p99 = np.percentile(took, [50, 99]) / 1e6
    rate = 1e9 / float(took.mean())
    return {"p50_ms": float(p50), "p99_ms": float(p99), "calls_per_second": rate, "calls": float(len(took))}


def _sample(array: ArraySpec, random: np.random.Generator) -> npt.NDArray[Any]:
    """One random value, [1, ...]."""
    shape, dtype = (1, *array.shape), np.dtype(array.dtype)
    if array.categories:
        return random.integers(0, np.reshape(array.categories, array.shape), shape).astype(dtype)
    if array.binary:
        return random.choice(np.array(array.binary, dtype), shape)
    if dtype.kind == "f":
        return random.normal(size=shape).astype(dtype)
    return random.integers(0, 2 if dtype.kind == "b" else 128, shape).astype(dtype)
