"""The folder of a run: its layout, and how it is prepared."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from seedcli.config.sources import Resolved, to_toml
from seedcli.errors import UsageError
from seedcli.files import sync
from seedcli.roles.run_lock import LOCK, take_lock
from seedcli.telemetry.loggers.registry import LOGGERS

CONFIG = "config.toml"
CHECKPOINTS = "checkpoints"
METRICS = "metrics.jsonl"
LOG = "learner.log"
ACTOR_LOGS = "logs"
ADDRESS = "address.json"
SESSIONS = "sessions.jsonl"
EVALUATIONS = "evaluations.jsonl"
HOSTS = "hosts"  # one folder for each learner host but the chief

# Everything a run writes, except the lock: after removing a lock file, two processes could lock two different files.
REPLAY = "replay"
_WRITTEN = (
    CONFIG, CHECKPOINTS, METRICS, LOG, ACTOR_LOGS, REPLAY, ADDRESS, HOSTS, SESSIONS, EVALUATIONS, *LOGGERS
)  # fmt: skip
_REPLACED = ".replaced"  # the run that --overwrite replaces, until the new run takes its first step


class RunFolder:
    """A run's folder, locked for this process until `close` (or until the process ends, however it ends).

    Attributes:
        path: the folder.
        resume: whether the run in it is resumed.
        config_path: config.toml, which holds every value and its source.
        checkpoints: folder of the checkpoints, each in a folder named by its environment steps.
        metrics_path: metrics.jsonl.
        log_path: learner.log.
        actor_logs: folder of the logs of the actors that `seed train` starts.
    """

    def __init__(
        self, path: Path, *, resume: bool, lock: int, made_up: bool = False, made: Sequence[Path] = ()
    ) -> None:
        """Wrap a prepared folder; use `create`.

        Args:
            path, resume: see the attributes.
            lock: the descriptor that holds the lock.
            made_up: the name was generated, so the folder is removed if no run begins in it.
            made: paths that this start has created: folders, outermost first, and the lock file.
        """
        self.path = path
        self.resume = resume
        self.config_path = path / CONFIG
        self.checkpoints = path / CHECKPOINTS
        self.metrics_path = path / METRICS
        self.log_path = path / LOG
        self.actor_logs = path / ACTOR_LOGS
        self._made_up = made_up
        self._made = made
        self._begun = resume
        self._lock: int | None = lock

    @classmethod
    def create(
        cls,
        path: Path | None,
        preset: str,
        *,
        resume: bool | None = False,
        overwrite: bool = False,
        wait: Callable[[str], None] | None = None,
    ) -> Self:
        """Create or open a folder and lock it.

        Args:
            path: the folder; None: runs/<preset>/<YYYYmmdd-HHMMSS> in the working directory.
            preset: name of the preset; "" stands for "custom".
            resume: the folder must hold a run, which is resumed; None: resume the run if there is one, else start one
                and remove the remains of a start that died before it wrote its configuration.
            overwrite: the folder's run, but nothing else in it, is removed once the new run has begun.
            wait: if a learner holds the folder, this is called once with a message that names it, and `create` then
                waits without limit; None: raise an error.

        Raises:
            UsageError: the folder holds a run (or, resuming, none), belongs to a running learner, or cannot be
                written or locked.
        """
        if resume is not False:
            flag = "--resume" if resume else "--continue"
            if overwrite:
                raise UsageError(
                    f"{flag} and --overwrite cannot both be given: one keeps the run, the other removes it"
                )
            if path is None:
                raise UsageError(f"{flag} needs --logdir FOLDER, the run to resume")
        shown, made_up = path, path is None
        try:
            if path is None:
                shown = Path("runs") / (preset or "custom")
                made = _missing(shown)
                path = new_folder(shown)
                made = [*made, path, path / LOCK]
            elif resume:
                _check_resumable(path)
                made = []
            else:
                made = _missing(path / LOCK)
                path.mkdir(parents=True, exist_ok=True)
            lock = take_lock(path, wait)
            try:
                resume = _prepare(path, resume, overwrite)
            except BaseException:
                os.close(lock)
                raise
        except OSError as error:
            name = f"{LOCK}: " if str(error.filename).endswith(LOCK) else ""
            raise UsageError(
                f"{shown} cannot be used as a run's folder ({name}{error.strerror}): give another --logdir"
            ) from error
        return cls(path, resume=resume, lock=lock, made_up=made_up, made=made)

    def write_config(self, resolved: Resolved) -> None:
        """Write config.toml atomically, also across a power failure.

        Raises:
            UsageError: it cannot be written.
        """
        temporary = self.config_path.with_suffix(".tmp")
        try:
            try:
                with temporary.open("w", encoding="utf-8") as file:
                    file.write(to_toml(resolved))
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, self.config_path)
                sync(self.path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise UsageError(
                f"{self.config_path} cannot be written ({error.strerror}): make room there, or give another --logdir"
            ) from error

    def write_address(self, address: dict[str, Any]) -> None:
        """Publish this learner's address to actors, atomically.

        Args:
            address: JSON-serialisable.

        Raises:
            UsageError: the file cannot be written; the earlier file is unchanged.
        """
        temporary = self.path / f".{ADDRESS}.tmp"
        try:
            temporary.write_text(json.dumps(address, indent=1) + "\n", encoding="utf-8")
            os.replace(temporary, self.path / ADDRESS)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise UsageError(
                f"{self.path / ADDRESS} cannot be written ({error.strerror}): make room or fix the cause, "
                "actors read that file"
            ) from error

    def remove_address(self) -> None:
        """Remove the published address; safe to call twice. A file that cannot be removed is harmless."""
        with contextlib.suppress(OSError):
            (self.path / ADDRESS).unlink(missing_ok=True)

    @staticmethod
    def read_address(path: Path) -> dict[str, Any] | None:
        """Read what the learner of the run in folder `path` wrote with `write_address`.

        Returns:
            The address; None if the file is missing, unreadable or not a JSON object.
        """
        try:
            address = json.loads((path / ADDRESS).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        return address if isinstance(address, dict) else None

    def begin(self) -> None:
        """Call after the run's first step: the run is kept from now on, and the run it replaces is removed."""
        if not self._begun:
            self._begun = True
            shutil.rmtree(self.path / _REPLACED, ignore_errors=True)

    def undo(self) -> None:
        """Undo a start whose run has not begun: remove what it created and restore the earlier run."""
        if self._begun or self._lock is None:
            return
        with contextlib.suppress(OSError):
            _remove_run(self.path)
            _put_back_replaced(self.path)
            for path in reversed(self._made):
                path.rmdir() if path.is_dir() else path.unlink()

    def close(self) -> None:
        """Release the lock; safe to call twice. An empty folder with a generated name is removed."""
        if self._lock is not None:
            if self._made_up:
                with contextlib.suppress(OSError):
                    remove_empty(self.path)
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.undo()
        self.close()


