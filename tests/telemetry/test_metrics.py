from __future__ import annotations

import json
import math
import threading
import timeit
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedcli.errors import UsageError
from seedcli.results.metrics_file import read_lines
from seedcli.telemetry.metrics import (
    MetricsWriter,
    Profile,
    Reservoir,
    Snapshot,
)

REQUIRED = {
    "time",
    "env_steps",
    "env_frames",
    "env_steps_per_second",
    "trained_steps",
    "learner_updates",
    "episode_return",
    "episode_length",
    "policy_lag",
    "inference_batch_size",
    "inference_latency_ms",
    "loss",
}


def snapshot(env_steps: int, **values: Any) -> Snapshot:
    defaults: dict[str, Any] = {
        "time": 1.5e9 + env_steps,
        "env_steps_per_second": 100.0,
        "env_frames_per_second": 400.0,
        "updates_per_second": 2.0,
        "inference_latency_ms": {"p50": 1.0, "p99": 2.0},
        "learner_memory_mb": 600.0,
        "episode_return": 3.5,
        "extra": {"policy_loss": -0.5, "entropy": 0.7},
    }
    return Snapshot(env_steps=env_steps, **{**defaults, **values})


def write(path: Path, steps: list[int], *, resume: bool = False) -> None:
    writer = MetricsWriter(path, resume=resume)
    for env_steps in steps:
        writer.write(snapshot(env_steps))
    writer.close()


def test_a_profile_adds_up_and_returns_copies() -> None:
    profile = Profile()
    profile.add("wire", 0.25)
    profile.add("wire", 0.5)
    profile.add("waiting", 1.0)
    assert profile.seconds() == {"wire": 0.75, "waiting": 1.0}
    copy = profile.seconds()
    copy["wire"] = 0.0
    assert profile.seconds()["wire"] == 0.75


def test_profile_is_cheap_and_readable_while_written() -> None:
    profile = Profile()
    stop = threading.Event()

    def own() -> None:
        names = [f"part{i}" for i in range(50)]
        while not stop.is_set():
            for name in names:
                profile.add(name, 1.0)

    thread = threading.Thread(target=own)
    thread.start()
    try:
        for _ in range(2000):
            profile.seconds()
    finally:
        stop.set()
        thread.join(timeout=10)
    # A fraction of a microsecond: less than twice the time of a plain sum, the best of several rounds of each.
    sums: dict[str, float] = {}
    adding = min(timeit.repeat(lambda: profile.add("wire", 0.1), number=10_000, repeat=10))
    plain = min(timeit.repeat(lambda: sums.update(wire=sums.get("wire", 0.0) + 0.1), number=10_000, repeat=10))
    assert adding < 2.0 * plain


@given(
    st.integers(1, 20),
    st.lists(st.lists(st.floats(-1e6, 1e6), max_size=50), max_size=10),
)
def test_reservoir_keeps_the_newest(size: int, chunks: list[list[float]]) -> None:
    reservoir = Reservoir(size)
    everything: list[float] = []
    for index, chunk in enumerate(chunks):
        if index % 2:
            reservoir.add_many(np.array(chunk, np.float64))
        else:
            for value in chunk:
                reservoir.add(value)
        everything += chunk
    newest = everything[-size:]
    assert len(reservoir) == len(newest)
    if newest:
        found = reservoir.percentiles(0, 50, 99, 100)
        assert found == pytest.approx(tuple(np.percentile(newest, (0, 50, 99, 100))))
        assert reservoir.mean() == pytest.approx(np.mean(newest), abs=1e-6)
    else:
        assert reservoir.percentiles(50) is None and reservoir.mean() is None


def test_reservoir_percentiles_by_hand_and_reset() -> None:
    reservoir = Reservoir()
    reservoir.add_many(np.arange(101, dtype=np.float32))
    assert reservoir.percentiles(50, 99) == (50.0, 99.0)
    reservoir.reset()
    assert reservoir.percentiles(50, 99) is None
    reservoir.add(7.0)
    assert reservoir.percentiles(50, 99) == (7.0, 7.0)
    with pytest.raises(ValueError, match="at least 1"):
        Reservoir(0)


def test_lines_are_json_with_every_field(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, [10, 20])
    texts = path.read_text().splitlines()
    assert [json.loads(text)["env_steps"] for text in texts] == [10, 20]
    line = json.loads(texts[0])
    assert set(line) >= REQUIRED
    assert line["inference_latency_ms"] == {"p50": 1.0, "p99": 2.0}
    assert line["policy_loss"] == -0.5 and line["entropy"] == 0.7 and "extra" not in line
    assert line["loss"] is None


def test_a_line_is_on_disk_before_the_file_is_closed(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path / "metrics.jsonl", resume=False)
    writer.write(snapshot(10))
    assert len(read_lines(tmp_path / "metrics.jsonl")) == 1
    writer.close()
    writer.close()


def test_non_finite_numbers_become_null(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path, resume=False)
    writer.write(
        snapshot(
            10,
            loss=np.float32("nan"),
            grad_norm=math.inf,
            learning_rate=np.float32(0.5),
            policy_lag=np.array(2.0),
            inference_latency_ms={"p50": 1.0, "p99": math.nan},
            extra={"entropy": -math.inf},
        )
    )
    writer.close()

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    line = json.loads(path.read_text(), parse_constant=refuse)
    assert line["loss"] is None and line["grad_norm"] is None and line["entropy"] is None
    assert line["learning_rate"] == 0.5 and line["policy_lag"] == 2.0
    assert line["inference_latency_ms"] == {"p50": 1.0, "p99": None}


