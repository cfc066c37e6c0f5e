"""The messages of the rendezvous, and the configuration keys in which hosts may differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from seedcli.config.faults import broken_rule
from seedcli.errors import ProtocolError
from seedcli.net.addresses import split_host_port
from seedcli.net.base import Payload
from seedcli.net.messages import check_printable, printable

# Keys that may differ between hosts. All others determine what is trained, or how hosts and actors find each other.
_OWN_KEYS = frozenset(
    {
        "topology.host_index",
        *("net.host", "net.grpc_port", "net.zmq_port", "net.token_file", "net.tls_cert", "net.tls_key", "net.tls_ca"),
        *("net.metrics_port", "net.metrics_host"),
    }
)
_OWN_SECTIONS = ("telemetry.",)
_SHOWN = 80  # characters of a value in a message
MAX_HOSTS = 1024


def _check_address(text: str) -> str:
    if split_host_port(text) is None:
        raise ValueError("must be host:port")
    return text


Text = Annotated[str, Field(max_length=500), AfterValidator(check_printable)]
Path = Annotated[str, Field(max_length=4096), AfterValidator(check_printable)]
Address = Annotated[str, Field(max_length=300), AfterValidator(_check_address)]
Index = Annotated[int, Field(ge=0, le=MAX_HOSTS)]
Count = Annotated[int, Field(ge=0, le=2**40)]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, ser_json_inf_nan="constants")

    @classmethod
    def parse(cls, payload: Payload) -> Self:
        """Check every field of a message; raises ProtocolError."""
        try:
            return cls.model_validate_json(bytes(payload))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise ProtocolError(printable(f"a malformed {cls.__name__}: {where} {broken_rule(first)}")) from error


class Addresses(_Message):
    """A host's addresses, "host:port": its TensorFlow server, and its listener for actors of each transport."""

    tensorflow: Address
    actors: Annotated[dict[Text, Address], Field(max_length=8)]


class Run(_Message):
    """The state of the run at the chief.

    Attributes:
        folder: the run's folder.
        finished: why nothing is left to do, or "".
        counters: the counters of the checkpoint.
    """

    folder: Path
    finished: Text = ""
    counters: dict[Text, Any] = {}


class Status(_Message):
    """The complete status of a host, sent in every message.

    Attributes:
        index: the host's index in topology.hosts.
        process: a random id that distinguishes two processes with the same index.
        version: version of seedcli.
        addresses: the host's addresses.
        config: its configuration, by key such as "training.batch_size"; None once all hosts have joined.
        run: the state of the run; sent by the chief only.
        envs: environments it serves.
        ready: it waits for the others before TensorFlow connects them.
        spec: the environment's specification that it proposes.
        ended: why it has ended; "" if it has completed its work; None while it runs.
        usage: the user must correct the reason (exit status 2).
    """

    index: Index
    process: Text
    version: Text
    addresses: Addresses
    config: dict[Text, Any] | None
    run: Run | None = None
    envs: Count = 0
    ready: bool = False
    spec: dict[str, Any] | None = None
    ended: Text | None = None
    usage: bool = False


class State(_Message):
    """The complete state of the hosts, which the chief sends in every message.

    Attributes:
        missing: hosts that have not joined yet.
        taken: another process has joined with the receiver's index.
        hosts: addresses of each host, once all have joined.
        run: the state of the run, once the chief has sent it.
        ready: all hosts are ready.
        loads: environments of each host.
        spec: the environment's specification that all hosts use: the first one proposed.
        failure: why all hosts must stop, or "".
        usage: the user must correct the failure (exit status 2).
        ended: the chief has ended.
    """

    missing: tuple[Index, ...]
    taken: bool = False
    hosts: tuple[Addresses, ...] = ()
    run: Run | None = None
    ready: bool = False
    loads: tuple[Count, ...] = ()
    spec: dict[str, Any] | None = None
    failure: Text = ""
    usage: bool = False
    ended: bool = False


def describe_host(hosts: Sequence[str], index: int) -> str:
    """Return a host's number and address, for messages."""
    where = f" ({hosts[index]})" if 0 <= index < len(hosts) else ""
    return f"host {index}{where}"


def find_disagreement(hosts: Sequence[str], chief: Status, other: Status) -> str:
    """Return a sentence on the first disagreement between the chief and another host, "" if there is none."""
    who, first = describe_host(hosts, other.index), describe_host(hosts, 0)
    if chief.version != other.version:
        return f"{who} runs seedcli {other.version} and {first} {chief.version}: install one version on every host"
    mine, theirs = chief.config or {}, other.config or {}
    for key in sorted(mine.keys() | theirs.keys()):
        if key in _OWN_KEYS or key.startswith(_OWN_SECTIONS):
            continue
        if key not in mine or key not in theirs or mine[key] != theirs[key]:
            has, value = _shown(theirs, key), _shown(mine, key)
            return f"{who} has {key} = {has} and {first} has {value}: give every host the same configuration"
    if other.process != chief.process and not 1 <= other.index < len(hosts):
        return (
            f"topology.host_index = {other.index} of one host must be from 1 to {len(hosts) - 1}: {first} is the chief"
        )
    return ""


def _shown(config: Mapping[str, Any], key: str) -> str:
    if key not in config:
        return "no such value"
    value = repr(config[key])
    return value if len(value) <= _SHOWN else value[:_SHOWN] + "…"
