"""`seedcli.train`: a run in a child process, its errors and its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import seedcli
from seedcli.api import processes, training
from seedcli.errors import RefusedError, SeedError, UnreachableError, UsageError
from tests.api.helpers import TINY

pytestmark = pytest.mark.timeout(300)

ENDLESS = TINY | {"training.checkpoint_seconds": 1000.0}


def flags_of(monkeypatch: pytest.MonkeyPatch, *arguments: Any, **options: Any) -> list[str]:
    """The command line that `train` runs."""
    found: list[list[str]] = []
    monkeypatch.setattr(training, "run_seed", lambda line, **_: found.append(line))
    monkeypatch.setattr(training, "Run", lambda path: path)
    training.train(*arguments, **options)
    return found[0]


def test_arguments_become_flags(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    values = {
        "training.batch_size": np.int64(64),
        "agent.network.hidden": (8, 8),
        "net.host": 'a "b"',
        "topology.xla": "off",
    }
    options: dict[str, Any] = {"steps": 1e5, "seed": 0, "env": "breakout", "overwrite": True, "set": values}
    assert flags_of(monkeypatch, "pong_vtrace", logdir=tmp_path / "x", **options) == [
        "train", "--no-live", "--preset=pong_vtrace", "--steps=100000.0", "--seed=0", "--env=breakout",
        f"--logdir={tmp_path / 'x'}", "--overwrite", "--set=training.batch_size=64",
        "--set=agent.network.hidden=[8, 8]", '--set=net.host="a \\"b\\""', '--set=topology.xla="off"',
    ]  # fmt: skip
    assert flags_of(monkeypatch, logdir=tmp_path, resume=True) == [
        "train", "--no-live", f"--logdir={tmp_path}", "--resume"
    ]  # fmt: skip


def test_a_failed_training_raises_its_sentence_and_leaves_no_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(seedcli.__file__).parents[1]))
    with pytest.raises(UsageError) as error:
        seedcli.train("cartpole_vtrace", set={"training.batch_size": -1})
    assert str(error.value) == "training.batch_size = -1 (from --set) must be at least 1"
    assert "seed: training.batch_size" in capfd.readouterr().err
    with pytest.raises(UsageError, match="Unknown preset 'cartpole_vtrac'. Did you mean cartpole_vtrace"):
        seedcli.train("cartpole_vtrac")
    with pytest.raises(UsageError, match="--resume needs --logdir"):
        seedcli.train("cartpole_vtrace", resume=True, quiet=True)
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "status, kind, sentence",
    [
        (1, SeedError, "no space left"),
        (2, UsageError, "no space left"),
        (3, UnreachableError, "no space left"),
        (4, RefusedError, "no space left"),
        (7, SeedError, "no space left"),
        (-9, SeedError, "seed train was ended by SIGKILL"),
        (143, SeedError, "seed train was stopped by SIGTERM"),
    ],
)
def test_the_exit_status_decides_the_error(status: int, kind: type[SeedError], sentence: str) -> None:
    error = processes._error("train", status, ["seed: a notice\n", "seed: no space left\n", "\n"])
    assert type(error) is kind and str(error) == sentence


def test_a_crash_without_a_sentence_shows_its_last_line() -> None:
    assert str(processes._error("train", 1, ["Fatal Python error: x\n"])) == "Fatal Python error: x"
    assert str(processes._error("train", 1, [])) == "it left no message"


def wait_until(condition: Any, what: str, seconds: float = 150.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def has_learned(folder: Path) -> bool:
    return (folder / "metrics.jsonl").exists() and max(seedcli.Run(folder).metrics.get("learner_updates", [0])) > 0


def test_an_interrupt_stops_training_with_a_checkpoint_and_it_can_be_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:

    def interrupt() -> None:
        wait_until(lambda: has_learned(tmp_path), "the first updates")
        os.kill(os.getpid(), signal.SIGINT)  # to this process alone, as a notebook's interrupt

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if a script runs the tests with "&"
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            seedcli.train("cartpole_vtrace", steps=10**9, logdir=tmp_path, set=ENDLESS)
    finally:
        signal.signal(signal.SIGINT, before)
    thread.join()
    assert "stopping: writing a checkpoint" in capsys.readouterr().err
    assert not [child for child in psutil.Process().children(recursive=True) if "seedcli" in child.cmdline()]
    run = seedcli.Run(tmp_path)
    steps = int(run.checkpoints[-1].name)
    assert steps >= run.metrics["env_steps"][-1] > 0
    resumed = seedcli.train(logdir=tmp_path, resume=True, steps=steps + 500, quiet=True)
    assert resumed.path == tmp_path and resumed.metrics["env_steps"][-1] >= steps + 500
    assert capsys.readouterr() == ("", "")
    assert seedcli.load_policy(tmp_path).env_steps >= steps + 500
    with pytest.raises(UsageError, match="already holds a run"):
        seedcli.train("cartpole_vtrace", logdir=tmp_path, quiet=True)


_SCRIPT = """
import sys, seedcli
seedcli.train("cartpole_vtrace", steps=10**9, logdir=sys.argv[1], set={"telemetry.interval_seconds": 0.2})
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the parent's death signal is Linux's")
def test_training_stops_when_its_caller_is_killed(tmp_path: Path) -> None:
    environ = os.environ | {"PYTHONPATH": str(Path(seedcli.__file__).parents[1])}
    caller = subprocess.Popen([sys.executable, "-c", _SCRIPT, str(tmp_path)], stderr=subprocess.DEVNULL, env=environ)
    children: list[psutil.Process] = []
    try:
        wait_until(lambda: has_learned(tmp_path), "the first updates")
        children = psutil.Process(caller.pid).children(recursive=True)
        assert children
        caller.kill()
        caller.wait()
        wait_until(lambda: not any(child.is_running() and child.status() != "zombie" for child in children), "the end")
        assert seedcli.Run(tmp_path).checkpoints
    finally:
        for process in children:
            if process.is_running():
                process.kill()
        caller.kill()
