"""Keys derived from the token, and the peers that are accepted or refused with them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest
import zmq
from cryptography import x509

from seedcli.errors import ProtocolError, RefusedError, SeedError, UnreachableError, UsageError
from seedcli.net.frames import Header, Kind, decode_control, encode_control
from seedcli.net.handshake import ClientHandshake, NoAuthenticator, ServerHandshake, transcript
from seedcli.net.security.keys import Security, TokenAuthenticator, curve_keys, new_nonce, prove, tls_identity
from seedcli.net.security.token import Token
from seedcli.net.zmq_router import RouterServer
from tests.net.harness import LIMIT, TOKEN, Learner, make_server
from tests.net.protected import MINE, OTHER, PROTECTED, Join, client_of, refused
from tests.ports import reserve_ports

# -- keys

PRINT_KEYS = """
import sys
from seedcli.net.security.keys import Security, curve_keys, tls_identity
from seedcli.net.security.token import Token
token = Token(sys.argv[1], "argv")
for side in ("learner", "actor"):
    identity = tls_identity(Security(token), side)
    print(curve_keys(token, side), [identity.key, identity.chain, identity.roots, identity.name])
"""


def keys_of(token: Token) -> str:
    lines = []
    for side in ("learner", "actor"):
        identity = tls_identity(Security(token), side)  # type: ignore[arg-type]
        parts = [identity.key, identity.chain, identity.roots, identity.name]
        lines.append(f"{curve_keys(token, side)} {parts}\n")  # type: ignore[arg-type]
    return "".join(lines)


def test_keys_are_the_same_in_another_process_and_differ_by_token() -> None:
    done = subprocess.run([sys.executable, "-c", PRINT_KEYS, TOKEN], capture_output=True, text=True, timeout=LIMIT)
    assert done.stdout == keys_of(MINE), done.stderr
    mine, other = (tls_identity(Security(token), "learner") for token in (MINE, OTHER))
    assert mine.key != other.key and mine.chain != other.chain and mine.roots != other.roots


def test_each_side_has_the_identity_that_the_other_trusts_and_not_the_others() -> None:
    learner, actor = tls_identity(Security(MINE), "learner"), tls_identity(Security(MINE), "actor")
    assert (learner.chain, actor.chain) == (actor.roots, learner.roots)
    assert learner.chain != actor.chain and learner.key != actor.key
    certificate = x509.load_pem_x509_certificate(learner.chain or b"")
    # Valid at any time, so that wrong clocks do not matter.
    assert certificate.not_valid_before_utc.year == 2000 and certificate.not_valid_after_utc.year == 9999
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["seed-learner"] == [actor.name]


# -- which peers are accepted


@PROTECTED
def test_another_token_is_refused(kind: str, learner: Learner, join: Join) -> None:
    good = join(learner, "good")
    sentence = refused(learner.server.address, Security(OTHER))
    assert "do not trust each other" in sentence and "the one from elsewhere" in sentence
    assert learner.server.address in sentence and "seed token show" in sentence
    good.echo(0, bytes(1000))
    assert learner.lost_peers.empty() and set(learner.peers) == {"good"}, "no frame reached the learner"


@PROTECTED
def test_an_insecure_actor_of_a_secure_learner(kind: str, learner: Learner) -> None:
    sentence = refused(learner.server.address, None)
    assert "closes unencrypted connections" in sentence and "leave out --insecure" in sentence


@pytest.mark.parametrize("kind", ["grpc", "zmq"])
def test_a_secure_actor_of_an_insecure_learner(kind: str, learner: Learner) -> None:
    sentence = refused(learner.server.address, Security(MINE))
    assert "--insecure" in sentence
    assert kind == "zmq" or "it does not encrypt" in sentence


@pytest.mark.parametrize("kind", ["grpc", "zmq"])
@pytest.mark.parametrize("security", [None, Security(MINE)], ids=["insecure", "token"])
def test_a_lost_learner_is_not_a_refusal(kind: str, security: Security | None) -> None:
    scheme = "zmq://" if kind == "zmq" else ""
    address = f"{scheme}127.0.0.1:{reserve_ports(1)[0]}"
    with client_of(address, security) as client, pytest.raises(UnreachableError, match="within 2 s: check"):
        client.connect(2.0)


@pytest.mark.parametrize("kind", ["grpc", "zmq"])
@pytest.mark.parametrize("security", [None, Security(MINE)], ids=["insecure", "token"])
def test_a_stalled_learner_is_not_a_refusal(kind: str, security: Security | None) -> None:
    scheme = "zmq://" if kind == "zmq" else ""
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel accepts, no process answers
        address = f"{scheme}127.0.0.1:{silent.getsockname()[1]}"
        begun = time.monotonic()
        sentence = r"within 2.5 s, though connections are accepted there: wait if the learner is starting"
        with client_of(address, security) as client, pytest.raises(UnreachableError, match=sentence):
            client.connect(2.5)
        assert time.monotonic() - begun < 6


@pytest.mark.parametrize("kind", ["grpc", "zmq"])
def test_a_single_closed_connection_is_not_a_refusal(kind: str, join: Join) -> None:
    """As when a learner is ending: the actor then reaches the learner that replaces it."""
    with socket.create_server(("127.0.0.1", 0)) as ending:
        port = ending.getsockname()[1]
        ended = threading.Thread(target=lambda: ending.accept()[0].close())
        ended.start()
        scheme = "zmq://" if kind == "zmq" else ""
        with client_of(f"{scheme}127.0.0.1:{port}", Security(MINE)) as client:
            outcome: list[Exception | None] = []

            def attempt() -> None:
                try:
                    client.connect(LIMIT)
                    outcome.append(None)
                except SeedError as error:
                    outcome.append(error)

            thread = threading.Thread(target=attempt)
            thread.start()
            ended.join(LIMIT)
            ending.close()
            learner = Learner(make_server(f"{kind}+token", port=port), [1000]).start()
            try:
                thread.join(LIMIT)
                assert outcome == [None]
            finally:
                learner.close()


@pytest.mark.parametrize("kind", ["zmq+token"])
def test_the_zap_handler_refuses_the_learners_key(learner: Learner) -> None:
    """CURVE alone would accept any key of a peer that knows the listener's public key."""
    assert _curve_handshake(learner) == zmq.EVENT_HANDSHAKE_FAILED_AUTH


