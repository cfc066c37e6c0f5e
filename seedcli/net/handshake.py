"""How an actor is let in: Hello → Challenge → Proof → Configure → Spec → Ready, or Refused with a reason.

The protocol version travels in every frame's header (`net.frames`). The learner's side does no I/O: frames go in,
answers come out. Challenge and Proof are where authentication stands.
"""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import seedcli
from seedcli.errors import ConnectionLost, ProtocolError, RefusedError, TrainingDone, UnreachableError, UsageError
from seedcli.net.base import ClientTransport, Payload
from seedcli.net.codecs import RAW
from seedcli.net.frames import ANSWER_LIMIT, Header, Kind, decode_control, encode_control, pack_header
from seedcli.specs import ArraySpec, EnvSpec

MAX_ENVS = 65_536  # environments of one actor
_MAX_ID = 64  # characters
_MAX_VERSION = 32
_MAX_FAILURE = 500
_MAX_NAME = 256
_MAX_RANK = 8
_MAX_OBSERVATIONS = 2**31  # bytes of all observations of one actor
_MAX_ARRAYS = 64  # of an observation
_MAX_ARRAY_NAME = 128  # characters
_MAX_CODEC = 32  # characters
_MAX_PARTS = 4096  # of an action, and categorical elements of an array
_MAX_ACTIONS = 2**20  # categories of an action, all parts together
_MAX_CATEGORIES = 2**20  # of an array, all elements together: a network's input has as many
_ONLY_ARRAY = "observation"  # what specs.EnvSpec.arrays calls it
_MAX_ROW = 2**32 - 1  # what a header's payload field can say


class Authenticator(Protocol):
    """Decides whether a peer may come in."""

    def challenge(self) -> dict[str, Any]:
        """What Challenge says: {"nonce": hex, "proof_required": bool}, a fresh nonce each time."""

    def verify(self, challenge: Mapping[str, Any], proof: Mapping[str, Any]) -> bool:
        """Whether `proof`, the peer's answer, answers `challenge`."""


class NoAuthenticator:
    """Lets everyone in: for listeners that only this machine reaches."""

    def challenge(self) -> dict[str, Any]:
        """See `Authenticator.challenge`."""
        return {"nonce": secrets.token_hex(16), "proof_required": False}

    def verify(self, challenge: Mapping[str, Any], proof: Mapping[str, Any]) -> bool:
        """See `Authenticator.verify`."""
        return True


@dataclass(frozen=True)
class Hello:
    """How an actor introduces itself.

    Attributes:
        actor_id: its name, 1 to 64 printable characters, kept when it reconnects.
        envs: number of environments, 1 to 65,536.
        streams: groups they are split into, 1 to `envs`.
        version: version of seedcli, for people.
        failure: what made its environments fail, where that is why it comes anew; at most 500 characters.
    """

    actor_id: str
    envs: int
    streams: int
    version: str
    failure: str = ""


@dataclass(frozen=True)
class Ready:
    """What the learner grants.

    Attributes:
        session: id that every later frame carries, at least 1.
        stream_envs: environments of each stream.
        payload_bytes: of each stream's row, or, where rows are encoded, of the largest that its codecs can make.
        heartbeat_seconds: between heartbeats.
        timeout_seconds: of silence after which the other side is taken for dead.
        reconnect_timeout: seconds to look for a lost learner.
        extra: whatever else READY held: the transport's part, for `ClientTransport.open_session`.
    """

    session: int
    stream_envs: tuple[int, ...]
    payload_bytes: tuple[int, ...]
    heartbeat_seconds: float
    timeout_seconds: float
    reconnect_timeout: float
    extra: Mapping[str, Any] = field(default_factory=dict)


def _text(message: Mapping[str, Any], key: str, limit: int) -> str:
    value = message.get(key)
    if not isinstance(value, str) or not 1 <= len(value) <= limit or not value.isprintable():
        raise ProtocolError(f"{key} must be a text of 1 to {limit} printable characters")
    return value