def run_of_host(path: Path) -> Path | None:
    """The run folder that contains `path` as the folder of one learner host; None if `path` is not one."""
    return path.parent.parent if path.parent.name == HOSTS else None


def new_folder(parent: Path) -> Path:
    """Create a new folder named by the time; runs started in the same second get -2, -3, ..."""
    parent.mkdir(parents=True, exist_ok=True)
    stem = datetime.now().strftime("%Y%m%d-%H%M%S")
    name, number = stem, 1
    while True:
        try:
            (parent / name).mkdir()
        except FileExistsError:
            number += 1
            name = f"{stem}-{number}"
        else:
            return parent / name


def _missing(path: Path) -> list[Path]:
    """`path` and its parents that do not exist, outermost first."""
    return [each for each in reversed((path, *path.parents)) if not each.exists()]


def _check_resumable(path: Path) -> None:
    if not (path / CONFIG).is_file():
        raise UsageError(f"{path} holds no run to resume: leave --resume out to start one there")


def _prepare(path: Path, resume: bool | None, overwrite: bool) -> bool:
    """Prepare a locked folder for a run; returns whether its run is resumed."""
    if not (path / CONFIG).is_file():
        _put_back_replaced(path)  # after a start that was killed
    elif resume is not False:
        shutil.rmtree(path / _REPLACED, ignore_errors=True)
    if resume:
        _check_resumable(path)  # check again: another learner may have replaced the run during the wait for the lock
    elif resume is None and (path / CONFIG).is_file():
        resume = True
    elif _holds_run(path):
        if resume is None and _holds_checkpoints(path):
            raise UsageError(
                f"{path} holds checkpoints and no {CONFIG}: copy the {CONFIG} of one of them there to resume it, or "
                "replace the run with --overwrite"
            )
        if resume is False and not overwrite:
            raise UsageError(
                f"{path} already holds a run: resume it with --resume, replace it with --overwrite, "
                "or give another --logdir"
            )
        shutil.rmtree(path / _REPLACED, ignore_errors=True)
        _set_aside(path) if overwrite else _remove_run(path)
    (path / CHECKPOINTS).mkdir(exist_ok=True)
    return bool(resume)


def remove_empty(path: Path) -> None:
    """Remove a folder in which no run has begun."""
    left = {entry.name for entry in path.iterdir()}
    if left <= {LOCK, CHECKPOINTS} and not _holds_checkpoints(path):
        shutil.rmtree(path)


def _holds_checkpoints(path: Path) -> bool:
    checkpoints = path / CHECKPOINTS
    return checkpoints.is_dir() and any(checkpoints.iterdir())


def _holds_run(path: Path) -> bool:
    return any((path / name).exists() for name in _WRITTEN if name != CHECKPOINTS) or _holds_checkpoints(path)


def _set_aside(path: Path) -> None:
    """Move a run into a separate folder, until the run that replaces it has begun."""
    (path / _REPLACED).mkdir()
    for name in _WRITTEN:
        if os.path.lexists(path / name):
            (path / name).rename(path / _REPLACED / name)


def _put_back_replaced(path: Path) -> None:
    if (path / _REPLACED).is_dir():
        kept = sorted((path / _REPLACED).iterdir(), key=lambda entry: entry.name == CONFIG)  # last: completes a run
        _remove_run(path, [entry.name for entry in kept])
        for entry in kept:
            entry.rename(path / entry.name)
        (path / _REPLACED).rmdir()


def _remove_run(path: Path, names: Sequence[str] = _WRITTEN) -> None:
    for name in names:
        entry = path / name
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)
