"""The handshake's messages as pydantic models, which check every field's type and limits and reject unknown fields."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field, Strict, ValidationError, model_validator

from seedcli.config.faults import broken_rule
from seedcli.errors import ProtocolError, UsageError
from seedcli.net.addresses import check_address
from seedcli.net.base import Payload
from seedcli.net.frames import ANSWER_LIMIT, decode_control, encode_control
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec

MAX_ENVS = 65_536  # environments of one actor
_MAX_SENTENCE = 500  # characters
_MAX_OBSERVATIONS = 2**31  # bytes of all observations of one actor
_MAX_PARTS = 4096  # parts of an action, or categorical elements of an array
_MAX_CATEGORIES = 2**20  # of all parts of an action or an array: the width of a network's input or output
_MAX_ROW = 2**32 - 1  # bytes; maximum of the header's payload field
_MAX_SHOWN = 80  # characters of a field's name in an error message
_OBJECT = {"dict_type", "model_type"}  # pydantic's errors for a value that is not a JSON object


def check_printable(text: str) -> str:
    """Return the text; raises ValueError if it contains characters that cannot be printed."""
    if not text.isprintable():
        raise ValueError("must hold printable characters only")
    return text


_T = TypeVar("_T")
_M = TypeVar("_M", bound=BaseModel)
_Text = Annotated[str, Field(min_length=1), AfterValidator(check_printable)]
_Sentence = Annotated[_Text, Field(max_length=_MAX_SENTENCE)]
_List = Annotated[
    tuple[_T, ...], Strict(False), FailFast()
]  # a JSON list becomes a tuple with strictly checked elements
_Seconds = Annotated[float, Field(ge=0, le=1e12)]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Hello(_Message):
    """An actor's first message.

    Attributes:
        actor_id: the actor's name, kept when it reconnects.
        envs: number of environments.
        streams: groups they are split into, 1 to `envs`.
        version: seedcli's version, for logs.
        failure: the environments' error, if the actor reconnects because they failed; else "".
        placed: do not redirect: a learner host has redirected this actor here, or to a host that does not answer.
    """

    actor_id: _Text = Field(max_length=64)
    envs: int = Field(ge=1, le=MAX_ENVS)
    streams: int = Field(ge=1)
    version: _Text = Field(max_length=32)
    failure: _Sentence = ""
    placed: bool = False

    @model_validator(mode="after")
    def _check_streams(self) -> Self:
        if self.streams > self.envs:
            raise ValueError(f"streams must be at most envs, {self.envs}")
        return self


class Ready(BaseModel):
    """The learner's last message of the handshake: the terms of the session.

    Attributes:
        session: id carried by every later frame.
        stream_envs: number of environments of each stream.
        payload_bytes: size of each stream's row or, if rows are encoded, the maximum size of the encoded row.
        heartbeat_seconds: interval between heartbeats.
        timeout_seconds: seconds without a frame after which a side considers the other lost.
        reconnect_timeout: seconds to look for a lost learner.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="allow")

    session: int = Field(ge=1, le=2**64 - 1)
    stream_envs: _List[Annotated[int, Field(ge=1, le=MAX_ENVS)]] = Field(min_length=1)
    payload_bytes: _List[Annotated[int, Field(ge=1, le=_MAX_ROW)]] = Field(min_length=1)
    heartbeat_seconds: _Seconds
    timeout_seconds: _Seconds
    reconnect_timeout: _Seconds

    @model_validator(mode="after")
    def _check_streams(self) -> Self:
        if len(self.stream_envs) != len(self.payload_bytes):
            raise ValueError("stream_envs and payload_bytes must name the same streams")
        return self

    @property
    def extra(self) -> Mapping[str, Any]:
        """READY's other fields: the transport's part, for `ClientTransport.open_session`."""
        return self.model_extra or {}


class _Space(_Message):
    """The fields of an `ArraySpec` or `ActionSpec`, whose constructor checks that they are consistent."""

    made: ClassVar[type[Any]]
    categories: _List[Annotated[int, Field(ge=1, lt=2**31)]] = Field(max_length=_MAX_PARTS)

    @model_validator(mode="after")
    def _check_space(self) -> Self:
        total = sum(self.categories)
        if total > _MAX_CATEGORIES:
            raise ValueError(f"has {total} categories in total, more than the limit of {_MAX_CATEGORIES}")
        self.make()
        return self

    def make(self) -> Any:
        """Build the `ArraySpec` or `ActionSpec`; raises ValueError."""
        return self.made(**self.__dict__)


class _Array(_Space):
    made = ArraySpec
    shape: _List[Annotated[int, Field(ge=1, le=_MAX_OBSERVATIONS)]] = Field(max_length=8)
    dtype: str = Field(max_length=32)
    binary: _List[Annotated[int, Field(ge=0, le=255)]] = Field(max_length=2)


