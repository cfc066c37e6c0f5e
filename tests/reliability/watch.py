"""Observation of processes from outside: lines of metrics; memory, descriptors and threads over time; logs."""

from __future__ import annotations

import contextlib
import json
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

_WARM_SECONDS = 30.0  # after a learner's start, in which functions are traced and buffers allocated
# Warnings that failing and returning peers cause.
_EXPECTED = (
    r"lost: silent for \d+ s",
    r"lost: the connection was closed",
    r"lost: the peer does not read its messages",
    r"connections have ended in the handshake",  # an actor killed during a handshake
    r"connections of unauthenticated peers were closed",
    r"no learner (has published its address|answered) ",
    r"the learner has been silent for \d+ s",
    r"the learner no longer knows this session",
    r"the connection to the learner at \S+ (was closed|broke)",
    r"the learner at \S+ ended the handshake",
    r"no handshake within \d+ s",
)
_expected = re.compile("|".join(_EXPECTED))


class Lines:
    """Reads new lines of a run's metrics.jsonl; a learner that resumes cuts off those after its checkpoint."""

    def __init__(self, run: Path) -> None:
        self._path = run / "metrics.jsonl"
        self._offset = 0
        self._newest = 0.0

    def new(self) -> list[dict[str, Any]]:
        """Lines written since the last call."""
        if not self._path.exists():
            return []
        if self._path.stat().st_size < self._offset:
            self._offset = 0
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        end = data.rfind(b"\n") + 1
        self._offset += end
        lines = []
        for line in data[:end].splitlines():
            # After the file was truncated, this may begin inside a line, or with a line already read.
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict) and found.get("time", 0.0) > self._newest:
                    lines.append(found)
        if lines:
            self._newest = lines[-1]["time"]
        return lines


class Sample(NamedTuple):
    """A process at one time: monotonic seconds, resident memory in MB, open descriptors, threads."""

    time: float
    memory: float
    descriptors: int
    threads: int


def sample(pid: int) -> Sample | None:
    """Sample a process; None if it has ended."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            return Sample(time.monotonic(), process.memory_info().rss / 1e6, process.num_fds(), process.num_threads())
    except psutil.Error:
        return None


def summary(samples: Sequence[Sample]) -> dict[str, float]:
    """Memory of one life after its warm-up: medians of the first and last quarter, growth per minute; and maxima."""
    if not samples:
        return {}
    warm = [s for s in samples if s.time - samples[0].time >= _WARM_SECONDS]
    if len(warm) < 8:
        warm = list(samples[len(samples) // 2 :])
    quarter = max(1, len(warm) // 4)
    memory = [s.memory for s in warm]
    slope = 0.0
    if len(warm) > 2:
        slope = 60 * statistics.linear_regression([s.time for s in warm], memory).slope
    return {
        "seconds": samples[-1].time - samples[0].time,
        "memory_first_mb": statistics.median(memory[:quarter]),
        "memory_last_mb": statistics.median(memory[-quarter:]),
        "memory_slope_mb_per_minute": slope,
        "descriptors_most": max(s.descriptors for s in samples),
        "descriptors_last": statistics.median(s.descriptors for s in warm[-quarter:]),
        "threads_most": max(s.threads for s in samples),
        "threads_last": statistics.median(s.threads for s in warm[-quarter:]),
    }


def complaints(texts: Iterable[str]) -> tuple[Counter[str], list[str]]:
    """Warnings and errors in the output of processes: counts of the expected ones, and every other line."""
    expected: Counter[str] = Counter()
    others = []
    for text in texts:
        for line in text.splitlines():
            if not re.search(r"\b(warning|error):|^seed: |Traceback|^Fatal| WARNING | ERROR ", line):
                continue
            found = _expected.search(line)
            if found is None:
                others.append(line)
            else:
                expected[re.sub(r"\S*\d\S*", "…", found[0])] += 1
    return expected, others
