"""How much memory this process may still take: the machine's, or what a job's control group leaves."""

from __future__ import annotations

from pathlib import Path

import psutil

_ROOT = Path("/sys/fs/cgroup")


def available_memory() -> int:
    """Bytes that can be taken before the machine swaps or a control group's limit (SLURM, containers) kills."""
    return min([int(psutil.virtual_memory().available), *_left_in_groups(_ROOT, Path("/proc/self/cgroup"))])


def _left_in_groups(root: Path, membership: Path) -> list[int]:
    """Bytes left in each control group of version 2 above this process that has a limit."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    left = []
    for line in lines:
        hierarchy, _, name = line.partition("::")
        if hierarchy != "0":
            continue
        group = root / name.lstrip("/")
        # Inside a container the path may be that of the host: only the root is there then.
        for folder in (group, *group.parents):
            if not folder.is_relative_to(root):
                break
            try:
                limit = (folder / "memory.max").read_text().strip()
                usage = int((folder / "memory.current").read_text())
            except (OSError, ValueError):
                continue
            if limit.isdigit():
                left.append(max(0, int(limit) - usage))
    return left