def _integer(message: Mapping[str, Any], key: str, low: int, high: int) -> int:
    value = message.get(key)
    # bool is an int in Python, but true is no number of environments.
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ProtocolError(f"{key} must be an integer from {low} to {high}")
    return value


def _integers(message: Mapping[str, Any], key: str, low: int, high: int) -> tuple[int, ...]:
    values = message.get(key)
    if not isinstance(values, list) or not values:
        raise ProtocolError(f"{key} must be a list of integers")
    return tuple(_integer({key: value}, key, low, high) for value in values)


def _seconds(message: Mapping[str, Any], key: str) -> float:
    value = message.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value < 0:
        raise ProtocolError(f"{key} must be a number of seconds, 0 or more")
    return float(value)


def _only(message: Mapping[str, Any], keys: frozenset[str]) -> None:
    unknown = sorted(set(message) - keys)
    if unknown:
        raise ProtocolError(f"a handshake message with the unknown field {unknown[0]!r:.80}")


def parse_hello(message: Mapping[str, Any]) -> Hello:
    """Check every field of a HELLO; raises ProtocolError."""
    _only(message, frozenset(("actor_id", "envs", "streams", "version", "failure")))
    envs = _integer(message, "envs", 1, MAX_ENVS)
    return Hello(
        actor_id=_text(message, "actor_id", _MAX_ID),
        envs=envs,
        streams=_integer(message, "streams", 1, envs),
        version=_text(message, "version", _MAX_VERSION),
        failure=_text(message, "failure", _MAX_FAILURE) if "failure" in message else "",
    )


def goodbye(failure: str = "") -> bytes:
    """The payload of a GOODBYE: empty, or with what made the actor's environments fail."""
    return encode_control({"failure": _printable(failure)}) if failure else b""


def parse_goodbye(payload: Payload) -> str:
    """What a GOODBYE says of the actor's environments, "" for nothing; raises ProtocolError."""
    if not len(payload):
        return ""
    message = decode_control(payload)
    _only(message, frozenset(("failure",)))
    return _text(message, "failure", _MAX_FAILURE)


def _printable(sentence: str) -> str:
    """A sentence as `_text` takes it."""
    shown = "".join(c if c.isprintable() else " " for c in sentence)
    return shown[:_MAX_FAILURE]


def _sizes(message: Mapping[str, Any], key: str, most: int, low: int, high: int) -> list[int]:
    """A list of at most `most` integers, which may be empty."""
    values = message.get(key)
    if not isinstance(values, list) or len(values) > most:
        raise ProtocolError(f"{key} must be a list of at most {most} integers")
    return [_integer({key: value}, key, low, high) for value in values]


def _array_bytes(array: Any) -> int:
    """Check every field of an array's specification; returns the bytes of one element."""
    if not isinstance(array, dict):
        raise ProtocolError("an array's specification must be an object")
    _only(array, frozenset(("shape", "dtype", "categories", "binary")))
    _sizes(array, "shape", _MAX_RANK, 1, _MAX_OBSERVATIONS)
    categories = sum(_sizes(array, "categories", _MAX_PARTS, 1, 2**31 - 1))
    if categories > _MAX_CATEGORIES:
        raise ProtocolError(f"an array of {categories} categories in all is more than the limit of {_MAX_CATEGORIES}")
    _sizes(array, "binary", 2, 0, 255)
    try:
        # Counted with Python's integers: a NumPy product that overflowed would pass any limit.
        return ArraySpec.from_dict(array).nbytes
    except (ValueError, TypeError, KeyError) as error:
        raise ProtocolError(f"not an array's specification: {error}") from error


