"""Memory available to this process: limited by the machine and by control groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil


class _Files(NamedTuple):
    """File names of one cgroup version, and the line of its `memory.stat` that counts the page cache."""

    limit: str
    usage: str
    cache: str


_ROOT = Path("/sys/fs/cgroup")
_V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Files("memory.max", "memory.current", "inactive_file")


def available_memory() -> int:
    """Bytes available before the machine swaps or a control group's limit (SLURM, containers) kills the process."""
    return min([int(psutil.virtual_memory().available), *_left_in_groups(_ROOT, Path("/proc/self/cgroup"))])


def _left_in_groups(root: Path, membership: Path) -> Iterator[int]:
    """Bytes left in each memory control group above this process that has a limit."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        parts = line.split(":", 2)
        if len(parts) < 3:
            continue
        controllers, name = parts[1:]
        if not controllers:
            top, files = root, _V2
        elif "memory" in controllers.split(","):
            top, files = root / "memory", _V1
        else:
            continue
        group = top / name.lstrip("/")
        # Inside a container the path may be the host's; then only the root exists.
        for folder in (group, *group.parents):
            if not folder.is_relative_to(top):
                break
            left = _left(folder, files)
            if left is not None:
                yield left


def _left(folder: Path, files: _Files) -> int | None:
    """Bytes left in one group; None if it has no limit or cannot be read."""
    try:
        limit = (folder / files.limit).read_text().strip()
        usage = int((folder / files.usage).read_text())
    except (OSError, ValueError):
        return None
    if not limit.isdigit():
        return None
    # The page cache counts as used, but the kernel frees it on demand.
    try:
        for line in (folder / "memory.stat").read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == files.cache:
                usage -= int(value)
    except (OSError, ValueError):
        pass
    return max(0, int(limit) - usage)
