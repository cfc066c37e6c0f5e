"""The handshake of an actor: Hello → Challenge → Proof → Configure → Spec → Ready, or Refused with a reason.

With several learner hosts, Redirect may replace Configure: it names the host that serves the actor.

Every frame's header has the protocol version (`net.frames`). Challenge and Proof authenticate both sides
(`net.security.keys`). The learner's side does no I/O: it takes frames and returns answers.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import seedcli
from seedcli.errors import ConnectionLost, ProtocolError, RefusedError, TrainingDone, UnreachableError, UsageError
from seedcli.net.addresses import check_address
from seedcli.net.base import ClientTransport, Payload
from seedcli.net.codecs import RAW
from seedcli.net.frames import Header, Kind, decode_control, encode_control, pack_header
from seedcli.net.messages import Hello, Ready, check_keys, parse, parse_redirect, parse_spec, printable
from seedcli.net.security.keys import is_hex, new_nonce, prove
from seedcli.specs import EnvSpec


class Redirected(Exception):
    """An authenticated learner redirects this actor to another host.

    Attributes:
        address: the other host's address, as a user would type it.
    """

    def __init__(self, address: str) -> None:
        super().__init__(f"redirected to {address}")
        self.address = address


class Authenticator(Protocol):
    """Authenticates peers on the learner's side."""

    def challenge(self) -> dict[str, Any]:
        """Return Challenge's message, {"nonce": hex, "proof_required": bool}, with a fresh nonce."""

    def answer(self, transcript: bytes, message: Mapping[str, Any]) -> dict[str, Any] | None:
        """Check a peer's proof; returns fields to add to Configure, or None if the proof is wrong.

        Args:
            transcript: see `transcript`.
            message: the peer's Proof.

        Raises:
            ProtocolError: the message is malformed.
        """


