"""The tutorial, docs/tutorial.md, runs unchanged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = list(re.finditer(r"^```(python|bash)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
PROGRAMS = f'seed() {{ {sys.executable} -m seedcli "$@"; }}; python() {{ {sys.executable} "$@"; }}\n'


def save(block: re.Match[str], folder: Path) -> None:
    """Save a block under the last file name in the text before it."""
    name = re.findall(r"`(\w+\.py)`", PAGE[: block.start()])[-1]
    (folder / name).write_text(block[2])


def run(commands: str, folder: Path, timeout: float) -> str:
    """Run commands in a folder; returns what they print."""
    done = subprocess.run(
        ["bash", "-euc", PROGRAMS + commands],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_environment_passes_every_check(tmp_path: Path) -> None:
    save(next(block for block in BLOCKS if "Thermostat(" in block[2]), tmp_path)
    (check,) = re.findall(r"^seed doctor .*$", PAGE, re.MULTILINE)
    printed = run(check, tmp_path, 60)
    assert "ready: seed train --preset gymnasium_vtrace --env my_env:Thermostat-v0" in printed


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_block_runs(tmp_path: Path) -> None:
    printed = ""
    for block in BLOCKS:
        if block[1] == "python":
            save(block, tmp_path)
        else:
            printed = run(block[2], tmp_path, 600)
    minutes = re.fullmatch(r"(\d+) of 100 minutes near 20 degrees; at the end [\d.]+\n", printed)
    assert minutes is not None and int(minutes[1]) > 50
    assert (tmp_path / "first.mp4").stat().st_size > 10_000