def parse_spec(message: Mapping[str, Any], envs: int) -> tuple[EnvSpec, dict[str, str]]:
    """Check every field of a SPEC of an actor with `envs` environments.

    Returns:
        The specification, and each array's codec, by the array's name; whether a codec is known and fits is not
        checked.

    Raises:
        ProtocolError: a field is missing, unknown, of another type or beyond its limit.
    """
    _only(message, frozenset(("name", "observation", "observations", "action", "frames_per_step", "codecs")))
    _text(message, "name", _MAX_NAME)
    _integer(message, "frames_per_step", 1, 1_000_000)
    action = message.get("action")
    if not isinstance(action, dict):
        raise ProtocolError("action must be an object")
    _only(action, frozenset(("categories", "size", "vector")))
    parts = _sizes(action, "categories", _MAX_PARTS, 1, _MAX_ACTIONS)
    size = _integer(action, "size", 0, _MAX_PARTS)
    if not isinstance(action.get("vector"), bool):
        raise ProtocolError("vector must be true or false")
    if sum(parts) > _MAX_ACTIONS:
        raise ProtocolError(f"an action of {sum(parts)} categories in all is more than the limit of {_MAX_ACTIONS}")
    if 4 * max(len(parts), size) * envs > ANSWER_LIMIT:
        raise ProtocolError(f"actions of {envs} environments are more than the limit of {ANSWER_LIMIT} bytes")
    if ("observation" in message) == ("observations" in message):
        raise ProtocolError("a specification holds either observation or observations")
    arrays = message.get("observations", {_ONLY_ARRAY: message.get("observation")})
    if not isinstance(arrays, dict) or not 1 <= len(arrays) <= _MAX_ARRAYS:
        raise ProtocolError(f"observations must be an object of 1 to {_MAX_ARRAYS} arrays")
    for name in arrays:
        _text({"an array's name": name}, "an array's name", _MAX_ARRAY_NAME)
    nbytes = sum(_array_bytes(array) for array in arrays.values())
    if nbytes * envs > _MAX_OBSERVATIONS:
        raise ProtocolError(f"{envs} observations of {nbytes} bytes are more than the limit of {_MAX_OBSERVATIONS}")
    codecs = message.get("codecs")
    if not isinstance(codecs, dict) or codecs.keys() != arrays.keys():
        raise ProtocolError("codecs must be an object that names every array of the observation and nothing else")
    for name in codecs:
        _text(codecs, name, _MAX_CODEC)
    try:
        return EnvSpec.from_dict(message), dict(codecs)
    except ValueError as error:
        raise ProtocolError(f"not an environment specification: {error}") from error


def parse_ready(message: Mapping[str, Any]) -> Ready:
    """Check every field of a READY; raises ProtocolError."""
    known = ("session", "stream_envs", "payload_bytes", "heartbeat_seconds", "timeout_seconds", "reconnect_timeout")
    ready = Ready(
        session=_integer(message, "session", 1, 2**64 - 1),
        stream_envs=_integers(message, "stream_envs", 1, MAX_ENVS),
        payload_bytes=_integers(message, "payload_bytes", 1, _MAX_ROW),
        heartbeat_seconds=_seconds(message, "heartbeat_seconds"),
        timeout_seconds=_seconds(message, "timeout_seconds"),
        reconnect_timeout=_seconds(message, "reconnect_timeout"),
        extra={key: value for key, value in message.items() if key not in known},
    )
    if len(ready.stream_envs) != len(ready.payload_bytes):
        raise ProtocolError("stream_envs and payload_bytes must name the same streams")
    return ready


class ServerHandshake:
    """The learner's side of one handshake: a state machine without I/O.

    Args:
        configure: gives what CONFIGURE says to an actor; may raise RefusedError.
        admit: gives what READY says (the fields of `Ready`, and what the transport adds) to an actor with this
            specification and these codecs; may raise RefusedError.
        authenticator: makes the challenge and checks the proof.

    Attributes:
        complete: READY was given out.
        hello: the actor's introduction, once it came.
    """

    def __init__(
        self,
        configure: Callable[[Hello], dict[str, Any]],
        admit: Callable[[Hello, EnvSpec, dict[str, str]], dict[str, Any]],
        authenticator: Authenticator,
    ) -> None:
        self._configure = configure
        self._admit = admit
        self._authenticator = authenticator
        self._expected = Kind.HELLO
        self._challenge: dict[str, Any] = {}
        self.complete = False
        self.hello: Hello | None = None

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
            self.hello = parse_hello(message)
            self._challenge = self._authenticator.challenge()
            self._expected = Kind.PROOF
            return Kind.CHALLENGE, self._challenge
        assert self.hello is not None
        if self._expected == Kind.PROOF:
            if not self._authenticator.verify(self._challenge, message):
                raise RefusedError("the token is not this learner's: give the actor the learner's token")
            self._expected = Kind.SPEC
            return Kind.CONFIGURE, self._configure(self.hello)
        ready = self._admit(self.hello, *parse_spec(message, self.hello.envs))
        self.complete = True
        return Kind.READY, ready


