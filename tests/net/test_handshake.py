from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import seedcli
from seedcli.errors import ConnectionLost, ProtocolError, RefusedError, TrainingDone, UnreachableError
from seedcli.net.base import Frame
from seedcli.net.frames import Header, Kind, encode_control
from seedcli.net.handshake import ClientHandshake, NoAuthenticator, ServerHandshake
from seedcli.net.messages import Hello, Ready, parse, parse_redirect, parse_spec
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec
from tests.net.harness import LIMIT, SPEC, Actor, Learner, expect, wait_until_gone

SPEC_MESSAGE = {**SPEC.to_dict(), "codecs": {"observation": "raw"}}
HELLO = {"actor_id": "actor-1", "envs": 8, "streams": 2, "version": "1.0"}
READY = {
    "session": 9,
    "stream_envs": [4, 4],
    "payload_bytes": [256, 256],
    "heartbeat_seconds": 2.0,
    "timeout_seconds": 20,
    "reconnect_timeout": 300.0,
}


def header(kind: int) -> Header:
    return Header(kind, 0, 0, 0, 0)


class Server:
    """A server handshake that records its calls."""

    def __init__(self) -> None:
        self.configured: list[Hello] = []
        self.admitted: list[EnvSpec] = []
        self.codecs: list[dict[str, str]] = []
        self.handshake = ServerHandshake(self._configure, self._admit, NoAuthenticator())

    def _configure(self, hello: Hello) -> dict[str, Any]:
        self.configured.append(hello)
        return {"environment": {"id": "x"}, "seed": 3}

    def _admit(self, hello: Hello, spec: EnvSpec, codecs: dict[str, str]) -> dict[str, Any]:
        self.admitted.append(spec)
        self.codecs.append(codecs)
        return dict(READY)

    def take(self, kind: int, message: Mapping[str, Any]) -> tuple[Kind, dict[str, Any]]:
        return self.handshake.receive(header(kind), json.dumps(message).encode())

    def up_to(self, kind: Kind) -> Server:
        for earlier, message in ((Kind.HELLO, HELLO), (Kind.PROOF, {})):
            if earlier < kind:
                self.take(earlier, message)
        return self


def test_a_complete_handshake() -> None:
    server = Server()
    kind, challenge = server.take(Kind.HELLO, HELLO)
    assert kind == Kind.CHALLENGE and challenge["proof_required"] is False and len(challenge["nonce"]) >= 32
    assert server.handshake.hello == Hello(**HELLO)
    assert server.take(Kind.PROOF, {}) == (Kind.CONFIGURE, {"environment": {"id": "x"}, "seed": 3})
    assert not server.handshake.complete
    assert server.take(Kind.SPEC, SPEC_MESSAGE) == (Kind.READY, READY)
    assert server.handshake.complete and server.admitted == [SPEC]
    assert server.codecs == [{"observation": "raw"}]
    with pytest.raises(ProtocolError, match="nothing more"):
        server.take(Kind.SPEC, SPEC_MESSAGE)


