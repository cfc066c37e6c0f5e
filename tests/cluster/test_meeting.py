"""Learner hosts that meet: over real sockets, with a real token, in threads and in processes that die."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import zmq

from seedcli.cluster.meeting import Door, Introduction, Meeting, MeetingCancelled, meet
from seedcli.cluster.meeting_chief import Chief
from seedcli.cluster.meeting_member import Member
from seedcli.errors import DistrustedError, ProtocolError, SeedError, UnreachableError, UsageError
from seedcli.net.security.curve import protect_client
from seedcli.net.security.keys import Security
from seedcli.serving import admission_control as doorman
from seedcli.serving.admission_control import Doorman
from tests.net.harness import LIMIT, TOKEN
from tests.net.protected import MINE, OTHER
from tests.reliability.mutations import Mutator

ROOT = Path(__file__).parents[2]
SECURITY = Security(MINE)
QUICK = {"beat_seconds": 0.1, "silence_seconds": 1.5}


def free_hosts(count: int) -> list[str]:
    """Addresses of so many hosts; the port of the first is one that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [f"127.0.0.1:{port}", *(f"127.0.0.{index + 1}:{port}" for index in range(1, count))]


def introduction(index: int, version: str = "1.0", **config: Any) -> Introduction:
    values = {"training.batch_size": 32, "topology.hosts": ("a:1", "b:1"), "topology.host_index": index}
    return Introduction(
        config=values | {key.replace("__", "."): value for key, value in config.items()},
        version=version,
        tensorflow=f"127.0.0.1:{9000 + index}",
        actors={"grpc": f"127.0.0.1:{8000 + index}", "zmq": f"127.0.0.1:{8100 + index}"},
        folder="/runs/x" if index == 0 else "",
    )