class ClientHandshake:
    """The actor's side of the handshake, over a connected transport.

    Args:
        transport: connected.
        actor_id, envs, streams, failure: see `Hello`.
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
    ) -> None:
        self._transport = transport
        self._hello = Hello(actor_id, envs, streams, seedcli.__version__, _printable(failure))
        self._timeout = timeout

    def configure(self) -> dict[str, Any]:
        """Introduce the actor; returns what the learner says to build: CONFIGURE's message.

        Raises:
            UnreachableError: no answer in time.
            RefusedError: the learner said no, or asks for a proof that this actor cannot give.
            ProtocolError: the peer is no learner, or of another version.
            ConnectionLost: the connection ended.
        """
        deadline = time.monotonic() + self._timeout
        hello = self._hello
        message = {"actor_id": hello.actor_id, "envs": hello.envs, "streams": hello.streams, "version": hello.version}
        self._send(Kind.HELLO, {**message, "failure": hello.failure} if hello.failure else message)
        challenge = self._expect(Kind.CHALLENGE, deadline)
        if challenge.get("proof_required") is not False:
            raise RefusedError(
                f"the learner at {self._transport.address} asks for a token, which this version cannot prove: "
                "install the learner's version of seedcli"
            )
        self._send(Kind.PROOF, {})
        return self._expect(Kind.CONFIGURE, deadline)

    def announce(self, spec: EnvSpec, codecs: Mapping[str, str] | None = None) -> Ready:
        """Say what was built; returns what the learner grants. Raises as `configure` does.

        Args:
            spec: of the environments.
            codecs: codec of each array, by the array's name; None: none is encoded.
        """
        deadline = time.monotonic() + self._timeout
        message = {**spec.to_dict(), "codecs": dict(codecs or dict.fromkeys(spec.arrays, RAW))}
        try:
            # What the learner would only call malformed is the environment's, and can be said here.
            parse_spec(json.loads(json.dumps(message)), self._hello.envs)
        except ProtocolError as error:
            raise UsageError(f"{spec.name} cannot be played with {self._hello.envs} environments: {error}") from error
        self._send(Kind.SPEC, message)
        return parse_ready(self._expect(Kind.READY, deadline))

    def _send(self, kind: Kind, message: dict[str, Any]) -> None:
        payload = encode_control(message)
        self._transport.send(pack_header(kind, len(payload)), payload)

    def _expect(self, kind: Kind, deadline: float) -> dict[str, Any]:
        while True:
            frame = self._transport.receive(max(0.0, deadline - time.monotonic()))
            if frame is None:
                if time.monotonic() < deadline:
                    continue  # a transport may wake up early
                raise UnreachableError(
                    f"no learner answered at {self._transport.address} within {self._timeout:g} s "
                    f"({kind.name.capitalize()} is missing): check the address, and that the learner runs"
                )
            received = frame.header.kind
            if received == Kind.HEARTBEAT_ACK:
                continue
            if received == Kind.REFUSED:
                reason = decode_control(frame.payload).get("reason")
                raise RefusedError(reason if isinstance(reason, str) and reason else "the learner gave no reason")
            if received == Kind.DONE:
                raise TrainingDone(f"training at {self._transport.address} is over")
            if received == Kind.UNKNOWN:
                raise ConnectionLost(f"the learner at {self._transport.address} ended the handshake")
            if received != kind:
                raise ProtocolError(
                    f"{self._transport.address} answered with a frame of kind {received} where {kind.name} is "
                    "expected: is it a seed learner of this version?"
                )
            return decode_control(frame.payload)
