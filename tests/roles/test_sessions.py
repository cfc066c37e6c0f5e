"""The sessions and evaluations that a run's folder records."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import numpy as np
import pytest

from seedcli import __version__
from seedcli.errors import UsageError
from seedcli.roles.evaluator.stored import keep_evaluation, read_evaluations
from seedcli.roles.sessions import SessionRecorder, read_sessions


def test_a_session_records_command_machine_profile_and_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/__main__.py", "train", "--preset", "p"])
    with SessionRecorder(tmp_path, ("H200",)) as record:
        (begun,) = read_sessions(tmp_path)
        assert begun.ended is None and begun.status is None
        record.profile = {"training thread": {"training": 1.5}}
        record.status = 143
    (session,) = read_sessions(tmp_path)
    assert list(session.command) == ["seed", "train", "--preset", "p"]
    assert session.versions["numpy"] == np.__version__ and session.versions["seedcli"] == __version__
    assert session.machine["accelerators"] == ["H200"]
    assert session.machine["cores"] >= 1 and session.machine["memory_gb"] > 0 and session.machine["cpu"]
    assert session.status == 143 and session.error == "" and session.profile == record.profile
    assert session.ended is not None and session.started <= session.ended


def test_a_session_that_fails_records_its_sentence(tmp_path: Path) -> None:
    for error, status in ((UsageError("a value is wrong"), 2), (RuntimeError("broken"), 1), (KeyError(), 1)):
        with pytest.raises(type(error)), SessionRecorder(tmp_path):
            raise error
        last = read_sessions(tmp_path)[-1]
        assert (last.status, last.error) == (status, str(error) or type(error).__name__)
    assert len(read_sessions(tmp_path)) == 3


def test_a_killed_session_has_no_end_and_damaged_lines_are_left_out(tmp_path: Path) -> None:
    lines = [
        '{"ended": 1}',
        '{"started": 2, "unknown": 0}',
        "nonsense",
        '{"started": 3}',
        '{"ended": 4, "status": 0}',
        '{"star',
    ]
    (tmp_path / "sessions.jsonl").write_text("\n".join(lines))
    first, second = read_sessions(tmp_path)
    assert (first.started, first.ended) == (2, None)
    assert (second.started, second.ended, second.status) == (3, 4, 0)


def test_a_folder_that_cannot_be_written_does_not_end_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR), SessionRecorder(tmp_path / "gone"):
        pass
    assert "sessions.jsonl cannot be written" in caplog.text
    assert read_sessions(tmp_path / "gone") == []


def test_evaluations_are_kept_with_the_run_of_a_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "checkpoints" / "100").mkdir(parents=True)
    copied = tmp_path / "copied"
    copied.mkdir()
    keep_evaluation(run / "checkpoints" / "100", {"return_mean": 1.0})
    keep_evaluation(copied, {"return_mean": 2.0})
    assert read_evaluations(run) == [] and list(copied.iterdir()) == []  # no run: it has no configuration
    (run / "config.toml").touch()
    for value in (3.0, 4.0):
        keep_evaluation(run / "checkpoints" / "100", {"return_mean": value})
    with (run / "evaluations.jsonl").open("a") as file:
        file.write(json.dumps([1]) + '\n{"torn')
    assert [found["return_mean"] for found in read_evaluations(run)] == [3.0, 4.0]
    assert all(found["time"] > 0 for found in read_evaluations(run))