class Hosts:
    """Meetings that are held in threads, and closed in the end."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(8)
        self.futures: list[Future[Meeting]] = []
        self.stop = threading.Event()

    def start(self, hosts: list[str], index: int, said: Introduction | None = None, **options: Any) -> Future[Meeting]:
        arguments: dict[str, Any] = {"security": SECURITY, "timeout": LIMIT, "stopped": self.stop.is_set}
        arguments |= QUICK | options
        future = self.pool.submit(meet, hosts, index, said or introduction(index), **arguments)
        self.futures.append(future)
        return future

    def all(self, count: int) -> list[Meeting]:
        hosts = free_hosts(count)
        futures = [self.start(hosts, index) for index in reversed(range(count))]
        return [future.result(LIMIT) for future in reversed(futures)]


@pytest.fixture
def held() -> Iterator[Hosts]:
    before = threading.active_count()
    hosts = Hosts()
    yield hosts
    hosts.stop.set()
    meetings = [future.result() for future in hosts.futures if future.exception(LIMIT) is None]
    for closed in [hosts.pool.submit(meeting.close) for meeting in meetings]:
        closed.result(LIMIT)
    hosts.pool.shutdown()
    wait_until(lambda: threading.active_count() <= before)


def wait_until(happened: Callable[[], bool], seconds: float = LIMIT) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it has not happened in time"
        time.sleep(0.01)


def failure(future: Future[Meeting], kind: type[BaseException]) -> str:
    with pytest.raises(kind) as caught:
        future.result(LIMIT)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- meeting


def test_three_hosts_know_each_other(held: Hosts) -> None:
    meetings = held.all(3)
    for index, meeting in enumerate(meetings):
        assert (meeting.index, meeting.lost, meeting.spec, meeting.told) == (index, "", None, {})
        for other, said in enumerate(meeting.introductions):
            expected = introduction(other)
            assert said.actors == expected.actors and said.tensorflow == expected.tensorflow
            assert said.folder == expected.folder
            # Values of its own as it has said them, the others as agreed; tuples travel as lists.
            assert said.config == expected.config | {"topology.hosts": ["a:1", "b:1"]}


def test_one_host_alone_need_not_wait() -> None:
    with meet(free_hosts(1), 0, introduction(0), security=SECURITY, timeout=LIMIT) as meeting:
        assert len(meeting.introductions) == 1


def test_without_a_token_where_all_are_insecure(held: Hosts) -> None:
    hosts = free_hosts(2)
    futures = [held.start(hosts, index, security=None) for index in range(2)]
    assert [future.result(LIMIT).lost for future in futures] == ["", ""]


@pytest.mark.parametrize("theirs", [Security(OTHER), None], ids=["another token", "none"])
def test_who_has_not_the_token_stays_outside(held: Hosts, theirs: Security | None) -> None:
    hosts = free_hosts(2)
    chief = held.start(hosts, 0)
    sentence = failure(held.start(hosts, 1, security=theirs), DistrustedError)
    assert hosts[0] in sentence and ("token" in sentence or "--insecure" in sentence)
    held.stop.set()
    failure(chief, MeetingCancelled)


def test_a_stranger_cannot_say_anything(held: Hosts) -> None:
    hosts = free_hosts(2)
    chief = held.start(hosts, 0, timeout=2.0)
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.connect(f"tcp://{hosts[0]}")
        said = introduction(1).to_dict() | {"config": introduction(1).config | {"training.batch_size": 64}}
        stranger.send(json.dumps({"kind": "introduce", "index": 1, "introduction": said}).encode())
        # A host that holds the token would have been refused by name of the key.
        assert "did not come" in failure(chief, UsageError)
        assert not stranger.poll(0)


# -- what cannot go well


def test_a_difference_is_named_on_both_sides(held: Hosts, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    hosts = free_hosts(3)
    futures = [held.start(hosts, index) for index in range(2)]
    wait_until(lambda: f"host 1 ({hosts[1]}) has come" in caplog.text)  # later, it would find nobody any more
    other = held.start(hosts, 2, introduction(2, training__batch_size=64, telemetry__x=1, net__host="::"))
    sentences = {failure(future, UsageError) for future in (*futures, other)}
    (sentence,) = sentences
    assert f"host 2 ({hosts[2]}) has training.batch_size = 64 and host 0 ({hosts[0]}) has 32" in sentence


def test_what_may_differ_does(held: Hosts) -> None:
    hosts = free_hosts(2)
    own: dict[str, Any] = {"net__host": "10.0.0.2", "net__grpc_port": 1, "net__token_file": "t", "net__tls_ca": "c"}
    own |= {"net__metrics_port": 5, "telemetry__interval": 3.0}
    chief, other = held.start(hosts, 0), held.start(hosts, 1, introduction(1, **own))
    assert chief.result(LIMIT).introductions[1].config["net.host"] == "10.0.0.2"
    assert "net.host" not in other.result(LIMIT).introductions[0].config


def test_a_key_that_one_side_has_not(held: Hosts) -> None:
    hosts = free_hosts(2)
    chief, other = held.start(hosts, 0), held.start(hosts, 1, introduction(1, agent__width=3))
    for future in (chief, other):
        assert "agent.width = 3 and host 0" in failure(future, UsageError)


def test_another_version(held: Hosts) -> None:
    hosts = free_hosts(2)
    chief, other = held.start(hosts, 0), held.start(hosts, 1, introduction(1, "2.0"))
    for future in (chief, other):
        assert "runs seedcli 2.0 and host 0" in failure(future, UsageError)


def test_a_host_that_does_not_come_is_named_everywhere(held: Hosts) -> None:
    hosts = free_hosts(3)
    other = held.start(hosts, 2)
    chief = held.start(hosts, 0, timeout=1.5)
    for future in (chief, other):
        sentence = failure(future, UsageError)
        assert f"topology.host_timeout = 1.5 s: host 1 ({hosts[1]}) did not come" in sentence


def test_a_chief_that_is_not_there(held: Hosts) -> None:
    hosts = free_hosts(2)
    assert f"host 0 ({hosts[0]}) does not answer" in failure(held.start(hosts, 1, timeout=0.5), UnreachableError)
    unknown = ["no-such-host.invalid:1", hosts[0]]
    assert "no-such-host" in failure(held.start(unknown, 1, timeout=0.5), UnreachableError)


def test_two_hosts_of_one_number(held: Hosts) -> None:
    hosts = free_hosts(3)
    futures = [held.start(hosts, index) for index in (0, 1, 1)]
    for future in futures:
        assert f"two hosts say that they are host 1 ({hosts[1]})" in failure(future, UsageError)


def test_two_chiefs(held: Hosts) -> None:
    hosts = free_hosts(2)
    futures = [held.start(hosts, 0), held.start(hosts, 0)]
    wait_until(lambda: any(future.done() for future in futures))
    held.stop.set()
    (sentence,) = [str(future.exception(LIMIT)) for future in futures if isinstance(future.exception(), UsageError)]
    assert "is in use: another process is host 0 already" in sentence


@pytest.mark.parametrize("address", ["192.0.2.7:9999", "no-such-host.invalid:9999"])
def test_an_address_that_is_not_the_chiefs(held: Hosts, address: str) -> None:
    assert "topology.host_index = 0" in failure(held.start([address, "b:1"], 0), UsageError)


def test_a_number_there_is_no_host_of(held: Hosts) -> None:
    hosts = free_hosts(2)
    chief, other = held.start(hosts, 0), held.start(hosts, 5)
    for future in (chief, other):
        assert "topology.host_index = 5 of one host must be from 1 to 1" in failure(future, UsageError)


def test_waiting_can_be_stopped_and_the_others_hear_of_it(held: Hosts) -> None:
    hosts = free_hosts(3)
    stop = threading.Event()
    chief = held.start(hosts, 0, stopped=stop.is_set)
    other = held.start(hosts, 1)
    time.sleep(0.5)
    begun = time.monotonic()
    stop.set()
    failure(chief, MeetingCancelled)
    assert "host 0" in failure(other, UnreachableError)
    assert time.monotonic() - begun < 5


def test_one_that_was_stopped_while_waiting_may_come_again(held: Hosts) -> None:
    hosts = free_hosts(3)
    stop = threading.Event()
    chief, first = held.start(hosts, 0), held.start(hosts, 1, stopped=stop.is_set)
    time.sleep(0.5)
    stop.set()
    failure(first, MeetingCancelled)
    others = [held.start(hosts, index) for index in (1, 2)]
    assert all(len(future.result(LIMIT).introductions) == 3 for future in (chief, *others))


def test_what_is_too_large_to_say() -> None:
    large = introduction(0, agent__x="x" * 70_000)
    with pytest.raises(UsageError, match="cannot be introduced"):
        meet(free_hosts(2), 0, large, security=SECURITY, timeout=1.0)


def ended(visitor: socket.socket) -> bool:
    """Whether the other end closes the connection."""
    try:
        return visitor.recv(1000)[-1:] == b"" or ended(visitor)  # ZeroMQ greets
    except ConnectionError:
        return True


def listens(address: str) -> bool:
    with socket.socket() as probe:
        host, port = address.split(":")
        return probe.connect_ex((host, int(port))) == 0


@pytest.mark.parametrize("security", [SECURITY, None], ids=["token", "insecure"])
def test_strangers_at_the_chiefs_port_are_ended_and_hosts_stay(
    held: Hosts, monkeypatch: pytest.MonkeyPatch, security: Security | None
) -> None:
    monkeypatch.setattr(doorman, "PROOF_SECONDS", 3.0)
    monkeypatch.setattr(doorman, "STRANGERS", 8)
    hosts = free_hosts(2)
    door, address = Door(hosts[0]), tuple(hosts[0].split(":"))
    with contextlib.closing(Doorman([door], time.monotonic)) as guard, contextlib.ExitStack() as stack:
        chief = held.start(hosts, 0, door=door, security=security)
        wait_until(lambda: listens(hosts[0]))

        def visit() -> socket.socket:
            visitor = stack.enter_context(socket.create_connection(address, LIMIT))
            visitor.settimeout(LIMIT)
            return visitor

        strangers = [visit() for _ in range(12)]
        wait_until(lambda: guard.ended >= 4)  # of 12 that came at once, whichever
        strangers += [visit() for _ in range(8)]
        begun = time.monotonic()
        assert all(map(ended, strangers[:12])) and time.monotonic() - begun < 2.5  # there were too many, the oldest go
        both = chief, held.start(hosts, 1, security=security)
        meetings = [future.result(LIMIT) for future in both]
        assert all(map(ended, strangers[12:])) and time.monotonic() - begun > 2.5
        wait_until(lambda: guard.strangers == 0)
        count = guard.ended
        time.sleep(3.5)
        # The connection of the host is as old as any of theirs was, and stands.
        assert guard.ended == count and not any(meeting.lost for meeting in meetings)


# -- what they agree on


def test_the_first_proposal_is_everybodys(held: Hosts) -> None:
    meetings = held.all(3)
    barrier = threading.Barrier(3)

    def propose(index: int) -> dict[str, Any] | None:
        barrier.wait(LIMIT)
        meetings[index].propose_spec({"from": index, "shape": (84, 84)})
        return meetings[index].wait_spec(LIMIT)

    specs = [future.result(LIMIT) for future in [held.pool.submit(propose, index) for index in range(3)]]
    assert specs[0] is not None and specs[0] == specs[1] == specs[2]
    assert specs[0]["shape"] == [84, 84]
    meetings[2].propose_spec({"from": "late"})
    assert meetings[2].wait_spec(LIMIT) == specs[0]


def test_a_proposal_of_one_reaches_all_and_waiting_ends(held: Hosts) -> None:
    meetings = held.all(2)
    assert meetings[0].wait_spec(0.05) is None
    meetings[1].propose_spec({"name": "x"})
    assert [meeting.wait_spec(LIMIT) for meeting in meetings] == [{"name": "x"}] * 2
    with pytest.raises(ProtocolError):
        meetings[0].propose_spec({"name": "x" * 70_000})


def test_loads_and_what_the_chief_tells(held: Hosts) -> None:
    meetings = held.all(3)
    for meeting in meetings:
        meeting.report(10 * (meeting.index + 1))
    meetings[0].tell({"env_steps": 7})
    for meeting in meetings:
        wait_until(lambda meeting=meeting: meeting.loads == {0: 10, 1: 20, 2: 30})  # type: ignore[misc]
        wait_until(lambda meeting=meeting: meeting.told == {"env_steps": 7})  # type: ignore[misc]
    meetings[0].tell({"env_steps": 8})
    wait_until(lambda: meetings[2].told == {"env_steps": 8})


# -- ends


def test_who_ends_says_why(held: Hosts) -> None:
    meetings = held.all(3)
    meetings[1].close("out of memory")
    for meeting in (meetings[0], meetings[2]):
        wait_until(lambda meeting=meeting: bool(meeting.lost))  # type: ignore[misc]
        assert meeting.lost.startswith(f"host 1 ({meeting.hosts[1]}) has ended: out of memory")
    assert meetings[1].lost == ""
    meetings[1].close()


def test_who_has_done_everything_is_not_missed(held: Hosts) -> None:
    meetings = held.all(3)
    meetings[2].close()
    meetings[0].close()
    time.sleep(2 * QUICK["silence_seconds"])
    assert meetings[1].lost == ""


def test_a_block_that_fails_says_why(held: Hosts) -> None:
    first, second = held.all(2)
    with contextlib.suppress(SeedError), first:
        raise SeedError("the disk is full")
    wait_until(lambda: "the disk is full" in second.lost)


def test_waiting_for_a_specification_ends_with_a_loss(held: Hosts) -> None:
    first, second = held.all(2)
    waiting = held.pool.submit(second.wait_spec, LIMIT)
    first.close("it is over")
    assert waiting.result(5.0) is None


HOST = """
import sys, threading
from seedcli.cluster.meeting import meet
from seedcli.net.security.keys import Security
from seedcli.net.security.token import Token
from tests.cluster.test_meeting import QUICK, introduction
hosts, index = sys.argv[1].split(","), int(sys.argv[2])
security = Security(Token(sys.argv[3], "argv"))
meeting = meet(hosts, index, introduction(index), security=security, timeout=20.0, **QUICK)
print("met", flush=True)
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
def test_a_host_that_dies_or_hangs_is_found(held: Hosts, process: Any, victim: int, number: signal.Signals) -> None:
    hosts = free_hosts(3)
    child = process(hosts, victim)
    others = [held.start(hosts, index) for index in range(3) if index != victim]
    meetings = [future.result(LIMIT) for future in others]
    assert child.stdout.readline() == "met\n"
    os.kill(child.pid, number)
    begun = time.monotonic()
    for meeting in meetings:
        wait_until(lambda meeting=meeting: bool(meeting.lost), 3 * QUICK["silence_seconds"])  # type: ignore[misc]
        assert f"host {victim} ({hosts[victim]}) has not been heard" in meeting.lost
    assert time.monotonic() - begun > QUICK["silence_seconds"] - 2 * QUICK["beat_seconds"]


