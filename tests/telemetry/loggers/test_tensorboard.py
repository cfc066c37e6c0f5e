from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from seedcli.telemetry.loggers.registry import Loggers
from tests.telemetry.loggers.runs import CONFIG, events, logged
from tests.telemetry.test_metrics import snapshot


def scalar_events(folder: Path) -> list[tuple[int, float, dict[str, float]]]:
    """Step, time and values by tag of each line."""
    lines = [event for event in events(folder) if event.HasField("summary")]
    return [
        (event.step, event.wall_time, {value.tag: value.simple_value for value in event.summary.value})
        for event in lines
        if event.summary.value[0].tag != "config"
    ]


def test_lines_become_scalars_and_a_resumed_run_drops_what_it_repeats(tmp_path: Path) -> None:
    loggers = Loggers(["tensorboard"], logged(tmp_path))
    loggers.write(snapshot(10))
    loggers.write(snapshot(20))
    loggers.close(10.0)
    loggers = Loggers(["tensorboard"], logged(tmp_path, resumed_at=11))
    loggers.write(snapshot(15))
    loggers.result(15, {"final/return_mean": 21.0})
    loggers.close(10.0)
    folder = tmp_path / "tensorboard"
    assert len(list(folder.iterdir())) == 2
    assert events(folder)[0].file_version == "brain.Event:2"
    first, second, third, result = scalar_events(folder)
    assert [line[0] for line in (first, second, third, result)] == [10, 20, 15, 15]
    assert first[1] == 1.5e9 + 10
    assert first[2]["episode/episode_return"] == 3.5
    assert first[2]["agent/entropy"] == pytest.approx(0.7)
    assert first[2]["inference/latency_ms_p99"] == 2.0
    assert "learner/loss" not in first[2]
    assert result[2] == {"final/return_mean": 21.0}
    assert [event.step for event in events(folder) if event.HasField("session_log")] == [11]


def test_replay_and_evaluation_have_tags_of_their_own(tmp_path: Path) -> None:
    replay = {"replay_size": 100.0, "priority_max": np.float32(2.5), "epsilon_min": math.nan}
    evaluation = {"evaluation_episodes": 3, "evaluation_return": 21.0, "evaluation_return_20": 20.5}
    loggers = Loggers(["tensorboard"], logged(tmp_path))
    loggers.write(snapshot(10, replay=replay, dropped_unrolls=4, **evaluation))
    loggers.write(snapshot(20))
    loggers.close(10.0)
    (_, _, first), (_, _, second) = scalar_events(tmp_path / "tensorboard")
    assert (first["replay/replay_size"], first["replay/priority_max"]) == (100.0, 2.5)
    assert first["evaluation/evaluation_return"] == 21.0 and first["evaluation/evaluation_return_20"] == 20.5
    assert first["evaluation/evaluation_episodes"] == 3 and first["learner/dropped_unrolls"] == 4
    assert "replay/epsilon_min" not in first and first["agent/entropy"] == pytest.approx(0.7)
    assert not any(tag.startswith("replay/") for tag in second) and "evaluation/evaluation_return" not in second


def test_the_configuration_is_a_text(tmp_path: Path) -> None:
    Loggers(["tensorboard"], logged(tmp_path)).close(10.0)
    (value,) = [event.summary.value[0] for event in events(tmp_path / "tensorboard") if event.HasField("summary")]
    assert (value.tag, value.metadata.plugin_data.plugin_name) == ("config", "text")
    text = value.tensor.string_val[0].decode()
    assert all(line.startswith("    ") for line in text.splitlines()), "Markdown shows it as it is"
    assert json.loads(text) == CONFIG


def test_writing_events_does_not_import_tensorflow(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from seedcli.telemetry.metrics import Snapshot;"
        "from seedcli.telemetry.loggers.registry import Loggers; from seedcli.telemetry.loggers.base import LoggedRun;"
        f"w = Loggers(['tensorboard'], LoggedRun('run', Path({str(tmp_path)!r}), {{}}));"
        "w.write(Snapshot(env_steps=1)); w.close(10.0);"
        "print('tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1
