"""What a billion frames cost with the rates of a run, learner and actors apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seedcli.errors import UsageError
from seedcli.results.metrics_file import read_lines
from seedcli.results.runs import RunData, read_run
from seedcli.roles.run_folder import METRICS

FRAMES = 1_000_000_000


@dataclass(frozen=True)
class Measured:
    """The machines of a run, and how fast they were.

    Attributes:
        frames_per_second: simulator frames a second, over the whole training.
        gpus: GPUs or TPU cores of all learner hosts.
        learner_cores: CPU cores of all learner hosts, those of the actors left out.
        actor_cores: CPU cores of all actors.
        stepping: share of the time in which actors stepped and did not wait for the learner, 0 to 1.
        busy: share of the time in which the learner's busiest device was busy, 0 to 1.
        shared: learner and actors shared one machine's cores.
    """

    frames_per_second: float
    gpus: int
    learner_cores: float
    actor_cores: float
    stepping: float
    busy: float
    shared: bool

    @property
    def usable_actor_cores(self) -> float:
        """Actor cores that keep the learner's busiest device busy all the time; below them, the device waits."""
        return self.actor_cores * self.stepping / self.busy

    @property
    def largest_rate(self) -> float:
        """Frames a second that the learner reaches with that many actor cores."""
        return self.frames_per_second / self.busy


@dataclass(frozen=True)
class Bill:
    """What frames cost, in the unit of the prices.

    Attributes:
        hours: how long they take.
        learner: its GPUs and cores for these hours.
        actors: their cores for these hours.
    """

    hours: float
    learner: float
    actors: float

    @property
    def total(self) -> float:
        """Learner and actors together."""
        return self.learner + self.actors


@dataclass(frozen=True)
class Prices:
    """Prices of an hour: of a GPU or TPU core, and of a CPU core."""

    gpu: float
    cpu: float

    def bill(
        self,
        frames_per_second: float,
        *,
        gpus: float = 0,
        learner_cores: float = 0,
        actor_cores: float = 0,
        frames: float = FRAMES,
    ) -> Bill:
        """What frames cost at a rate.

        Args:
            frames_per_second: more than 0.
            gpus, learner_cores: of the learner.
            actor_cores: of all actors.
            frames: how many.
        """
        hours = frames / frames_per_second / 3600
        return Bill(hours, hours * (gpus * self.gpu + learner_cores * self.cpu), hours * actor_cores * self.cpu)


def measure(
    path: Path, *, gpus: int | None = None, learner_cores: float | None = None, actor_cores: float | None = None
) -> Measured:
    """Read the rates and the machines of a run.

    Args:
        path: its folder.
        gpus, learner_cores, actor_cores: replace what the run says: the devices it used, the cores of the learner's
            machine, one core for each actor; the cores of the actors of `seed train` are no part of its learner's.

    Raises:
        UsageError: the folder holds no run, or one whose metrics or record of machines do not suffice.
    """
    run = read_run(path)
    lines = read_lines(path / METRICS)
    # From the first update on: before, actors start and, with a replay, fill it.
    training = [i for i, line in enumerate(lines) if line.get("learner_updates") and line.get("actors")]
    if len(training) < 2:
        raise UsageError(f"{path} has too few lines of metrics with updates for a rate: train it for a minute")
    first, last = training[0], training[-1]
    seconds = run.seconds[last] - run.seconds[first]
    frames = lines[last]["env_frames"] - lines[first]["env_frames"]
    if not (seconds > 0 and frames > 0):
        raise UsageError(f"{path} holds no time or no frames, so no rate: a deterministic run keeps no time")
    steady = [lines[i] for i in training]
    hosts = max(1, len(run.value("topology.hosts") or ()))
    if actor_cores is None:
        actor_cores = float(np.mean([line["actors"] for line in steady]))
    shared = "train" in (run.sessions[-1].command[1:2] if run.sessions else ())
    if learner_cores is None:
        learner_cores = hosts * _cores(run) - (actor_cores if shared else 0.0)
    return Measured(
        frames_per_second=float(frames / seconds),
        gpus=hosts * len(_accelerators(steady[-1])) if gpus is None else gpus,
        learner_cores=max(1.0, learner_cores),
        actor_cores=actor_cores,
        stepping=_stepping(steady),
        busy=_busy(steady),
        shared=shared,
    )


def _cores(run: RunData) -> int:
    cores = run.sessions[-1].machine.get("cores") if run.sessions else None
    if not isinstance(cores, int):
        raise UsageError(f"{run.path} does not say how many cores its learner had: give --learner-cores")
    return cores


def _accelerators(line: Mapping[str, Any]) -> set[str]:
    """Names of the devices of a learner host other than its CPU."""
    return {device["device"] for device in line["devices"] if not device["device"].startswith("CPU")}


def _stepping(lines: Sequence[Mapping[str, Any]]) -> float:
    stepping = sum(line["actors_stepping"] or 0 for line in lines)
    waiting = sum(line["actors_waiting"] or 0 for line in lines)
    return stepping / (stepping + waiting) if stepping else 1.0


def _busy(lines: Sequence[Mapping[str, Any]]) -> float:
    """The mean over lines of the busiest device's share; a device may infer and train."""
    shares = []
    for line in lines:
        share: dict[str, float] = {}
        for device in line["devices"]:
            share[device["device"]] = share.get(device["device"], 0.0) + device["utilisation"]
        shares.append(min(1.0, max(share.values(), default=0.0)))
    return max(float(np.mean(shares)), 1e-3)
