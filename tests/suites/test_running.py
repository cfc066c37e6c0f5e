"""The output of a running suite."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from seedcli.suites.outcomes import gather
from seedcli.suites.report import write_files
from seedcli.suites.run_outcome import Tables
from seedcli.suites.running import _Progress, run_suite
from tests.suites.helpers import finish, members, played, write_suite


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


def test_runs_finished_elsewhere_are_not_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = write_suite(tmp_path)
    evaluation = played([1.0, 1.0])
    finish(members(suite, tmp_path)["hard", 7], {"greedy": evaluation, "sampled": evaluation}, [1.0])
    write_files(gather(suite, tmp_path), tmp_path)
    here, tables = tmp_path / "here", Tables([tmp_path / "mine.json"])
    hard = {"hard": suite.tasks["hard"]}
    assert run_suite(suite, hard, here, jobs=1, tables=tables)
    assert "1 run, 1 finished and 0 failed before" in capsys.readouterr().err
    assert not run_suite(suite, hard, here, jobs=1, evaluate_only=True)
    assert "hard, seed 7: left out" in capsys.readouterr().err
