"""Metrics: accumulators for the hot path, one line of metrics, and the files to which lines are written."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from seedcli.telemetry.device_meters import DeviceFigures
from seedcli.telemetry.fleet import STATES

# Counters since the run began; a checkpoint stores them under the same names, and a resumed run continues them.
COUNTERS = (
    "env_steps", "env_frames", "episodes", "evaluation_episodes", "trained_steps", "learner_updates", "dropped_updates"
)  # fmt: skip

_BY_STATE = tuple(f"actors_{state}" for state in STATES)
# Parts of a thread's time, in the order of a step; other names may be used too.
PARTS = ("environment", "wire", "batching", "inference", "training", "waiting")


class Profile:
    """Seconds by name, accumulated by the one thread that owns it; any thread may read it."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def add(self, name: str, seconds: float) -> None:
        """Charge `seconds` to `name`; only the owning thread may call it."""
        self._seconds[name] += seconds

    def seconds(self) -> dict[str, float]:
        """A copy of the seconds by name; safe from any thread."""
        return dict(self._seconds)  # one C call, which a thread switch cannot interrupt


class Reservoir:
    """The newest values of a quantity, in a fixed ring buffer; written by one thread, read by any.

    A reader that races with the writer may see an older value, never one that was not written.

    Attributes:
        size: values kept.
    """

    def __init__(self, size: int = 4096) -> None:
        if size < 1:
            raise ValueError(f"a reservoir of {size} values holds nothing; size must be at least 1")
        self.size = size
        self._ring = np.zeros(size, np.float64)
        self._written = 0

    def __len__(self) -> int:
        return min(self._written, self.size)

    def add(self, value: float) -> None:
        """Add one value."""
        self._ring[self._written % self.size] = value
        self._written += 1

    def add_many(self, values: npt.NDArray[Any]) -> None:
        """Add values [n]; of more than `size` only the last `size` are kept."""
        values = values[-self.size :]
        start = self._written % self.size
        head = min(len(values), self.size - start)
        self._ring[start : start + head] = values[:head]
        self._ring[: len(values) - head] = values[head:]
        self._written += len(values)

    def percentiles(self, *q: float) -> tuple[float, ...] | None:
        """The percentiles `q` (0 to 100, linearly interpolated) of the values kept, or None if there are none."""
        count = len(self)
        return tuple(float(x) for x in np.percentile(self._ring[:count], q)) if count else None

    def mean(self) -> float | None:
        """The mean of the values kept, or None if there are none."""
        count = len(self)
        return float(self._ring[:count].mean()) if count else None

    def reset(self) -> None:
        """Remove all values."""
        self._written = 0


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One line of metrics. Means and rates are over the time since the last line, unless stated otherwise.

    Attributes:
        time: Unix seconds.
        env_steps: environment steps taken by all actors since training began (resumed runs continue the count).
        env_frames: simulator frames of those steps.
        env_steps_per_second: rate of `env_steps`.
        env_frames_per_second: rate of `env_frames`.
        trained_steps: environment steps that training has consumed.
        learner_updates: updates applied to the network.
        updates_per_second: rate of `learner_updates`.
        episodes: episodes finished since training began.
        episode_return: mean raw (unclipped) return of the episodes finished; None if there were none.
        episode_return_100: mean raw return of the last 100 episodes; None before the first.
        episode_length: mean length in environment steps of the episodes finished; None if there were none.
        evaluation_episodes: episodes finished by evaluation environments since training began; not included in other
            metrics of episodes or environment steps.
        evaluation_return: mean raw return of the evaluation episodes finished; None if there were none.
        evaluation_return_20: mean raw return of the last 20 evaluation episodes; None before the first.
        policy_lag: mean updates between acting on a record and training on it.
        policy_lag_max: the largest such lag.
        weights_age: updates made since the current inference weights; None if inference gets every version.
        inference_batch_size: mean environments of an inference batch.
        inference_latency_ms: milliseconds from a message's arrival to its answer, {"p50": …, "p99": …}.
        loss: loss of the last update.
        learning_rate: learning rate of the last update.
        grad_norm: global gradient norm of the last update, before clipping.
        dropped_updates: updates dropped because the loss or a gradient was non-finite, since training began.
        dropped_unrolls: unrolls dropped because a reward or a priority was non-finite, since the learner started;
            a restored replay adds its own count.
        actors: actors connected.
        envs: their environments.
        actors_stepping, actors_waiting, actors_busy, actors_silent: those connected by state, see
            `telemetry.fleet.ActorRow`.
        actors_joining: actors that are joining.
        actors_lost: actors lost within the last minute.
        sessions_lost: sessions that ended without a GOODBYE, since the learner started.
        protocol_errors: connections ended for breaking the protocol, since this learner started.
        turned_away: closed connections of unauthenticated peers since the learner started; for gRPC only those that
            the learner had to close.
        environment_failures: environment failures reported by actors, since the learner started.
        wire_mb_per_second: megabytes (10⁶ bytes) of encoded rows received per second.
        wire_ratio: decoded bytes of rows per encoded byte; 1 if nothing is encoded.
        learner_memory_mb: resident memory of the learner process, MiB.
        devices: metrics of each device in each role.
        replay: metrics of the source of batches and of exploration (replay_size, priority_max, epsilon_min, …), by
            unique name.
        extra: the algorithm's own metrics (policy_loss, entropy, …), by unique name.
    """

    env_steps: int
    time: float | None = None
    env_frames: int = 0
    env_steps_per_second: float | None = None
    env_frames_per_second: float | None = None
    trained_steps: int = 0
    learner_updates: int = 0
    updates_per_second: float | None = None
    episodes: int = 0
    episode_return: float | None = None
    episode_return_100: float | None = None
    episode_length: float | None = None
    evaluation_episodes: int = 0
    evaluation_return: float | None = None
    evaluation_return_20: float | None = None
    policy_lag: float | None = None
    policy_lag_max: float | None = None
    weights_age: int | None = None
    inference_batch_size: float | None = None
    inference_latency_ms: Mapping[str, float] | None = None
    loss: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None
    dropped_updates: int = 0
    dropped_unrolls: int = 0
    actors: int = 0
    envs: int = 0
    actors_stepping: int | None = 0
    actors_waiting: int | None = 0
    actors_busy: int | None = 0
    actors_silent: int | None = 0
    actors_joining: int | None = 0
    actors_lost: int | None = 0
    sessions_lost: int = 0
    protocol_errors: int = 0
    turned_away: int = 0
    environment_failures: int = 0
    wire_mb_per_second: float | None = None
    wire_ratio: float | None = None
    learner_memory_mb: float | None = None
    devices: Sequence[DeviceFigures] = ()
    replay: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        clash = sorted(self.extra.keys() & (GENERAL_METRICS | self.replay.keys()))
        if clash:
            raise ValueError(f"the algorithm's metric {clash[0]!r} has the name of a built-in one; rename it")

    def without_wall_clock(self) -> Snapshot:
        """A copy with None in every field that depends on the clock or the machine (deterministic mode)."""
        states: dict[str, Any] = dict.fromkeys(_BY_STATE)
        return dataclasses.replace(
            self,
            time=None,
            env_steps_per_second=None,
            env_frames_per_second=None,
            updates_per_second=None,
            inference_latency_ms=None,
            wire_mb_per_second=None,
            learner_memory_mb=None,
            devices=(),
            **states,
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields in a fixed order, `time` first, `replay` and `extra` flattened to the end, ready for JSON.

        Non-finite numbers become None; NumPy scalars become Python's.
        """
        names = ["time", *(f.name for f in dataclasses.fields(self) if f.name not in ("time", "replay", "extra"))]
        line = {name: _plain(getattr(self, name)) for name in names}
        line.update((name, _plain(value)) for name, value in self.replay.items())
        line.update((name, _plain(self.extra[name])) for name in sorted(self.extra))
        return line


