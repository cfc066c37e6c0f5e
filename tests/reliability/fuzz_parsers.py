"""Mutations at full speed, in one process: a whole inference service and the parsers it uses, without sockets."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import psutil

from seedcli.errors import ProtocolError, RefusedError
from seedcli.inference.engine import StepEngine
from seedcli.inference.streams import Stream
from seedcli.net import codecs, messages
from seedcli.net.codecs import RowDecoder, RowEncoder
from seedcli.net.frames import Kind, decode_control, encode_control, pack_header, unpack_header
from seedcli.net.handshake import transcript
from seedcli.net.inprocess import InProcessClient, InProcessServer
from seedcli.net.security.keys import new_nonce, prove
from seedcli.net.security.token import Token, new_token
from seedcli.serving import handshakes
from seedcli.serving.admission_control import MAX_UNAUTHENTICATED
from seedcli.serving.service import InferenceService
from seedcli.serving.sessions import FleetSettings
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec, RowLayout
from tests.inference.helpers import SPEC, make_engine
from tests.reliability.mutations import Mutator, Sent

_MIXED = EnvSpec(
    "test/mixed",
    {
        "flags": ArraySpec((40,), "bool"),
        "image": ArraySpec((24, 24), "uint8"),
        "masks": ArraySpec((24, 24), "uint8", binary=(3, 250)),
        "vector": ArraySpec((4,), "float32"),
    },
    ActionSpec((4,)),
)
_CODECS = {"flags": "bits", "image": "zstd", "masks": "bits+zstd", "vector": "raw"}
_CANARY_EVERY = 500
_WARM_UP = 5_000  # mutations before memory is measured


class Fleet:
    """A service without sockets, one actor that must always be answered, and intruders."""

    def __init__(self, seed: int, *, token: Token | None) -> None:
        self.mutator = Mutator(seed)
        self.random = self.mutator.random
        self.token = token
        self.server = InProcessServer()
        self.server.token = token
        settings = FleetSettings(
            environment={"id": "x"},
            seed=5,
            max_envs=16,
            heartbeat_seconds=1.0,
            timeout_seconds=3600.0,  # the canary sends no heartbeats, and its turn comes late on a slow machine
            reconnect_timeout=60.0,
        )
        self._engine: StepEngine | None = None
        self.service = InferenceService([self.server], settings, self._engine_for)
        self.outcomes: Counter[str] = Counter()
        self.changes: Counter[str] = Counter()
        self._names = 0
        self._canary = Intruder(self, "canary", "raw")

    def _engine_for(self, spec: EnvSpec, on_fault: Callable[[Stream, str], None]) -> StepEngine:
        if self._engine is None:
            self._engine, self._arena, _, self._unrolls = make_engine(max_envs=16, on_fault=on_fault, length=3)
        difference = SPEC.difference(spec)
        if difference:
            raise RefusedError(difference)
        return self._engine

    def turn(self) -> None:
        """Make the service handle all messages."""
        while self.service.turn(block=False):
            while self._engine is not None and self._unrolls:
                self._arena.release(self._unrolls.pop())

    def hello(self, **changes: Any) -> bytes:
        """A valid HELLO with a new name."""
        self._names += 1
        name = f"intruder-{self._names % 50}"
        return encode_control({"actor_id": name, "envs": 2, "streams": 1, "version": "0"} | changes)

    def proof(self, hello: bytes, challenge: Any) -> bytes:
        """A valid proof."""
        if self.token is None:
            return b"{}"
        said, nonce = transcript(hello, bytes(challenge)), new_nonce()
        return encode_control({"nonce": nonce, "proof": prove(self.token, "actor", said, nonce)})

    def count(self, sent: Sent, outcome: str) -> None:
        """Count the outcome of a mutation; from time to time check that another actor is still answered."""
        self.outcomes[outcome] += 1
        self.changes[sent.what] += 1
        if self.outcomes.total() % _CANARY_EVERY == 0:
            self._canary.step()

    def close(self) -> None:
        """Free the listener."""
        self.service.finish()


class Intruder:
    """A client; with a codec it joins like an actor."""

    def __init__(self, fleet: Fleet, name: str = "", codec: str = "") -> None:
        self.fleet = fleet
        self.client: InProcessClient = fleet.server.client()
        self.peer = self.client._peer
        self.sequence = [0, 0]
        self.session = 0
        if codec:
            self._join(name, codec)

    def exchange(self, sent: Sent) -> list[Any]:
        """Send a frame; returns the answers."""
        self.client.inbox.clear()
        self.client.send(sent.header, sent.payload)
        self.fleet.turn()
        return list(self.client.inbox)

    def ask(self, kind: Kind, payload: bytes) -> list[Any]:
        """Send a valid frame; returns the answers."""
        return self.exchange(Sent(pack_header(kind, len(payload), session=self.session), payload, ""))

    def _join(self, name: str, codec: str) -> None:
        fleet = self.fleet
        hello = fleet.hello(**({"actor_id": name} if name else {}), streams=2)
        (challenge,) = self.ask(Kind.HELLO, hello)
        (configure,) = self.ask(Kind.PROOF, fleet.proof(hello, challenge.payload))
        assert configure.header.kind == Kind.CONFIGURE
        (ready,) = self.ask(Kind.SPEC, specification(codec))
        assert ready.header.kind == Kind.READY, bytes(ready.payload)
        self.session = decode_control(ready.payload)["session"]
        self.layout = RowLayout(SPEC, 1)
        self.encoder = None if codec == "raw" else RowEncoder(self.layout, {"observation": codec})

    def row(self, value: float) -> bytes:
        """A valid row, encoded as in this session."""
        row = np.zeros(self.layout.nbytes, np.uint8)
        self.layout.views(row).observation[:] = value
        if self.encoder is None:
            return row.tobytes()
        out = bytearray(self.encoder.max_payload)
        return bytes(out[: self.encoder.encode(row, memoryview(out))])

    def step(self) -> None:
        """Send a valid step and check the answer."""
        sequence = self.sequence[0]
        header = pack_header(Kind.STEP, self.layout.nbytes, session=self.session, sequence=sequence)
        (answer,) = self.exchange(Sent(header, self.row(sequence % 7), ""))
        assert (answer.header.kind, answer.header.sequence) == (Kind.ACTION, sequence)
        assert np.frombuffer(answer.payload, np.int32).tolist() == [3 * (sequence % 7)]
        self.sequence[0] += 1

    def close(self) -> None:
        """End the connection."""
        self.client.close()
        self.fleet.service.lost(self.peer, "closed")

    def is_open(self) -> bool:
        """Whether the session is still open."""
        return any(answer.header.kind == Kind.HEARTBEAT_ACK for answer in self.ask(Kind.HEARTBEAT, b""))


def specification(codec: str) -> bytes:
    """A valid SPEC."""
    return encode_control({**SPEC.to_dict(), "codecs": {"observation": codec}, "notice": "it observes text"})


def _unauthenticated(fleet: Fleet) -> int:
    """Send a mutation as the first message."""
    kind = fleet.random.choice([Kind.HELLO] * 6 + [Kind.PROOF, Kind.SPEC, Kind.STEP, Kind.HEARTBEAT, Kind.GOODBYE])
    failure = {"failure": "the simulator crashed"} if fleet.random.random() < 0.2 else {}
    body = {Kind.HELLO: fleet.hello(**failure), Kind.SPEC: specification("raw")}.get(kind, b"{}")
    if fleet.random.random() < 0.02:
        body = fleet.hello(envs=1000)  # more than fit
    sent = fleet.mutator.frame(kind, body, lengths=False)
    intruder = Intruder(fleet)
    fleet.count(sent, _outcome("unauthenticated", intruder.exchange(sent)))
    intruder.close()
    return 1


def _before_the_proof(fleet: Fleet) -> int:
    intruder = Intruder(fleet)
    hello = fleet.hello(envs=fleet.random.choice([2, 2, 2, 60_000]))
    (challenge,) = intruder.ask(Kind.HELLO, hello)
    sent = fleet.mutator.frame(Kind.PROOF, fleet.proof(hello, challenge.payload), lengths=False)
    fleet.count(sent, _outcome("proof", intruder.exchange(sent)))
    intruder.close()
    return 1


def _before_ready(fleet: Fleet) -> int:
    intruder = Intruder(fleet)
    hello = fleet.hello(**({"envs": 7} if fleet.random.random() < 0.1 else {}))
    (challenge,) = intruder.ask(Kind.HELLO, hello)
    intruder.ask(Kind.PROOF, fleet.proof(hello, challenge.payload))
    sent = fleet.mutator.frame(Kind.SPEC, specification("zstd"), lengths=False)
    fleet.count(sent, _outcome("specification", intruder.exchange(sent)))
    intruder.close()
    return 1


def _inside(fleet: Fleet) -> int:
    """Send mutated, repeated and reordered steps, heartbeats and goodbyes until the session ends."""
    codec = fleet.random.choice(["raw", "zstd"])
    intruder = Intruder(fleet, "", codec)
    count = 0
    while count < 50:
        stream = fleet.random.randrange(2)
        row = intruder.row(fleet.random.choice([0.0, 1.0, 5.0, float("nan"), float("inf")]))
        sequence = intruder.sequence[stream]
        kind, body = fleet.random.choice(
            [(Kind.STEP, row)] * 6 + [(Kind.HEARTBEAT, b""), (Kind.GOODBYE, b'{"failure":"x"}')]
        )
        fields = {"session": intruder.session, "stream": stream, "sequence": sequence}
        if kind == Kind.STEP and fleet.random.random() < 0.2:
            # A valid row, sometimes sent twice.
            sent = Sent(pack_header(kind, len(body), **fields), body, "valid or repeated")
            if fleet.random.random() < 0.3:
                intruder.client.send(sent.header, sent.payload)
        elif kind == Kind.GOODBYE and fleet.random.random() < 0.2:
            body = fleet.random.choice([b"", body])
            sent = Sent(pack_header(kind, len(body), **fields), body, "goodbye")
        else:
            sent = fleet.mutator.frame(
                kind, body, blocks=int(kind == Kind.STEP and codec == "zstd"), lengths=False, **fields
            )
        answers = intruder.exchange(sent)
        count += 1
        fleet.count(sent, _outcome("session", answers))
        if any(answer.header.kind == Kind.ACTION for answer in answers):
            for answer in answers:
                if answer.header.kind == Kind.ACTION:
                    intruder.sequence[answer.header.stream] = answer.header.sequence + 1
        if not intruder.is_open():
            break
    intruder.close()
    return count


def _admissions(fleet: Fleet) -> None:
    """Valid messages that must be refused for lack of room; nothing is mutated."""
    for _ in range(2):
        again = Intruder(fleet, "twice", "raw")
    again.close()
    half = []
    for name, streams in (("one", 1), ("other", 4)):
        intruder = Intruder(fleet)
        hello = fleet.hello(actor_id=name, envs=10, streams=streams, failure="it crashed")
        (challenge,) = intruder.ask(Kind.HELLO, hello)
        intruder.ask(Kind.PROOF, fleet.proof(hello, challenge.payload))
        half.append(intruder)
    kinds = [intruder.ask(Kind.SPEC, specification("raw"))[0].header.kind for intruder in half]
    assert kinds == [Kind.READY, Kind.REFUSED], kinds
    for intruder in half:
        intruder.close()
    for descriptors, envs in ((10**9, 1), (0, 10**4)):
        fleet.service.admission_control.descriptors = descriptors
        intruder = Intruder(fleet)
        hello = fleet.hello(envs=envs)
        (challenge,) = intruder.ask(Kind.HELLO, hello)
        (refusal,) = intruder.ask(Kind.PROOF, fleet.proof(hello, challenge.payload))
        assert refusal.header.kind == Kind.REFUSED
    fleet.service.handshakes.place = lambda hello, transport: "b:1"
    intruder = Intruder(fleet)
    hello = fleet.hello()
    (challenge,) = intruder.ask(Kind.HELLO, hello)
    (redirect,) = intruder.ask(Kind.PROOF, fleet.proof(hello, challenge.payload))
    assert redirect.header.kind == Kind.REDIRECT
    fleet.service.handshakes.place = None
    crowd = [Intruder(fleet) for _ in range(MAX_UNAUTHENTICATED + 5)]
    with mock.patch.object(handshakes, "PROOF_SECONDS", 3600.0):  # so that none times out before the last one is sent
        for intruder in crowd:
            intruder.ask(Kind.HELLO, fleet.hello())
    assert (
        sum(not entry.handshake.proved for entry in fleet.service.handshakes.in_progress().values())
        == MAX_UNAUTHENTICATED
    )
    for intruder in crowd:
        intruder.close()


def _outcome(stage: str, answers: list[Any]) -> str:
    kinds = [Kind(answer.header.kind).name.lower() for answer in answers]
    return f"{stage}: {kinds[-1] if kinds else 'dropped'}"


class _Decoders:
    """The parsers without a service."""

    def __init__(self, seed: int) -> None:
        self.mutator = Mutator(seed)
        self.layout = RowLayout(_MIXED, 2)
        self.decoder = RowDecoder(self.layout, _CODECS)
        row = np.zeros(self.layout.nbytes, np.uint8)
        views = self.layout.views(row)
        chance = np.random.default_rng(seed)
        views.observation["flags"][:] = chance.integers(0, 2, (2, 40))
        views.observation["image"][:, :9] = chance.integers(0, 255, (2, 9, 24))
        views.observation["masks"][:] = np.where(chance.random((2, 24, 24)) < 0.05, 250, 3)
        out = bytearray(self.decoder.max_payload)
        encoder = RowEncoder(self.layout, _CODECS)
        self.row = bytes(out[: encoder.encode(row, memoryview(out))])
        self.destination = memoryview(bytearray(self.layout.nbytes))
        self.outcomes: Counter[str] = Counter()
        self.ready = encode_control(
            {
                "session": 5, "stream_envs": [2, 1], "payload_bytes": [100, 50], "heartbeat_seconds": 2.0,
                "timeout_seconds": 20.0, "reconnect_timeout": 300.0,
            }
        )  # fmt: skip
        # 60,000 environments are too many for the second, whose action has 100 parts.
        self.specs = [
            encode_control({**spec.to_dict(), "codecs": _CODECS, "notice": "of text"})
            for spec in (_MIXED, dataclasses.replace(_MIXED, action=ActionSpec(size=100)))
        ]

    def once(self) -> int:
        """Send a mutation to each parser."""
        mutator = self.mutator
        self._try("row", lambda: self.decoder.decode(mutator.row(self.row, 4), self.destination))
        self._try("row bytes", lambda: self.decoder.decode(mutator.noise(self.row), self.destination))
        self._try("header", lambda: unpack_header(mutator.noise(pack_header(Kind.STEP, 7))))
        self._try("READY", lambda: messages.parse(messages.Ready, decode_control(mutator.json(self.ready))))
        redirect, scheme = mutator.json(b'{"address":"b:1"}'), mutator.random.choice(["grpc", "zmq"])
        self._try("REDIRECT", lambda: messages.parse_redirect(decode_control(redirect), scheme))
        spec, envs = mutator.random.choice(self.specs), mutator.random.choice([3, 60_000])
        self._try("SPEC", lambda: self._specification(mutator.json(spec), envs))
        self._try("codecs", lambda: self._codecs(mutator.random.choice([*codecs.CODECS, "lz4"])))
        return 7

    @staticmethod
    def _specification(body: bytes, envs: int) -> None:
        announcement = messages.parse_spec(decode_control(body), envs)
        codecs.check_codecs(announcement.spec, announcement.codecs, codecs.CODECS)
        RowDecoder(RowLayout(announcement.spec, envs), announcement.codecs)

    @staticmethod
    def _codecs(name: str) -> None:
        codecs.check_codecs(_MIXED, _CODECS | {"vector": name}, codecs.CODECS)

    def _try(self, what: str, action: Callable[[], object]) -> None:
        try:
            action()
            self.outcomes[f"{what}: accepted"] += 1
        except (ProtocolError, RefusedError):
            self.outcomes[f"{what}: refused"] += 1


def _round(fleets: list[Fleet], decoders: _Decoders) -> int:
    count = 0
    for fleet in fleets:
        for _ in range(10):
            count += _unauthenticated(fleet) + _before_the_proof(fleet) + _before_ready(fleet)
        # A session ends after a few mutations, and only some of its steps reach each check of their header.
        count += sum(_inside(fleet) for _ in range(10))
    for _ in range(20):
        count += decoders.once()
    return count


def fuzz_parsers(mutations: int, seed: int) -> dict[str, Any]:
    """Send mutations at all stages; returns the outcomes."""
    log = logging.getLogger("seedcli")
    level = log.level
    log.setLevel(logging.CRITICAL)
    fleets = [Fleet(seed, token=Token(new_token(), "a test")), Fleet(seed + 1, token=None)]
    decoders = _Decoders(seed)
    process = psutil.Process()
    failures: list[str] = []
    count, begun, memory = 0, time.monotonic(), 0.0
    try:
        for fleet in fleets:
            _admissions(fleet)
        while count < mutations:
            with np.errstate(invalid="ignore"):  # the policy sums non-finite observations too
                count += _round(fleets, decoders)
            if not memory and count > min(_WARM_UP, mutations // 2):
                memory = process.memory_info().rss / 2**20
    except Exception as error:
        failures.append(f"mutation {count} with seed {seed} raised {type(error).__name__}: {error}")
        raise
    finally:
        log.setLevel(level)
        for fleet in fleets:
            fleet.close()
    grown = process.memory_info().rss / 2**20 - memory
    if grown > 64:
        failures.append(f"memory grew by {grown:.0f} MB")
    outcomes: Counter[str] = sum((fleet.outcomes for fleet in fleets), Counter(decoders.outcomes))
    return {
        "mutations": count,
        "mutations_per_second": count / (time.monotonic() - begun),
        "memory_grown_mb": grown,
        "outcomes": dict(sorted(outcomes.items())),
        "changes": dict(sorted(sum((fleet.changes for fleet in fleets), Counter[str]()).items())),
        "failures": failures,
    }
