"""Metrics and health over HTTP: the pages, and that no client can disturb the learner."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from seedcli.config.sections import NetConfig
from seedcli.errors import UsageError
from seedcli.telemetry import exporter as module
from seedcli.telemetry.device_meters import DeviceFigures
from seedcli.telemetry.exporter import CONNECTIONS, Exporter, Health, open_exporter
from seedcli.telemetry.fleet import ActorRow, State
from seedcli.telemetry.metrics import Snapshot
from seedcli.telemetry.prometheus import FIGURES, Status, render

# A different value for every field, so that a mix-up shows.
VALUES: dict[str, Any] = {
    field.name: float(1000 + number) for number, field in enumerate(dataclasses.fields(Snapshot))
} | {
    "inference_latency_ms": {"p50": 2.0, "p99": 8.0},
    "replay": {"replay_size": 500.0, "replay_mb": 1.5, "priority_max": 4.5, "epsilon_min": 0.25},
    "devices": (
        DeviceFigures("GPU:0", "training", 0.75, 10.0, 32.0, 0.125, 3.5),
        DeviceFigures("GPU:1", "inference", 0.25, 400.0, None, 0.0, 0.0),
    ),
    "extra": {"entropy": 0.5, "rho.max": 3.0, "rho max": 4.0},
}
BY_LABEL = ("devices", "replay", "extra", "inference_latency_ms")


def row(name: str, state: State = "stepping", **values: Any) -> ActorRow:
    return ActorRow(name, "10.0.0.7:5000", "grpc", 16, 100.0, 0.5, state, **{"steps": 800, **values})


class Learner:
    """The source of an exporter."""

    def __init__(self) -> None:
        self.status = Status({"preset": "cartpole_vtrace", "folder": 'runs/"x"\n'}, 5_000)
        self.now = Health("serving")

    def health(self) -> Health:
        return self.now


@pytest.fixture
def learner() -> Learner:
    return Learner()


@pytest.fixture
def exporter(learner: Learner) -> Iterator[Exporter]:
    exporter = Exporter("127.0.0.1", 0)
    exporter.start(learner)
    try:
        yield exporter
    finally:
        exporter.close()


def port(exporter: Exporter) -> int:
    return int(exporter.url.rpartition(":")[2])


def ask(exporter: Exporter, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port(exporter), timeout=10)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


def samples(text: bytes) -> dict[tuple[str, ...], float]:
    """Values by metric name and label values (in the order of label names), read by Prometheus' own parser."""
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = (sample.name, *(value for _, value in sorted(sample.labels.items())))
            assert key not in found, f"{key} is duplicated"
            found[key] = sample.value
    return found


def raw(exporter: Exporter, *pieces: bytes, end: bool = False) -> bytes:
    """Send bytes; returns everything received until the connection ends."""
    with socket.create_connection(("127.0.0.1", port(exporter)), timeout=10) as connection:
        answer = b""
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                connection.sendall(piece)
            if end:
                connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                answer += piece
        return answer


def test_every_metric_is_exported_in_base_units() -> None:
    found = samples(render(Status({}, 5_000, Snapshot(**VALUES), (row("a"), row("b", "lost")))))
    by_state = {f"actors_{state}" for state in ("stepping", "waiting", "busy", "joining", "silent", "lost")}
    covered = {figure.field for figure in FIGURES} | by_state | set(BY_LABEL)
    assert covered == {field.name for field in dataclasses.fields(Snapshot)}, "a field without a Prometheus name"
    assert len({figure.name for figure in FIGURES}) == len(FIGURES)
    for figure in FIGURES:
        name = figure.name + ("_total" if figure.kind == "counter" else "")
        assert found[name,] == pytest.approx(VALUES[figure.field] * figure.scale)
        assert (figure.kind == "counter") == (figure.field in COUNTERS), figure.field
    assert found["seed_wire_bytes_per_second",] == VALUES["wire_mb_per_second"] * 1e6
    assert found["seed_inference_latency_seconds", "0.99"] == 0.008
    assert found["seed_replay_unrolls",] == 500 and found["seed_replay_bytes",] == 1.5e6
    assert found["seed_replay_priority_max",] == 4.5 and found["seed_exploration_epsilon_min",] == 0.25
    assert found["seed_agent_entropy",] == 0.5 and found["seed_agent_rho_max",] == 3.0
    assert found["seed_run_target_steps",] == 5_000
    assert found["seed_device_utilisation_ratio", "GPU:0", "training"] == 0.75
    assert found["seed_device_batches_per_second", "GPU:1", "inference"] == 400
    assert found["seed_device_transfer_bytes_per_second", "GPU:0", "training"] == 3.5e6
    assert found["seed_device_transfer_ratio", "GPU:0", "training"] == 0.125
    rows = {key: value for key, value in found.items() if key[0] == "seed_device_batch_rows"}
    assert rows == {("seed_device_batch_rows", "GPU:0", "training"): 32}, "unknown values are left out"


