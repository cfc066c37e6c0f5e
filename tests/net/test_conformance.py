"""The behaviour that all transports share."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from seedcli.errors import ConnectionLost, RefusedError, UnreachableError
from seedcli.net.connect import connect
from seedcli.net.frames import CONTROL_LIMIT, Kind, encode_control, pack_header
from tests.net.harness import KINDS, LIMIT, OWN, Actor, Learner, Row, expect, make_server, security_of, wait_until_gone

Join = Callable[..., Actor]
Spawn = Callable[..., "subprocess.Popen[str]"]

CLIENT = """
import sys
from tests.net.harness import Actor, security_of
actor = Actor(sys.argv[1], security=security_of(sys.argv[2]))
if "step" in sys.argv:
    actor.echo(0, bytes(1000))
print("ready", flush=True)
sys.stdin.read()
"""


def test_rows_of_many_sizes_arrive_once_in_order_and_are_answered(kind: str, join: Join) -> None:
    sizes = [1, 63, 64, 1000, 65_535, 65_536, 65_537, 231_424, 1_000_003]
    learner = Learner(make_server(kind), sizes).start()
    try:
        actor = join(learner)
        sent = []
        for round_ in range(5):
            for stream, size in enumerate(sizes):
                data = random.Random(round_ * 100 + stream).randbytes(size)
                sent.append(Row("actor", stream, round_, data))
                actor.echo(stream, data)
        assert learner.rows == sent
    finally:
        learner.close()


def test_streams_are_outstanding_together(learner: Learner, join: Join) -> None:
    actor = join(learner)
    for i in range(50):
        actor.step(0, bytes([i]) * 1000)
        actor.step(1, bytes([i + 100]) * 500)
        answers = [expect(actor.client, Kind.ACTION).header for _ in range(2)]
        assert sorted((h.stream, h.sequence) for h in answers) == [(0, i), (1, i)]
    assert [(r.stream, r.sequence, r.data[0]) for r in learner.rows if r.stream == 1] == [
        (1, i, i + 100) for i in range(50)
    ]


def test_two_actors_at_once(learner: Learner, join: Join) -> None:
    actors = [join(learner, name) for name in ("left", "right")]

    def play(index: int) -> None:
        for i in range(200):
            actors[index].echo(i % 2, bytes([i, index]) * (500 if i % 2 == 0 else 250))

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(play, index) for index in range(2)]:
            future.result(LIMIT)
    for index, name in enumerate(("left", "right")):
        rows = [row for row in learner.rows if row.actor == name]
        assert [(row.sequence, row.data[:2]) for row in rows] == [(i // 2, bytes([i, index])) for i in range(200)]


@pytest.mark.parametrize(("claimed", "sent"), [(1001, 1001), (999, 999), (1000, 1001), (1000, 999), (999, 1000)])
def test_a_row_of_another_size_ends_only_that_actor(
    kind: str, learner: Learner, join: Join, claimed: int, sent: int
) -> None:
    good, bad = join(learner, "good"), join(learner, "bad")
    bad.client.send(bad.header(0, claimed), bytes(sent))
    lost = learner.lost_peers.get(timeout=LIMIT)
    assert lost.malformed and lost.peer == learner.peers["bad"] and "bytes" in lost.reason
    wait_until_gone(bad.client)
    good.echo(0, b"g" * 1000)
    assert [row.actor for row in learner.rows] == ["good"]


@pytest.mark.parametrize("sequences", [(0, 0), (1,), (0, 2)])
def test_a_duplicate_or_reordered_step_ends_only_that_actor(
    learner: Learner, join: Join, sequences: tuple[int, ...]
) -> None:
    good, bad = join(learner, "good"), join(learner, "bad")
    for sequence in sequences:
        bad.sequence[0] = sequence
        bad.step(0, bytes(1000))
    lost = learner.lost_peers.get(timeout=LIMIT)
    assert lost.malformed and lost.peer == learner.peers["bad"] and lost.reason == "a step out of order"
    wait_until_gone(bad.client)
    good.echo(1, b"g" * 500)
    assert len([row for row in learner.rows if row.actor == "bad"]) == len(sequences) - 1


def test_a_frame_over_the_limit_before_ready_is_refused(kind: str, learner: Learner, join: Join) -> None:
    good = join(learner, "good")
    for first in (Kind.HELLO, Kind.STEP):
        client = learner.connect()
        client.connect(LIMIT)
        if first == Kind.STEP:
            body = encode_control({"actor_id": "x", "envs": 1, "streams": 1, "version": "1"})
            client.send(pack_header(Kind.HELLO, len(body)), body)
            expect(client, Kind.CHALLENGE)
        client.send(pack_header(first, CONTROL_LIMIT + 1), bytes(CONTROL_LIMIT + 1))
        wait_until_gone(client)
        assert learner.lost_peers.get(timeout=LIMIT).malformed
        client.close()
    good.echo(0, b"g" * 1000)


def test_a_message_over_the_listeners_limit_ends_the_connection(join: Join, kind: str) -> None:
    if kind == "shm":
        pytest.skip("rows do not travel in messages")
    learner = Learner(make_server(kind, max_payload=100_000), [1000]).start()
    try:
        good, bad = join(learner, "good"), join(learner, "bad")
        bad.client.send(bad.header(0, 300_000), bytes(300_000))
        wait_until_gone(bad.client)
        good.echo(0, b"g" * 1000)
        learner.call(lambda: learner.sizes.append(100_001))
        with pytest.raises(RefusedError, match="100001 bytes, more than the limit of 100000"):
            join(learner, "large")
    finally:
        learner.close()


def test_a_frame_of_an_unknown_session_is_answered_with_unknown(learner: Learner) -> None:
    client = learner.connect()
    client.connect(LIMIT)
    client.send(pack_header(Kind.STEP, 100, session=5), bytes(100))
    expect(client, Kind.UNKNOWN)
    client.close()
    assert learner.lost_peers.empty()


@pytest.mark.parametrize("stepped", [True, False])
def test_a_killed_actor_is_noticed(kind: str, learner: Learner, join: Join, spawn: Spawn, stepped: bool) -> None:
    good = join(learner, "good")
    process = spawn("-c", CLIENT, learner.server.address, kind, *(["step"] if stepped else []))
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.kill()
    lost = learner.lost_peers.get(timeout=LIMIT)
    assert not lost.malformed and lost.peer == learner.peers["actor"]
    good.echo(0, b"g" * 1000)
    again = join(learner, "actor")
    again.echo(0, b"a" * 1000)


BLOCKED = """
import ctypes, sys
from seedcli.net.frames import Kind
from tests.net.harness import Actor, expect, security_of
actor = Actor(sys.argv[1], "blocked", security_of(sys.argv[2]))
actor.echo(0, bytes(1000))
actor.step(1, bytes(500))  # answered while nothing runs here
print("blocked", flush=True)
ctypes.PyDLL(None).usleep(5_000_000)  # holds the interpreter's lock
expect(actor.client, Kind.ACTION)
actor.echo(0, bytes(1000))
print("continues", flush=True)
sys.stdin.read()
"""


def test_pings_tell_an_actor_whose_python_is_blocked_from_a_stopped_one(spawn: Spawn) -> None:
    learners = {kind: Learner(make_server(kind, timeout=3.0), [1000, 500]).start() for kind in KINDS}
    try:
        assert all(learner.server.pings for learner in learners.values())
        processes = {kind: spawn("-c", BLOCKED, each.server.address, kind) for kind, each in learners.items()}
        for line in ("blocked", "continues"):
            for kind, process in processes.items():
                assert process.stdout is not None and process.stdout.readline() == f"{line}\n", kind
        for kind, learner in learners.items():
            assert learner.lost_peers.empty(), kind
            processes[kind].send_signal(signal.SIGSTOP)
        for kind, learner in learners.items():
            assert learner.lost_peers.get(timeout=LIMIT).peer == learner.peers["blocked"], kind
    finally:
        for learner in learners.values():
            learner.close()


def test_a_killed_learner_is_noticed_at_once(kind: str, join: Join, spawn: Spawn) -> None:
    process = spawn("-m", "tests.net.harness", kind, "1000")
    assert process.stdout is not None
    actor = join(process.stdout.readline().strip())
    actor.echo(0, bytes(1000))
    process.kill()
    with pytest.raises(ConnectionLost):
        while actor.client.receive(LIMIT) is not None:
            pass
    with pytest.raises(ConnectionLost):
        actor.step(0, bytes(1000))
    begun = time.monotonic()
    actor.client.heartbeat(pack_header(Kind.HEARTBEAT, session=7))
    actor.client.close()
    assert time.monotonic() - begun < 3


def stall(learner: Learner) -> tuple[threading.Event, threading.Thread]:
    """Stop the learner's thread until the event is set; returns a thread that ends then."""
    stalled, resume = threading.Event(), threading.Event()

    def wait() -> None:
        stalled.set()
        resume.wait(LIMIT)

    thread = threading.Thread(target=lambda: learner.call(wait))
    thread.start()
    assert stalled.wait(LIMIT)
    return resume, thread


