"""The service: which actors are admitted, which are dropped, and that other actors are unaffected."""

from __future__ import annotations

import os
import struct
from typing import Any

import numpy as np
import pytest
import zstandard

from seedcli.errors import RefusedError
from seedcli.inference.engine import StepEngine
from seedcli.net.codecs import CODECS, RowEncoder
from seedcli.net.frames import Kind, pack_header
from seedcli.net.grpc import GrpcServer
from seedcli.net.handshake import ClientHandshake
from seedcli.net.inprocess import InProcessClient, InProcessServer
from seedcli.net.messages import Ready
from seedcli.net.security.token import Token
from seedcli.net.shm_server import ShmServer
from seedcli.serving.service import InferenceService
from seedcli.serving.sessions import FleetSettings
from seedcli.specs import ActionSpec, EnvSpec, RowLayout
from tests.inference.helpers import SPEC, make_engine


class Fleet:
    """A service over the in-process transport, and its clients."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        max_envs: int = 8,
        fleet_envs: int = 1,
        evaluation_envs: int = 0,
        compression: str = "auto",
    ) -> None:
        self.now = 1000.0
        monkeypatch.setattr("seedcli.serving.service.time.monotonic", lambda: self.now)
        self.server = InProcessServer()
        settings = FleetSettings(
            environment={"id": "x"},
            seed=5,
            max_envs=max_envs,
            heartbeat_seconds=1.0,
            timeout_seconds=10.0,
            reconnect_timeout=60.0,
            fleet_envs=fleet_envs,
            evaluation_envs=evaluation_envs,
            compression=compression,
        )
        self.engine: StepEngine | None = None
        self.max_envs = max_envs
        self.service = InferenceService([self.server], settings, self._engine_for)
        self.unrolls: list[Any] = []

    def _engine_for(self, spec: EnvSpec, on_fault: Any) -> StepEngine:
        if self.engine is None:
            self.engine, self.arena, self.policy, self.unrolls = make_engine(
                max_envs=self.max_envs, on_fault=on_fault, length=3
            )
        difference = SPEC.difference(spec)
        if difference:
            raise RefusedError(difference)
        return self.engine

    def turn(self) -> None:
        while self.service.turn(block=False):
            while self.unrolls:
                self.arena.release(self.unrolls.pop())

    def join(self, name: str, envs: int = 2, streams: int = 1, spec: EnvSpec = SPEC, codec: str = "raw") -> Actor:
        return Actor(self, name, envs, streams, spec, codec)


class Actor:
    """A client that has been admitted."""

    def __init__(self, fleet: Fleet, name: str, envs: int, streams: int, spec: EnvSpec, codec: str) -> None:
        self.fleet = fleet
        self.client: InProcessClient = fleet.server.client()
        self.client.pump_with(fleet.turn)
        handshake = ClientHandshake(self.client, actor_id=name, envs=envs, streams=streams, timeout=5.0)
        self.configuration = handshake.configure()
        codecs = dict.fromkeys(spec.arrays, codec)
        self.ready: Ready = handshake.announce(spec, codecs)
        self.buffers = self.client.open_session(self.ready.extra, self.ready.payload_bytes)
        self.layouts = [RowLayout(spec, n) for n in self.ready.stream_envs]
        self.encoders = [RowEncoder(layout, codecs) for layout in self.layouts]

    def send(
        self, sequence: int, stream: int = 0, reward: float = 0.0, observation: float | None = None, **header: int
    ) -> None:
        views = self.layouts[stream].views(np.frombuffer(self.buffers[stream], np.uint8))
        views.observation[:] = sequence if observation is None else observation
        views.reward[:] = reward
        views.terminated[:] = 0
        views.truncated[:] = 0
        fields = {"session": self.ready.session, "stream": stream, "sequence": sequence} | header
        self.client.send_row(stream, pack_header(Kind.STEP, len(self.buffers[stream]), **fields))

    def encoded(self, value: float, stream: int = 0) -> bytes:
        """An encoded row of observations that are all `value`."""
        row = np.zeros(self.layouts[stream].nbytes, np.uint8)
        self.layouts[stream].views(row).observation[:] = value
        out = bytearray(self.encoders[stream].max_payload)
        return bytes(out[: self.encoders[stream].encode(row, memoryview(out))])

    def send_encoded(self, sequence: int, payload: bytes | None = None, stream: int = 0) -> None:
        payload = self.encoded(sequence, stream) if payload is None else payload
        fields = {"session": self.ready.session, "stream": stream, "sequence": sequence}
        self.client.send(pack_header(Kind.STEP, len(payload), **fields), payload)

    def answers(self) -> list[Any]:
        self.fleet.turn()
        received = list(self.client.inbox)
        self.client.inbox.clear()
        return received


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    return Fleet(monkeypatch)


def test_a_step_is_answered_with_its_sequence_and_one_action_per_environment(fleet):
    actor = fleet.join("a", envs=3, streams=2)
    assert actor.ready.stream_envs == (2, 1)
    assert actor.configuration["environment"] == {"id": "x"}
    for sequence in range(7):
        actor.send(sequence, stream=0)
        actor.send(sequence, stream=1)
        answers = actor.answers()
        assert [(a.header.kind, a.header.stream, a.header.sequence) for a in answers] == [
            (Kind.ACTION, 0, sequence),
            (Kind.ACTION, 1, sequence),
        ]
        # The policy's action is the sum of the observation's three elements.
        assert np.frombuffer(answers[0].payload, np.int32).tolist() == [3 * sequence] * 2


def test_environments_beyond_the_limit_are_refused_with_the_numbers(fleet):
    fleet.join("a", envs=6)
    with pytest.raises(RefusedError, match=r"3 environments do not fit.*accepts 8 and 6 are connected"):
        fleet.join("b", envs=3)
    fleet.join("c", envs=2)


def announce_actor(fleet: Fleet, token: Token | None, name: str = "a", failure: str = "") -> None:
    """Perform the handshake of an actor with this token, up to its configuration."""
    client = fleet.server.client()
    client.token = token
    client.pump_with(fleet.turn)
    ClientHandshake(client, actor_id=name, envs=2, streams=1, timeout=5.0, failure=failure).configure()


def test_unauthenticated_peers_learn_and_change_nothing(fleet, caplog):
    mine, other = (Token(f"{name}-token-of-these-tests-0123456789", "here") for name in ("my", "another"))
    fleet.server.token = mine
    announce_actor(fleet, mine, "good")
    seeds = fleet.service.handshakes.seeds_given
    for token, words in ((other, "the token is not this learner's"), (None, "requires a token")):
        for _ in range(20):
            with pytest.raises(RefusedError, match=words):
                announce_actor(fleet, token, "good", failure="what only a member of the fleet may have logged")
    assert fleet.service.handshakes.seeds_given == seeds and fleet.service.environment_failures == 0
    assert not fleet.service.sessions() and fleet.engine is None, "nothing is built for an unauthenticated peer"
    assert "what only a member" not in caplog.text
    assert len([record for record in caplog.records if "refused" in record.getMessage()]) <= 2, "logged once"
    announce_actor(fleet, mine, "good", failure="this one is of the fleet")
    assert fleet.service.environment_failures == 1


def test_another_specification_is_refused_by_the_name_of_the_field(fleet):
    fleet.join("a")
    with pytest.raises(RefusedError, match=r"action is .*4.* where .*1000.* is expected"):
        fleet.join("b", spec=EnvSpec(SPEC.name, SPEC.observation, ActionSpec((4,))))


def test_a_reconnecting_actor_replaces_its_session(fleet):
    first = fleet.join("a", envs=8)
    again = fleet.join("a", envs=8)
    assert [s.number for s in fleet.service.sessions()] == [again.ready.session]
    assert fleet.engine.connected_envs == 8
    first.send(0)
    assert first.answers() == [], "the earlier session has ended"
    again.send(0)
    assert len(again.answers()) == 1


def test_every_actor_gets_different_seeds(fleet):
    seeds = [fleet.join(name, envs=2).configuration["seed"] for name in ("a", "b", "a")]
    spans = [set(range(seed, seed + 2)) for seed in seeds]
    assert not (spans[0] & spans[1] or spans[0] & spans[2] or spans[1] & spans[2])


@pytest.mark.parametrize("fault", ["duplicate", "ahead", "stream", "session", "size"])
def test_a_step_out_of_order_ends_only_its_connection(fleet, fault):
    good, bad = fleet.join("good"), fleet.join("bad")
    good.send(0)
    bad.send(0)
    assert good.answers() and bad.answers()
    if fault == "duplicate":
        bad.send(0)
    elif fault == "ahead":
        bad.send(2)
    elif fault == "stream":
        bad.send(1, **{"stream": 0})
        bad.client.send(pack_header(Kind.STEP, 3, stream=9, session=bad.ready.session, sequence=2), b"abc")
    elif fault == "session":
        bad.send(1, session=bad.ready.session ^ 1)
    else:
        bad.client.send(pack_header(Kind.STEP, 3, session=bad.ready.session, sequence=1), b"abc")
    fleet.turn()
    assert fleet.service.protocol_errors == 1
    assert [s.actor_id for s in fleet.service.sessions()] == ["good"]
    assert fleet.engine.connected_envs == 2
    good.send(1)
    assert len(good.answers()) == 1


def test_a_non_finite_observation_ends_the_session_with_the_reason(fleet):
    good, bad = fleet.join("good"), fleet.join("bad")
    bad.send(0, observation=float("nan"))
    good.send(0)
    (refusal,) = bad.answers()
    assert refusal.header.kind == Kind.REFUSED and b"non-finite observation" in bytes(refusal.payload)
    assert len(good.answers()) == 1
    assert [s.actor_id for s in fleet.service.sessions()] == ["good"]


def test_a_non_finite_reward_drops_unrolls_but_not_the_session(fleet):
    good, odd = fleet.join("good"), fleet.join("odd")
    for sequence in range(8):
        odd.send(sequence, reward=float("nan") if sequence == 2 else 1.0)
        good.send(sequence)
        assert [a.header.kind for a in odd.answers() + good.answers()] == [Kind.ACTION] * 2
    assert len(fleet.service.sessions()) == 2 and fleet.service.protocol_errors == 0
    assert fleet.engine.stats.dropped_unrolls == 2, "record 2 is in one unroll of each of two environments"


def test_a_session_times_out_without_heartbeats(fleet):
    silent, waiting = fleet.join("silent"), fleet.join("waiting")
    for _ in range(3):
        fleet.now += 5.0
        waiting.client.send(pack_header(Kind.HEARTBEAT, session=waiting.ready.session))
        assert [a.header.kind for a in waiting.answers()] == [Kind.HEARTBEAT_ACK]
        fleet.now += 0.6  # a service that was busy reads first and checks timeouts at its next look
        fleet.turn()
    assert [s.actor_id for s in fleet.service.sessions()] == ["waiting"]
    assert fleet.engine.connected_envs == 2
    silent.client.send(pack_header(Kind.HEARTBEAT, session=silent.ready.session))
    assert silent.answers() == [], "its connection was dropped"


def test_a_goodbye_frees_the_slots_at_once(fleet):
    actor = fleet.join("a", envs=8)
    actor.client.send(pack_header(Kind.GOODBYE, session=actor.ready.session))
    fleet.turn()
    assert fleet.service.sessions() == [] and fleet.engine.connected_envs == 0
    fleet.join("b", envs=8)


def test_steps_of_an_unknown_session_are_answered_with_unknown(fleet):
    unknown = fleet.server.client()
    unknown.send(pack_header(Kind.STEP, 3, session=77), b"abc")
    unknown.send(pack_header(Kind.HEARTBEAT, session=77))
    fleet.turn()
    assert {frame.header.kind for frame in unknown.inbox} == {Kind.UNKNOWN}


def test_an_unfinished_handshake_times_out(fleet):
    slow = fleet.server.client()
    slow.pump_with(fleet.turn)
    handshake = ClientHandshake(slow, actor_id="slow", envs=1, streams=1, timeout=5.0)
    handshake.configure()
    fleet.now += 1000.0
    fleet.turn()
    fleet.now += 0.6
    fleet.turn()
    slow.inbox.clear()
    slow.send(pack_header(Kind.HELLO, 2), b"{}")
    fleet.turn()
    assert not slow.inbox and fleet.service.sessions() == [], "its connection was dropped"


@pytest.mark.parametrize("done", [True, False])
def test_actors_receive_done_only_when_training_is_done(fleet, done):
    actor = fleet.join("a")
    actor.client.inbox.clear()
    fleet.service.stop(training_done=done)
    fleet.service.finish()
    assert [f.header.kind for f in actor.client.inbox] == ([Kind.DONE] if done else [])


def _evaluating(fleet: Fleet) -> dict[str, int]:
    return {session.actor_id: session.evaluation_envs for session in fleet.service.sessions()}


def test_a_whole_fleet_shares_the_evaluation_environments(monkeypatch):
    """As in the published fleet: 30 of 32 actors with 20 environments have one evaluation environment each."""
    fleet = Fleet(monkeypatch, max_envs=640, fleet_envs=640, evaluation_envs=30)
    actors = [fleet.join(f"actor-{i}", envs=20, streams=2) for i in range(32)]
    assert [actor.configuration["evaluation_envs"] for actor in actors] == [1] * 30 + [0] * 2
    assert actors[0].ready.stream_envs == (10, 9, 1) and actors[31].ready.stream_envs == (10, 10)
    assert sum(_evaluating(fleet).values()) == 30
    assert fleet.engine.training_slots.sum() == 610
    roles = [role for role, _ in fleet.policy.assigned.values()]
    assert roles.count("evaluation") == 30
    assert sorted(rank for role, rank in fleet.policy.assigned.values() if role == "training") == list(range(610))


@pytest.mark.parametrize(
    ("envs", "fleet_envs", "wanted", "share"),
    [
        (18, 18, 2, 2),  # one actor is the whole fleet
        (20, 20, 4, 4),
        (1, 20, 4, 0),  # never all of an actor's environments
        (2, 20, 19, 1),
        (3, 3, 2, 2),
        (40, 20, 4, 4),  # never more than configured
        (7, 100, 1, 1),  # rounded up
        (8, 8, 0, 0),
    ],
)
def test_the_share_of_one_actor(monkeypatch, envs, fleet_envs, wanted, share):
    fleet = Fleet(monkeypatch, max_envs=64, fleet_envs=fleet_envs, evaluation_envs=wanted)
    actor = fleet.join("a", envs=envs, streams=min(2, envs))
    assert actor.configuration["evaluation_envs"] == share == sum(_evaluating(fleet).values())
    assert sum(actor.ready.stream_envs) == envs
    if share:
        assert actor.ready.stream_envs[-1] == share
        assert [stream.role for stream in fleet.service.sessions()[0].streams][-1] == "evaluation"
    streams = fleet.service.sessions()[0].streams
    assert streams[0].role == "training"


def test_a_reconnecting_actor_keeps_its_evaluation_share(monkeypatch):
    fleet = Fleet(monkeypatch, max_envs=40, fleet_envs=40, evaluation_envs=2)
    for name, share in (("a", 1), ("b", 1), ("a", 1), ("a", 1), ("c", 0), ("b", 1)):
        assert fleet.join(name, envs=10, streams=2).configuration["evaluation_envs"] == share
    assert _evaluating(fleet) == {"a": 1, "b": 1, "c": 0}


def test_a_leaving_actor_frees_its_evaluation_share(monkeypatch):
    fleet = Fleet(monkeypatch, max_envs=40, fleet_envs=20, evaluation_envs=1)
    first = fleet.join("a", envs=10)
    assert fleet.join("b", envs=10).configuration["evaluation_envs"] == 0
    first.client.send(pack_header(Kind.GOODBYE, session=first.ready.session))
    fleet.turn()
    assert fleet.join("c", envs=10).configuration["evaluation_envs"] == 1


def test_notices_of_actors_are_logged_once(monkeypatch, caplog):
    fleet = Fleet(monkeypatch)
    for name in ("a", "b", "a"):
        client = fleet.server.client()
        client.pump_with(fleet.turn)
        handshake = ClientHandshake(client, actor_id=name, envs=2, streams=1, timeout=5.0)
        handshake.configure()
        handshake.announce(SPEC, notice="test observes text,\nwhich is left out" + "." * 600)
    (record,) = [record for record in caplog.records if "observes text" in record.getMessage()]
    assert record.levelname == "WARNING" and record.getMessage().startswith("test observes text, which is left out.")


def test_concurrent_handshakes_get_different_evaluation_shares(monkeypatch):
    """A share is assigned with CONFIGURE, long before the environments are built."""
    fleet = Fleet(monkeypatch, max_envs=60, fleet_envs=60, evaluation_envs=2)
    handshakes = []
    for name in ("a", "b", "c"):
        client = fleet.server.client()
        client.pump_with(fleet.turn)
        handshakes.append(ClientHandshake(client, actor_id=name, envs=20, streams=1, timeout=5.0))
    promised = [handshake.configure()["evaluation_envs"] for handshake in handshakes]
    assert promised == [1, 1, 0]
    for handshake in reversed(handshakes):
        handshake.announce(SPEC)
    assert _evaluating(fleet) == {"a": 1, "b": 1, "c": 0}


def test_an_aborted_handshake_frees_its_evaluation_share(monkeypatch):
    fleet = Fleet(monkeypatch, max_envs=60, fleet_envs=40, evaluation_envs=1)
    client = fleet.server.client()
    client.pump_with(fleet.turn)
    handshake = ClientHandshake(client, actor_id="slow", envs=20, streams=1, timeout=5.0)
    assert handshake.configure()["evaluation_envs"] == 1
    fleet.now += 1000.0
    fleet.turn()
    fleet.now += 0.6
    fleet.turn()
    assert fleet.join("b", envs=20).configuration["evaluation_envs"] == 1


def test_evaluation_streams_of_a_session_are_answered_like_the_others(monkeypatch):
    fleet = Fleet(monkeypatch, max_envs=8, fleet_envs=8, evaluation_envs=2)
    actor = fleet.join("a", envs=8, streams=2)
    assert actor.ready.stream_envs == (3, 3, 2)
    for sequence in range(9):
        for stream in range(3):
            actor.send(sequence, stream=stream)
        answers = actor.answers()
        assert sorted((a.header.stream, a.header.sequence) for a in answers) == [(i, sequence) for i in range(3)]
        assert len(np.frombuffer({a.header.stream: a for a in answers}[2].payload, np.int32)) == 2
    assert (fleet.engine.stats.env_steps, fleet.engine.stats.evaluation_steps) == (6 * 8, 2 * 8)


def test_encoded_rows_are_answered_like_raw_ones_and_counted(fleet):
    plain, packed = fleet.join("plain", envs=4), fleet.join("packed", envs=4, streams=2, codec="zstd")
    assert packed.ready.payload_bytes == tuple(encoder.max_payload for encoder in packed.encoders)
    assert packed.configuration["compression"] == "auto" and packed.configuration["codecs"] == list(CODECS)
    received = raw = 0
    for sequence in range(7):
        plain.send(sequence)
        for stream in range(2):
            packed.send_encoded(sequence, stream=stream)
            received += len(packed.encoded(sequence, stream))
        raw += plain.layouts[0].nbytes + 2 * packed.layouts[0].nbytes
        received += plain.layouts[0].nbytes
        (one,) = plain.answers()
        two = packed.answers()
        assert [(a.header.stream, a.header.sequence) for a in two] == [(0, sequence), (1, sequence)]
        assert np.frombuffer(one.payload, np.int32).tolist() == [3 * sequence] * 4
        assert [np.frombuffer(a.payload, np.int32).tolist() for a in two] == [[3 * sequence] * 2] * 2
    assert (fleet.service.row_bytes_received, fleet.service.row_bytes_raw) == (received, raw)


@pytest.mark.parametrize("fault", ["noise", "nothing", "cut", "longer", "plain", "bomb"])
def test_a_corrupt_row_ends_only_its_connection(fleet, fault):
    good, bad = fleet.join("good", codec="zstd"), fleet.join("bad", codec="zstd")
    for sequence in range(2):
        good.send_encoded(sequence)
        bad.send_encoded(sequence)
        assert len(good.answers()) == len(bad.answers()) == 1
    payload = bad.encoded(2)
    frame = zstandard.ZstdCompressor().compress(bytes(2**22))
    corrupt = {
        "noise": os.urandom(len(payload)),
        "nothing": b"",
        "cut": payload[:-1],
        "longer": payload + b"x",
        "plain": bytes(bad.layouts[0].nbytes),
        "bomb": struct.pack("<I", len(frame)) + payload[4:16] + frame,
    }
    bad.send_encoded(2, corrupt[fault])
    fleet.turn()
    assert fleet.service.protocol_errors == 1 and fleet.engine.connected_envs == 2
    assert [s.actor_id for s in fleet.service.sessions()] == ["good"]
    assert bad.answers() == []
    for sequence in range(2, 9):
        good.send_encoded(sequence)
        (answer,) = good.answers()
        assert np.frombuffer(answer.payload, np.int32).tolist() == [3 * sequence] * 2


@pytest.mark.parametrize(("compression", "codec"), [("off", "zstd"), ("auto", "lz4"), ("on", "bits")])
def test_codecs_not_offered_and_unsuitable_codecs_are_refused(monkeypatch, compression, codec):
    fleet = Fleet(monkeypatch, compression=compression)
    client = fleet.server.client()
    client.pump_with(fleet.turn)
    handshake = ClientHandshake(client, actor_id="a", envs=2, streams=1, timeout=5.0)
    assert handshake.configure()["codecs"] == (["raw"] if compression == "off" else list(CODECS))
    with pytest.raises(RefusedError, match=f"codec '{codec}'"):
        handshake.announce(SPEC, dict.fromkeys(SPEC.arrays, codec))
    assert fleet.service.sessions() == [] and fleet.engine is None
    fleet.join("b")


def test_no_codecs_are_offered_for_shared_memory():
    settings = FleetSettings({}, 0, 1, 1.0, 2.0, 3.0, compression="on")
    assert settings.offered_codecs(ShmServer) == ("raw",) and settings.offered_codecs(GrpcServer) == CODECS