@pytest.mark.parametrize("kind", ["zmq+token"])
def test_a_listener_without_its_zap_handler_refuses_every_peer(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seedcli.net.zmq_router.ZapHandler", lambda *arguments: None)
    server = make_server(kind)
    try:
        assert isinstance(server, RouterServer)
        learner = Learner(server, [1000])
        assert _curve_handshake(learner) != zmq.EVENT_HANDSHAKE_SUCCEEDED
    finally:
        server.close()


def _curve_handshake(learner: Learner) -> int:
    """The event that ends the handshake of a peer that knows only the listener's public key."""
    context: zmq.Context[Any] = zmq.Context()
    try:
        raw: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        public, secret = zmq.curve_keypair()
        raw.setsockopt(zmq.CURVE_PUBLICKEY, public)
        raw.setsockopt(zmq.CURVE_SECRETKEY, secret)
        raw.setsockopt(zmq.CURVE_SERVERKEY, curve_keys(MINE, "learner")[0])
        monitor = raw.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_DISCONNECTED
        )
        raw.connect(learner.server.address.replace("zmq://", "tcp://"))
        assert monitor.poll(int(LIMIT * 1000))
        return int.from_bytes(monitor.recv_multipart()[0][:2], "little")
    finally:
        context.destroy(linger=0)


