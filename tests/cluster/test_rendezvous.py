"""Learner hosts at the rendezvous: over real sockets, with a real token, in threads and in processes that die."""

from __future__ import annotations

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
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import zmq

from seedcli.cluster import rendezvous_server
from seedcli.cluster.messages import Addresses, Run, State, Status
from seedcli.cluster.rendezvous import Rendezvous, RendezvousCancelled
from seedcli.errors import DistrustedError, ProtocolError, UnreachableError, UsageError
from seedcli.net.frames import Kind, pack_header
from seedcli.net.security.curve import protect_client
from seedcli.net.security.keys import Security
from seedcli.serving import admission_control
from tests.net.harness import LIMIT, TOKEN
from tests.net.protected import MINE, OTHER
from tests.reliability.mutations import Mutator

ROOT = Path(__file__).parents[2]
SECURITY = Security(MINE)
BEAT, SILENCE = 0.1, 1.5


def free_hosts(count: int) -> list[str]:
    """Addresses of so many hosts; the port of the first is one that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [f"127.0.0.1:{port}", *(f"127.0.0.{index + 1}:{port}" for index in range(1, count))]


def status(index: int, version: str = "1.0", **config: Any) -> Status:
    values = {"training.batch_size": 32, "topology.hosts": ("a:1", "b:1"), "topology.host_index": index}
    return Status(
        index=index,
        process=os.urandom(8).hex(),
        version=version,
        addresses=Addresses(
            tensorflow=f"127.0.0.1:{9000 + index}",
            actors={"grpc": f"127.0.0.1:{8000 + index}", "zmq": f"127.0.0.1:{8100 + index}"},
        ),
        config=values | {key.replace("__", "."): value for key, value in config.items()},
    )


class Hosts:
    """Hosts in threads, which leave in the end."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(8)
        self.futures: list[Future[Rendezvous]] = []
        self.stop = threading.Event()

    def start(self, hosts: list[str], index: int, own: Status | None = None, **options: Any) -> Future[Rendezvous]:
        future = self.pool.submit(self._join, hosts, own or status(index), **options)
        self.futures.append(future)
        return future

    def _join(
        self,
        hosts: list[str],
        own: Status,
        *,
        security: Security | None = SECURITY,
        timeout: float = LIMIT,
        stopped: Callable[[], bool] | None = None,
    ) -> Rendezvous:
        return Rendezvous(hosts, own, security, stopped or self.stop.is_set).join(timeout)

    def all(self, count: int) -> list[Rendezvous]:
        hosts = free_hosts(count)
        futures = [self.start(hosts, index) for index in reversed(range(count))]
        return [future.result(LIMIT) for future in reversed(futures)]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    monkeypatch.setattr(rendezvous_server, "BEAT_SECONDS", BEAT)
    monkeypatch.setattr(rendezvous_server, "SILENCE_SECONDS", SILENCE)
    before = threading.active_count()
    hosts = Hosts()
    yield hosts
    hosts.stop.set()
    joined = [future.result() for future in hosts.futures if future.exception(LIMIT) is None]
    for closed in [hosts.pool.submit(rendezvous.close) for rendezvous in joined]:
        closed.result(LIMIT)
    hosts.pool.shutdown()
    wait_until(lambda: threading.active_count() <= before)


def wait_until(happened: Callable[[], bool], seconds: float = LIMIT) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it has not happened in time"
        time.sleep(0.01)


def failure(future: Future[Rendezvous], kind: type[BaseException]) -> str:
    with pytest.raises(kind) as caught:
        future.result(LIMIT)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- joining


def test_three_hosts_know_each_other(held: Hosts) -> None:
    for index, rendezvous in enumerate(held.all(3)):
        state = rendezvous.state
        assert (rendezvous.index, rendezvous.failure, state.spec, state.run, state.ready) == (
            index,
            "",
            None,
            None,
            False,
        )
        assert state.hosts == tuple(status(other).addresses for other in range(3)) and state.missing == ()


def test_one_host_alone_need_not_wait(held: Hosts) -> None:
    assert len(held.all(1)[0].state.hosts) == 1


def test_without_a_token_where_all_are_insecure(held: Hosts) -> None:
    hosts = free_hosts(2)
    futures = [held.start(hosts, index, security=None) for index in range(2)]
    assert [future.result(LIMIT).failure for future in futures] == ["", ""]


@pytest.mark.parametrize("theirs", [Security(OTHER), None], ids=["another token", "none"])
def test_a_host_without_the_token_is_refused(held: Hosts, theirs: Security | None) -> None:
    hosts = free_hosts(2)
    chief = held.start(hosts, 0)
    sentence = failure(held.start(hosts, 1, security=theirs), DistrustedError)
    assert hosts[0] in sentence and ("token" in sentence or "--insecure" in sentence)
    held.stop.set()
    failure(chief, RendezvousCancelled)


