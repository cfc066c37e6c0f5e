"""The state that the learner reports of each actor: joining, stepping, silent, waiting, lost, reconnected."""

from __future__ import annotations

import time

import pytest

from seedcli.net.frames import Kind, encode_control, pack_header
from seedcli.serving.fleet_report import LOST_SECONDS, SILENT_HEARTBEATS, FleetWatch
from seedcli.telemetry.fleet import ActorRow
from tests.serving.test_service import Actor, Fleet

HEARTBEAT = 1.0


class Watched:
    """A service with a clock that the test sets, and a watch over its actors."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fleet = Fleet(monkeypatch)
        monkeypatch.setattr("seedcli.serving.fleet_report.time.monotonic", lambda: self.fleet.now)
        self.watch = FleetWatch(self.fleet.service, HEARTBEAT)

    def sample(self) -> dict[str, ActorRow]:
        rows = self.watch.sample()
        assert len({row.actor_id for row in rows}) == len(rows), "an actor has one row"
        return {row.actor_id: row for row in rows}

    def states(self) -> dict[str, str]:
        return {name: row.state for name, row in self.sample().items()}

    def pass_seconds(self, seconds: float) -> None:
        """Advance the clock, and make the service handle its messages."""
        self.fleet.now += seconds
        self.fleet.turn()

    def beat(self, actor: Actor) -> None:
        actor.client.send(pack_header(Kind.HEARTBEAT, session=actor.ready.session))
        self.fleet.turn()

    def lose(self, actor: Actor, reason: str = "reset by peer") -> None:
        (session,) = (s for s in self.fleet.service.sessions() if s.number == actor.ready.session)
        self.fleet.service.lost(session.peer, reason)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_an_actor_that_steps(watched: Watched) -> None:
    actor = watched.fleet.join("a", envs=3)
    actor.send(0)
    actor.answers()
    row = watched.sample()["a"]
    assert (row.envs, row.steps, row.state, row.reason) == (3, 3, "stepping", "")
    assert row.steps_per_second is None, "a rate needs two looks"
    for sequence in (1, 2):
        actor.send(sequence)
        actor.answers()
    watched.pass_seconds(2.0)
    row = watched.sample()["a"]
    assert (row.steps, row.steps_per_second, row.last_seen_seconds) == (9, 3.0, 2.0)


def test_an_actor_without_heartbeats_is_silent_until_the_next_one(watched: Watched) -> None:
    quiet, loud = watched.fleet.join("quiet"), watched.fleet.join("loud")
    watched.pass_seconds(SILENT_HEARTBEATS * HEARTBEAT - 0.1)
    watched.beat(loud)
    assert watched.states() == {"quiet": "stepping", "loud": "stepping"}
    watched.pass_seconds(0.2)
    assert watched.states() == {"quiet": "silent", "loud": "stepping"}
    watched.beat(quiet)
    assert watched.states() == {"quiet": "stepping", "loud": "stepping"}


def test_an_actor_whose_environments_take_long_is_busy(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """With heartbeats, and without them as long as its transport answers pings."""
    watched.fleet.server.pings = True
    beating, _ = watched.fleet.join("beating"), watched.fleet.join("blocked")
    for _ in range(12):
        watched.pass_seconds(1.0)
        watched.beat(beating)
    assert watched.states() == {"beating": "busy", "blocked": "busy"}
    beating.send(0)
    beating.answers()
    assert watched.states() == {"beating": "stepping", "blocked": "busy"}
    for _ in range(300):
        watched.pass_seconds(1.0)
        watched.beat(beating)
    assert watched.states() == {"beating": "busy", "blocked": "lost"}, "environment.step_timeout is over"


def test_an_actor_that_owes_no_row_needs_heartbeats(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    watched.fleet.server.pings = True
    waiting = watched.fleet.join("waiting")
    monkeypatch.setattr(watched.fleet.engine, "_turn_over", lambda stream: False)  # the arena is full
    sequence = 0
    waiting.send(sequence)
    while waiting.answers():
        sequence += 1
        waiting.send(sequence)
    for _ in range(12):
        watched.pass_seconds(1.0)
    assert watched.states() == {"waiting": "lost"}


def test_no_actor_is_silent_while_the_service_is_busy(watched: Watched) -> None:
    watched.fleet.join("a")
    watched.fleet.now += 100.0  # no turn, as while an agent is built
    assert watched.states() == {"a": "stepping"}


def test_an_actor_that_is_not_answered_waits(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    actor = watched.fleet.join("a", streams=2)
    monkeypatch.setattr(watched.fleet.engine, "_turn_over", lambda stream: False)  # the arena is full

    def fill(stream: int) -> None:
        """Step until no answer comes."""
        sequence = 0
        while True:
            actor.send(sequence, stream=stream)
            if not actor.answers():
                return
            sequence += 1

    fill(0)
    begun = time.perf_counter()
    monkeypatch.setattr("seedcli.serving.fleet_report.time.perf_counter", lambda: begun + 60)
    assert watched.states() == {"a": "stepping"}, "its other stream can continue"
    fill(1)
    assert watched.states() == {"a": "waiting"}
    monkeypatch.setattr("seedcli.serving.fleet_report.time.perf_counter", lambda: begun)
    assert watched.states() == {"a": "stepping"}, "an answer takes a moment"
    watched.pass_seconds(5.0)
    monkeypatch.setattr("seedcli.serving.fleet_report.time.perf_counter", lambda: begun + 60)
    assert watched.states() == {"a": "silent"}, "a waiting actor still sends heartbeats"


def test_a_lost_actor_is_shown_for_a_minute_with_the_reason(watched: Watched) -> None:
    gone = watched.fleet.join("gone", envs=3)
    gone.send(0)
    gone.answers()
    watched.fleet.join("there")
    watched.pass_seconds(1.0)
    watched.lose(gone)
    watched.pass_seconds(2.0)
    rows = watched.sample()
    assert {name: row.state for name, row in rows.items()} == {"gone": "lost", "there": "silent"}
    assert (rows["gone"].reason, rows["gone"].envs, rows["gone"].steps) == ("reset by peer", 3, 3)
    assert rows["gone"].last_seen_seconds == 3.0 and rows["gone"].steps_per_second is None
    watched.fleet.now += LOST_SECONDS - 2.5
    assert watched.states()["gone"] == "lost"
    watched.fleet.now += 1.0
    assert "gone" not in watched.states()
    assert watched.fleet.service.sessions_lost == 1


def test_an_actor_that_reconnected_or_left_is_not_lost(watched: Watched) -> None:
    watched.lose(watched.fleet.join("a"))
    assert watched.states() == {"a": "lost"}
    watched.pass_seconds(1.0)
    again = watched.fleet.join("a")
    assert watched.states() == {"a": "stepping"}
    watched.pass_seconds(1.0)
    again.client.send(pack_header(Kind.GOODBYE))
    watched.fleet.turn()
    assert watched.states() == {}
    watched.pass_seconds(1.0)
    watched.lose(watched.fleet.join("a"), "reset again")
    assert watched.sample()["a"].reason == "reset again"


def test_an_actor_joins_from_its_proof_to_its_first_step(watched: Watched) -> None:
    client = watched.fleet.server.client()
    client.pump_with(watched.fleet.turn)
    hello = encode_control({"actor_id": "new", "envs": 4, "streams": 1, "version": "0"})
    client.send(pack_header(Kind.HELLO, len(hello)), hello)
    watched.fleet.turn()
    assert watched.states() == {}, "an unauthenticated peer is not shown"
    proof = encode_control({})
    client.send(pack_header(Kind.PROOF, len(proof)), proof)
    watched.fleet.turn()
    row = watched.sample()["new"]
    assert (row.state, row.envs, row.steps_per_second, row.last_seen_seconds) == ("joining", 4, None, None)