@pytest.mark.parametrize("kind", ["grpc+token"])
def test_tls_without_the_actors_certificate_is_not_enough(learner: Learner) -> None:
    roots = tls_identity(Security(MINE), "actor").roots
    theirs, shown = tls_identity(Security(MINE), "learner"), tls_identity(Security(OTHER), "actor")
    # None; that of another token; and the learner's own, which an actor with this token could present.
    for key, chain in ((None, None), (shown.key, shown.chain), (theirs.key, theirs.chain)):
        credentials = grpc.ssl_channel_credentials(roots, key, chain)
        options = [("grpc.ssl_target_name_override", "seed-learner")]
        with grpc.secure_channel(learner.server.address, credentials, options=options) as channel:
            call = channel.unary_unary("/grpc.health.v1.Health/Check")
            with pytest.raises(grpc.RpcError) as caught:
                call(b"", timeout=3.0, wait_for_ready=False)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


@PROTECTED
def test_a_listener_whose_port_is_in_use_leaves_no_threads(kind: str, learner: Learner) -> None:
    port = int(learner.server.address.rpartition(":")[2])
    before = threading.active_count()
    for _ in range(3):
        with pytest.raises(UsageError, match="is in use"):
            make_server(kind, port=port)
    assert threading.active_count() <= before + 1


