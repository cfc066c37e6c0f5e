"""What a suite prints while it runs."""

from __future__ import annotations

import time

import pytest

from seedcli.suites.running import _Progress


def test_progress_counts_runs_and_estimates_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress = _Progress(total=4, left=3)
    assert [progress.begin(), progress.begin()] == ["run 2 of 4", "run 3 of 4"]
    now += 30
    assert progress.end() == "; 2 runs left, about 1:00"
    assert progress.begin() == "run 4 of 4"
    now += 10
    assert progress.end() == "; 1 run left, about 0:20"
    assert progress.end() == ""
