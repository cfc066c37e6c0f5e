"""Temporary folders of simulators, removed even if the simulators and the processes that own them could not do so."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "seed-simulator-"


class ScratchFolder:
    """A new folder below the temporary folder; those of processes that were killed are removed first.

    The owner holds a lock on its folder, which the kernel releases when the owner ends.

    Attributes:
        path: the folder.
    """

    def __init__(self) -> None:
        remove_unused_folders()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            if self.path.exists():
                return
            os.close(self._lock)  # another process has removed it, as one of a killed process

    def remove(self) -> None:
        """Remove the folder and what is in it; safe to call twice."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def remove_unused_folders() -> None:
    """Remove the folders of processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        _remove_if_unused(folder)


def _remove_if_unused(folder: Path) -> None:
    with contextlib.suppress(OSError):  # another user's, in use, or removed meanwhile
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)
