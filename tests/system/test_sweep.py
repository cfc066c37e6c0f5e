"""A sweep with real processes: killed, resumed, and read by the commands that read runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.system.harness import COUNTER, TINY_TOML, Fleet, wait_for

SWEEP = f"""
[sweep]
preset = "gymnasium_vtrace"
env = "{COUNTER}"
steps = 600
seeds = [1, 2]
episodes = 1

[set]
{TINY_TOML}

[grid]
training.learning_rate = [1e-3, 2e-3]
agent.entropy_cost = [0.0, 0.01]
"""


def trained(results: Path) -> list[Path]:
    """Folders of the runs whose records say that they are trained."""
    records = sorted(results.glob("*/seed-*.json"))
    return [record.with_suffix("") for record in records if json.loads(record.read_text())["trained"]]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_killed_sweep_is_resumed(fleet: Fleet) -> None:
    (fleet.folder / "mine.toml").write_text(SWEEP)
    results = fleet.folder / "runs" / "sweeps" / "mine"
    sweep = fleet.start("sweep", "mine.toml", "--jobs", "2")
    wait_for(lambda: len(trained(results)) >= 3, "three trained runs", limit=900)
    sweep.kill()
    wait_for(lambda: not fleet.marked(), "the end of its runs, which do not outlive it", limit=120)
    before = {run: (run / "metrics.jsonl").read_bytes() for run in trained(results)}
    again = fleet.start("sweep", "mine.toml", "--jobs", "2", "--json")
    again.ends_with(0, limit=900)
    found = json.loads(again.stdout)
    runs = [run for point in found["points"] for run in point["runs"]]
    assert len(found["points"]) == 4 and [run["state"] for run in runs] == ["finished"] * 8
    assert {(run["folder"], run["seed"]) for run in runs} == {
        (f"learning_rate={rate},entropy_cost={cost}/seed-{seed}", seed)
        for rate in (0.001, 0.002)
        for cost in (0.0, 0.01)
        for seed in (1, 2)
    }
    assert all((run / "metrics.jsonl").read_bytes() == data for run, data in before.items()), "not trained twice"
    for command in (["compare", "runs/sweeps/mine", "--group-by", "training.learning_rate"], ["runs", str(results)]):
        reader = fleet.start(*command, "--json")
        reader.ends_with(0)
        assert json.loads(reader.stdout)
