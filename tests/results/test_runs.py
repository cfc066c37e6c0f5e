"""Reading runs: metrics, time, state, and folders of runs."""

from __future__ import annotations

import fcntl
import json
import math
import time
import timeit
from pathlib import Path

import numpy as np
import pytest

from seedcli.errors import UsageError
from seedcli.results.metrics_file import read_columns, read_lines
from seedcli.results.runs import collect_runs, read_run
from tests.results.helpers import START, line, make_run


def test_columns_hold_the_fields_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"a": 1, "b": null, "text": "x"}\n{"b": 2.5, "c": [1, 2]}\n{"a": 3, "b": 4')
    columns = read_columns(path, ("a", "b", "none"))
    np.testing.assert_array_equal(columns["a"], [1, np.nan])
    np.testing.assert_array_equal(columns["b"], [np.nan, 2.5])
    np.testing.assert_array_equal(columns["none"], [np.nan, np.nan])
    assert len(read_lines(path)) == 2


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ('{"a": 1', "line 2 is not a JSON object"),
        ("[1]", "line 2 is not a line of metrics"),
        ('{"a": "1"}', "line 2 is not a line of metrics"),
    ],
)
def test_damage_before_the_last_line_is_refused(tmp_path: Path, damage: str, sentence: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"a": 1}}\n{damage}\n{{"a": 2}}\n')
    with pytest.raises(UsageError, match=sentence):
        read_columns(path, ("a",))


def test_a_line_without_steps_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [line(100, 1.0), {"time": START}])
    with pytest.raises(UsageError, match="line 2 has no env_steps: remove that line"):
        read_run(run)


def test_a_run_is_described_by_its_configuration_and_last_line(tmp_path: Path) -> None:
    lines = [line(0, None), line(1000, 5.0), line(3000, None, episode_return_100=9.0)]
    run = read_run(make_run(tmp_path / "a", lines, seed=7, checkpoint=2000))
    assert (run.preset, run.task, run.seed) == ("made_up", "gymnasium/CartPole-v1", 7)
    assert (run.env_steps, run.total_steps, run.state, run.final_return) == (3000, 10_000, "resumable", 9.0)
    assert run.steps_per_second == pytest.approx(100)
    assert run.value("training.batch_size") == 8 and run.value("training.none.deep") is None


def test_a_run_without_metrics_has_no_figures(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "a", None))
    assert run.env_steps == 0 and math.isnan(run.final_return) and math.isnan(run.steps_per_second)
    assert len(run.seconds) == 0


def test_state_tells_how_a_run_ended(tmp_path: Path) -> None:
    lines = [line(1000, 5.0)]
    failed = [{"started": START}, {"ended": START + 9, "status": 1, "error": "a step failed"}]
    stopped = [{"started": START}, {"ended": START + 9, "status": 143, "error": ""}]
    resumed = [*failed, {"started": START + 20}]
    runs = {
        "finished": make_run(tmp_path / "a", lines, steps=1000, checkpoint=1000),
        "resumable": make_run(tmp_path / "b", lines, checkpoint=900, sessions=stopped),
        "failed": make_run(tmp_path / "c", lines, checkpoint=900, sessions=failed),
    }
    for state, path in runs.items():
        assert read_run(path).state == state
    assert read_run(runs["failed"]).error == "a step failed"
    # Killed between its last line and its last checkpoint.
    assert read_run(make_run(tmp_path / "f", lines, steps=1000, checkpoint=900)).state == "resumable"
    # Killed after it was resumed: the failure is of an earlier session.
    assert read_run(make_run(tmp_path / "d", lines, checkpoint=900, sessions=resumed)).state == "resumable"
    never = read_run(make_run(tmp_path / "e", lines))
    assert (never.state, never.error) == ("failed", "it ended before its first checkpoint")
    lock = runs["failed"] / "learner.lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert read_run(runs["failed"]).state == "running"
    assert read_run(runs["failed"]).state == "failed"


def test_time_between_a_stop_and_the_resume_does_not_count(tmp_path: Path) -> None:
    times = (0.0, 4.0, 10.0, 5010.0, 5020.0)
    steps = (0, 0, 60, 110, 210)  # no actor until 4 s
    lines = [line(n, 1.0, time=START + t) for n, t in zip(steps, times, strict=True)]
    sessions = [{"started": START - 1}, {"ended": START + 50, "status": 143}, {"started": START + 5005}]
    run = read_run(make_run(tmp_path / "a", lines, sessions=sessions))
    np.testing.assert_allclose(run.seconds, [0, 0, 6, 11, 21])
    assert run.steps_per_second == pytest.approx(210 / 21)
    # Steps from the first line on: the clock starts with the session.
    run = read_run(make_run(tmp_path / "b", lines[2:3], sessions=sessions[:1]))
    np.testing.assert_allclose(run.seconds, [11])


def test_runs_are_found_below_folders_and_none_twice(tmp_path: Path) -> None:
    first = make_run(tmp_path / "x" / "one", [])
    second = make_run(tmp_path / "x" / "two" / "20260101", [])
    assert collect_runs([tmp_path / "x", first]) == [first, second]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"empty holds no run \(a folder with config.toml\)"):
        collect_runs([first, tmp_path / "empty"])
    with pytest.raises(UsageError, match="none is not a folder"):
        collect_runs([tmp_path / "none"])
    with pytest.raises(UsageError, match="holds no run: it has no config.toml"):
        read_run(tmp_path / "empty")


def test_a_hundred_long_runs_are_read_quickly(tmp_path: Path) -> None:
    """In a tenth of the time that json.loads takes for their lines; the best of a few readings each."""
    filler = {f"metric_{index}": index / 7 for index in range(50)}
    text = "".join(json.dumps(line(steps, 1.5) | filler) + "\n" for steps in range(5000))
    for index in range(5):
        make_run(tmp_path / str(index), [])
        (tmp_path / str(index) / "metrics.jsonl").write_text(text)
    parsing = min(timeit.repeat(lambda: [json.loads(each) for each in text.splitlines()], number=1, repeat=3))
    runs, reading = [], []
    for path in collect_runs([tmp_path]):
        begun = time.perf_counter()
        runs.append(read_run(path))
        reading.append(time.perf_counter() - begun)
    assert min(reading) < 0.4 * parsing
    assert [len(run.metrics["env_steps"]) for run in runs] == [5000] * 5
