"""The commit of the code that runs, so that a recorded run can be repeated."""

from __future__ import annotations

import json
import subprocess
from importlib import metadata
from pathlib import Path

import seedcli

_TIMEOUT = 5.0  # seconds; a checkout may be on a slow file system


def source_commit() -> str:
    """The commit of the checkout that seedcli is imported from, or that pip installed from a repository.

    Returns:
        Its abbreviated hash, with "-dirty" where tracked files of the checkout have been changed; "" if it is not
        known, as for a wheel.
    """
    root = Path(seedcli.__file__).resolve().parents[1]
    return _commit_of_checkout(root) if (root / ".git").exists() else _commit_of_installation()


def _commit_of_checkout(root: Path) -> str:
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*", "--abbrev=10"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=True)
    except (OSError, subprocess.SubprocessError):  # no git, or a checkout that it does not trust
        return ""
    return found.stdout.strip()


def _commit_of_installation() -> str:
    """The commit that pip recorded (PEP 610)."""
    try:
        recorded = metadata.distribution("seedcli").read_text("direct_url.json")
        return str(json.loads(recorded or "{}").get("vcs_info", {}).get("commit_id", ""))[:10]
    except (metadata.PackageNotFoundError, ValueError):
        return ""