class _Action(_Space):
    made = ActionSpec
    size: int = Field(ge=0, le=_MAX_PARTS)
    vector: bool
    unbounded: _List[int] = Field(max_length=_MAX_PARTS)


class Announcement(_Message):
    """SPEC's message: the specification of an actor's environments, and the codecs of their arrays.

    Attributes:
        name, observation, observations, action, frames_per_step: as in `specs.EnvSpec.to_dict`; see `spec`.
        codecs: codec by array name; `net.codecs.check_codecs` checks that each is known and fits.
        notice: a sentence for the learner's log on how the environments are used, or "".
    """

    name: _Text = Field(max_length=256)
    observation: _Array | None = None
    observations: dict[Annotated[_Text, Field(max_length=128)], _Array] | None = Field(
        None, min_length=1, max_length=64
    )
    action: _Action
    frames_per_step: int = Field(ge=1, le=1_000_000)
    codecs: dict[str, Annotated[_Text, Field(max_length=32)]]
    notice: _Sentence = ""

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        given = self.model_fields_set & {"observation", "observations"}
        if len(given) != 1 or getattr(self, *given) is None:
            raise ValueError("a specification must have either observation or observations")
        if self.codecs.keys() != self.spec.arrays.keys():
            raise ValueError("codecs must name exactly the arrays of the observation")
        return self

    @cached_property
    def spec(self) -> EnvSpec:
        """The environments' specification."""
        single, several = self.observation, self.observations or {}
        observation = single.make() if single else {name: array.make() for name, array in several.items()}
        return EnvSpec(self.name, observation, self.action.make(), self.frames_per_step)


class _Redirect(_Message):
    address: _Text = Field(max_length=300)


class _Goodbye(_Message):
    failure: _Sentence


def parse(model: type[_M], message: Mapping[str, Any]) -> _M:
    """Check every field of a message; raises ProtocolError for the first invalid one."""
    try:
        return model.model_validate(message)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
    *path, name = fault["loc"] or ("",)
    if fault["type"] == "extra_forbidden":
        raise _unknown(str(name))
    where = printable(".".join(map(str, (*path, name))))[:_MAX_SHOWN]
    rule = "must be an object" if fault["type"] in _OBJECT else broken_rule(fault)
    raise ProtocolError(f"{where} {rule}".strip())


def _unknown(name: str) -> ProtocolError:
    return ProtocolError(f"a handshake message has the unknown field {name!r:.{_MAX_SHOWN}}")


def check_keys(message: Mapping[str, Any], keys: frozenset[str]) -> None:
    """Raise ProtocolError if a message has a field that is not in `keys`."""
    unknown = sorted(set(message) - keys)
    if unknown:
        raise _unknown(unknown[0])


def printable(sentence: str) -> str:
    """Make a sentence valid as a message field: unprintable characters become spaces, and it is cut to the limit."""
    shown = "".join(c if c.isprintable() else " " for c in sentence)
    return shown[:_MAX_SENTENCE]


def parse_redirect(message: Mapping[str, Any], scheme: str) -> str:
    """Return a REDIRECT's address, as a user would type it.

    Args:
        message: the learner's message, without its proof.
        scheme: "grpc" or "zmq": the transport of this connection, which the address must use too.

    Raises:
        ProtocolError: the address is invalid or uses another transport.
    """
    address = parse(_Redirect, message).address
    try:
        found, _ = check_address(address)
    except UsageError as error:
        raise ProtocolError(f"the learner redirects this actor to {address!r}, which is not a valid address") from error
    if found != scheme:
        raise ProtocolError(f"the learner redirects this actor to {address}, but the actor's transport is {scheme}")
    return address


def goodbye(failure: str = "") -> bytes:
    """Return a GOODBYE's payload: empty, or the error that made the actor's environments fail."""
    return encode_control({"failure": printable(failure)}) if failure else b""


def parse_goodbye(payload: Payload) -> str:
    """Return the environments' error from a GOODBYE's payload, "" if there is none; raises ProtocolError."""
    return parse(_Goodbye, decode_control(payload)).failure if len(payload) else ""


def parse_spec(message: Mapping[str, Any], envs: int) -> Announcement:
    """Check every field of a SPEC from an actor with `envs` environments.

    Raises:
        ProtocolError: a field is missing, unknown, of the wrong type or beyond its limit.
    """
    announcement = parse(Announcement, message)
    spec = announcement.spec
    if 4 * max(len(spec.action.categories), spec.action.size) * envs > ANSWER_LIMIT:
        raise ProtocolError(f"the actions of {envs} environments exceed the limit of {ANSWER_LIMIT} bytes")
    # Python integers: an overflowing NumPy product could pass the check.
    if spec.observation_bytes * envs > _MAX_OBSERVATIONS:
        raise ProtocolError(
            f"{envs} observations of {spec.observation_bytes} bytes exceed the limit of {_MAX_OBSERVATIONS} bytes"
        )
    return announcement
