"""A run survives the loss of its output: closed terminals and closed pipes. Finished runs are reported."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import seedcli
from tests.system.harness import LIMIT, TINY, Fleet, checkpoints, counting, fleet_in, last, sets, wait_for

# Its standard input becomes its controlling terminal.
_AT_A_TERMINAL = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGHUP, signal.SIG_DFL)
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "seedcli", *sys.argv[1:]])
"""


def _train(run: Path, *more: str) -> list[str]:
    return [
        *("train", "--preset", "cartpole_vtrace", "--logdir", str(run), "--steps", "1e9", "--envs", "4"),
        *sets(*TINY, *counting(pause=0.002)),
        *more,
    ]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SEED_")}
    return kept | {
        "PYTHONPATH": str(Path(seedcli.__file__).parent.parent),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "TERM": "xterm",
    }


@pytest.mark.parametrize("more", [[], ["--no-live"]], ids=["live", "plain"])
def test_a_closed_terminal_is_a_clean_stop(tmp_path: Path, environ: dict[str, str], more: list[str]) -> None:
    run = tmp_path / "run"
    terminal, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", _AT_A_TERMINAL, *_train(run, *more)],
        stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        os.set_blocking(terminal, False)

        def trains() -> bool:
            try:  # a terminal that is not read blocks its writer
                while os.read(terminal, 65536):
                    pass
            except BlockingIOError:
                pass
            return bool(last(run, "learner_updates") > 5)

        wait_for(trains, "training")
        os.close(terminal)  # sends SIGHUP; every later write fails
        assert process.wait(60) == 129
    finally:
        process.kill()
        process.wait()
    assert checkpoints(run), "the final checkpoint"


def test_training_continues_when_output_is_not_read(tmp_path: Path, environ: dict[str, str]) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "seedcli", *_train(run, "--no-live")]
    process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        assert process.stdout is not None and process.stdout.readline()
        process.stdout.close()  # as `| head -1` does
        updates = wait_for(lambda: last(run, "learner_updates"), "training")
        wait_for(lambda: last(run, "learner_updates") > updates + 50, "training continues")
        process.terminate()
        assert process.wait(LIMIT) == 143
    finally:
        process.kill()
        process.wait()
    assert checkpoints(run)


def test_output_of_an_environment_does_not_block_its_actor(fleet: Fleet) -> None:
    """More output than a pipe holds; the parent reads it only at the end."""
    values = ["environment.family=gymnasium", "environment.id=seedcli.envs.testing:Counter-v0", "run.steps=1e9"]
    values.append("environment.kwargs={ chatter = 2000 }")
    trained = fleet.start(
        "train", "--preset", "cartpole_vtrace", "--logdir", "run", "--envs", "4", "--profile", *sets(*TINY, *values)
    )
    wait_for(lambda: last(fleet.folder / "run", "env_steps") > 2000, "steps")
    trained.send(signal.SIGTERM)
    trained.ends_with(143)
    assert "environment" in trained.stderr.partition("actor 0")[2], "the actor's profile must be read"


FINISHED = ("--preset", "cartpole_vtrace", "--logdir", "run", "--steps", "400", *sets(*TINY, *counting()))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a finished run."""
    with fleet_in(tmp_path_factory.mktemp("finished")) as fleet:
        fleet.start("train", *FINISHED, "--envs", "4").ends_with(0)
        yield fleet.folder / "run"


@pytest.mark.parametrize("command", ["learner", "train"])
def test_finished_run_is_reported(fleet: Fleet, finished: Path, command: str) -> None:
    shutil.copytree(finished, fleet.folder / "run")
    before = checkpoints(finished)
    again = fleet.start(command, *FINISHED, "--continue")
    again.ends_with(0)
    assert "is finished" in again.stderr and "waiting for actors" not in again.stderr
    assert before and checkpoints(fleet.folder / "run") == before


def test_a_signal_ends_an_evaluation(fleet: Fleet) -> None:
    fleet.start(
        *("train", "--preset", "cartpole_vtrace", "--logdir", "run", "--steps", "1e9", "--envs", "4"),
        *sets(*TINY, *counting(pause=0.02)),
    )
    wait_for(lambda: checkpoints(fleet.folder / "run"), "a checkpoint")
    for number, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)):
        watching = fleet.start("eval", "run", "--watch", "--episodes", "1")  # runs as long as the learner
        wait_for(lambda p=watching: p.stdout, "the first evaluation")  # type: ignore[misc]
        watching.send(number)
        watching.ends_with(status, limit=15)
        assert "Traceback" not in watching.stderr