# Names that an algorithm's own metrics must not have: fields of a snapshot, and what replays and exploration report.
GENERAL_METRICS = frozenset(each.name for each in dataclasses.fields(Snapshot)) | {
    "replay_size",
    "replay_mb",
    "replay_ratio",
    "priority_mean",
    "priority_max",
    "bytes_per_unroll",
    "epsilon_min",
    "epsilon_max",
}


def _plain(value: Any) -> Any:
    if isinstance(value, DeviceFigures):
        value = value.to_dict()
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


class MetricsWriter:
    """Appends lines to `metrics.jsonl`.

    Belongs to one thread. Each line is one unbuffered write, so that a killed learner loses no finished line. Raises
    OSError on disk errors.
    """

    def __init__(self, metrics_path: Path, resume: bool) -> None:
        """Open the file.

        Args:
            metrics_path: the JSON-lines file.
            resume: append to the existing lines (a torn last line is removed) instead of replacing them.
        """
        metrics_path.parent.mkdir(parents=True, exist_ok=True)
        self._path = metrics_path
        # Append in both cases: after a torn line is removed, the next write must not leave a hole.
        self._file: BinaryIO = open(metrics_path, "ab", buffering=0)  # noqa: SIM115
        self._file.truncate(metrics_path.read_bytes().rfind(b"\n") + 1 if resume else 0)

    def truncate_after(self, counters: Mapping[str, int]) -> int:
        """Remove all lines beyond the point where a resumed run continues, so that counters never decrease.

        All counters are compared, because training continues while lines and checkpoints are written: a line with no
        more environment steps than the checkpoint may have more updates.

        Args:
            counters: the checkpoint's counters by field name, including "env_steps".

        Returns:
            The environment steps from which on earlier points are invalid.
        """
        end, beyond = 0, counters["env_steps"] + 1
        for data in self._path.read_bytes().splitlines(keepends=True):
            try:
                line = json.loads(data)
                steps = int(line["env_steps"])
                if any(line.get(name, 0) > count for name, count in counters.items()):
                    beyond = min(beyond, steps)
                    break
            except (ValueError, KeyError, TypeError, AttributeError):
                break  # a corrupted line: the lines after it cannot be trusted
            end += len(data)
        self._file.truncate(end)
        return beyond

    def write(self, snapshot: Snapshot) -> None:
        """Append a line."""
        data = json.dumps(snapshot.to_dict(), allow_nan=False).encode() + b"\n"
        size = os.fstat(self._file.fileno()).st_size
        # On a full disk part of a line may be written. Remove it, or the next line would be appended to it.
        try:
            whole = self._file.write(data) == len(data)
        except OSError:
            self._file.truncate(size)
            raise
        if not whole:
            self._file.truncate(size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    def close(self) -> None:
        """Close the file; safe to call twice."""
        self._file.close()
