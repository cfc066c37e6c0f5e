"""Resumed deterministic runs: they stay deterministic unless the user changes it."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.harness import TINY, Fleet, Process, checkpoints, fleet_in, metrics, sets

# Nothing may depend on the clock: neither checkpoints nor lines of metrics.
SMALL = (*TINY, "training.unroll_length=4", "training.batch_size=4", "training.checkpoint_seconds=1000")


def _train(fleet: Fleet, *arguments: str, name: str = "run") -> tuple[Process, Path]:
    process = fleet.start("train", "--logdir", name, *arguments)
    process.ends_with(0)
    return process, fleet.folder / name


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """The folders of two deterministic runs with the same options."""
    options = ["--preset", "cartpole_vtrace", "--steps", "800", "--envs", "4", "--deterministic", *sets(*SMALL)]
    with fleet_in(tmp_path_factory.mktemp("begun")) as fleet:
        yield _train(fleet, *options, name="one")[1], _train(fleet, *options, name="two")[1]


@pytest.fixture
def run(begun: tuple[Path, Path], fleet: Fleet) -> Path:
    """A copy of a deterministic run, to be resumed."""
    return Path(shutil.copytree(begun[0], fleet.folder / "run"))


def _mode(run: Path) -> tuple[bool, bool]:
    """Whether the configuration is deterministic, and whether the last line of metrics has no time."""
    deterministic = tomllib.loads((run / "config.toml").read_text())["run"]["deterministic"]
    return deterministic, metrics(run)[-1]["time"] is None


def _check_last_100(resumed: Path, before: Path) -> None:
    """The mean of the last 100 episodes includes those before the resume."""
    (state,) = (before / "checkpoints").glob(f"{checkpoints(before)[-1]}/state.json")
    counters = json.loads(state.read_text())["counters"]
    returns, episodes = list(counters["recent_returns"]), counters["episodes"]
    for line in metrics(resumed)[len(metrics(before)) :]:
        returns += [line["episode_return"]] * (line["episodes"] - episodes)
        episodes = line["episodes"]
        assert line["episode_return_100"] == pytest.approx(sum(returns) / len(returns))
    assert counters["episodes"] < len(returns) <= 100, "with more, the means of lines would not suffice"


@pytest.mark.parametrize("again", [(), ("--preset", "cartpole_vtrace", "--envs", "4", *sets(*SMALL))])
def test_a_deterministic_run_is_resumed_deterministically(
    fleet: Fleet, begun: tuple[Path, Path], again: tuple[str, ...]
) -> None:
    written = []
    for folder in begun:
        name = folder.name
        assert _mode(folder) == (True, True)
        shutil.copytree(folder, fleet.folder / name)
        resumed, run = _train(fleet, "--resume", "--steps", "1600", *again, name=name)
        assert "resuming a deterministic run: one thread in lock-step, as before" in resumed.stderr
        assert _mode(run) == (True, True) and metrics(run)[-1]["env_steps"] >= 1600
        _check_last_100(run, folder)
        written.append((run / "metrics.jsonl").read_bytes())
        assert f"deterministic = true  # run {name}" in (run / "config.toml").read_text()
    assert written[0] == written[1]


def test_a_learner_refuses_a_deterministic_run(fleet: Fleet, run: Path) -> None:
    before = (run / "config.toml").read_bytes(), (run / "metrics.jsonl").read_bytes()
    for arguments in (["--resume"], ["--continue", "--preset", "cartpole_vtrace", *sets(*SMALL)], ["--standby"]):
        learner = fleet.start("learner", "--logdir", "run", "--steps", "1600", *arguments)
        learner.ends_with(2)
        assert learner.sentence == (
            "seed: run.deterministic = true (from run run) is for seed train, which runs its actors in its own thread: "
            "use seed train --resume --logdir run, or give --set run.deterministic=false to train with threads from "
            "here on"
        )
    assert ((run / "config.toml").read_bytes(), (run / "metrics.jsonl").read_bytes()) == before


def test_a_run_changes_its_mode_only_if_the_user_says_so(fleet: Fleet, run: Path) -> None:
    resumed, _ = _train(fleet, "--resume", "--steps", "1600", *sets("run.deterministic=false"))
    assert "was deterministic and is resumed with threads (run.deterministic = false from --set)" in resumed.stderr
    assert _mode(run) == (False, False)
    resumed, _ = _train(fleet, "--resume", "--steps", "2400", "--deterministic")
    assert "only the steps after its last checkpoint are reproducible" in resumed.stderr
    assert _mode(run) == (True, True)
