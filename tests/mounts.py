"""File systems for tests: small ones that fill up, and read-only ones."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def tmpfs(path: Path, options: str) -> Iterator[Path]:
    """Mount a file system in memory at a new folder, e.g. with `size=1m`; skip the test if that is not permitted."""
    path.mkdir(parents=True)
    mount = shutil.which("mount")
    if (
        mount is None
        or subprocess.run([mount, "-t", "tmpfs", "-o", options, "tmpfs", path], capture_output=True).returncode
    ):
        pytest.skip("mounting a file system is not allowed here")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def read_only(path: Path) -> None:
    """Make a mounted file system read-only."""
    subprocess.run(["mount", "-o", "remount,ro", path], check=True)


def fill(path: Path, spare: int = 0) -> Path:
    """Fill a file system up to `spare` bytes; returns the file that fills it."""
    ballast = path / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    if spare:
        with ballast.open("r+b") as file:
            file.truncate(max(0, ballast.stat().st_size - spare))
    return ballast
