"""The thread and the queue of a logger: the effects of slow and failing loggers."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from seedcli.config.schema import make_config
from seedcli.errors import UsageError
from seedcli.telemetry.loggers.base import LoggerUnavailable, kept_id
from seedcli.telemetry.loggers.feed import Feed
from seedcli.telemetry.loggers.registry import LOGGERS, Loggers, check_loggers, open_loggers
from seedcli.telemetry.loggers.tensorboard import TensorBoardLogger
from tests.telemetry.loggers.runs import events, logged
from tests.telemetry.test_metrics import snapshot


class Gate(TensorBoardLogger):
    """TensorBoard's logger; a line waits until the gate is opened, and a negative value raises."""

    def __init__(self, folder: Path) -> None:
        super().__init__(logged(folder))
        self.open = threading.Event()
        self.entered = threading.Event()

    def scalars(self, step: int, wall_time: float, values: Mapping[str, float]) -> None:
        self.entered.set()
        assert self.open.wait(60.0)
        if values["x"] < 0:
            raise OSError("the disk is full\nmore text")
        super().scalars(step, wall_time, values)


def steps_of(folder: Path) -> list[int]:
    """Steps of the lines that were stored."""
    lines = [event for event in events(folder / "tensorboard") if event.HasField("summary")]
    return [event.step for event in lines if event.summary.value[0].tag == "x"]


def put(feed: Feed, step: int, value: float = 1.0) -> None:
    feed.put(lambda logger: logger.scalars(step, 1.0, {"x": value}))


def test_a_slow_logger_never_blocks_and_lost_lines_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(tmp_path)
    feed = Feed("slow", lambda: gate, capacity=10)
    put(feed, 0)
    assert gate.entered.wait(60.0)  # line 0 is with the logger; ten more fit into the queue
    began = time.monotonic()
    for step in range(1, 1001):
        put(feed, step)
    assert time.monotonic() - began < 1.0
    assert feed.lost == 990
    gate.open.set()
    feed.end(0)
    feed.join(time.monotonic() + 60)
    assert steps_of(tmp_path) == list(range(11)), "the oldest lines are kept, in order"
    assert [record.message for record in caplog.records] == [
        "slow loses lines of this run, which continues: it is slower than training",
        "slow did not get 990 lines of this run",
    ]


def test_a_line_that_fails_costs_only_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate(tmp_path)
    gate.open.set()
    feed = Feed("broken", lambda: gate)
    for step, value in enumerate((1.0, -1.0, 1.0, -1.0, 1.0)):
        put(feed, step, value)
    feed.end(0)
    feed.join(time.monotonic() + 60)
    feed.end(0)
    feed.join(time.monotonic() + 60)
    assert steps_of(tmp_path) == [0, 2, 4]
    assert [record.message for record in caplog.records] == [
        "broken loses lines of this run, which continues: OSError: the disk is full",
        "broken did not get 2 lines of this run",
    ]


def test_a_logger_that_cannot_be_opened_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    def refuse() -> TensorBoardLogger:
        raise LoggerUnavailable("nobody is logged in: log in")

    feed = Feed("closed", refuse)
    for step in range(100):
        put(feed, step)
    feed.end(0)
    feed.join(time.monotonic() + 60)
    assert [record.message for record in caplog.records] == [
        "closed receives nothing from this run, which continues without it: nobody is logged in: log in"
    ]


def test_a_logger_that_hangs_is_left_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate(tmp_path)
    feed = Feed("hanging", lambda: gate)
    put(feed, 0)
    assert gate.entered.wait(60.0)
    began = time.monotonic()
    feed.end(0)
    feed.join(began + 0.1)
    assert time.monotonic() - began < 5.0
    assert [record.message for record in caplog.records] == [
        "hanging is still busy at the end of the run: what it has not stored by now is lost"
    ]
    gate.open.set()


def test_a_logger_that_hangs_leaves_the_others_their_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(TensorBoardLogger):
        closed = False

        def close(self, status: int) -> None:
            time.sleep(0.2)
            self.closed = True
            super().close(status)

    hanging, slow = Gate(tmp_path / "hanging"), Slow(logged(tmp_path / "slow"))
    made = {LOGGERS["wandb"]: hanging, LOGGERS["mlflow"]: slow}
    monkeypatch.setattr("seedcli.telemetry.loggers.registry._make", lambda kind, run: made[kind])
    loggers = Loggers(["wandb", "mlflow"], logged(tmp_path))
    loggers.write(snapshot(1))
    loggers.close(1.0)
    assert slow.closed
    hanging.open.set()


def test_an_empty_id_is_replaced(tmp_path: Path) -> None:
    """A crash between the creation of the file and its text leaves it empty."""
    (tmp_path / "id").touch()
    assert kept_id(tmp_path) is None
    assert kept_id(tmp_path, "new") == "new" and kept_id(tmp_path, "other") == "new"


def test_a_logger_that_is_not_installed_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "seedcli.telemetry.loggers.registry.find_spec", lambda name: None if name == "wandb" else found(name)
    )
    check_loggers(make_config().telemetry)
    with pytest.raises(UsageError) as refused:
        check_loggers(make_config({"telemetry": {"loggers": ["tensorboard", "wandb"]}}).telemetry)
    assert str(refused.value) == (
        "telemetry.loggers has \"wandb\", whose package is not installed: pip install 'seedcli[wandb]', or leave it out"
    )


def test_the_command_refuses_it_before_tensorflow_is_loaded(tmp_path: Path) -> None:
    code = (
        "import sys; from seedcli.telemetry.loggers import registry; registry.find_spec = lambda name: None;"
        "from seedcli.cli.main import main; status = main(sys.argv[1:]); print(status, 'tensorflow' in sys.modules)"
    )
    arguments = ["train", "--preset", "cartpole_vtrace", "--set", 'telemetry.loggers=["mlflow"]']
    arguments += ["--logdir", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["2", "False"]
    assert done.stderr.startswith('seed: telemetry.loggers has "mlflow", whose package is not installed: pip install')
    assert not (tmp_path / "run").exists()


def test_only_the_first_learner_host_has_an_entry_in_a_service(tmp_path: Path) -> None:
    config = make_config({"telemetry": {"loggers": list(LOGGERS)}})
    before = set(threading.enumerate())
    loggers = open_loggers(tmp_path, config, chief=False)
    started = {thread.name for thread in set(threading.enumerate()) - before}
    loggers.close(60.0)
    assert started <= {"logger tensorboard"}
    assert {path.name for path in tmp_path.iterdir()} == {"tensorboard"}


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("runs/pong/20250101-120000", "pong/20250101-120000"),
        ("runs/sweeps/rates/learning_rate=0.1/seed-2", "sweeps/rates/learning_rate=0.1/seed-2"),
        ("results/rates/seed-2", "rates/seed-2"),
    ],
)
def test_a_run_is_named_by_its_folder(tmp_path: Path, folder: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr("seedcli.telemetry.loggers.registry.Loggers", lambda names, run: seen.append(run.name))
    open_loggers(tmp_path / folder, make_config())
    assert seen == [name]
