"""The messages of the handshake: what they hold, and the check of every field that a peer says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from seedcli.errors import ProtocolError, UsageError
from seedcli.net.addresses import check_address
from seedcli.net.base import Payload
from seedcli.net.frames import ANSWER_LIMIT, decode_control, encode_control
from seedcli.specs import ArraySpec, EnvSpec

MAX_ENVS = 65_536  # environments of one actor
_MAX_ID = 64  # characters
_MAX_VERSION = 32
_MAX_SENTENCE = 500
_MAX_ADDRESS = 300
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
_MAX_SECONDS = 1e12
_MAX_ROW = 2**32 - 1  # what a header's payload field can say


@dataclass(frozen=True)
class Hello:
    """How an actor introduces itself.

    Attributes:
        actor_id: its name, 1 to 64 printable characters, kept when it reconnects.
        envs: number of environments, 1 to 65,536.
        streams: groups they are split into, 1 to `envs`.
        version: version of seedcli, for people.
        failure: what made its environments fail, where that is why it comes anew; at most 500 characters.
        placed: it is not to be sent on: a learner host has sent it here, or to where it has found nobody.
    """

    actor_id: str
    envs: int
    streams: int
    version: str
    failure: str = ""
    placed: bool = False


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
    # JSON's integers may be too large for a float; nothing compares well with what is no number.
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _MAX_SECONDS:
        raise ProtocolError(f"{key} must be a number of seconds from 0 to {_MAX_SECONDS:g}")
    return float(value)


def only(message: Mapping[str, Any], keys: frozenset[str]) -> None:
    """Refuse a message with any other field; raises ProtocolError."""
    unknown = sorted(set(message) - keys)
    if unknown:
        raise ProtocolError(f"a handshake message with the unknown field {unknown[0]!r:.80}")


def parse_hello(message: Mapping[str, Any]) -> Hello:
    """Check every field of a HELLO; raises ProtocolError."""
    only(message, frozenset(("actor_id", "envs", "streams", "version", "failure", "placed")))
    if not isinstance(message.get("placed", False), bool):
        raise ProtocolError("placed must be true or false")
    envs = _integer(message, "envs", 1, MAX_ENVS)
    return Hello(
        actor_id=_text(message, "actor_id", _MAX_ID),
        envs=envs,
        streams=_integer(message, "streams", 1, envs),
        version=_text(message, "version", _MAX_VERSION),
        failure=_text(message, "failure", _MAX_SENTENCE) if "failure" in message else "",
        placed=message.get("placed", False),
    )


def parse_redirect(message: Mapping[str, Any], scheme: str) -> str:
    """The address that a REDIRECT names, as a user would type it.

    Args:
        message: the learner's, without its proof.
        scheme: "grpc" or "zmq": how the actor has reached this learner, and is to reach the other.

    Raises:
        ProtocolError: it is no address, or one of another transport.
    """
    only(message, frozenset(("address",)))
    address = _text(message, "address", _MAX_ADDRESS)
    try:
        found, _ = check_address(address)
    except UsageError as error:
        raise ProtocolError(f"the learner sends this actor to {address!r}, which is no address") from error
    if found != scheme:
        raise ProtocolError(f"the learner sends this actor to {address}, which is not of its transport, {scheme}")
    return address


def goodbye(failure: str = "") -> bytes:
    """The payload of a GOODBYE: empty, or with what made the actor's environments fail."""
    return encode_control({"failure": printable(failure)}) if failure else b""


def parse_goodbye(payload: Payload) -> str:
    """What a GOODBYE says of the actor's environments, "" for nothing; raises ProtocolError."""
    if not len(payload):
        return ""
    message = decode_control(payload)
    only(message, frozenset(("failure",)))
    return _text(message, "failure", _MAX_SENTENCE)


def printable(sentence: str) -> str:
    """A sentence as `_text` takes it."""
    shown = "".join(c if c.isprintable() else " " for c in sentence)
    return shown[:_MAX_SENTENCE]


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
    only(array, frozenset(("shape", "dtype", "categories", "binary")))
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
    only(message, frozenset(("name", "observation", "observations", "action", "frames_per_step", "codecs", "notice")))
    _text(message, "name", _MAX_NAME)
    _integer(message, "frames_per_step", 1, 1_000_000)
    action = message.get("action")
    if not isinstance(action, dict):
        raise ProtocolError("action must be an object")
    only(action, frozenset(("categories", "size", "vector", "unbounded")))
    parts = _sizes(action, "categories", _MAX_PARTS, 1, _MAX_ACTIONS)
    size = _integer(action, "size", 0, _MAX_PARTS)
    if not isinstance(action.get("vector"), bool):
        raise ProtocolError("vector must be true or false")
    _sizes(action, "unbounded", _MAX_PARTS, 0, max(size - 1, 0))
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


def parse_notice(message: Mapping[str, Any]) -> str:
    """What a SPEC tells people of how the environments are used, "" for nothing; raises ProtocolError."""
    return _text(message, "notice", _MAX_SENTENCE) if "notice" in message else ""


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
