"""The folder of a run: what stands where in it, and who may write to it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import time
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from seedcli.errors import UsageError
from seedcli.layering import Resolved, to_toml

CONFIG = "config.toml"
CHECKPOINTS = "checkpoints"
METRICS = "metrics.jsonl"
LOG = "learner.log"
TENSORBOARD = "tensorboard"
ACTOR_LOGS = "logs"
LOCK = "learner.lock"

# All a run writes; the lock stays, because removing a lock file lets two holders lock two different files.
REPLAY = "replay"
_WRITTEN = (CONFIG, CHECKPOINTS, METRICS, LOG, TENSORBOARD, ACTOR_LOGS, REPLAY)

_LOCK_SECONDS = 0.5


class RunFolder:
    """A run's folder, locked for this process until `close` (or until the process ends, however it ends).

    Attributes:
        path: the folder.
        resume: whether the run in it is to be gone on with.
        config_path: config.toml, every value with its source.
        checkpoints: folder of the checkpoints, each in a folder named by its environment steps.
        metrics_path: metrics.jsonl.
        log_path: learner.log.
        tensorboard: folder of the TensorBoard event files.
        actor_logs: folder of the logs of the actors that `seed train` starts.
    """

    def __init__(self, path: Path, *, resume: bool, lock: int) -> None:
        """Wrap a prepared folder; use `create`. `lock` is the descriptor that holds the lock."""
        self.path = path
        self.resume = resume
        self.config_path = path / CONFIG
        self.checkpoints = path / CHECKPOINTS
        self.metrics_path = path / METRICS
        self.log_path = path / LOG
        self.tensorboard = path / TENSORBOARD
        self.actor_logs = path / ACTOR_LOGS
        self._lock: int | None = lock

    @classmethod
    def create(cls, path: Path | None, preset: str, *, resume: bool = False, overwrite: bool = False) -> Self:
        """Make or take a folder and lock it.

        Args:
            path: the folder; None: runs/<preset>/<YYYYmmdd-HHMMSS> in the working directory.
            preset: name of the preset; "" stands for "custom".
            resume: the folder must hold a run, which is left as it is.
            overwrite: a run the folder holds is removed, and nothing else in it.

        Raises:
            UsageError: the folder holds a run (or, resuming, none), belongs to a running learner, or cannot be
                written.
        """
        if resume and overwrite:
            raise UsageError("--resume and --overwrite cannot both be given: one keeps the run, the other removes it")
        if resume and path is None:
            raise UsageError("--resume needs --logdir FOLDER, the run to go on with")
        shown = path
        try:
            if path is None:
                shown = Path("runs") / (preset or "custom")
                path = _new_folder(shown)
            elif resume and not (path / CONFIG).is_file():
                raise UsageError(f"{path} holds no run to resume: leave --resume out to start one there")
            else:
                path.mkdir(parents=True, exist_ok=True)
            lock = _take_lock(path)
            try:
                if not resume and _holds_run(path):
                    if not overwrite:
                        raise UsageError(
                            f"{path} already holds a run: go on with --resume, replace it with --overwrite, "
                            "or give another --logdir"
                        )
                    _remove_run(path)
                (path / CHECKPOINTS).mkdir(exist_ok=True)
            except BaseException:
                os.close(lock)
                raise
        except OSError as error:
            raise UsageError(
                f"{shown} cannot be used as a run's folder ({error.strerror}): give another --logdir"
            ) from error
        return cls(path, resume=resume, lock=lock)

    def write_config(self, resolved: Resolved) -> None:
        """Write config.toml, all or nothing."""
        temporary = self.config_path.with_suffix(".tmp")
        temporary.write_text(to_toml(resolved), encoding="utf-8")
        os.replace(temporary, self.config_path)

    def close(self) -> None:
        """Give the lock back; safe to call twice."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _new_folder(parent: Path) -> Path:
    """A folder that nothing else has, named by the time; runs started in the same second get -2, -3, ..."""
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


def _take_lock(path: Path) -> int:
    """Lock the folder; returns the descriptor that holds the lock until it is closed.

    The kernel gives it back when the process dies; started actors do not inherit it (close-on-exec).
    """
    descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        # Whoever only asks whether a learner runs holds a shared lock for an instant: that is no refusal yet.
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.02)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
    except BlockingIOError as error:
        holder = _holder(descriptor)
        os.close(descriptor)
        raise UsageError(f"{path} belongs to a running learner ({holder}): stop it or give another --logdir") from error
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _holder(descriptor: int) -> str:
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {holder['pid']} on {holder['host']}"
    except (ValueError, KeyError, TypeError):
        return "process unknown"  # it has locked the file and not yet written to it


def _holds_run(path: Path) -> bool:
    checkpoints = path / CHECKPOINTS
    return any((path / name).exists() for name in _WRITTEN if name != CHECKPOINTS) or (
        checkpoints.is_dir() and any(checkpoints.iterdir())
    )


def _remove_run(path: Path) -> None:
    for name in _WRITTEN:
        entry = path / name
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)
