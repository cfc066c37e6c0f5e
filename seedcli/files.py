"""Writing files that survive a crash."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from seedcli.errors import UsageError


def check_folder(path: Path, flag: str = "") -> None:
    """Refuse a file in a folder that does not exist or cannot be written, before any work is done for it.

    Args:
        path: of the file.
        flag: the option that names it, for the message; "" for an argument.

    Raises:
        UsageError: the folder must be created, or is not the user's to write to.
    """
    folder = path.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(
            f"{flag} {path} cannot be written: {folder} is no folder that you may write to; create it first".lstrip()
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
    """Give the name of a file beside `path`, to be written in the block, which then replaces `path` as a whole.

    If the block fails, that file is removed and `path` is left as it is.
    """
    made = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield made
        sync(made)
        made.replace(path)
        sync(path.parent)
    finally:
        made.unlink(missing_ok=True)