def test_of_garbage_only_what_is_well_formed_is_taken() -> None:
    options: dict[str, Any] = {"beat_seconds": 1.0, "silence_seconds": 10.0}
    hosts = free_hosts(2)
    sides = [Chief(hosts, 0, introduction(0), None, **options), Member(hosts, 1, introduction(1), None, **options)]
    for side in sides:
        side._send = lambda *parts: None  # type: ignore[method-assign]  # they have not begun: there is no socket
    said: list[dict[str, Any]] = [
        {"kind": "introduce", "index": 1, "introduction": introduction(1).to_dict()},
        {"kind": "beat", "envs": 3, "spec": {"x": 1}},
        {"kind": "beat", "loads": {"0": 1}, "lost": ""},
        {"kind": "ended", "reason": "x", "usage": True},
        {"kind": "wait", "missing": [1], "taken": False},
        {"kind": "host", "index": 1, "introduction": introduction(1).to_dict()},
        {"kind": "spec", "value": {}},
        {"kind": "told", "value": {}},
    ]
    mutator = Mutator(7)
    taken, thrown_away = Counter[str](), Counter[str]()
    for _ in range(6000):
        message = mutator.random.choice(said)
        body = json.dumps(message).encode()
        body = mutator.json(body) if mutator.random.random() < 0.8 else mutator.noise(body)
        guest = mutator.random.choice([b"guest", b"another"])
        for side, parts in zip(sides, ([guest, body], [body]), strict=True):
            try:
                side._take(parts, time.monotonic())
                taken[message["kind"]] += 1
            except ProtocolError as error:
                assert "\n" not in str(error)
                thrown_away[message["kind"]] += 1
    for message in said:
        assert taken[message["kind"]] > 10 and thrown_away[message["kind"]] > 100
    for side in sides:
        assert set(side.loads) <= {0, 1} and all(0 <= envs <= 2**40 for envs in side.loads.values())
        assert "\n" not in side.lost
        side.close()


@pytest.mark.parametrize("body", [b"", b"x", b"{}", b"[]", b"\xff" * 100, b'{"kind":"introduce"}'])
def test_a_peer_that_holds_the_token_and_speaks_nonsense_harms_nobody(held: Hosts, body: bytes) -> None:
    hosts = free_hosts(2)
    chief = held.start(hosts, 0)
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.setsockopt(zmq.LINGER, 0)
        protect_client(stranger, SECURITY)
        stranger.connect(f"tcp://{hosts[0]}")
        for _ in range(10):
            stranger.send(body)
        stranger.send_multipart([body, body])
        other = held.start(hosts, 1)
        assert other.result(LIMIT).lost == chief.result(LIMIT).lost == ""
