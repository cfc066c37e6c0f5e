"""How an actor is let in: Hello → Challenge → Proof → Configure → Spec → Ready, or Refused with a reason.

Where several learner hosts train together, Redirect may stand for Configure: it names the host that serves the actor.

The protocol version travels in every frame's header (`net.frames`). The learner's side does no I/O: frames go in,
answers come out. Challenge and Proof are where authentication stands (`net.security.keys`).
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
from seedcli.net.messages import Hello, Ready, only, parse, parse_redirect, parse_spec, printable
from seedcli.net.security.keys import is_hex, new_nonce, prove
from seedcli.specs import EnvSpec


class Redirected(Exception):
    """A learner that holds the token sends this actor to another host.

    Attributes:
        address: of that host, as a user would type it.
    """

    def __init__(self, address: str) -> None:
        super().__init__(f"sent to {address}")
        self.address = address


class Authenticator(Protocol):
    """Decides whether a peer may come in."""

    def challenge(self) -> dict[str, Any]:
        """What Challenge says: {"nonce": hex, "proof_required": bool}, a fresh nonce each time."""

    def answer(self, transcript: bytes, message: Mapping[str, Any]) -> dict[str, Any] | None:
        """What Configure adds for a peer whose Proof (`message`) is good; None where it is not.

        Args:
            transcript: see `transcript`.
            message: of the peer; may raise ProtocolError.
        """


class NoAuthenticator:
    """Lets everyone in: for listeners that only this user reaches, or that are to be open."""

    def challenge(self) -> dict[str, Any]:
        """A fresh nonce; no proof is asked for."""
        return {"nonce": new_nonce(), "proof_required": False}

    def answer(self, transcript: bytes, message: Mapping[str, Any]) -> dict[str, Any] | None:
        """Nothing, for an empty Proof; raises ProtocolError for any other."""
        only(message, frozenset())
        return {}


def transcript(hello: Payload, challenge: Payload) -> bytes:
    """What both sides have said before the proof: the payloads of HELLO and CHALLENGE, each with its length."""
    return b"".join(len(part).to_bytes(4) + bytes(part) for part in (hello, challenge))


class ServerHandshake:
    """The learner's side of one handshake: a state machine without I/O.

    Args:
        configure: gives what CONFIGURE says to an actor; may raise RefusedError.
        admit: gives what READY says (the fields of `Ready`, and what the transport adds) to an actor with this
            specification and these codecs; may raise RefusedError.
        authenticator: makes the challenge and checks the proof.
        place: gives the address of the host that is to serve an actor, None for this one; is not asked of an actor that
            has been placed. None: every actor stays.

    Attributes:
        complete: READY was given out, or REDIRECT: nothing more is expected.
        hello: the actor's introduction, once it came.
        notice: what the actor tells people of how its environments are used, once its specification came; "" for
            nothing.
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
        """Take the actor's next frame; returns the kind and message to answer with.

        Raises:
            ProtocolError: a frame out of order, or one whose fields are not what they must be.
            RefusedError: the actor may not come in; the caller sends REFUSED with {"reason": …}.
        """
        if self.complete or header.kind != self._expected:
            expected = "nothing more" if self.complete else self._expected.name
            raise ProtocolError(f"a frame of kind {header.kind} in the handshake where {expected} is expected")
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
            elsewhere = None if self._place is None or self.hello.placed else self._place(self.hello)
            if elsewhere is not None:
                self.complete = True
                return Kind.REDIRECT, {"address": elsewhere} | answer
            self._expected = Kind.SPEC
            return Kind.CONFIGURE, self._configure(self.hello) | answer
        announcement = parse_spec(message, self.hello.envs)
        ready = self._admit(self.hello, announcement.spec, announcement.codecs)
        self.notice = announcement.notice
        self.complete = True
        return Kind.READY, ready

    @property
    def proved(self) -> bool:
        """Whether the peer has shown that it may come in."""
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
        # Fields that say nothing are left out: the learner need not know them.
        self._hello |= {"failure": printable(failure)} if failure else {}
        self._hello |= {"placed": True} if placed else {}
        self._timeout = timeout

    def configure(self) -> dict[str, Any]:
        """Introduce the actor; returns what the learner says to build: CONFIGURE's message.

        Raises:
            UnreachableError: no answer in time.
            RefusedError: the learner said no, or does not hold the token, or only one side wants a token.
            ProtocolError: the peer is no learner, or of another version.
            ConnectionLost: the connection ended.
            Redirected: another host is to serve this actor.
        """
        deadline = time.monotonic() + self._timeout
        introduction = self._send(Kind.HELLO, self._hello)
        challenge = self._expect(Kind.CHALLENGE, deadline)
        said = transcript(introduction, challenge)
        nonce = self._prove(decode_control(challenge), said)
        kind, payload = self._receive(deadline, Kind.CONFIGURE, Kind.REDIRECT)
        message = decode_control(payload)
        if self._token is not None:
            self._check_learner(message.pop("proof", None), said, nonce)
        if kind == Kind.CONFIGURE:
            return message
        address = parse_redirect(message, check_address(self._transport.address)[0])
        if self._placed:
            raise ProtocolError(f"{self._transport.address} sends this actor on, though another host has sent it there")
        raise Redirected(address)

    def _prove(self, challenge: Mapping[str, Any], said: bytes) -> str:
        """Send PROOF; returns the nonce in it, "" where no proof is asked for."""
        asked = challenge.get("proof_required")
        if not isinstance(asked, bool) or not is_hex(challenge.get("nonce")):
            raise ProtocolError(f"{self._transport.address} sent a challenge that is none: is it a seed learner?")
        if asked != (self._token is not None):
            raise RefusedError(
                f"the learner at {self._transport.address} asks for a token: leave out --insecure"
                if asked
                else f"the learner at {self._transport.address} does not ask for the token: it was started with "
                "--insecure, which this actor then needs too, or it is not yours"
            )
        if self._token is None:
            self._send(Kind.PROOF, {})
            return ""
        nonce = new_nonce()
        self._send(Kind.PROOF, {"nonce": nonce, "proof": prove(self._token, "actor", said, nonce)})
        return nonce

    def _check_learner(self, proof: object, said: bytes, nonce: str) -> None:
        """A learner says which environment is built, and so which code runs here: it must hold the token too."""
        assert self._token is not None
        if not is_hex(proof) or not hmac.compare_digest(proof, prove(self._token, "learner", said, nonce)):
            raise RefusedError(
                f"the learner at {self._transport.address} does not hold the token from {self._token.source}: "
                "check the address, and give both the same token"
            )

    def announce(self, spec: EnvSpec, codecs: Mapping[str, str] | None = None, notice: str = "") -> Ready:
        """Say what was built; returns what the learner grants. Raises as `configure` does.

        Args:
            spec: of the environments.
            codecs: codec of each array, by the array's name; None: none is encoded.
            notice: what the learner is to tell people of how they are used, one sentence; "" for nothing.
        """
        deadline = time.monotonic() + self._timeout
        message = {**spec.to_dict(), "codecs": dict(codecs or dict.fromkeys(spec.arrays, RAW))}
        if notice:
            message["notice"] = printable(notice)
        try:
            # What the learner would only call malformed is the environment's, and can be said here.
            parse_spec(message, self._envs)
        except ProtocolError as error:
            raise UsageError(f"{spec.name} cannot be played with {self._envs} environments: {error}") from error
        self._send(Kind.SPEC, message)
        return parse(Ready, decode_control(self._expect(Kind.READY, deadline)))

    def _send(self, kind: Kind, message: dict[str, Any]) -> bytes:
        payload = encode_control(message)
        self._transport.send(pack_header(kind, len(payload)), payload)
        return payload

    def _expect(self, kind: Kind, deadline: float) -> Payload:
        return self._receive(deadline, kind)[1]

    def _receive(self, deadline: float, *kinds: Kind) -> tuple[int, Payload]:
        """The next frame that is to be of one of `kinds`, the likeliest first: its kind and payload."""
        kind = kinds[0]
        while True:
            frame = self._transport.receive(max(0.0, deadline - time.monotonic()))
            if frame is None or frame.header.kind == Kind.HEARTBEAT_ACK:
                if time.monotonic() < deadline:
                    continue  # a transport may wake up early, and a learner ask whether a connection still stands
                raise UnreachableError(
                    f"no learner answered at {self._transport.address} within {self._timeout:g} s "
                    f"({kind.name.capitalize()} is missing): check the address, and that the learner runs"
                )
            received = frame.header.kind
            if received == Kind.REFUSED:
                reason = decode_control(frame.payload).get("reason")
                # Printable: it is shown on a terminal, and comes from a peer that has proved nothing yet.
                said = printable(reason) if isinstance(reason, str) else ""
                raise RefusedError(said or "the learner gave no reason")
            if received == Kind.DONE:
                raise TrainingDone(f"training at {self._transport.address} is over")
            if received == Kind.UNKNOWN:
                raise ConnectionLost(f"the learner at {self._transport.address} ended the handshake")
            if received not in kinds:
                raise ProtocolError(
                    f"{self._transport.address} answered with a frame of kind {received} where {kind.name} is "
                    "expected: is it a seed learner of this version?"
                )
            return received, frame.payload
