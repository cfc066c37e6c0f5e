"""The folder of a run: what stands where in it, and who may write to it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from seedcli.config.sources import Resolved, to_toml
from seedcli.errors import UsageError

CONFIG = "config.toml"
CHECKPOINTS = "checkpoints"
METRICS = "metrics.jsonl"
LOG = "learner.log"
TENSORBOARD = "tensorboard"
ACTOR_LOGS = "logs"
LOCK = "learner.lock"
ADDRESS = "address.json"
HOSTS = "hosts"  # of the other learner hosts, a folder each

# All a run writes; the lock stays, because removing a lock file lets two holders lock two different files.
REPLAY = "replay"
_WRITTEN = (CONFIG, CHECKPOINTS, METRICS, LOG, TENSORBOARD, ACTOR_LOGS, REPLAY, ADDRESS, HOSTS)
_REPLACED = ".replaced"  # the run that --overwrite replaces, until the new one has taken its first step

_LOCK_SECONDS = 0.5
_POLL_SECONDS = 0.2  # between looks at a lock that is waited for
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # of a file system that has none


class RunFolder:
    """A run's folder, locked for this process until `close` (or until the process ends, however it ends).

    Attributes:
        path: the folder.
        resume: whether the run in it is resumed.
        config_path: config.toml, every value with its source.
        checkpoints: folder of the checkpoints, each in a folder named by its environment steps.
        metrics_path: metrics.jsonl.
        log_path: learner.log.
        tensorboard: folder of the TensorBoard event files.
        actor_logs: folder of the logs of the actors that `seed train` starts.
    """

    def __init__(
        self, path: Path, *, resume: bool, lock: int, made_up: bool = False, made: Sequence[Path] = ()
    ) -> None:
        """Wrap a prepared folder; use `create`.

        Args:
            path, resume: see the attributes.
            lock: the descriptor that holds the lock.
            made_up: the user has not asked for a folder of this name, so none is left where no run has begun.
            made: what this start has made: folders, the outermost first, and the file of the lock.
        """
        self.path = path
        self.resume = resume
        self.config_path = path / CONFIG
        self.checkpoints = path / CHECKPOINTS
        self.metrics_path = path / METRICS
        self.log_path = path / LOG
        self.tensorboard = path / TENSORBOARD
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
        """Make or take a folder and lock it.

        Args:
            path: the folder; None: runs/<preset>/<YYYYmmdd-HHMMSS> in the working directory.
            preset: name of the preset; "" stands for "custom".
            resume: the folder must hold a run, which is left as it is; None: resume the run where there is one,
                else start one, removing what a start left that died before it wrote its configuration.
            overwrite: a run the folder holds is removed, and nothing else in it, once the new one has begun.
            wait: where a learner holds the folder, this is called once with a sentence that names it, and then the
                folder is waited for without limit; None: it is refused.

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
                path = _new_folder(shown)
                made = [*made, path, path / LOCK]
            elif resume:
                _check_resumable(path)
                made = []
            else:
                made = _missing(path / LOCK)
                path.mkdir(parents=True, exist_ok=True)
            lock = _take_lock(path, wait)
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
        """Write config.toml, all or nothing, even where the power fails.

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
                _sync_folder(self.path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise UsageError(
                f"{self.config_path} cannot be written ({error.strerror}): make room there, or give another --logdir"
            ) from error

    def write_address(self, address: dict[str, Any]) -> None:
        """Tell actors where this learner serves, all or nothing.

        Args:
            address: JSON-serialisable.

        Raises:
            UsageError: it cannot be written; the one before it stands.
        """
        temporary = self.path / f".{ADDRESS}.tmp"
        try:
            temporary.write_text(json.dumps(address, indent=1) + "\n", encoding="utf-8")
            os.replace(temporary, self.path / ADDRESS)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise UsageError(
                f"{self.path / ADDRESS} cannot be written ({error.strerror}): make room or fix that, actors look there"
            ) from error

    def remove_address(self) -> None:
        """No learner serves here now; safe to call twice. One that cannot be removed leads nowhere, and may stay."""
        with contextlib.suppress(OSError):
            (self.path / ADDRESS).unlink(missing_ok=True)

    @staticmethod
    def read_address(path: Path) -> dict[str, Any] | None:
        """What the learner of the run in folder `path` wrote with `write_address`.

        Returns:
            None where there is nothing to be read (yet), or no JSON object.
        """
        try:
            address = json.loads((path / ADDRESS).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        return address if isinstance(address, dict) else None

    def begin(self) -> None:
        """Note that the run has taken its first step: from now on it stays, and the one it replaces is removed."""
        if not self._begun:
            self._begun = True
            shutil.rmtree(self.path / _REPLACED, ignore_errors=True)

    def undo(self) -> None:
        """Remove all that a start has made whose run has not begun; an earlier run stands as before it."""
        if self._begun or self._lock is None:
            return
        with contextlib.suppress(OSError):
            _remove_run(self.path)
            _put_back_replaced(self.path)
            for path in reversed(self._made):
                path.rmdir() if path.is_dir() else path.unlink()

    def close(self) -> None:
        """Give the lock back; safe to call twice. An empty folder that the user has not asked for is removed."""
        if self._lock is not None:
            if self._made_up:
                with contextlib.suppress(OSError):
                    _remove_empty(self.path)
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
    """The folder of the run in which `path` is that of one learner host; None where it is none."""
    return path.parent.parent if path.parent.name == HOSTS else None


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


def _missing(path: Path) -> list[Path]:
    """`path` and the folders above it, as far as they do not exist, the outermost first."""
    return [each for each in reversed((path, *path.parents)) if not each.exists()]


def _check_resumable(path: Path) -> None:
    if not (path / CONFIG).is_file():
        raise UsageError(f"{path} holds no run to resume: leave --resume out to start one there")


def _prepare(path: Path, resume: bool | None, overwrite: bool) -> bool:
    """Make a locked folder ready for a run; returns whether the run in it is resumed."""
    if not (path / CONFIG).is_file():
        _put_back_replaced(path)  # after a start that was killed
    elif resume is not False:
        shutil.rmtree(path / _REPLACED, ignore_errors=True)
    if resume:
        _check_resumable(path)  # again: while the lock was waited for, another learner may have replaced the run
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


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _take_lock(path: Path, wait: Callable[[str], None] | None) -> int:
    """Lock the folder; returns the descriptor that holds the lock until it is closed.

    The kernel gives it back when the process dies; started actors do not inherit it (close-on-exec).
    """
    # Whoever only asks whether a learner runs holds a shared lock for an instant: that is no refusal yet.
    deadline = time.monotonic() + _LOCK_SECONDS
    told = False
    while (descriptor := _try_lock(path)) is None:
        if time.monotonic() >= deadline and not told:
            held = f"{path} belongs to a running learner ({_holder(path)})"
            if wait is None:
                raise UsageError(f"{held}: stop it or give another --logdir")
            wait(held)
            told = True
        time.sleep(_POLL_SECONDS if told else 0.02)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _try_lock(path: Path) -> int | None:
    """The descriptor that holds the lock, or None while another holds it."""
    try:
        descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except FileNotFoundError:  # the folder is gone: the start that made it has failed
        path.mkdir(parents=True, exist_ok=True)
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Where the folder has been removed meanwhile, this would be the lock of what is gone.
        if os.path.samestat(os.fstat(descriptor), os.stat(path / LOCK)):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:
        os.close(descriptor)
        if error.errno in _NO_LOCKS:
            raise UsageError(
                f"{path} lies on a file system that cannot lock files ({error.strerror}): give a --logdir on another "
                "one, because two learners would destroy each other's run"
            ) from error
        raise
    os.close(descriptor)
    return None


def _holder(path: Path) -> str:
    try:
        holder = json.loads((path / LOCK).read_bytes())
        return f"process {holder['pid']} on {holder['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "process unknown"  # it has locked the file and not yet written to it


def _remove_empty(path: Path) -> None:
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
    """Keep a run in a folder of its own, until the one that replaces it has begun."""
    (path / _REPLACED).mkdir()
    for name in _WRITTEN:
        if os.path.lexists(path / name):
            (path / name).rename(path / _REPLACED / name)


def _put_back_replaced(path: Path) -> None:
    if (path / _REPLACED).is_dir():
        kept = sorted((path / _REPLACED).iterdir(), key=lambda entry: entry.name == CONFIG)  # last: then all is there
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
