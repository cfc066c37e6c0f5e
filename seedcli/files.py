"""Writing files that survive a crash."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from seedcli.errors import UsageError


def check_folder(path: Path, flag: str = "") -> None:
    """Check that a file's folder exists and can be written to, before any work is done for the file.

    Args:
        path: of the file.
        flag: the option that names it, for the message; "" for an argument.

    Raises:
        UsageError: the folder does not exist, or the user may not write to it.
    """
    folder = path.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(
            f"{flag} {path} cannot be written: {folder} is not a folder that you may write to; create it first".lstrip()
        )


def sync(path: Path) -> None:
    """Write a file's contents, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, which the block writes and which then replaces `path` atomically.

    If the block fails, the temporary file is removed and `path` is unchanged.
    """
    made = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield made
        sync(made)
        made.replace(path)
        sync(path.parent)
    finally:
        made.unlink(missing_ok=True)