def test_a_stalled_learner_times_out(learner: Learner, join: Join) -> None:
    actor = join(learner)
    resume, waiting = stall(learner)
    try:
        actor.step(0, bytes(1000))
        begun = time.monotonic()
        assert actor.client.receive(0.2) is None
        assert 0.19 < time.monotonic() - begun < 2
        assert actor.client.receive(0.0) is None
    finally:
        resume.set()
        waiting.join(LIMIT)
    expect(actor.client, Kind.ACTION)


def test_frames_that_wait_while_the_learner_is_busy_all_arrive(learner: Learner, join: Join) -> None:
    actor = join(learner)
    resume, waiting = stall(learner)
    for i in range(1000):
        actor.client.send(pack_header(Kind.HEARTBEAT, session=i))
    resume.set()
    waiting.join(LIMIT)
    assert [expect(actor.client, Kind.HEARTBEAT_ACK).header.session for _ in range(1000)] == list(range(1000))


def test_heartbeats_from_another_thread(learner: Learner, join: Join) -> None:
    actor = join(learner)

    def beat() -> None:
        for i in range(100):
            actor.client.heartbeat(pack_header(Kind.HEARTBEAT, session=i))

    thread = threading.Thread(target=beat)
    thread.start()
    acknowledged, answered = 0, 0
    actor.step(0, bytes(1000))
    while acknowledged < 100 or answered < 100:
        frame = actor.client.receive(LIMIT)
        assert frame is not None
        if frame.header.kind == Kind.HEARTBEAT_ACK:
            acknowledged += 1
        else:
            assert frame.header.kind == Kind.ACTION
            answered += 1
            if answered < 100:
                actor.step(0, bytes(1000))
    thread.join(LIMIT)
    received = [learner.frames.get(timeout=LIMIT) for _ in range(100)]
    assert {peer for peer, _ in received} == {learner.peers["actor"]}
    assert [header.session for _, header in received] == list(range(100))