def test_a_failed_bind_ends_the_zap_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seedcli.net.zmq.bindable_ip", lambda host, port, setting: host)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(UsageError, match="is in use"):
            make_server("zmq+token", port=taken.getsockname()[1])
    deadline = time.monotonic() + LIMIT
    while any(thread.name == "zap handler" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


# -- the proof

HELLO = encode_control({"actor_id": "a", "envs": 1, "streams": 1, "version": "1"})


class LearnerSide:
    """A learner's side of one handshake, up to the challenge."""

    def __init__(self, token: Token = MINE, hello: bytes = HELLO) -> None:
        self.configured = 0
        self._handshake = ServerHandshake(self._configure, lambda *_: {}, TokenAuthenticator(token))
        kind, challenge = self._handshake.receive(Header(Kind.HELLO, 0, 0, 0, 0), hello)
        assert kind == Kind.CHALLENGE and challenge["proof_required"] is True
        self.transcript = transcript(hello, encode_control(challenge))

    def _configure(self, hello: object) -> dict[str, Any]:
        self.configured += 1
        return {"environment": {}}

    def prove(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a proof; returns the content of CONFIGURE."""
        assert not self._handshake.proved
        header = Header(Kind.PROOF, 0, 0, 0, 0)
        configuration = self._handshake.receive(header, json.dumps(message).encode())[1]
        assert self._handshake.proved and self.configured == 1
        return configuration

    def refuses(self, message: dict[str, Any]) -> None:
        with pytest.raises(RefusedError, match="the token is not this learner's"):
            self.prove(message)
        assert self.configured == 0 and not self._handshake.proved


def proof(token: Token, said: bytes, side: Any = "actor", nonce: str = "") -> dict[str, Any]:
    nonce = nonce or new_nonce()
    return {"nonce": nonce, "proof": prove(token, side, said, nonce)}


def test_a_proof_is_valid_once_and_answered_with_the_learners() -> None:
    learner = LearnerSide()
    message = proof(MINE, learner.transcript)
    answer = learner.prove(message)
    assert answer == {"environment": {}, "proof": prove(MINE, "learner", learner.transcript, message["nonce"])}
    assert answer["proof"] != message["proof"], "the two sides' proofs differ"
    LearnerSide().refuses(message)  # another connection: another challenge
    changed = HELLO.replace(b'"envs":1', b'"envs":2')
    learner = LearnerSide()
    LearnerSide(hello=changed).refuses(proof(MINE, learner.transcript))


def test_invalid_proofs_are_refused() -> None:
    learner = LearnerSide()
    said = learner.transcript
    learner.refuses(proof(OTHER, said))
    LearnerSide().refuses(proof(MINE, b""))
    for wrong in (
        proof(MINE, said, "learner"),  # reflected: the learner's own proof
        proof(MINE, said) | {"nonce": new_nonce()},
        {"nonce": "0" * 64, "proof": "0" * 64},
        # HELLO and CHALLENGE split at another place: the proof covers their lengths.
        proof(MINE, said[4:]),
        proof(MINE, transcript(HELLO + b" ", b"")),
    ):
        with pytest.raises(RefusedError):
            learner.prove(wrong)
    assert learner.configured == 0
    learner.prove(proof(MINE, said))


MALFORMED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "nothing": lambda good: {},
    "no proof": lambda good: {"nonce": good["nonce"]},
    "no nonce": lambda good: {"proof": good["proof"]},
    "truncated": lambda good: good | {"proof": good["proof"][:-1]},
    "empty": lambda good: good | {"proof": ""},
    "longer": lambda good: good | {"proof": good["proof"] + "0"},
    "upper case": lambda good: good | {"proof": "AB" * 32},
    "a space": lambda good: good | {"nonce": " " + good["nonce"][1:]},
    "a number": lambda good: good | {"proof": 0},
    "true": lambda good: good | {"proof": True},
    "null": lambda good: good | {"proof": None},
    "a list": lambda good: good | {"proof": list(good["proof"])},
    "other digits": lambda good: good | {"proof": "\uff10" * 64},
    "more": lambda good: good | {"token": TOKEN},
}


@pytest.mark.parametrize("change", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_proof_is_a_protocol_error(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    learner = LearnerSide()
    with pytest.raises(ProtocolError, match="nonce and proof, 64 hexadecimal digits each") as caught:
        learner.prove(change(proof(MINE, learner.transcript)))
    assert TOKEN not in str(caught.value) and learner.configured == 0


def test_an_open_listener_accepts_no_proof() -> None:
    assert NoAuthenticator().answer(b"", {}) == {}
    with pytest.raises(ProtocolError, match="unknown field"):
        NoAuthenticator().answer(b"", {"proof": "0" * 64})


@PROTECTED
def test_a_learner_that_cannot_prove_the_token_is_refused(kind: str, learner: Learner) -> None:
    """Its listener is trusted, as one with a user certificate would be, but it holds another token."""

    class Impostor(TokenAuthenticator):
        """Admits every actor and sends a given proof."""

        def __init__(self, answer: Callable[[bytes, str, str], dict[str, Any]]) -> None:
            super().__init__(OTHER)
            self._answer = answer

        def answer(self, transcript: bytes, message: Any) -> dict[str, Any]:
            return self._answer(transcript, message["nonce"], message["proof"])

    answers: dict[str, Callable[[bytes, str, str], dict[str, Any]]] = {
        "nothing": lambda said, nonce, proof: {},
        "another token": lambda said, nonce, proof: {"proof": prove(OTHER, "learner", said, nonce)},
        "reflected": lambda said, nonce, proof: {"proof": proof},
        "an earlier nonce": lambda said, nonce, proof: {"proof": prove(MINE, "learner", said, "0" * 64)},
        "no text": lambda said, nonce, proof: {"proof": 0},
    }
    for name, answer in answers.items():
        learner.authenticator = Impostor(answer)
        with client_of(learner.server.address, learner.security) as client:
            client.connect(LIMIT)
            handshake = ClientHandshake(client, actor_id="actor", envs=1, streams=1, timeout=LIMIT)
            with pytest.raises(RefusedError, match="does not hold the token from these tests"):
                handshake.configure()
                pytest.fail(f"the environment of a learner that proves {name} would be built")


def test_the_learner_sends_only_the_challenge_before_the_proof() -> None:
    """The challenge reveals nothing about the run."""
    challenge = TokenAuthenticator(MINE).challenge()
    assert set(challenge) == {"nonce", "proof_required"} and decode_control(encode_control(challenge)) == challenge
    assert len({TokenAuthenticator(MINE).challenge()["nonce"] for _ in range(100)}) == 100
