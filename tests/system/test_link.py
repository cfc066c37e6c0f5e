"""Over a link of 100 Mbit/s between two network namespaces, encoded frames are several times as fast as plain ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "link_benchmark.py"


def _namespaces() -> bool:
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc"))):
        return False
    tried = subprocess.run(["ip", "netns", "add", "seed-link-probe"], capture_output=True, timeout=30)
    subprocess.run(["ip", "netns", "delete", "seed-link-probe"], capture_output=True, timeout=30)
    return tried.returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("transport", ["grpc", "zmq"])
def test_a_slow_link_carries_four_times_the_steps(transport: str) -> None:
    if not _namespaces():
        pytest.skip("needs root, and ip and tc that may create network namespaces")
    command = [sys.executable, str(SCRIPT), "--mbit", "100", "--seconds", "3", "--transport", transport]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=380, check=True)
    result = json.loads(done.stdout)
    plain = result["replay_plain"]
    # Plain frames saturate the link.
    assert 0.7 * 100e6 < 8 * plain["steps_per_second"] * plain["bytes_per_step"] < 1.3 * 100e6
    assert result["replay_ratio"] >= 4
    assert result["replay_encoded"]["bytes_per_step"] <= plain["bytes_per_step"] / 6