BOX = ArraySpec((72, 96, 4), "uint8", binary=(0, 255))
SPECS = {
    "planes": EnvSpec("football/x", BOX, ActionSpec((19,)), 1),
    "several": EnvSpec(
        "gymnasium/x",
        {"a/b": BOX, "mode": ArraySpec((), "int32", (7,)), "parts": ArraySpec((2,), "int32", (3, 4))},
        ActionSpec((3, 4)),
    ),
    "box": EnvSpec("mujoco/x", ArraySpec((17,), "float32"), ActionSpec(size=6, unbounded=(0, 5))),
    "vector": EnvSpec("gymnasium/y", ArraySpec((3,), "bool"), ActionSpec((5,), vector=True)),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_all_kinds_of_specifications_are_accepted(spec: EnvSpec) -> None:
    codecs = dict.fromkeys(spec.arrays, "zstd")
    announcement = parse_spec({**spec.to_dict(), "codecs": codecs}, 1024)
    assert (announcement.spec, announcement.codecs, announcement.notice) == (spec, codecs, "")


def test_the_specification_carries_a_notice() -> None:
    server = Server().up_to(Kind.SPEC)
    server.take(Kind.SPEC, {**SPEC_MESSAGE, "notice": "x observes text"})
    assert server.handshake.notice == "x observes text" and server.admitted == [SPEC]
    for wrong in ("", "a\nb", "x" * 501, 1, None):
        server = Server().up_to(Kind.SPEC)
        with pytest.raises(ProtocolError, match="^notice must "):
            server.take(Kind.SPEC, {**SPEC_MESSAGE, "notice": wrong})
        assert not server.admitted and not server.handshake.notice


def with_arrays(*arrays: dict[str, Any], name: str = "x") -> dict[str, Any]:
    message = {key: value for key, value in SPEC_MESSAGE.items() if key != "observation"}
    names = [f"{name}{i}" for i in range(len(arrays))]
    codecs = dict.fromkeys(names, "raw")
    return {**message, "observations": dict(zip(names, arrays, strict=True)), "codecs": codecs}


BAD_OBSERVATIONS = {
    "none": with_arrays(),
    "too many": with_arrays(*[ArraySpec((1,), "uint8").to_dict()] * 65),
    "a long name": with_arrays(ArraySpec((1,), "uint8").to_dict(), name="x" * 128),
    "a name of control characters": with_arrays(ArraySpec((1,), "uint8").to_dict(), name="a\x00"),
    "together too large": with_arrays(*[ArraySpec((2**23,), "uint8").to_dict()] * 64),  # times 8 environments
    "both forms": {
        **with_arrays(ArraySpec((1,), "uint8").to_dict()),
        "observation": ArraySpec((1,), "uint8").to_dict(),
    },
    "no codec": {**with_arrays(ArraySpec((1,), "uint8").to_dict()), "codecs": {}},
    "a list": {**with_arrays(ArraySpec((1,), "uint8").to_dict()), "observations": [1]},
}


@pytest.mark.parametrize("message", BAD_OBSERVATIONS.values(), ids=BAD_OBSERVATIONS)
def test_invalid_observations_are_protocol_errors(message: dict[str, Any]) -> None:
    parse_spec(with_arrays(*[ArraySpec((2,), "uint8").to_dict()] * 64), 8)
    with pytest.raises(ProtocolError):
        parse_spec(message, 8)


def test_every_challenge_has_a_fresh_nonce() -> None:
    assert len({NoAuthenticator().challenge()["nonce"] for _ in range(100)}) == 100


@pytest.mark.parametrize("expected", [Kind.HELLO, Kind.PROOF, Kind.SPEC])
def test_a_frame_out_of_order_is_a_protocol_error(expected: Kind) -> None:
    for kind in Kind:
        if kind != expected:
            with pytest.raises(ProtocolError, match=f"kind {int(kind)}, but {expected.name} is expected"):
                Server().up_to(expected).take(kind, HELLO)


BAD_HELLO = [
    {"actor_id": ""},
    {"actor_id": "x" * 65},
    {"actor_id": "a\nb"},
    {"actor_id": 5},
    {"envs": 0},
    {"envs": 65_537},
    {"envs": True},
    {"envs": 8.0},
    {"placed": 1},
    {"placed": None},
    {"placed": "true"},
    {"envs": "8"},
    {"streams": 0},
    {"streams": 9},
    {"streams": None},
    {"version": []},
    {"version": "v" * 33},
    {"more": 1},
]


@pytest.mark.parametrize("change", BAD_HELLO, ids=str)
def test_the_error_for_an_invalid_hello_names_the_field(change: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match=next(iter(change))):
        Server().take(Kind.HELLO, {**HELLO, **change})
    field = next(iter(change))
    if field in HELLO:
        with pytest.raises(ProtocolError, match=field):
            Server().take(Kind.HELLO, {key: value for key, value in HELLO.items() if key != field})


GOOD_OBSERVATION = {"shape": [84, 84], "dtype": "uint8", "categories": [], "binary": []}
GOOD_ACTION = {"categories": [3], "size": 0, "vector": False, "unbounded": []}
BAD_SPEC = [
    {"name": ""},
    {"name": 3},
    {"num_actions": 3},
    {"action": None},
    {"action": 3},
    {"action": {**GOOD_ACTION, "categories": []}},
    {"action": {**GOOD_ACTION, "categories": [0]}},
    {"action": {**GOOD_ACTION, "categories": [2**40]}},
    {"action": {**GOOD_ACTION, "categories": [True]}},
    {"action": {**GOOD_ACTION, "categories": [2] * 4097}},
    {"action": {**GOOD_ACTION, "size": 2}},
    {"action": {**GOOD_ACTION, "categories": [], "size": 4097}},
    {"action": {**GOOD_ACTION, "categories": [], "size": -1}},
    {"action": {**GOOD_ACTION, "vector": 0}},
    {"action": {**GOOD_ACTION, "unbounded": None}},
    {"action": {**GOOD_ACTION, "unbounded": [0]}},
    {"action": {"categories": [], "size": 2, "vector": False, "unbounded": [2]}},
    {"action": {"categories": [], "size": 2, "vector": False, "unbounded": [True]}},
    {"action": {**GOOD_ACTION, "more": 0}},
    {"action": {"categories": [3]}},
    {"frames_per_step": 0},
    {"frames_per_step": True},
    {"observation": [1]},
    {"observation": {**GOOD_OBSERVATION, "shape": "84"}},
    {"observation": {**GOOD_OBSERVATION, "shape": [84, 0]}},
    {"observation": {**GOOD_OBSERVATION, "shape": [84, 1.5]}},
    {"observation": {**GOOD_OBSERVATION, "shape": [1] * 9}},
    {"observation": {**GOOD_OBSERVATION, "shape": [2**31, 2**31, 4]}},  # 2**64 overflows to 0
    {"observation": {**GOOD_OBSERVATION, "shape": [2**29]}},  # times 8 environments
    {"observation": {**GOOD_OBSERVATION, "dtype": "object"}},
    {"observation": {**GOOD_OBSERVATION, "dtype": 1}},
    {"observation": {**GOOD_OBSERVATION, "categories": 0}},
    {"observation": {**GOOD_OBSERVATION, "categories": [-1]}},
    {"observation": {**GOOD_OBSERVATION, "categories": [2]}},  # one for each element
    {"observation": {**GOOD_OBSERVATION, "binary": [0]}},
    {"observation": {**GOOD_OBSERVATION, "binary": [0, 256]}},
    {"observation": {**GOOD_OBSERVATION, "binary": [0, 1], "dtype": "int8"}},
    {"observation": {"shape": [4], "dtype": "uint8"}},
    {"codecs": None},
    {"codecs": {}},
    {"codecs": {"observation": 1}},
    {"codecs": {"observation": "z" * 33}},
    {"codecs": {"observation": "raw", "more": "raw"}},
    {"codecs": {"other": "raw"}},
    {"observation": {**GOOD_OBSERVATION, "code": 1}},
    {"more": 1},
]


@pytest.mark.parametrize("change", BAD_SPEC, ids=lambda change: str(change)[:60])
def test_an_invalid_spec_is_a_protocol_error(change: dict[str, Any]) -> None:
    server = Server().up_to(Kind.SPEC)
    with pytest.raises(ProtocolError):
        server.take(Kind.SPEC, {**SPEC_MESSAGE, **change})
    assert not server.admitted and not server.handshake.complete


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers())
MESSAGES = st.dictionaries(
    st.sampled_from([*HELLO, *SPEC_MESSAGE, "observations", "shape", "dtype", *READY]),
    VALUES | st.dictionaries(st.sampled_from([*GOOD_OBSERVATION, *GOOD_ACTION]), VALUES),
)


