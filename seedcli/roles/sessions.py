"""The sessions of a run: each learner process that worked on it, with its machine, command, times and exit status.

`sessions.jsonl` has one line when a session starts and one when it ends. A killed session has no second line.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from seedcli import __version__
from seedcli.errors import EXIT_DONE, EXIT_FAILED, SeedError
from seedcli.roles.run_folder import SESSIONS
from seedcli.roles.source_commit import source_commit

_PACKAGES = ("tensorflow", "keras", "numpy", "gymnasium", "ale-py")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Session:
    """One learner process of a run, as recorded.

    Attributes:
        started: Unix seconds.
        command: the command line, "seed" first.
        versions: package → version, also "python", and "commit" of seedcli where it is known.
        machine: "system", "cpu", "cores", "memory_gb" and "accelerators" of the learner's machine.
        ended: Unix seconds; None: it is running, or was killed.
        status: its exit status; None as above.
        error: the sentence with which it failed; "" otherwise.
        profile: thread → part → seconds; empty if it was killed or failed.
    """

    started: float
    command: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    ended: float | None = None
    status: int | None = None
    error: str = ""
    profile: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


class SessionRecorder:
    """Records the session of this process; a context manager. On a full disk the record is lost, and the run continues.

    Args:
        folder: of the run, which exists.
        accelerators: model names of the GPUs or TPU cores.

    Attributes:
        status: the exit status, to be set before the end.
        profile: where the time went, likewise.
    """

    def __init__(self, folder: Path, accelerators: Sequence[str] = ()) -> None:
        self._path = folder / SESSIONS
        self._accelerators = list(accelerators)
        self.status = EXIT_DONE
        self.profile: Mapping[str, Mapping[str, float]] = {}

    def __enter__(self) -> Self:
        start = {"command": _command(), "versions": _versions(), "machine": _machine(self._accelerators)}
        self._append({"started": time.time(), **start})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        status = self.status
        if error is not None:
            status = error.exit_status if isinstance(error, SeedError) else EXIT_FAILED
        sentence = "" if error is None else str(error) or type(error).__name__
        self._append({"ended": time.time(), "status": status, "error": sentence, "profile": self.profile})

    def _append(self, line: Mapping[str, Any]) -> None:
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            _log.error("%s cannot be written: %s", self._path, error)


def read_sessions(folder: Path) -> list[Session]:
    """The sessions of the run in `folder`, oldest first; empty if none was recorded. Damaged lines are left out."""
    try:
        texts = (folder / SESSIONS).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found: list[dict[str, Any]] = []
    for text in texts:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and "started" in line:
            found.append(line)
        elif isinstance(line, dict) and found:
            found[-1] |= line
    known = Session.__dataclass_fields__.keys()
    return [Session(**{name: value for name, value in line.items() if name in known}) for line in found]


def _command() -> list[str]:
    # `python -m seedcli` has the path of __main__.py there.
    return ["seed", *sys.argv[1:]]


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "seedcli": __version__}
    if commit := source_commit():
        versions["commit"] = commit
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _machine(accelerators: list[str]) -> dict[str, Any]:
    return {
        "system": platform.platform(aliased=True, terse=True),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "accelerators": accelerators,
    }


def _cpu_model() -> str:
    """The CPU's name as Linux gives it; else the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.machine()
