"""When a learner is healthy, and the metrics of its actors."""

from __future__ import annotations

import io
import json
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from seedcli.config.schema import make_config
from seedcli.net.base import Peer
from seedcli.roles.learner.reporting import TURN_SECONDS, Reporter
from seedcli.roles.run_folder import RunFolder
from seedcli.serving.sessions import LostSession, Session
from seedcli.telemetry.exporter import Health
from seedcli.telemetry.live import PlainView
from seedcli.telemetry.metrics import COUNTERS


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


@pytest.fixture
def learner(clock: Clock) -> Any:
    """The parts of a learner that the reporter reads before there is an agent."""
    service = SimpleNamespace(
        last_turn=clock.now,
        lost_sessions=deque(),
        sessions=list,
        handshakes=SimpleNamespace(in_progress=dict),
        turned_away=0,
        sessions_lost=0,
        protocol_errors=0,
        environment_failures=0,
        settings=SimpleNamespace(timeout_seconds=20.0),
    )
    return SimpleNamespace(
        config=make_config(),
        service=service,
        core=None,
        team=None,
        failure=None,
        start_counters=dict.fromkeys(COUNTERS, 0),
    )


@pytest.fixture
def reporter(learner: Any, tmp_path: Path) -> Any:
    folder = RunFolder.create(tmp_path / "run", "")
    reporter = Reporter(learner, folder, PlainView(Console(file=io.StringIO())), resumed_at=None)
    yield reporter
    reporter.close()
    folder.close()


def test_stalled_inference_thread_is_unhealthy(reporter: Reporter, learner: Any, clock: Clock) -> None:
    reporter.enter("serving")
    # Updates may take minutes: only the inference thread must make progress.
    for _ in range(10):
        clock.now += TURN_SECONDS - 1
        assert reporter.health() == Health("serving")
        learner.service.last_turn = clock.now
    clock.now += TURN_SECONDS + 5
    assert reporter.health() == Health("serving", "the inference thread has been stalled for 35 s")
    learner.service.last_turn = clock.now
    assert reporter.health() == Health("serving")


def test_inference_thread_may_be_idle_before_and_after_serving(reporter: Reporter, clock: Clock) -> None:
    clock.now += 10 * TURN_SECONDS
    assert reporter.health() == Health("starting")
    reporter.enter("serving")
    assert reporter.health() == Health("serving"), "the start-up time does not count"
    reporter.enter("stopping")
    clock.now += 10 * TURN_SECONDS
    assert reporter.health() == Health("stopping")


def test_a_failed_thread_is_named(reporter: Reporter, learner: Any) -> None:
    reporter.enter("serving")
    learner.failure = ValueError("no such slot")
    assert reporter.health().failure == "a thread has failed: no such slot"
    learner.failure = MemoryError()
    assert reporter.health().failure == "a thread has failed: MemoryError"


def test_a_report_replaces_the_status_as_a_whole(reporter: Reporter, learner: Any, clock: Clock) -> None:
    first = reporter.status
    assert first.snapshot is None and first.total_steps == learner.config.run.steps
    peer = Peer("zmq", b"1", "10.0.0.7")
    stream: Any = SimpleNamespace(num_envs=3, pending=False)
    learner.service.sessions = lambda: [Session(1, "in", peer, [stream], last_seen=clock.now, moved=clock.now)]
    learner.service.lost_sessions.append(
        LostSession("gone", peer, 4, 100, "silent for 20 s", clock.now - 20, clock.now)
    )
    learner.service.sessions_lost = 1
    reporter.enter("serving")
    clock.now += 2
    learner.service.last_turn = clock.now
    snapshot = reporter.report()
    assert first.snapshot is None, "a status that was read does not change"
    assert reporter.status.snapshot is snapshot and reporter.status.run is first.run
    assert {row.actor_id: row.state for row in reporter.status.fleet} == {"gone": "lost", "in": "stepping"}
    assert reporter.status.turn_seconds == 0.0
    line = json.loads((reporter._folder.path / "metrics.jsonl").read_text())
    assert (line["actors"], line["actors_stepping"], line["actors_lost"], line["sessions_lost"]) == (1, 1, 1, 1)
    assert line["envs"] == 3, "environments of a lost actor are not counted"
    assert "gone" not in json.dumps(line), "metrics.jsonl has counts, not rows"