def test_an_unauthenticated_peer_is_not_heard(held: Hosts) -> None:
    hosts = free_hosts(2)
    chief = held.start(hosts, 0, timeout=2.0)
    with zmq.Context() as context, context.socket(zmq.DEALER) as intruder:
        intruder.setsockopt(zmq.LINGER, 0)
        intruder.connect(f"tcp://{hosts[0]}")
        body = status(1, training__batch_size=64).model_dump_json().encode()
        intruder.send_multipart([pack_header(Kind.HELLO, len(body)), body])
        # A host that holds the token would have been refused by name of the key.
        assert "did not come" in failure(chief, UsageError)
        assert not intruder.poll(0)


# -- what cannot go well


def test_a_difference_is_named_on_every_host(held: Hosts, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    hosts = free_hosts(3)
    futures = [held.start(hosts, index) for index in range(2)]
    wait_until(lambda: f"host 1 ({hosts[1]}) has joined" in caplog.text)  # later, no host would be there any more
    other = held.start(hosts, 2, status(2, training__batch_size=64, telemetry__x=1, net__host="::"))
    sentences = {failure(future, UsageError) for future in (*futures, other)}
    (sentence,) = sentences
    assert f"host 2 ({hosts[2]}) has training.batch_size = 64 and host 0 ({hosts[0]}) has 32" in sentence


def test_what_may_differ_does(held: Hosts) -> None:
    hosts = free_hosts(2)
    own: dict[str, Any] = {"net__host": "10.0.0.2", "net__grpc_port": 1, "net__token_file": "t", "net__tls_ca": "c"}
    own |= {"net__metrics_port": 5, "telemetry__interval": 3.0}
    chief, other = held.start(hosts, 0), held.start(hosts, 1, status(1, **own))
    assert len(chief.result(LIMIT).state.hosts) == len(other.result(LIMIT).state.hosts) == 2


def test_numbers_that_are_infinite_or_tuples_are_equal_to_themselves(held: Hosts) -> None:
    hosts = free_hosts(2)
    futures = [held.start(hosts, index, status(index, a__b=float("inf"), a__c=((1, 2), 3.5))) for index in range(2)]
    assert all(future.result(LIMIT).failure == "" for future in futures)


def test_a_key_that_one_host_lacks(held: Hosts) -> None:
    hosts = free_hosts(2)
    chief, other = held.start(hosts, 0), held.start(hosts, 1, status(1, agent__width=3))
    for future in (chief, other):
        assert "agent.width = 3 and host 0" in failure(future, UsageError)


def test_another_version(held: Hosts) -> None:
    hosts = free_hosts(2)
    chief, other = held.start(hosts, 0), held.start(hosts, 1, status(1, "2.0"))
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
    failure(chief, RendezvousCancelled)
    assert "host 0" in failure(other, UnreachableError)
    assert time.monotonic() - begun < 5


def test_one_that_was_stopped_while_waiting_may_come_again(held: Hosts) -> None:
    hosts = free_hosts(3)
    stop = threading.Event()
    chief, first = held.start(hosts, 0), held.start(hosts, 1, stopped=stop.is_set)
    time.sleep(0.5)
    stop.set()
    failure(first, RendezvousCancelled)
    others = [held.start(hosts, index) for index in (1, 2)]
    assert all(len(future.result(LIMIT).state.hosts) == 3 for future in (chief, *others))


def test_what_is_too_large_to_say() -> None:
    large = status(0, agent__x="x" * 70_000)
    with pytest.raises(UsageError, match="more than the 65536 bytes"):
        Rendezvous(free_hosts(2), large, SECURITY)


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
def test_unauthenticated_connections_to_the_chief_are_ended_and_hosts_stay(
    held: Hosts, monkeypatch: pytest.MonkeyPatch, security: Security | None
) -> None:
    monkeypatch.setattr(admission_control, "PROOF_SECONDS", 3.0)
    monkeypatch.setattr(admission_control, "MAX_UNAUTHENTICATED", 8)
    hosts = free_hosts(2)
    host, port = hosts[0].split(":")
    chief = Rendezvous(hosts, status(0), security)
    with ExitStack() as stack:
        stack.callback(chief.close)
        assert chief.server is not None
        control = chief.server.admission

        def visit() -> socket.socket:
            visitor = stack.enter_context(socket.create_connection((host, int(port)), LIMIT))
            visitor.settimeout(LIMIT)
            return visitor

        visitors = [visit() for _ in range(12)]
        wait_until(lambda: control.ended >= 4)  # of 12 that came at once, whichever
        visitors += [visit() for _ in range(8)]
        begun = time.monotonic()
        assert all(map(ended, visitors[:12])) and time.monotonic() - begun < 2.5  # there were too many, the oldest go
        other = held.start(hosts, 1, security=security)
        chief.join(LIMIT)
        assert all(map(ended, visitors[12:])) and time.monotonic() - begun > 2.5
        wait_until(lambda: control.unauthenticated == 0)
        count = control.ended
        time.sleep(3.5)
        # The connections of the hosts are as old as any of theirs was, and stand.
        assert control.ended == count and not chief.failure and not other.result(LIMIT).failure


# -- what they agree on


def test_the_first_proposal_is_that_of_all(held: Hosts) -> None:
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


def test_a_proposal_of_one_reaches_all_and_waiting_ends(held: Hosts) -> None:
    joined = held.all(2)
    assert joined[0].wait_spec(0.05) is None
    joined[1].update(spec={"name": "x"})
    assert [rendezvous.wait_spec(LIMIT) for rendezvous in joined] == [{"name": "x"}] * 2
    with pytest.raises(ProtocolError):
        joined[0].update(spec={"name": "x" * 70_000})


def test_loads_readiness_and_what_the_chief_knows_of_the_run(held: Hosts) -> None:
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


def test_a_host_that_ends_says_why(held: Hosts) -> None:
    joined = held.all(3)
    joined[1].close("out of memory")
    for rendezvous in (joined[0], joined[2]):
        wait_until(lambda rendezvous=rendezvous: bool(rendezvous.failure))  # type: ignore[misc]
        assert rendezvous.failure == f"host 1 ({rendezvous.hosts[1]}) has ended: out of memory"
    assert joined[1].failure == ""
    joined[1].close()


def test_a_chief_that_ends_says_why(held: Hosts) -> None:
    chief, other = held.all(2)
    chief.close("the disk\nis full")
    wait_until(lambda: other.failure == f"host 0 ({chief.hosts[0]}) has ended: the disk is full")


def test_a_host_that_has_done_everything_is_not_missed(held: Hosts) -> None:
    joined = held.all(3)
    joined[2].close()
    joined[0].close()
    time.sleep(2 * SILENCE)
    assert joined[1].failure == ""


def test_waiting_for_a_specification_ends_with_a_loss(held: Hosts) -> None:
    first, second = held.all(2)
    waiting = held.pool.submit(second.wait_spec, LIMIT)
    first.close("it is over")
    assert waiting.result(5.0) is None


def test_a_connection_that_breaks_is_opened_again(held: Hosts) -> None:
    chief, other = held.all(2)
    other._client._lost = "cut"  # type: ignore[union-attr]
    time.sleep(2 * SILENCE)
    other.update(envs=5)
    wait_until(lambda: chief.state.loads == (0, 5))
    assert chief.failure == other.failure == ""


def test_a_chief_that_starts_again_does_not_take_hosts_of_the_run_before(held: Hosts) -> None:
    chief, other = held.all(2)
    chief.server.close("", usage=False)  # type: ignore[union-attr]
    with other._changed:
        other._state = other._state.model_copy(update={"ended": False})  # as if it had died
    again = held.start(list(chief.hosts), 0, timeout=SILENCE + 1)
    assert "host 1" in failure(again, UsageError)
    assert "host 0" in other.failure and "has not been heard" in other.failure


HOST = """
import sys
from seedcli.cluster import rendezvous_server
from seedcli.cluster.rendezvous import Rendezvous
from seedcli.net.security.keys import Security
from seedcli.net.security.token import Token
from tests.cluster.test_rendezvous import BEAT, SILENCE, status
rendezvous_server.BEAT_SECONDS, rendezvous_server.SILENCE_SECONDS = BEAT, SILENCE
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
def test_a_host_that_dies_or_hangs_is_found(held: Hosts, process: Any, victim: int, number: signal.Signals) -> None:
    hosts = free_hosts(3)
    child = process(hosts, victim)
    others = [held.start(hosts, index) for index in range(3) if index != victim]
    joined = [future.result(LIMIT) for future in others]
    assert child.stdout.readline() == "joined\n"
    os.kill(child.pid, number)
    begun = time.monotonic()
    for rendezvous in joined:
        wait_until(lambda rendezvous=rendezvous: bool(rendezvous.failure), 3 * SILENCE)  # type: ignore[misc]
        assert f"host {victim} ({hosts[victim]}) has not been heard" in rendezvous.failure
    assert time.monotonic() - begun > SILENCE - 2 * BEAT


def test_of_garbage_only_what_is_well_formed_is_taken() -> None:
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
def test_a_peer_that_holds_the_token_and_sends_nonsense_harms_no_host(held: Hosts, body: bytes, framed: bool) -> None:
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
