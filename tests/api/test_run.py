"""`seedcli.Run`: configuration, metrics and checkpoints read from a folder."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seedcli
from seedcli.api import run as module
from seedcli.errors import SeedError, UsageError

LINES = [
    {"time": 1.5, "env_steps": 10, "episode_return": None, "inference_latency_ms": None, "devices": []},
    {"time": 2.5, "env_steps": 20, "episode_return": 3.0, "inference_latency_ms": {"p50": 0.25}, "devices": []},
    {"time": 3.5, "env_steps": 30, "entropy": 0.5, "devices": [{"device": "CPU:0", "rows": 4.0}], "weights_age": None},
]  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> seedcli.Run:
    (tmp_path / "config.toml").write_text('[run]\nsteps = 30  # --steps\n[agent]\nalgorithm = "vtrace"\n')
    text = "".join(json.dumps(line) + "\n" for line in LINES)
    (tmp_path / "metrics.jsonl").write_text(text + '{"time": 4.5, "env_ste')  # torn
    return seedcli.Run(str(tmp_path))


def test_metrics_are_columns_with_nan_where_a_line_has_no_value(run: seedcli.Run) -> None:
    nan = np.nan
    expected = {
        "time": [1.5, 2.5, 3.5],
        "env_steps": [10, 20, 30],
        "episode_return": [nan, 3.0, nan],
        "inference_latency_ms/p50": [nan, 0.25, nan],
        "entropy": [nan, nan, 0.5],
        "devices/0/rows": [nan, nan, 4.0],
        "weights_age": [nan, nan, nan],
    }
    metrics = run.metrics
    assert metrics.keys() == expected.keys()
    for name, column in metrics.items():
        assert column.dtype == np.float64
        np.testing.assert_array_equal(column, expected[name])


def test_a_damaged_line_is_refused_and_no_line_is_no_error(run: seedcli.Run) -> None:
    path = run.path / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:9], lines[2], ""]))
    with pytest.raises(UsageError, match="line 2 is not a JSON object"):
        run.metrics  # noqa: B018 (read for its error)
    path.write_text("")
    assert run.metrics == {}
    path.unlink()
    assert run.metrics == {}


def test_configuration_and_complete_checkpoints(run: seedcli.Run) -> None:
    assert run.config == {"run": {"steps": 30}, "agent": {"algorithm": "vtrace"}}
    assert run.checkpoints == []
    for steps in (900, 1000, 20):
        (run.path / "checkpoints" / str(steps)).mkdir(parents=True)
        if steps != 900:
            (run.path / "checkpoints" / str(steps) / "COMPLETE").touch()
    (run.path / "checkpoints" / ".30.partial").mkdir()
    assert [path.name for path in run.checkpoints] == ["20", "1000"]
    assert repr(run) == f"seedcli.Run({str(run.path)!r})"


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no run: it has no config.toml"):
        seedcli.Run(tmp_path)


def test_a_path_stays_the_same_when_the_working_folder_changes(
    run: seedcli.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.path.parent)
    relative = seedcli.Run(run.path.name)
    monkeypatch.chdir("/")
    assert relative.path == run.path and relative.config == run.config


def test_a_frame_has_a_row_for_each_line(run: seedcli.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=given.append))
    run.frame  # noqa: B018 (calls the double)
    assert given[0].keys() == run.metrics.keys() and len(given[0]["time"]) == 3
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="run.frame needs pandas, which cannot be imported .*: pip install pandas, or"):
        run.frame  # noqa: B018 (read for its error)


def test_matches_have_rates_and_other_output_is_an_error(run: seedcli.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []
    printed = {"checkpoint": "/c", "env_steps": 7, "actions": "greedy", "returns": [1, -1], "length_mean": 4.5}
    answers = ["a line of the simulator\n" + json.dumps(printed | {"win_rate": 0.5}) + "\n", "nothing\n", ""]

    def answer(arguments: list[str], **options: Any) -> str:
        calls.append(arguments)
        return answers[len(calls) - 1]

    monkeypatch.setattr(module, "run_seed", answer)
    found = run.evaluate(2, greedy=False, seed=4, envs=3)
    assert (found.mean, found.std, found.length_mean, found.rates) == (0.0, 1.0, 4.5, {"win_rate": 0.5})
    assert calls[0] == [
        "eval", "--json", "--episodes=2", "--seed=4", "--envs=3", "--sample", "--", str(run.path)
    ]  # fmt: skip
    for _ in range(2):
        with pytest.raises(SeedError, match="seed eval printed no result"):
            run.evaluate()
