from __future__ import annotations

import io
import json
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from seedcli.config import NetConfig
from seedcli.roles import doctor
from seedcli.roles.doctor import Finding, print_findings, run_doctor


def _without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one slow check replaced by what it finds on any machine; it has a test of its own."""
    found = [Finding("tensorflow", "ok", "2.x, imported in 0.0 s", required=True)]
    monkeypatch.setattr(doctor, "_tensorflow", lambda: found)


def _report(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def test_json_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_doctor(json_output=True) == 0
    report = _report(capsys)
    assert report["ok"] is True
    findings = {finding["name"]: finding for finding in report["findings"]}
    assert {"seed", "python", "processor", "memory", "file descriptors", "tensorflow", "devices"} <= set(findings)
    assert {"gymnasium", "rendering", "atari", "video", "pyzmq", "grpcio", "port 8686", "port 8687"} <= set(findings)
    assert {"shared memory", "run folder"} <= set(findings)
    for finding in findings.values():
        assert finding["status"] in ("ok", "warning", "missing")
        assert bool(finding["advice"]) == (finding["status"] != "ok")
    assert findings["atari"]["value"]["games"] >= 57
    assert {"type": "CPU", "name": None} in findings["devices"]["value"]
    assert findings["processor"]["value"] > 0


def test_a_port_in_use_is_a_warning(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _without_tensorflow(monkeypatch)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(doctor, "NetConfig", lambda: NetConfig(zmq_port=port))
        assert run_doctor(json_output=True) == 0
    finding = next(f for f in _report(capsys)["findings"] if f["name"] == f"port {port}")
    assert finding["status"] == "warning" and finding["value"] is False
    assert "net.zmq_port" in finding["advice"]


def test_a_folder_that_cannot_be_written_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _without_tensorflow(monkeypatch)

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert run_doctor(json_output=True) == 1
    report = _report(capsys)
    assert report["ok"] is False
    finding = next(f for f in report["findings"] if f["name"] == "run folder")
    assert finding["status"] == "missing" and "--logdir" in finding["advice"]


def test_run_folder_is_looked_for_upwards_and_left_clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (finding,) = doctor._run_folder()
    assert finding.status in ("ok", "warning") and str(tmp_path) in finding.detail
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "stderr", "words"),
    [
        (-4, "", "too old"),
        (-11, "", "SIGSEGV"),
        (1, "Traceback\nImportError: libfoo.so: not found\n", "libfoo.so"),
    ],
)
def test_a_tensorflow_that_breaks_is_explained(
    monkeypatch: pytest.MonkeyPatch, code: int, stderr: str, words: str
) -> None:
    monkeypatch.setattr(
        subprocess, "run", lambda command, **kwargs: subprocess.CompletedProcess(command, code, "", stderr)
    )
    (finding,) = doctor._tensorflow()
    assert finding.status == "missing" and finding.required
    assert words in f"{finding.detail} {finding.advice}"


def test_a_check_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _without_tensorflow(monkeypatch)

    def fall() -> list[Finding]:
        raise RuntimeError("unexpected")

    monkeypatch.setattr(doctor, "_memory", fall)
    assert run_doctor(json_output=True) == 0
    finding = next(f for f in _report(capsys)["findings"] if f["name"] == "memory")
    assert finding["status"] == "warning" and "unexpected" in finding["detail"]


def test_the_table_says_what_to_do() -> None:
    file = io.StringIO()
    findings = [
        Finding("python", "ok", "3.12", required=True),
        Finding("video", "warning", "no ffmpeg", "install it"),
        Finding("tensorflow", "missing", "not installed", "pip install tensorflow", required=True),
    ]
    print_findings(Console(file=file, width=80), findings)
    text = file.getvalue()
    assert "\x1b" not in text
    assert "pip install tensorflow" in text and "not ready: tensorflow" in text
    print_findings(Console(file=file, width=80), findings[:2])
    assert "ready: seed train --preset cartpole_vtrace; 1 thing to look at above" in file.getvalue()
