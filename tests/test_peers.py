"""The comparison with other frameworks: valid tasks, correct figures and a correct table. No peer is installed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from seedcli.config.sources import load_config

PEERS = Path(__file__).resolve().parents[1] / "benchmarks" / "peers"


@pytest.fixture(scope="module")
def peers() -> Iterator[tuple[ModuleType, ModuleType]]:
    """The modules `tasks` and `compare`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PEERS))
        yield importlib.import_module("tasks"), importlib.import_module("compare")
        for name in ("tasks", "compare", "table"):
            sys.modules.pop(name, None)


def test_seed_trains_with_the_batch_and_network_of_its_peers(peers: tuple[ModuleType, ModuleType]) -> None:
    for task in peers[0].TASKS.values():
        ours, wanted = task.entries[0], task.settings
        words = list(ours.seed)
        pairs = list(zip(words[::2], words[1::2], strict=True))
        preset = next(value for flag, value in pairs if flag == "--preset")
        sets = [value for flag, value in pairs if flag == "--set"]
        flags = {flag: value for flag, value in pairs if flag not in ("--preset", "--set")}
        config = load_config(preset, environ={}, sets=sets, flags=flags).config
        training = config.training
        assert ours.framework == "seed" and config.actors.envs * config.actors.count == wanted["envs"]
        if "epochs" in wanted:
            assert training.unroll_length == wanted["unroll"]
            assert training.batch_size * training.unroll_length == wanted["batch"]
            assert (training.epochs, training.minibatches) == (wanted["epochs"], wanted["minibatches"])
        else:
            assert training.batch_size == wanted["batch"]
        assert list(config.agent.network.hidden) == wanted.get("hidden", list(config.agent.network.hidden))
        assert config.agent.network.torso == ("mlp" if "hidden" in wanted else "nature")
        assert training.learning_rate == wanted.get("learning_rate", training.learning_rate)
        assert config.agent.discount == wanted["discount"]


def test_every_framework_has_its_script_and_requirements(peers: tuple[ModuleType, ModuleType]) -> None:
    names = {entry.framework for task in peers[0].TASKS.values() for entry in task.entries}
    assert names == set(peers[0].FRAMEWORKS)
    for name in names - {"seed"}:
        assert (PEERS / f"run_{name}.py").is_file()
        wanted = (PEERS / "requirements" / f"{name}.txt").read_text().split()
        assert all("==" in line for line in wanted)


def test_rates_leave_out_the_warm_up_and_thresholds_need_a_hundred_episodes(
    peers: tuple[ModuleType, ModuleType],
) -> None:
    columns = {
        "time": np.array([100.0, 105.0, 125.0, 145.0]),
        "env_steps": np.array([10.0, 20.0, 1000.0, 3000.0]),
        "episodes": np.array([50.0, 100.0, 100.0, 100.0]),
        "episode_return_100": np.array([20.0, 17.0, 18.0, 19.0]),
    }
    compare = peers[1]
    assert compare.steps_per_second(columns, 120.0) == 100.0  # from 1,000 to 3,000 steps in 20 s
    assert np.isnan(compare.steps_per_second({name: values[:2] for name, values in columns.items()}, 120.0))
    assert compare.reached_at(columns, 18.0) == 125.0
    assert compare.reached_at(columns, 20.0) == np.inf


ENDS_SLOWLY = """
import json, signal, sys, time
progress = open(sys.argv[2], "w", buffering=1)
start = time.time()
def write(seconds):
    row = {"time": start + seconds, "env_steps": 1000 + 100 * seconds, "episodes": 0, "episode_return_100": None}
    print(json.dumps(row), file=progress)
def end(*_):
    write(60.0)
    sys.exit()
signal.signal(signal.SIGTERM, end)
for second in (-4.0, -2.0, -1.0):
    write(second)
signal.pause()
"""


def test_the_end_of_a_run_is_no_part_of_its_rate(
    peers: tuple[ModuleType, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks, compare = peers
    (tmp_path / "run_slow.py").write_text(ENDS_SLOWLY)
    monkeypatch.setattr(compare, "HERE", tmp_path)
    task = tasks.TASKS["cartpole"]
    found = compare.train(task, tasks.Entry("slow", "A2C"), 1, tmp_path / "run", 4.0, Path(sys.executable))
    rows = compare.read(tmp_path / "run" / "progress.jsonl")
    assert found["error"] == ""
    assert rows["env_steps"][-1] == 7000.0  # written when it was terminated
    assert found["env_steps"] == 900.0
    assert found["steps_per_second"] == pytest.approx(100.0)


def result(rate: float, reached: float | None = None, error: str = "") -> dict[str, Any]:
    machine = {"platform": "Linux", "cores": 2, "python": "3.11", "busy_before": 0.5}
    return {
        "error": error,
        "steps_per_second": rate,
        "seconds_to_threshold": reached,
        "env_steps": 5000,
        "versions": {"torch": "2"},
        "machine": machine,
    }


def test_the_table_has_medians_ranges_and_failures(peers: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    tasks, compare = peers
    ours, _, a2c, appo, impala = tasks.TASKS["pong"].entries
    results = {
        ("pong", ours): [result(900, 600), result(950, 720), result(880, 660)],
        ("pong", a2c): [result(600), result(500), result(0, error="no room")],
        ("pong", appo): [result(400, 1200), result(420), result(410)],
        ("pong", impala): [result(0, error="x")] * 3,
    }
    text = compare.markdown(results, 120.0)
    assert "| seed | V-trace | 900 (880 to 950) | 1.64 | 11:00 (10:00 to 12:00) |" in text
    assert "| Stable-Baselines3 | A2C | 550 (500 to 600), 1 of 3 failed |  | not reached in 5,000 steps |" in text
    assert "| Sample Factory | APPO | 410 (400 to 420) |  | 20:00, 2 of 3 not reached |" in text
    assert "| RLlib | IMPALA | 3 of 3 failed |" in text
    assert "\n- other work before a run: at most 50% of the cores\n" in text
    unreached = compare.markdown({("pong", ours): [result(900)], ("pong", a2c): [result(600)]}, 60.0)
    assert "| × best other |\n| --- | --- | ---: | ---: |\n| seed | V-trace | 900 (900 to 900) | 1.50 |\n" in (
        unreached
    )
    page = tmp_path / "page.md"
    page.write_text(f"before\n{compare.BEGIN}\nold\n{compare.END}\nafter\n")
    compare.insert(page, text)
    assert page.read_text() == f"before\n{compare.BEGIN}\n\n{text}\n{compare.END}\nafter\n"


def test_a_framework_that_tells_no_return_leaves_it_out(
    peers: tuple[ModuleType, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(PEERS))
    path = tmp_path / "progress.jsonl"
    for returns in ([np.nan, np.nan], [2.0, 4.0]):
        importlib.import_module("progress").Progress(str(path)).write(10, returns)
    columns = peers[1].read(path)
    np.testing.assert_array_equal(columns["episode_return_100"], [np.nan, 3.0])
    np.testing.assert_array_equal(columns["episodes"], [0, 2])
