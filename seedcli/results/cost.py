"""The cost of a billion frames at the rates of a run, separately for learner and actors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from seedcli.errors import UsageError
from seedcli.results.metrics_file import read_lines
from seedcli.results.runs import RunData, read_run
from seedcli.roles.run_folder import ACTOR_LOGS, METRICS

FRAMES = 1_000_000_000


@dataclass(frozen=True)
class Fleet:
    """A learner and its actors, and how fast they are together.

    Attributes:
        frames_per_second: simulator frames a second, more than 0.
        gpus: GPUs or TPU cores of all learner hosts.
        learner_cores: CPU cores of all learner hosts, those of the actors left out.
        actor_cores: CPU cores of all actors.
    """

    frames_per_second: float
    gpus: float
    learner_cores: float
    actor_cores: float


@dataclass(frozen=True)
class Measured:
    """The fleet of a run.

    Attributes:
        fleet: as it was, with the rate over the whole training.
        stepping: share of the time in which actors stepped and did not wait for the learner, more than 0, at most 1.
        busy: share of the time in which the learner's busiest device or thread was busy, more than 0, at most 1.
        shared: learner and actors shared one machine's cores.
    """

    fleet: Fleet
    stepping: float
    busy: float
    shared: bool

    @property
    def filled(self) -> Fleet:
        """The same learner with as many actor cores as it can use: with more, actors would wait for it."""
        return replace(
            self.fleet,
            frames_per_second=self.fleet.frames_per_second / self.busy,
            actor_cores=self.fleet.actor_cores * self.stepping / self.busy,
        )


@dataclass(frozen=True)
class Bill:
    """The cost of frames, in the unit of the prices.

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
    """Prices per hour of a GPU or TPU core, and of a CPU core."""

    gpu: float
    cpu: float

    def bill(self, fleet: Fleet) -> Bill:
        """The cost of a billion frames with a fleet."""
        hours = FRAMES / fleet.frames_per_second / 3600
        learner = fleet.gpus * self.gpu + fleet.learner_cores * self.cpu
        return Bill(hours, hours * learner, hours * fleet.actor_cores * self.cpu)


def measure(
    path: Path, *, gpus: int | None = None, learner_cores: float | None = None, actor_cores: float | None = None
) -> Measured:
    """Read the rates and the machines of a run.

    Args:
        path: its folder.
        gpus, learner_cores, actor_cores: override the values of the run: the devices it used, the cores of the
            learner's machine, one core for each actor. With `seed train`, the actors' cores do not count as the
            learner's.

    Raises:
        UsageError: the folder holds no run, or one whose metrics or record of machines do not suffice.
    """
    run = read_run(path)
    lines = read_lines(path / METRICS)[: len(run.seconds)]  # a running run has more by now
    # From the first update on: before, actors start and, with a replay, fill it.
    training = [i for i, line in enumerate(lines) if line.get("learner_updates") and line.get("actors")]
    if len(training) < 2:
        raise UsageError(f"{path} has too few lines of metrics with updates for a rate: train it for a minute")
    first, last = training[0], training[-1]
    seconds = run.seconds[last] - run.seconds[first]
    frames = lines[last]["env_frames"] - lines[first]["env_frames"]
    if not (seconds > 0 and frames > 0):
        raise UsageError(
            f"{path} has no times or no frames to compute a rate from: a deterministic run records no time"
        )
    steady = [lines[i] for i in training]
    hosts = max(1, len(run.value("topology.hosts") or ()))
    if actor_cores is None:
        actor_cores = hosts * float(np.mean([line["actors"] for line in steady]))  # each host counts its own actors
    shared = (path / ACTOR_LOGS).is_dir()
    if learner_cores is None:
        learner_cores = max(1.0, hosts * _cores(run) - (actor_cores if shared else 0.0))
    if gpus is None:
        gpus = hosts * len(_accelerators(steady[-1]))
    return Measured(
        Fleet(float(frames / seconds), gpus, learner_cores, actor_cores),
        stepping=_stepping(steady),
        busy=max(_devices_busy(steady), _threads_busy(run)),
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


def _devices_busy(lines: Sequence[Mapping[str, Any]]) -> float:
    """The mean over lines of the busiest device's share; a device may infer and train."""
    shares = []
    for line in lines:
        share: dict[str, float] = {}
        for device in line["devices"]:
            share[device["device"]] = share.get(device["device"], 0.0) + device["utilisation"]
        shares.append(min(1.0, max(share.values(), default=0.0)))
    return max(float(np.mean(shares)), 1e-3)


def _threads_busy(run: RunData) -> float:
    """The share of its time in which the busiest thread of the learner did not wait; 0 if no session has ended."""
    profiles = [session.profile for session in run.sessions if session.profile]
    threads = {name: parts for name, parts in (profiles[-1] if profiles else {}).items() if "actor" not in name}
    return max(
        (1.0 - parts.get("waiting", 0.0) / sum(parts.values()) for parts in threads.values() if parts), default=0.0
    )