COUNTERS = {
    "env_steps",
    "env_frames",
    "trained_steps",
    "learner_updates",
    "episodes",
    "evaluation_episodes",
    "dropped_updates",
    "dropped_unrolls",
    "sessions_lost",
    "protocol_errors",
    "turned_away",
    "environment_failures",
}


def test_each_actor_has_its_metrics_and_one_state() -> None:
    fleet = (row("a"), row('b"\\c', "silent", steps=7), row("c", "joining", steps=0))
    fleet = (*fleet[:2], dataclasses.replace(fleet[2], steps_per_second=None, last_seen_seconds=None))
    found = samples(render(Status(fleet=fleet)))
    assert found["seed_actor_environments", "a", "10.0.0.7:5000", "grpc"] == 16
    assert found["seed_actor_steps_total", 'b"\\c', "10.0.0.7:5000", "grpc"] == 7
    assert found["seed_actor_steps_per_second", "a", "10.0.0.7:5000", "grpc"] == 100
    assert found["seed_actor_last_seen_seconds", "a", "10.0.0.7:5000", "grpc"] == 0.5
    for name in ("seed_actor_steps_per_second", "seed_actor_last_seen_seconds"):
        assert (name, "c", "10.0.0.7:5000", "grpc") not in found
    states = {key[1]: key[3] for key, value in found.items() if key[0] == "seed_actor_state" and value == 1}
    assert states == {"a": "stepping", 'b"\\c': "silent", "c": "joining"}
    assert {key[1]: value for key, value in found.items() if key[0] == "seed_actors"} == {
        "stepping": 1, "silent": 1, "busy": 0, "joining": 1, "waiting": 0, "lost": 0
    }  # fmt: skip


def test_metrics_are_rendered_once_for_each_report(
    exporter: Exporter, learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[Status] = []
    monkeypatch.setattr(module, "render", lambda status: rendered.append(status) or render(status))
    bodies = {ask(exporter, "/metrics")[2] for _ in range(5)}
    assert len(bodies) == 1 and rendered == [learner.status]
    learner.status = dataclasses.replace(learner.status, snapshot=Snapshot(env_steps=123))
    status, headers, body = ask(exporter, "/metrics?x=1")
    assert samples(body)["seed_env_steps_total",] == 123 and len(rendered) == 2
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")


@pytest.mark.parametrize(
    ("health", "healthz", "readyz", "reason"),
    [
        (Health("starting"), 200, 503, "the learner is starting"),
        (Health("serving"), 200, 200, None),
        (Health("stopping"), 200, 503, "the learner is stopping"),
        (Health("serving", "it hangs"), 503, 503, "it hangs"),
    ],
)
def test_health_and_readiness(
    exporter: Exporter, learner: Learner, health: Health, healthz: int, readyz: int, reason: str | None
) -> None:
    learner.now = health
    for path, expected in (("/healthz", healthz), ("/readyz", readyz)):
        status, headers, body = ask(exporter, path)
        answer = json.loads(body)
        assert status == expected and headers["content-type"] == "application/json"
        assert answer["phase"] == health.phase
        assert answer.get("reason") == (reason if expected == 503 else None)
    assert json.loads(ask(exporter, "/healthz")[2])["status"] == ("failing" if health.failure else "ok")


def test_status_holds_the_snapshot_and_every_actor(exporter: Exporter, learner: Learner) -> None:
    assert json.loads(ask(exporter, "/status")[2])["snapshot"] is None
    lost = row("ä\ud800", "lost", reason="silent for 20 s")
    learner.status = Status({}, 10, Snapshot(env_steps=5, loss=float("nan")), (row("a"), lost))
    answer = json.loads(ask(exporter, "/status")[2])
    assert answer["snapshot"]["env_steps"] == 5 and answer["snapshot"]["loss"] is None
    assert answer["health"] == {"phase": "serving", "failure": ""}
    assert [(actor["state"], actor["reason"]) for actor in answer["fleet"]] == [
        ("stepping", ""),
        ("lost", "silent for 20 s"),
    ]
    assert answer["fleet"][0] == dataclasses.asdict(row("a"))


def test_only_get_and_head_and_known_addresses(exporter: Exporter) -> None:
    body = ask(exporter, "/metrics")[2]
    status, headers, nothing = ask(exporter, "/metrics", "HEAD")
    assert (status, nothing) == (200, b"") and abs(int(headers["content-length"]) - len(body)) < 50
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "get"):
        status, headers, _ = ask(exporter, "/metrics", method)
        assert status == 405 and headers["allow"] == "GET, HEAD"
    for path in ("/", "/metrics/", "/../metrics", "/%6detrics", "*"):
        status, headers, body = ask(exporter, path)
        assert status == 404 and b"/healthz" in body
    assert headers["server"].strip() == "seed", "the header names no versions"