def test_without_wall_clock_two_runs_write_the_same_bytes(tmp_path: Path) -> None:
    contents = []
    for clock in (1.0, 2.0):
        path = tmp_path / f"{clock}.jsonl"
        writer = MetricsWriter(path, resume=False)
        line = snapshot(
            10,
            time=clock,
            env_steps_per_second=clock,
            env_frames_per_second=clock,
            updates_per_second=clock,
            inference_latency_ms={"p50": clock, "p99": clock},
            learner_memory_mb=clock,
        )
        writer.write(line.without_wall_clock())
        writer.close()
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]
    assert json.loads(contents[0])["time"] is None
    assert json.loads(contents[0])["episode_return"] == 3.5


def test_an_algorithm_cannot_use_the_name_of_a_general_metric() -> None:
    with pytest.raises(ValueError, match="'loss'"):
        Snapshot(env_steps=1, extra={"loss": 1.0})


def test_an_algorithm_cannot_use_the_name_of_a_replay_metric() -> None:
    with pytest.raises(ValueError, match="'priority_max'"):
        Snapshot(env_steps=1, replay={"priority_max": 1.0}, extra={"priority_max": 1.0})


def test_replay_and_evaluation_are_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    replay = {"replay_size": 100.0, "priority_max": np.float32(2.5), "epsilon_min": math.nan}
    writer = MetricsWriter(path, resume=False)
    writer.write(
        snapshot(
            10,
            replay=replay,
            evaluation_episodes=3,
            evaluation_return=21.0,
            evaluation_return_20=20.5,
            dropped_unrolls=4,
        )
    )
    writer.write(snapshot(20))
    writer.close()
    line, plain = read_lines(path)
    assert (line["replay_size"], line["priority_max"], line["epsilon_min"]) == (100.0, 2.5, None)
    assert (line["evaluation_episodes"], line["evaluation_return"], line["evaluation_return_20"]) == (3, 21.0, 20.5)
    assert line["dropped_unrolls"] == 4 and "replay" not in line
    names = list(line)
    assert names.index("replay_size") < names.index("entropy"), "the metrics of the algorithm come last"
    assert not any(name in plain for name in replay)
    assert (plain["evaluation_episodes"], plain["evaluation_return"], plain["dropped_unrolls"]) == (0, None, 0)


def test_torn_last_line_is_left_out_and_cut_on_resume(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, [10, 20, 30])
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for end in range(last + 1, len(whole) - 1):
        path.write_bytes(whole[:end])
        assert [line["env_steps"] for line in read_lines(path)] == [10, 20]
    write(path, [40], resume=True)
    assert [line["env_steps"] for line in read_lines(path)] == [10, 20, 40]
    assert path.read_bytes().endswith(b"}\n")


def test_damage_before_the_last_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"env_steps": 1}\nnonsense\n{"env_steps": 2}\n')
    with pytest.raises(UsageError, match="line 2"):
        read_lines(path)
    assert read_lines(tmp_path / "none.jsonl") == []
    with pytest.raises(UsageError, match="cannot read"):
        read_lines(tmp_path)


@pytest.mark.parametrize(
    ("beyond", "left"), [(0, []), (10, [10]), (25, [10, 20]), (30, [10, 20, 30]), (99, [10, 20, 30])]
)
def test_truncate_after_cuts_what_a_resumed_run_repeats(tmp_path: Path, beyond: int, left: list[int]) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, [10, 20, 30])
    writer = MetricsWriter(path, resume=True)
    writer.truncate_after({"env_steps": beyond})
    writer.write(snapshot(beyond + 5))
    writer.close()
    assert [line["env_steps"] for line in read_lines(path)] == [*left, beyond + 5]


def test_truncate_after_cuts_from_the_first_line_with_any_counter_beyond(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path, resume=False)
    for env_steps, updates in ((10, 1), (20, 2), (20, 5), (20, 6), (30, 7)):
        writer.write(snapshot(env_steps, learner_updates=updates))
    writer.close()
    writer = MetricsWriter(path, resume=True)
    void = writer.truncate_after({"env_steps": 20, "learner_updates": 4, "of newer versions": 0})
    writer.close()
    assert [(line["env_steps"], line["learner_updates"]) for line in read_lines(path)] == [(10, 1), (20, 2)]
    assert void == 20, "loggers discard the points that were cut"


@pytest.mark.parametrize("damage", [b"nonsense\n", b"[]\n", b'{"env_steps": null}\n', b"\x00" * 64 + b"\n"])
def test_truncate_after_cuts_from_a_damaged_line_on(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, [10])
    good = path.read_bytes()
    path.write_bytes(good + damage + good)
    writer = MetricsWriter(path, resume=True)
    writer.truncate_after({"env_steps": 100})
    writer.close()
    assert path.read_bytes() == good


def test_a_new_run_starts_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, [10, 20])
    write(path, [1])
    assert [line["env_steps"] for line in read_lines(path)] == [1]
