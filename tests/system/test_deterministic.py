"""Deterministic runs that are resumed: they stay what they were, or somebody says otherwise."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.system.harness import TINY, Fleet, Process, metrics, sets

# The clock must not decide where a run stands, nor how far apart its lines of metrics are.
SMALL = (*TINY, "training.unroll_length=4", "training.batch_size=4", "training.checkpoint_seconds=1000")


def _train(fleet: Fleet, *arguments: str, name: str = "run") -> tuple[Process, Path]:
    process = fleet.start("train", "--logdir", name, *arguments)
    process.ends_with(0)
    return process, fleet.folder / name


def _begin(fleet: Fleet, *arguments: str, name: str = "run") -> Path:
    options = ["--preset", "cartpole_vtrace", "--steps", "800", "--envs", "4", *sets(*SMALL)]
    return _train(fleet, *options, *arguments, name=name)[1]


def _mode(run: Path) -> tuple[bool, bool]:
    """Whether its configuration says that it is deterministic, and whether its last line of metrics knows no clock."""
    said = tomllib.loads((run / "config.toml").read_text())["run"]["deterministic"]
    return said, metrics(run)[-1]["time"] is None


@pytest.mark.parametrize("again", [(), ("--preset", "cartpole_vtrace", "--envs", "4", *sets(*SMALL))])
def test_a_deterministic_run_is_resumed_deterministically(fleet: Fleet, again: tuple[str, ...]) -> None:
    written = []
    for name in ("one", "two"):
        run = _begin(fleet, "--deterministic", name=name)
        assert _mode(run) == (True, True)
        resumed, run = _train(fleet, "--resume", "--steps", "1600", *again, name=name)
        assert "resuming a deterministic run: one thread in lock-step, as before" in resumed.stderr
        assert _mode(run) == (True, True) and metrics(run)[-1]["env_steps"] >= 1600
        written.append((run / "metrics.jsonl").read_bytes())
        assert f"deterministic = true  # run {name}" in (run / "config.toml").read_text()
    assert written[0] == written[1]


def test_a_learner_refuses_a_deterministic_run(fleet: Fleet) -> None:
    run = _begin(fleet, "--deterministic")
    before = (run / "config.toml").read_bytes(), (run / "metrics.jsonl").read_bytes()
    for arguments in (["--resume"], ["--continue", "--preset", "cartpole_vtrace", *sets(*SMALL)], ["--standby"]):
        learner = fleet.start("learner", "--logdir", "run", "--steps", "1600", *arguments)
        learner.ends_with(2)
        assert learner.sentence == (
            "seed: run.deterministic = true (from run run) is for seed train, which has its actors in its own thread: "
            "use seed train --resume --logdir run, or train with threads from here on with --set "
            "run.deterministic=false"
        )
    assert ((run / "config.toml").read_bytes(), (run / "metrics.jsonl").read_bytes()) == before


def test_a_run_changes_its_mode_only_where_somebody_says_so(fleet: Fleet) -> None:
    run = _begin(fleet, "--deterministic")
    resumed, _ = _train(fleet, "--resume", "--steps", "1600", *sets("run.deterministic=false"))
    assert "was deterministic and is resumed with threads (run.deterministic = false from --set)" in resumed.stderr
    assert _mode(run) == (False, False)
    resumed, _ = _train(fleet, "--resume", "--steps", "2400", "--deterministic")
    assert "only the steps after its last checkpoint are reproducible" in resumed.stderr
    assert _mode(run) == (True, True)
