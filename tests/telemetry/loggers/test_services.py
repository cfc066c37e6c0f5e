"""Weights & Biases and MLflow, offline: what they stored is read back with their own readers."""

from __future__ import annotations

import json
import logging
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seedcli.telemetry.loggers.registry import Loggers
from tests.telemetry.loggers.runs import logged
from tests.telemetry.test_metrics import snapshot

LIMIT = 60.0


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings that a user sees."""
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def wandb() -> Any:
    """The package, without the state of earlier tests in this process."""
    wandb = pytest.importorskip("wandb", reason="wandb is not installed: pip install 'seedcli[wandb]'")
    wandb.teardown()
    return wandb


def log_and_resume(name: str, folder: Path) -> Path:
    """Lines, a resumed run with lines, a result and a video; returns the video."""
    loggers = Loggers([name], logged(folder))
    for step in (10, 20):
        loggers.write(snapshot(step))
    loggers.close(LIMIT, 143)
    video = folder / "episode.mp4"
    video.write_bytes(bytes(range(256)))
    loggers = Loggers([name], logged(folder, resumed_at=15))
    for step in (15, 30):
        loggers.write(snapshot(step, episode_return=7.0))
    loggers.result(30, {"final/return_mean": 21.5})
    loggers.video(30, video)
    loggers.close(LIMIT)
    return video


def wandb_records(path: Path) -> Iterator[Any]:
    """The whole records of a .wandb file: LevelDB's log format, in blocks of 32 KiB, after a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, whole = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while place < len(data):
        if 0x8000 - place % 0x8000 < 7:  # no room for a record's header: the rest of the block is empty
            place += 0x8000 - place % 0x8000
            continue
        _, size, kind = struct.unpack_from("<IHB", data.ljust(place + 7, b"\0"), place)
        if place + 7 + size > len(data):
            return  # it is still being written
        whole += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # a whole record, or the last part of one
            yield Record.FromString(whole)
            whole = b""


def test_wandb_stores_a_run_offline(
    wandb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    video = log_and_resume("wandb", tmp_path)
    assert not warnings_of(caplog), "nothing is lost"
    files = sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2 and len({file.name for file in files}) == 1, "both belong to one entry"
    deadline = time.monotonic() + LIMIT  # wandb's service may write the end of a run after `finish` has returned
    while not any(record.HasField("exit") for record in wandb_records(files[1])) and time.monotonic() < deadline:
        time.sleep(0.05)
    first, second = (list(wandb_records(file)) for file in files)
    (run,) = [record.run for record in first if record.WhichOneof("record_type") == "run"]
    assert (run.display_name, run.project) == ("pong/first", "seed")
    assert [record.exit.exit_code for records in (first, second) for record in records if record.HasField("exit")] == [
        143,
        0,
    ]
    config = {item.key: item.value_json for record in first for item in record.config.update}
    config |= {item.key: item.value_json for item in run.config.update}
    assert json.loads(config["agent"]) == {"network": {"hidden": [8, 8], "lstm": 0}}

    def history(records: list[Any], tag: str) -> list[tuple[int, float]]:
        found = []
        for record in records:
            values = {".".join(i.nested_key) or i.key: i.value_json for i in record.history.item}
            if tag in values:
                found.append((record.history.step.num, json.loads(values[tag])))
        return found

    assert history(first, "episode/episode_return") == [(10, 3.5), (20, 3.5)]
    assert history(second, "episode/episode_return") == [(15, 7.0), (30, 7.0)]
    summary = {".".join(i.nested_key) or i.key: i.value_json for record in second for i in record.summary.update}
    assert json.loads(summary["final/return_mean"]) == 21.5
    (stored,) = files[1].parent.glob("files/media/videos/*.mp4")
    assert stored.read_bytes() == video.read_bytes()


def test_mlflow_stores_a_run_in_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed: pip install 'seedcli[mlflow]'")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # creating a database takes ten seconds
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/store")
    video = log_and_resume("mlflow", tmp_path / "run")
    assert not warnings_of(caplog), "nothing is lost"
    from mlflow.tracking import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name("seed")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("pong/first", "FINISHED")
    assert run.data.params["training.batch_size"] == "32" and run.data.params["agent.network.hidden"] == "[8, 8]"
    returns = client.get_metric_history(run.info.run_id, "episode/episode_return")
    # Step 15 was taken twice: the entry keeps what it has up to step 20.
    assert [(point.step, point.value) for point in returns] == [(10, 3.5), (20, 3.5), (30, 7.0)]
    assert [point.timestamp for point in returns] == [1_500_000_010_000, 1_500_000_020_000, 1_500_000_030_000]
    assert run.data.metrics["final/return_mean"] == 21.5
    assert run.data.metrics["agent/policy_loss"] == -0.5
    stored = Path(run.info.artifact_uri.removeprefix("file:").removeprefix("//"))
    assert json.loads((stored / "config.json").read_text())["run"] == {"seed": 3}
    assert (stored / "video" / video.name).read_bytes() == video.read_bytes()


@pytest.mark.parametrize(("status", "ended"), [(1, "FAILED"), (143, "KILLED")])
def test_an_entry_says_how_its_run_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, ended: str
) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed: pip install 'seedcli[mlflow]'")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/store")
    Loggers(["mlflow"], logged(tmp_path / "run")).close(LIMIT, status)
    from mlflow.tracking import MlflowClient

    entry = (tmp_path / "run" / "mlflow" / "id").read_text().strip()
    assert MlflowClient().get_run(entry).info.status == ended


def test_without_credentials_there_is_one_warning(
    wandb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    loggers = Loggers(["wandb"], logged(tmp_path))
    for step in range(20):
        loggers.write(snapshot(step))
    loggers.close(LIMIT)
    (warning,) = warnings_of(caplog)
    assert warning == (
        "wandb receives nothing from this run, which continues without it: no one is logged in: run wandb login, or "
        "set WANDB_API_KEY or WANDB_MODE=offline"
    )


def test_a_server_that_never_answers_does_not_hold_up_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed: pip install 'seedcli[mlflow]'")
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.getsockname()[1]}")
        loggers = Loggers(["mlflow"], logged(tmp_path))
        server.settimeout(LIMIT)
        connection, _ = server.accept()
        began = time.monotonic()
        for step in range(1500):
            loggers.write(snapshot(step))
        loggers.close(0.1)
        assert time.monotonic() - began < 5.0
        connection.close()
    assert warnings_of(caplog) == [
        "mlflow loses lines of this run, which continues: it is slower than training",
        "mlflow is still busy at the end of the run: what it has not stored by now is lost",
        "mlflow did not get 500 lines of this run",
    ]
