"""`seed benchmark run`: it resumes after a kill at any time, repeats nothing, and shows failures."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from seedcli.roles.run_lock import is_running
from tests.system.harness import COUNTER, TINY, Fleet, checkpoints, last, metrics, wait_for

SETS = ", ".join(f'"{key}" = {value}' for key, _, value in (each.partition("=") for each in TINY))
SUITE = f"""
[suite]
description = "a slow task and one that fails"
episodes = 2

[defaults]
preset = "gymnasium_vtrace"
seeds = [1]
set = {{ {SETS}, "actors.envs" = 4, "environment.kwargs" = {{ pause = 0.002 }} }}

[tasks.counter]
env = "{COUNTER}"
steps = 2000  # about 500 steps a second
threshold = 1e9

[tasks.broken]
env = "nowhere:Env-v0"
steps = 100
"""


def read(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text())
    assert isinstance(found, dict)
    return found


@pytest.mark.slow
def test_a_killed_suite_resumes_and_repeats_no_finished_run(fleet: Fleet) -> None:
    (fleet.folder / "mine.toml").write_text(SUITE)
    results = fleet.folder / "results"
    command = ("benchmark", "run", "mine.toml", "--results", "results", "--jobs", "1")
    suite = fleet.start(*command)
    run = results / "counter" / "seed-1"
    wait_for(lambda: checkpoints(run) and last(run, "learner_updates") > 2, "the first run trains")
    suite.kill()
    wait_for(lambda: not is_running(run), "its learner has stopped by itself")
    begun = checkpoints(run)[-1]
    assert 0 < begun < 2000 and not (results / "broken" / "seed-1.json").exists()

    suite = fleet.start(*command)
    suite.ends_with(1)
    suite.killed = True  # its exit status is expected
    record = read(results / "counter" / "seed-1.json")
    assert record["trained"] and set(record["evaluations"]) == {"greedy", "sampled"}
    assert all(len(found["returns"]) == 2 for found in record["evaluations"].values())
    steps = [line["env_steps"] for line in metrics(run)]
    assert steps == sorted(steps) and steps[-1] >= 2000
    taken = re.search(
        r"trained for ([\d,]+) environment steps in .*, ([\d,]+) in all", run.with_name("seed-1.log").read_text()
    )
    assert taken and int(taken[2].replace(",", "")) - int(taken[1].replace(",", "")) == begun
    failed = read(results / "broken" / "seed-1.json")
    assert failed["error"] and not failed["trained"]
    assert f"broken, seed 1: failed, see results/broken/seed-1.log: {failed['error']}" in suite.stderr
    assert "| broken | failed | 1 |" in suite.stdout and "not reached in" in suite.stdout

    written = {path: path.stat().st_mtime_ns for path in results.rglob("seed-1/metrics.jsonl")}
    suite = fleet.start(*command)
    suite.ends_with(1)
    suite.killed = True
    assert "2 runs, 1 finished and 1 failed before" in suite.stderr
    assert "failed before: broken, seed 1: --retry-failed tries them again" in suite.stderr
    assert {path: path.stat().st_mtime_ns for path in results.rglob("seed-1/metrics.jsonl")} == written

    (results / "counter" / "seed-1.json").unlink()  # as after a job of a cluster
    suite = fleet.start(*command, "--evaluate-only")
    suite.ends_with(1)
    suite.killed = True
    record = read(results / "counter" / "seed-1.json")
    assert record["trained"] and set(record["evaluations"]) == {"greedy", "sampled"}
    assert "training for" not in suite.stderr and "counter, seed 1: greedy" in suite.stderr


@pytest.mark.slow
def test_an_interrupted_suite_stops_its_trainings_with_a_checkpoint(fleet: Fleet) -> None:
    (fleet.folder / "mine.toml").write_text(SUITE.replace("steps = 2000", "steps = 1_000_000"))
    suite = fleet.start("benchmark", "run", "mine.toml", "--results", "results", "--jobs", "2")
    run = fleet.folder / "results" / "counter" / "seed-1"
    wait_for(lambda: checkpoints(run) and last(run, "learner_updates") > 2, "the first run trains")
    other = fleet.start("benchmark", "run", "mine.toml", "--results", "results")
    other.ends_with(2)
    other.killed = True
    assert "results is in use by another seed command: wait for it" in other.sentence
    before = checkpoints(run)[-1]
    suite.send(signal.SIGINT)
    suite.ends_with(130)
    suite.killed = True
    assert "stopping; the same command resumes" in suite.stderr
    assert not is_running(run) and checkpoints(run)[-1] > before
    record = read(run.with_name("seed-1.json"))
    assert not record["error"] and not record["trained"]