def test_sent_frames_arrive_before_the_connection_ends(learner: Learner, join: Join) -> None:
    actors = [join(learner, name) for name in ("left", "right")]

    def finish() -> None:
        for name in ("left", "right"):
            learner.send(learner.peers[name], Kind.DONE, b"")
        learner.server.close()
        learner._stop = True

    learner.call(finish)
    for actor in actors:
        expect(actor.client, Kind.DONE)
        with pytest.raises(ConnectionLost):
            assert actor.client.receive(LIMIT) is not None


def test_a_dropped_actor_gets_its_last_frame_and_no_more(learner: Learner, join: Join) -> None:
    good, bad = join(learner, "good"), join(learner, "bad")

    def end() -> None:
        peer = learner.peers["bad"]
        learner.send(peer, Kind.REFUSED, b"{}")
        learner.server.drop(peer)
        learner.send(peer, Kind.ACTION, b"")

    learner.call(end)
    expect(bad.client, Kind.REFUSED)
    try:
        bad.client.send(bad.header(0), bytes(1000))
    except ConnectionLost:
        pass
    wait_until_gone(bad.client)
    good.echo(0, b"g" * 1000)
    assert learner.lost_peers.empty() and {row.actor for row in learner.rows} == {"good"}


def test_goodbye_arrives_before_the_connection_ends(learner: Learner, join: Join) -> None:
    actor = join(learner)
    actor.client.send(pack_header(Kind.GOODBYE, session=7))
    actor.client.close()
    assert learner.frames.get(timeout=LIMIT)[1].kind == Kind.GOODBYE
    assert learner.lost_peers.get(timeout=LIMIT).peer == learner.peers["actor"]
    actor.client.close()


def test_sending_to_a_lost_peer_does_nothing(learner: Learner, join: Join) -> None:
    good, leaving = join(learner, "good"), join(learner, "leaving")
    leaving.client.close()
    peer = learner.lost_peers.get(timeout=LIMIT).peer
    for _ in range(10):
        learner.call(lambda: learner.send(peer, Kind.ACTION, bytes(4)))
    learner.call(lambda: learner.server.drop(peer))
    good.echo(0, b"g" * 1000)


def test_no_answer_raises_unreachable(kind: str, tmp_path: os.PathLike[str]) -> None:
    address = {"grpc": "127.0.0.1:1", "zmq": "zmq://127.0.0.1:1", "shm": f"shm://{tmp_path}/absent"}
    address[OWN] = f"{OWN}://127.0.0.1:1"
    client = connect(address[kind.partition("+")[0]], security_of(kind))
    begun = time.monotonic()
    with pytest.raises(UnreachableError, match=r"no learner answered at .* within 0.3 s: check"):
        client.connect(0.3)
    client.close()
    assert time.monotonic() - begun < 3


def test_closing_twice_is_safe(kind: str) -> None:
    server = make_server(kind)
    server.close()
    server.close()
    address = {"grpc": "127.0.0.1:1", "zmq": "zmq://127.0.0.1:1", "shm": "shm:///nowhere/here"}
    address[OWN] = f"{OWN}://127.0.0.1:1"
    client = connect(address[kind.partition("+")[0]], security_of(kind))
    client.close()
    client.close()