@pytest.mark.parametrize(("last_seconds", "rate"), [(0.0, 50.0), (0.5, 50.0), (2.0, 150.0)])
def test_the_time_to_stop_is_no_part_of_the_last_rates(
    reporter: Reporter, learner: Any, clock: Clock, last_seconds: float, rate: float
) -> None:
    reporter.enter("serving")
    clock.now += 2
    learner.service.last_turn = clock.now
    learner.start_counters["env_steps"] += 100
    assert reporter.report().env_steps_per_second == 50.0
    clock.now += last_seconds
    learner.start_counters["env_steps"] += round(150 * last_seconds)
    reporter.training_ended()
    reporter.enter("stopping")
    clock.now += 60
    learner.start_counters["env_steps"] += 7
    last = reporter.report()
    assert last.env_steps_per_second == rate
    assert last.env_steps == 107 + round(150 * last_seconds), "steps made meanwhile are counted"


def test_a_run_that_stops_before_its_first_line_has_a_line(reporter: Reporter) -> None:
    reporter.training_ended()
    reporter.enter("stopping")
    assert reporter.report().env_steps_per_second == 0.0


def test_a_run_that_fails_before_its_first_line_has_a_line_without_rates(reporter: Reporter) -> None:
    reporter.enter("stopping")
    assert reporter.report().env_steps_per_second is None


def test_devices_are_reported_from_the_profiles_of_their_threads() -> None:
    import numpy as np
    import tensorflow as tf

    from seedcli.agents.base import AlgorithmSpec
    from seedcli.roles.learner.device_report import DeviceReport
    from seedcli.specs import ActionSpec, ArraySpec, EnvSpec
    from seedcli.telemetry.device_meters import DeviceFigures, DeviceMeter
    from seedcli.telemetry.metrics import Profile

    prefetch, meter = Profile(), DeviceMeter("GPU:3", "inference", busy=1.0, batches=8, rows=80)
    core: Any = SimpleNamespace(
        agent=SimpleNamespace(
            network=SimpleNamespace(variables=[tf.Variable(0.0)]),
            algorithm=AlgorithmSpec("test", 0, 4, "queue", {"logits": ArraySpec((3,), "float32")}),
            initial_state=lambda batch: {"core": np.zeros((batch, 10), np.float32)},
        ),
        spec=EnvSpec("test/env", ArraySpec((7,), "uint8"), ActionSpec((3,))),
        source=SimpleNamespace(profiles={"prefetch thread": prefetch}),
        policy=SimpleNamespace(devices=[SimpleNamespace(meter=meter)], version=6, publish_every=4),
        trainer=SimpleNamespace(updates=1009),
        local_batch_size=1000,
    )
    report = DeviceReport(core)
    prefetch.add("transfer", 0.5)
    # 5 records of 7 bytes, reward, two flags, action and logits; the state and a weight.
    unroll = 5 * (7 + 4 + 2 + 4 + 12) + 40 + 4
    training, inference = report.sample(10, {"training": 1.5, "waiting": 9.0}, 2.0)
    assert training == DeviceFigures(training.device, "training", 0.75, 5.0, 1000.0, 0.25, unroll * 10_000 / 2 / 1e6)
    assert inference == DeviceFigures("GPU:3", "inference", 0.5, 4.0, 10.0, 0.0, 0.0)
    training, inference = report.sample(0, {"training": 1.5}, 2.0)
    assert training.utilisation == 0.0 and training.batch_rows is None, "a resumed run's updates were never counted"
    assert report.weights_age == 1003
    core.policy.publish_every = 1
    assert report.weights_age is None