@given(st.sampled_from([Kind.HELLO, Kind.PROOF, Kind.SPEC]), MESSAGES)
def test_any_message_is_accepted_or_a_protocol_error(kind: Kind, message: dict[str, Any]) -> None:
    try:
        Server().up_to(kind).take(kind, message)
    except ProtocolError:
        pass
    try:
        assert isinstance(parse(Ready, message), Ready)
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    "change",
    [
        {"session": 0},
        {"session": "9"},
        {"stream_envs": []},
        {"stream_envs": [4]},
        {"payload_bytes": [256, -1]},
        {"payload_bytes": 256},
        {"heartbeat_seconds": -1},
        {"timeout_seconds": float("inf")},
        {"reconnect_timeout": None},
    ],
    ids=str,
)
def test_an_invalid_ready_is_a_protocol_error(change: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        parse(Ready, {**READY, **change})


def test_ready_keeps_the_fields_of_the_transport() -> None:
    assert parse(Ready, {**READY, "path": "/x"}).extra == {"path": "/x"}


# -- both sides, over every transport


def shake_hands(learner: Learner, timeout: float = LIMIT) -> ClientHandshake:
    client = learner.connect()
    client.connect(LIMIT)
    return ClientHandshake(client, actor_id="actor", envs=4, streams=2, timeout=timeout)


def test_both_sides_complete_the_handshake(learner: Learner, join: Callable[..., Actor]) -> None:
    hellos: list[Hello] = []

    def configure(hello: Hello) -> dict[str, Any]:
        hellos.append(hello)
        return {"environment": {"id": "rows"}}

    learner.configure = configure
    actor = join(learner)
    assert hellos == [Hello(actor_id="actor", envs=64, streams=8, version=seedcli.__version__)]
    assert actor.configuration == {"environment": {"id": "rows"}}
    assert actor.ready.session == 7 and actor.ready.payload_bytes == (1000, 500) and actor.ready.stream_envs == (1, 1)
    assert (actor.ready.heartbeat_seconds, actor.ready.timeout_seconds, actor.ready.reconnect_timeout) == (0.5, 5, 10)


def test_an_actor_with_too_many_environments_is_refused(learner: Learner) -> None:
    def configure(hello: Hello) -> dict[str, Any]:
        raise RefusedError(f"{hello.envs} environments do not fit")

    learner.configure = configure
    handshake = shake_hands(learner)
    with pytest.raises(RefusedError, match="^4 environments do not fit$"):
        handshake.configure()
    wait_until_connection_is_refused(handshake)


def test_an_actor_with_another_environment_is_refused(learner: Learner) -> None:
    learner.refuse_spec = "num_actions is 3 where 6 is expected"
    handshake = shake_hands(learner)
    handshake.configure()
    with pytest.raises(RefusedError, match="num_actions is 3 where 6 is expected"):
        handshake.announce(SPEC)
    wait_until_connection_is_refused(handshake)


def wait_until_connection_is_refused(handshake: ClientHandshake) -> None:
    """After a refusal the learner closes the connection or answers UNKNOWN."""
    client = handshake._transport
    try:
        handshake._send(Kind.SPEC, SPEC_MESSAGE)
    except ConnectionLost:
        pass
    wait_until_gone(client)
    client.close()


class RefuseAll(NoAuthenticator):
    """Refuses every peer."""

    def __init__(self, proof_required: bool) -> None:
        self._proof_required = proof_required

    def challenge(self) -> dict[str, Any]:
        return super().challenge() | {"proof_required": self._proof_required}

    def answer(self, transcript: bytes, message: Mapping[str, Any]) -> dict[str, Any] | None:
        return None


def test_an_actor_with_a_wrong_proof_is_refused(learner: Learner) -> None:
    learner.authenticator = RefuseAll(proof_required=learner.security is not None)
    handshake = shake_hands(learner)
    with pytest.raises(RefusedError, match="^the token is not this learner's: give the actor the learner's token$"):
        handshake.configure()
    wait_until_connection_is_refused(handshake)


def test_both_sides_must_require_a_proof_or_neither(learner: Learner) -> None:
    learner.authenticator = RefuseAll(proof_required=learner.security is None)
    handshake = shake_hands(learner)
    reason = "requires a token: leave out --insecure" if learner.security is None else "does not require the token"
    with pytest.raises(RefusedError, match=reason):
        handshake.configure()
    handshake._transport.close()


def test_a_learner_that_does_not_answer(learner: Learner) -> None:
    learner.mute = True
    handshake = shake_hands(learner, timeout=0.3)
    with pytest.raises(UnreachableError, match=r"no learner answered at .* within 0.3 s \(Challenge is missing\)"):
        handshake.configure()
    handshake._transport.close()


class Scripted:
    """A client transport that answers with given frames."""

    address = "somewhere:1"
    token = None

    def __init__(self, *answers: tuple[Kind, bytes]) -> None:
        self._answers = [Frame(header(kind), payload) for kind, payload in answers]

    def send(self, header: bytes, payload: Any = b"") -> None:
        pass

    def receive(self, timeout: float) -> Frame | None:
        return self._answers.pop(0) if self._answers else None


CHALLENGE = encode_control({"nonce": "0f" * 32, "proof_required": False})


@pytest.mark.parametrize(
    ("answers", "error", "words"),
    [
        ([(Kind.ACTION, b"")], ProtocolError, "kind 9, but CHALLENGE is expected"),
        ([(Kind.CHALLENGE, b"not JSON")], ProtocolError, "not JSON"),
        ([(Kind.CHALLENGE, b"{}")], ProtocolError, "somewhere:1 sent an invalid challenge"),
        ([(Kind.CHALLENGE, CHALLENGE.replace(b"0f", b"0F"))], ProtocolError, "an invalid challenge"),
        ([(Kind.CHALLENGE, CHALLENGE.replace(b"false", b"0"))], ProtocolError, "an invalid challenge"),
        ([(Kind.REFUSED, b'{"reason":"\\u001b[2Jgone"}')], RefusedError, r"^ \[2Jgone$"),
        ([(Kind.CHALLENGE, CHALLENGE), (Kind.CHALLENGE, CHALLENGE)], ProtocolError, "CONFIGURE is expected"),
        ([(Kind.REFUSED, b"{}")], RefusedError, "no reason"),
        ([(Kind.HEARTBEAT_ACK, b""), (Kind.REFUSED, b'{"reason":"full"}')], RefusedError, "^full$"),
        ([(Kind.CHALLENGE, CHALLENGE), (Kind.UNKNOWN, b"")], ConnectionLost, "somewhere:1 ended the handshake"),
        ([(Kind.UNKNOWN, b"")], ConnectionLost, "ended the handshake"),
        ([(Kind.DONE, b"")], TrainingDone, "is done"),
    ],
)
def test_invalid_answers_raise(answers: list[tuple[Kind, bytes]], error: type[Exception], words: str) -> None:
    client: Any = Scripted(*answers)
    with pytest.raises(error, match=words):
        ClientHandshake(client, actor_id="actor", envs=1, streams=1, timeout=LIMIT).configure()


def test_a_handshake_out_of_order_ends_the_connection(learner: Learner, join: Callable[..., Actor]) -> None:
    good = join(learner, "good")
    handshake = shake_hands(learner)
    handshake._send(Kind.HELLO, HELLO)
    expect(handshake._transport, Kind.CHALLENGE)
    handshake._send(Kind.SPEC, SPEC_MESSAGE)
    assert "but PROOF is expected" in learner.lost_peers.get(timeout=LIMIT).reason
    wait_until_gone(handshake._transport)
    handshake._transport.close()
    good.echo(0, bytes(1000))


# -- redirection


def test_redirect_replaces_configure_and_ends_the_handshake() -> None:
    asked: list[Hello] = []

    def place(hello: Hello) -> str | None:
        asked.append(hello)
        return "b:1" if hello.envs == 8 else None

    def shake(**change: Any) -> tuple[Server, tuple[Kind, dict[str, Any]]]:
        server = Server()
        server.handshake = ServerHandshake(server._configure, server._admit, NoAuthenticator(), place)
        server.take(Kind.HELLO, HELLO | change)
        return server, server.take(Kind.PROOF, {})

    server, answer = shake()
    assert answer == (Kind.REDIRECT, {"address": "b:1"})
    assert server.handshake.complete and not server.handshake.proved and server.configured == []
    with pytest.raises(ProtocolError, match="nothing more is expected"):
        server.take(Kind.SPEC, SPEC_MESSAGE)
    assert shake(envs=4, streams=1)[1][0] == Kind.CONFIGURE
    assert len(asked) == 2
    # An actor that was already redirected is not placed again.
    server, answer = shake(placed=True)
    assert answer[0] == Kind.CONFIGURE and server.configured[0].placed
    assert len(asked) == 2


def test_valid_and_invalid_redirect_addresses() -> None:
    assert parse_redirect({"address": "b:1"}, "grpc") == "b:1"
    assert parse_redirect({"address": "zmq://[::1]:1"}, "zmq") == "zmq://[::1]:1"
    for message in ({}, {"address": 1}, {"address": "zmq://b:1"}, {"address": "b:1", "x": 1}, {"address": "shm:///b"}):
        with pytest.raises(ProtocolError):
            parse_redirect(message, "grpc")
