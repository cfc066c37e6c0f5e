"""The learner as a service: metrics, health and the state of its actors over HTTP, with real processes."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.system.harness import TINY, Fleet, Learner, counting, last, sets, wait_for


@pytest.fixture(autouse=True)
def own_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def metrics_port(learner: Learner) -> int:
    """The metrics port in the learner's log."""
    found = re.findall(r"metrics and health: http://127\.0\.0\.1:(\d+)/metrics", learner.stderr)
    assert len(found) == 1, learner.stderr
    return int(found[0])


def ask(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def scrape(port: int) -> dict[tuple[str, ...], float]:
    """Values by metric name and label values (in the order of label names)."""
    families = text_string_to_metric_families(ask(port, "/metrics")[1].decode())
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def actor_row(port: int, name: str) -> dict[str, Any]:
    """An actor's row in /status; {} if it has none."""
    fleet = json.loads(ask(port, "/status")[1])["fleet"]
    return next((row for row in fleet if row["actor_id"] == name), {})


def wait_for_state(port: int, name: str, state: str) -> dict[str, Any]:
    return wait_for(
        lambda: (row := actor_row(port, name)) and row["state"] == state and row, f"{name} is {state}", limit=30
    )


def test_a_learner_reports_itself_and_its_actors(fleet: Fleet) -> None:
    learner = fleet.learner(
        "--preset", "cartpole_vtrace", "--steps", "1e12", "--logdir", "run",
        *sets(*TINY, *counting(pause=0.001), "net.metrics_port=0"),
    )  # fmt: skip
    addresses = learner.wait_until_it_serves()
    port = metrics_port(learner)
    assert f"127.0.0.1:{port}/metrics" in (fleet.folder / "run" / "learner.log").read_text()
    wait_for(lambda: ask(port, "/readyz")[0] == 200, "the learner is ready", limit=10)
    assert ask(port, "/healthz") == (200, b'{"status": "ok", "phase": "serving"}\n')
    actors = {
        "steady": fleet.actor(addresses["grpc"], "--envs", "4", "--actor-id", "steady"),
        "victim": fleet.actor(addresses["zmq"], "--envs", "2", "--actor-id", "victim"),
    }
    for name in actors:
        wait_for(lambda name=name: actor_row(port, name).get("steps", 0) > 100, f"{name} steps")  # type: ignore[misc]
    steady = wait_for_state(port, "steady", "stepping")
    assert (steady["envs"], steady["transport"]) == (4, "grpc")

    # Counters rise and agree with metrics.jsonl.
    labels = ("steady", steady["address"], "grpc")
    counters = [("seed_env_steps_total",), ("seed_trained_steps_total",), ("seed_actor_steps_total", *labels)]
    before = scrape(port)
    wait_for(lambda: all(scrape(port)[key] > before[key] for key in counters), "the counters rise", limit=30)
    after = scrape(port)
    assert after["seed_env_steps_total",] <= wait_for(lambda: last(fleet.folder / "run", "env_steps"), "a line")
    assert after["seed_actor_environments", *labels] == 4
    assert (after["seed_actors_connected",], after["seed_environments",]) == (2, 6)

    # Garbage on the port has no effect.
    for garbage in (b"\0" * 50, os.urandom(3000), b"GET " + b"/" * 9000, b"POST /metrics HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(garbage)
    assert ask(port, "/healthz")[0] == 200

    actors["victim"].send(signal.SIGSTOP)
    silent = wait_for_state(port, "victim", "silent")
    assert silent["last_seen_seconds"] > 1.0 and silent["reason"] == ""
    assert scrape(port)["seed_actors", "silent"] == 1
    actors["victim"].send(signal.SIGCONT)
    wait_for_state(port, "victim", "stepping")
    actors["victim"].kill()
    lost = wait_for_state(port, "victim", "lost")
    assert lost["reason"] and lost["envs"] == 2
    found = scrape(port)
    assert found["seed_actors", "lost"] == 1 and found["seed_sessions_lost_total",] == 1
    assert found["seed_actors_connected",] == 1
    assert found["seed_actor_state", "victim", lost["address"], "lost", "zmq"] == 1
    assert last(fleet.folder / "run", "actors_lost") == 1

    learner.send(signal.SIGTERM)
    learner.ends_with(143)
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    actors["steady"].kill()


def test_a_metrics_port_in_use_leaves_no_run_folder(fleet: Fleet) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = ["--preset", "cartpole_vtrace", "--logdir", "run", "--set", f"net.metrics_port={port}"]
        for start in (fleet.learner, lambda *given: fleet.start("train", *given)):
            process = start(*options)
            process.ends_with(2)
            assert f"port {port} on 127.0.0.1 is in use" in process.sentence
            assert "--metrics-port" in process.sentence
            assert not (fleet.folder / "run").exists()
