"""Files that must survive a crash."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


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