GARBAGE = [
    b"\0" * 100 + b"\r\n\r\n",
    b"\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET /metrics HTTP/9.9\r\n\r\n",
    b"GET /metrics HTTP/1.\xb9\r\n\r\n",
    b"GET /metrics HTTP/-1.-1\r\n\r\n",
    b"GET /a b c d HTTP/1.1\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nno colon\r\n: \r\n\xff\xfe\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(300) + b"\n\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]


def test_garbage_is_answered_or_dropped_and_the_next_request_is_served(exporter: Exporter, capfd: Any) -> None:
    for piece in GARBAGE:
        answer = raw(exporter, piece)
        assert not answer or answer.startswith(b"HTTP/1.0 "), answer
        assert b"Traceback" not in answer
    assert raw(exporter, b"GET /metr", end=True) == b""
    assert ask(exporter, "/healthz")[0] == 200
    assert capfd.readouterr().err == ""


def test_a_request_head_over_the_limit_is_refused(exporter: Exporter) -> None:
    assert raw(exporter, b"GET /" + b"x" * 8192).startswith(b"HTTP/1.0 431 ")
    assert raw(exporter, b"GET / HTTP/1.1\r\n", b"a: " + b"b" * 20_000)[:13] in (b"HTTP/1.0 431 ", b"")
    assert ask(exporter, "/healthz")[0] == 200


def test_a_slow_request_times_out(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUEST_SECONDS", 0.6)
    begun = time.monotonic()
    with socket.create_connection(("127.0.0.1", port(exporter)), timeout=10) as connection:
        answer = b""
        # Single bytes do not keep the connection open.
        with contextlib.suppress(ConnectionError):
            while not answer and time.monotonic() - begun < 5:
                connection.sendall(b"x")
                connection.settimeout(0.1)
                with contextlib.suppress(TimeoutError):
                    answer = connection.recv(100)
    assert answer.startswith(b"HTTP/1.0 408 ")
    assert 0.5 < time.monotonic() - begun < 2


def test_connections_are_limited_and_freed_again(exporter: Exporter) -> None:
    threads = psutil.Process().num_threads()
    with contextlib.ExitStack() as stack:
        idle = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port(exporter)), timeout=10))
            for _ in range(CONNECTIONS)
        ]
        for connection in idle:
            connection.sendall(b"GET ")
        wait_until(lambda: len(exporter._server._open) == CONNECTIONS)
        assert raw(exporter, b"GET /healthz HTTP/1.0\r\n\r\n") == b"", "a connection over the limit is closed"
        assert psutil.Process().num_threads() <= threads + CONNECTIONS
        idle[0].sendall(b"/healthz HTTP/1.0\r\n\r\n")
        assert idle[0].recv(15) == b"HTTP/1.0 200 OK"
        wait_until(lambda: len(exporter._server._open) == CONNECTIONS - 1)
        assert ask(exporter, "/healthz")[0] == 200
    wait_until(lambda: not exporter._server._open)


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_failing_source_affects_only_its_answer(exporter: Exporter, learner: Learner) -> None:
    learner.health = lambda: 1 / 0  # type: ignore[assignment,return-value]
    assert raw(exporter, b"GET /healthz HTTP/1.0\r\n\r\n") == b""
    assert ask(exporter, "/metrics")[0] == 200


def test_closing_takes_less_than_a_second_and_frees_the_port(learner: Learner) -> None:
    exporter = Exporter("127.0.0.1", 0)
    exporter.start(learner)
    threads = {thread for thread in threading.enumerate() if thread.name == "metrics"}
    with socket.create_connection(("127.0.0.1", port(exporter)), timeout=10) as connection:
        connection.sendall(b"GET /")
        wait_until(lambda: len(exporter._server._open) == 1)
        begun = time.monotonic()
        exporter.close()
        assert time.monotonic() - begun < 1
        assert connection.recv(1) == b""
    assert not any(thread.is_alive() for thread in threads)
    exporter.close()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port(exporter)), timeout=1)
    again = Exporter("127.0.0.1", port(exporter))
    again.close()


def test_an_unavailable_port_is_a_usage_error() -> None:
    assert open_exporter(NetConfig()) is None
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"port {number} on 127.0.0.1 is in use: .* --metrics-port …") as e:
            open_exporter(NetConfig(metrics_port=number))
        assert e.value.exit_status == 2
    with pytest.raises(UsageError, match=r'net.metrics_host = "no host" is not an address'):
        Exporter("no host", 0)
    with pytest.raises(UsageError, match=r"cannot listen on port 0 of 192.0.2.1 .*net.metrics_host"):
        Exporter("192.0.2.1", 0)
