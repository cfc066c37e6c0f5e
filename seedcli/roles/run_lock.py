"""The lock of a run's folder: held by its learner for as long as that process lives."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from seedcli.errors import UsageError

LOCK = "learner.lock"

_LOCK_SECONDS = 0.5
_POLL_SECONDS = 0.2  # between attempts to take the lock
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # errors of a file system without locks


def is_running(path: Path) -> bool:
    """Whether a learner holds the run folder `path`; False where the lock cannot be read."""
    try:
        descriptor = os.open(path / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def take_lock(path: Path, wait: Callable[[str], None] | None) -> int:
    """Lock the folder; returns the descriptor that holds the lock until it is closed.

    The kernel releases the lock when the process dies; actor processes do not inherit it (close-on-exec).

    Args:
        path: the folder, which exists.
        wait: see `RunFolder.create`.

    Raises:
        UsageError: a learner holds it, or the file system cannot lock files.
    """
    # A process that only checks for a running learner holds a shared lock for an instant: retry before refusing.
    deadline = time.monotonic() + _LOCK_SECONDS
    announced = False
    while (descriptor := _try_lock(path)) is None:
        if time.monotonic() >= deadline and not announced:
            held = f"{path} belongs to a running learner ({_holder(path)})"
            if wait is None:
                raise UsageError(f"{held}: stop it or give another --logdir")
            wait(held)
            announced = True
        time.sleep(_POLL_SECONDS if announced else 0.02)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _try_lock(path: Path) -> int | None:
    """The descriptor that holds the lock, or None while another process holds it."""
    try:
        descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except FileNotFoundError:  # the folder is gone: the start that created it failed
        path.mkdir(parents=True, exist_ok=True)
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # If the folder has been replaced meanwhile, this locks a deleted file.
        if os.path.samestat(os.fstat(descriptor), os.stat(path / LOCK)):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:
        os.close(descriptor)
        if error.errno in _NO_LOCKS:
            raise UsageError(
                f"{path} lies on a file system that cannot lock files ({error.strerror}): give a --logdir on another "
                "one, because two learners would overwrite each other's files"
            ) from error
        raise
    os.close(descriptor)
    return None


def _holder(path: Path) -> str:
    try:
        holder = json.loads((path / LOCK).read_bytes())
        return f"process {holder['pid']} on {holder['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "process unknown"  # the holder has not written to the file yet