class NoAuthenticator:
    """Accepts every peer: for listeners that only this user can reach, and for --insecure."""

    def challenge(self) -> dict[str, Any]:
        """Return a fresh nonce; no proof is required."""
        return {"nonce": new_nonce(), "proof_required": False}

    def answer(self, transcript: bytes, message: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return no fields; raises ProtocolError unless the Proof is empty."""
        check_keys(message, frozenset())
        return {}


def transcript(hello: Payload, challenge: Payload) -> bytes:
    """Return what both sides sent before the proof: the payloads of HELLO and CHALLENGE, each after its length."""
    return b"".join(len(part).to_bytes(4) + bytes(part) for part in (hello, challenge))


class ServerHandshake:
    """The learner's side of one handshake: a state machine without I/O.

    Args:
        configure: returns CONFIGURE's message for an actor; may raise RefusedError.
        admit: returns READY's message (the fields of `Ready` and those of the transport) for an actor with this
            specification and these codecs; may raise RefusedError.
        authenticator: makes the challenge and checks the proof.
        place: returns the address of the host that serves an actor, None for this host; not called for an actor that
            is already placed. None: this host serves every actor.

    Attributes:
        complete: READY or REDIRECT was returned: no more frames are expected.
        hello: the actor's HELLO; None until it is received.
        notice: SPEC's sentence for the learner's log, or "".
    """

    def __init__(
        self,
        configure: Callable[[Hello], dict[str, Any]],
        admit: Callable[[Hello, EnvSpec, dict[str, str]], dict[str, Any]],
        authenticator: Authenticator,
        place: Callable[[Hello], str | None] | None = None,
    ) -> None:
        self._place = place
        self._configure = configure
        self._admit = admit
        self._authenticator = authenticator
        self._expected = Kind.HELLO
        self._transcript = b""
        self.complete = False
        self.hello: Hello | None = None
        self.notice = ""

    def receive(self, header: Header, payload: Payload) -> tuple[Kind, dict[str, Any]]:
        """Take the actor's next frame; returns the kind and message of the answer.

        Raises:
            ProtocolError: the frame is out of order or has invalid fields.
            RefusedError: the actor is refused; the caller sends REFUSED with {"reason": …}.
        """
        if self.complete or header.kind != self._expected:
            expected = "nothing more" if self.complete else self._expected.name
            raise ProtocolError(f"the handshake received a frame of kind {header.kind}, but {expected} is expected")
        message = decode_control(payload)
        if self._expected == Kind.HELLO:
            self.hello = parse(Hello, message)
            challenge = self._authenticator.challenge()
            self._transcript = transcript(payload, encode_control(challenge))
            self._expected = Kind.PROOF
            return Kind.CHALLENGE, challenge
        assert self.hello is not None
        if self._expected == Kind.PROOF:
            answer = self._authenticator.answer(self._transcript, message)
            if answer is None:
                raise RefusedError("the token is not this learner's: give the actor the learner's token")
            redirect = None if self._place is None or self.hello.placed else self._place(self.hello)
            if redirect is not None:
                self.complete = True
                return Kind.REDIRECT, {"address": redirect} | answer
            self._expected = Kind.SPEC
            return Kind.CONFIGURE, self._configure(self.hello) | answer
        announcement = parse_spec(message, self.hello.envs)
        ready = self._admit(self.hello, announcement.spec, announcement.codecs)
        self.notice = announcement.notice
        self.complete = True
        return Kind.READY, ready

    @property
    def proved(self) -> bool:
        """Whether the peer is authenticated, while its SPEC is awaited."""
        return self._expected == Kind.SPEC


class ClientHandshake:
    """The actor's side of the handshake, over a connected transport.

    Args:
        transport: connected.
        actor_id, envs, streams, failure, placed: see `Hello`.
        timeout: seconds each of `configure` and `announce` may take.
    """

    def __init__(
        self,
        transport: ClientTransport,
        *,
        actor_id: str,
        envs: int,
        streams: int,
        timeout: float,
        failure: str = "",
        placed: bool = False,
    ) -> None:
        self._transport = transport
        self._token = transport.token
        self._envs, self._placed = envs, placed
        self._hello = {"actor_id": actor_id, "envs": envs, "streams": streams, "version": seedcli.__version__}
        # Empty fields are omitted, so that an older learner accepts the message.
        self._hello |= {"failure": printable(failure)} if failure else {}
        self._hello |= {"placed": True} if placed else {}
        self._timeout = timeout

    def configure(self) -> dict[str, Any]:
        """Authenticate; returns CONFIGURE's message, which says what to build.

        Raises:
            UnreachableError: no answer in time.
            RefusedError: the learner refused, does not hold the token, or only one side requires a token.
            ProtocolError: the peer is not a learner, or has another version.
            ConnectionLost: the connection ended.
            Redirected: another host serves this actor.
        """
        deadline = time.monotonic() + self._timeout
        hello = self._send(Kind.HELLO, self._hello)
        challenge = self._expect(Kind.CHALLENGE, deadline)
        sent = transcript(hello, challenge)
        nonce = self._prove(decode_control(challenge), sent)
        kind, payload = self._receive(deadline, Kind.CONFIGURE, Kind.REDIRECT)
        message = decode_control(payload)
        if self._token is not None:
            self._check_learner(message.pop("proof", None), sent, nonce)
        if kind == Kind.CONFIGURE:
            return message
        address = parse_redirect(message, check_address(self._transport.address)[0])
        if self._placed:
            raise ProtocolError(f"{self._transport.address} redirects this actor, which was already redirected there")
        raise Redirected(address)

    def _prove(self, challenge: Mapping[str, Any], sent: bytes) -> str:
        """Send PROOF; returns its nonce, "" if no proof is required."""
        asked = challenge.get("proof_required")
        if not isinstance(asked, bool) or not is_hex(challenge.get("nonce")):
            raise ProtocolError(f"{self._transport.address} sent an invalid challenge: check that it is a seed learner")
        if asked != (self._token is not None):
            raise RefusedError(
                f"the learner at {self._transport.address} requires a token: leave out --insecure"
                if asked
                else f"the learner at {self._transport.address} does not require the token: either it was started "
                "with --insecure, which this actor then needs too, or it is not your learner"
            )
        if self._token is None:
            self._send(Kind.PROOF, {})
            return ""
        nonce = new_nonce()
        self._send(Kind.PROOF, {"nonce": nonce, "proof": prove(self._token, "actor", sent, nonce)})
        return nonce

    def _check_learner(self, proof: object, sent: bytes, nonce: str) -> None:
        """Raise RefusedError unless the learner holds the token: it chooses the environment, and so the code to run."""
        assert self._token is not None
        if not is_hex(proof) or not hmac.compare_digest(proof, prove(self._token, "learner", sent, nonce)):
            raise RefusedError(
                f"the learner at {self._transport.address} does not hold the token from {self._token.source}: "
                "check the address, and give both the same token"
            )

    def announce(self, spec: EnvSpec, codecs: Mapping[str, str] | None = None, notice: str = "") -> Ready:
        """Send SPEC; returns READY. Raises the errors of `configure`, and UsageError.

        Args:
            spec: the specification of the environments that were built.
            codecs: codec by array name; None: nothing is encoded.
            notice: one sentence for the learner's log on how the environments are used, or "".

        Raises:
            UsageError: the specification is beyond the protocol's limits.
        """
        deadline = time.monotonic() + self._timeout
        message = {**spec.to_dict(), "codecs": dict(codecs or dict.fromkeys(spec.arrays, RAW))}
        if notice:
            message["notice"] = printable(notice)
        try:
            # Checked here because the message can name the environment; the learner would only call it malformed.
            parse_spec(message, self._envs)
        except ProtocolError as error:
            raise UsageError(f"{spec.name} cannot run with {self._envs} environments: {error}") from error
        self._send(Kind.SPEC, message)
        return parse(Ready, decode_control(self._expect(Kind.READY, deadline)))

    def _send(self, kind: Kind, message: dict[str, Any]) -> bytes:
        payload = encode_control(message)
        self._transport.send(pack_header(kind, len(payload)), payload)
        return payload

    def _expect(self, kind: Kind, deadline: float) -> Payload:
        return self._receive(deadline, kind)[1]

    def _receive(self, deadline: float, *kinds: Kind) -> tuple[int, Payload]:
        """Return the kind and payload of the next frame, which must be of one of `kinds`; the first is for messages."""
        kind = kinds[0]
        while True:
            frame = self._transport.receive(max(0.0, deadline - time.monotonic()))
            if frame is None or frame.header.kind == Kind.HEARTBEAT_ACK:
                if time.monotonic() < deadline:
                    continue  # a transport may wake up early, and a learner may probe the connection
                raise UnreachableError(
                    f"no learner answered at {self._transport.address} within {self._timeout:g} s "
                    f"({kind.name.capitalize()} is missing): check the address and that the learner is running"
                )
            received = frame.header.kind
            if received == Kind.REFUSED:
                reason = decode_control(frame.payload).get("reason")
                # Made printable: it is shown on a terminal and may come from an unauthenticated peer.
                shown = printable(reason) if isinstance(reason, str) else ""
                raise RefusedError(shown or "the learner gave no reason")
            if received == Kind.DONE:
                raise TrainingDone(f"training at {self._transport.address} is done")
            if received == Kind.UNKNOWN:
                raise ConnectionLost(f"the learner at {self._transport.address} ended the handshake")
            if received not in kinds:
                raise ProtocolError(
                    f"{self._transport.address} answered with a frame of kind {received}, but {kind.name} is "
                    "expected: check that it is a seed learner of this version"
                )
            return received, frame.payload
