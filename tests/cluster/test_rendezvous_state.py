"""The shared state of learner hosts that have joined, the detection of lost hosts, and invalid messages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from seedcli.cluster.messages import Run, State, Status
from seedcli.errors import ProtocolError, UsageError
from seedcli.net.frames import Kind, pack_header
from seedcli.net.security.curve import protect_client
from tests.cluster.joining import BEAT, SECURITY, TIMEOUT, Hosts, failure, free_hosts, status, wait_until
from tests.net.harness import LIMIT, TOKEN
from tests.reliability.mutations import Mutator

ROOT = Path(__file__).parents[2]


# -- shared state


def test_all_hosts_adopt_the_first_specification(held: Hosts) -> None:
    joined = held.all(3)
    barrier = threading.Barrier(3)

    def propose(index: int) -> Any:
        barrier.wait(LIMIT)
        joined[index].update(spec={"from": index, "shape": (84, 84)})
        return joined[index].wait_spec(LIMIT)

    specs = [future.result(LIMIT) for future in [held.pool.submit(propose, index) for index in range(3)]]
    assert specs[0] is not None and specs[0] == specs[1] == specs[2]
    assert specs[0]["shape"] == [84, 84]
    joined[2].update(spec={"from": "late"})
    time.sleep(5 * BEAT)
    assert all(rendezvous.wait_spec(LIMIT) == specs[0] for rendezvous in joined)


def test_a_specification_reaches_all_hosts_and_ends_waiting(held: Hosts) -> None:
    joined = held.all(2)
    assert joined[0].wait_spec(0.05) is None
    joined[1].update(spec={"name": "x"})
    assert [rendezvous.wait_spec(LIMIT) for rendezvous in joined] == [{"name": "x"}] * 2
    with pytest.raises(ProtocolError):
        joined[0].update(spec={"name": "x" * 70_000})


def test_loads_readiness_and_run_are_shared(held: Hosts) -> None:
    joined = held.all(3)
    for rendezvous in joined:
        rendezvous.update(envs=10 * (rendezvous.index + 1), ready=rendezvous.index != 1)
    run = Run(folder="/runs/x", counters={"env_steps": 7})
    joined[0].update(run=run)
    for rendezvous in joined:
        wait_until(lambda rendezvous=rendezvous: rendezvous.state.loads == (10, 20, 30))  # type: ignore[misc]
        wait_until(lambda rendezvous=rendezvous: rendezvous.state.run == run)  # type: ignore[misc]
        assert not rendezvous.state.ready
    joined[1].update(ready=True)
    for rendezvous in joined:
        wait_until(lambda rendezvous=rendezvous: rendezvous.state.ready)  # type: ignore[misc]


# -- ends


def test_the_reason_of_a_host_that_ends_is_shared(held: Hosts) -> None:
    joined = held.all(3)
    joined[1].close("out of memory")
    for rendezvous in (joined[0], joined[2]):
        wait_until(lambda rendezvous=rendezvous: bool(rendezvous.failure))  # type: ignore[misc]
        assert rendezvous.failure == f"host 1 ({rendezvous.hosts[1]}) has ended: out of memory"
    assert joined[1].failure == ""
    joined[1].close()


def test_the_reason_of_a_chief_that_ends_is_shared(held: Hosts) -> None:
    chief, other = held.all(2)
    chief.close("the disk\nis full")
    wait_until(lambda: other.failure == f"host 0 ({chief.hosts[0]}) has ended: the disk is full")


def test_a_host_that_has_finished_is_not_lost(held: Hosts) -> None:
    joined = held.all(3)
    joined[2].close()
    joined[0].close()
    time.sleep(2 * TIMEOUT)
    assert joined[1].failure == ""


def test_waiting_for_a_specification_ends_with_a_loss(held: Hosts) -> None:
    first, second = held.all(2)
    waiting = held.pool.submit(second.wait_spec, LIMIT)
    first.close("it is over")
    assert waiting.result(5.0) is None


def test_a_host_reconnects(held: Hosts) -> None:
    chief, other = held.all(2)
    other._client._lost = "cut"  # type: ignore[union-attr]
    time.sleep(2 * TIMEOUT)
    other.update(envs=5)
    wait_until(lambda: chief.state.loads == (0, 5))
    assert chief.failure == other.failure == ""


def test_a_restarted_chief_rejects_hosts_of_the_earlier_rendezvous(
    held: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    chief, other = held.all(2)
    assert chief.server is not None
    monkeypatch.setattr(chief.server, "_send", lambda *, ended=False: None)  # as if it had been killed
    chief.close()
    again = held.start(list(chief.hosts), 0, timeout=TIMEOUT + 1)
    assert "host 1" in failure(again, UsageError)
    wait_until(lambda: bool(other.failure))  # on a busy machine it counts less time than has passed
    assert "host 0" in other.failure and "has not been heard" in other.failure


HOST = """
import sys
from seedcli.cluster import rendezvous_server
from seedcli.cluster.rendezvous import Rendezvous
from seedcli.net.security.keys import Security
from seedcli.net.security.token import Token
from tests.cluster.joining import BEAT, TIMEOUT, status
rendezvous_server.HEARTBEAT_SECONDS, rendezvous_server.HEARTBEAT_TIMEOUT_SECONDS = BEAT, TIMEOUT
hosts, index = sys.argv[1].split(","), int(sys.argv[2])
Rendezvous(hosts, status(index), Security(Token(sys.argv[3], "argv"))).join(20.0)
print("joined", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def process() -> Iterator[Callable[[list[str], int], subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []

    def start(hosts: list[str], index: int) -> subprocess.Popen[str]:
        arguments = [sys.executable, "-c", HOST, ",".join(hosts), str(index), TOKEN]
        processes.append(
            subprocess.Popen(arguments, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        return processes[-1]

    yield start
    for each in processes:
        each.kill()
        each.communicate(timeout=LIMIT)


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_host_that_dies_or_stalls_is_detected(held: Hosts, process: Any, victim: int, number: signal.Signals) -> None:
    hosts = free_hosts(3)
    child = process(hosts, victim)
    others = [held.start(hosts, index) for index in range(3) if index != victim]
    joined = [future.result(LIMIT) for future in others]
    assert child.stdout.readline() == "joined\n"
    os.kill(child.pid, number)
    begun = time.monotonic()
    for rendezvous in joined:
        wait_until(lambda rendezvous=rendezvous: bool(rendezvous.failure), 3 * TIMEOUT)  # type: ignore[misc]
        assert f"host {victim} ({hosts[victim]}) has not been heard" in rendezvous.failure
    assert time.monotonic() - begun > TIMEOUT - 2 * BEAT


def test_malformed_messages_are_rejected() -> None:
    sent: list[Status | State] = [
        status(1, a__b=1.5),
        status(1).model_copy(update={"config": None, "envs": 3, "spec": {"x": 1}, "ready": True}),
        status(1).model_copy(update={"ended": "x", "usage": True, "run": Run(folder="/x")}),
        State(missing=(1,), taken=False, failure="x"),
        State(missing=(), hosts=(status(0).addresses,), loads=(3, 4), spec={}, run=Run(folder="/x", counters={"a": 1})),
    ]
    mutator = Mutator(7)
    taken, thrown_away = Counter[int](), Counter[int]()
    for _ in range(6000):
        which = mutator.random.randrange(len(sent))
        body = sent[which].model_dump_json().encode()
        body = mutator.json(body) if mutator.random.random() < 0.8 else mutator.noise(body)
        try:
            message = type(sent[which]).parse(body)
            taken[which] += 1
        except ProtocolError as error:
            assert str(error).isprintable()
            thrown_away[which] += 1
            continue
        if isinstance(message, State):
            assert message.failure.isprintable() and all(0 <= envs <= 2**40 for envs in message.loads)
        else:
            assert (message.ended or "").isprintable() and 0 <= message.envs <= 2**40 and 0 <= message.index <= 1024
    for which in range(len(sent)):
        assert taken[which] > 10 and thrown_away[which] > 100


@pytest.mark.parametrize("body", [b"", b"x", b"{}", b"[]", b"\xff" * 100, json.dumps({"index": 1}).encode()])
@pytest.mark.parametrize("framed", [True, False])
def test_malformed_messages_of_an_authenticated_peer_affect_no_host(held: Hosts, body: bytes, framed: bool) -> None:
    hosts = free_hosts(2)
    chief = held.start(hosts, 0)
    with zmq.Context() as context, context.socket(zmq.DEALER) as intruder:
        intruder.setsockopt(zmq.LINGER, 0)
        protect_client(intruder, SECURITY)
        intruder.connect(f"tcp://{hosts[0]}")
        for _ in range(10):
            intruder.send_multipart([pack_header(Kind.HELLO, len(body)), body] if framed else [body])
        intruder.send_multipart([body, body])
        other = held.start(hosts, 1)
        assert other.result(LIMIT).failure == chief.result(LIMIT).failure == ""
