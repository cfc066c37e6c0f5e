"""How the learner hosts of one run introduce themselves to each other, and where they may differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seedcli.errors import ProtocolError
from seedcli.net.addresses import split_host_port
from seedcli.net.frames import decode_control, encode_control
from seedcli.net.messages import only

# What each host has of its own. Everything else decides what is trained, or how hosts and actors find each other.
_OWN_KEYS = frozenset(
    {
        "topology.host_index",
        *("net.host", "net.grpc_port", "net.zmq_port", "net.token_file", "net.tls_cert", "net.tls_key", "net.tls_ca"),
        *("net.metrics_port", "net.metrics_host"),
    }
)
_OWN_SECTIONS = ("telemetry.",)
_MAX_KEYS = 4096
_MAX_KEY = 128  # characters
_MAX_VERSION = 32
_MAX_TRANSPORTS = 8
_MAX_FOLDER = 4096
MAX_SENTENCE = 500  # characters; what `net.messages.printable` leaves of one
_SHOWN = 80  # characters of a value in a sentence


@dataclass(frozen=True)
class Introduction:
    """What a learner host says of itself.

    Attributes:
        config: every value of its configuration, by key such as "training.batch_size"; as JSON has them.
        version: of seedcli.
        tensorflow: "host:port" of its TensorFlow server.
        actors: transport → "host:port" at which actors reach it.
        folder: its run's folder; "" for none.
    """

    config: dict[str, Any]
    version: str
    tensorflow: str
    actors: dict[str, str]
    folder: str

    def to_dict(self) -> dict[str, Any]:
        """The fields, as `parse_introduction` takes them."""
        return {
            "config": self.config,
            "version": self.version,
            "tensorflow": self.tensorflow,
            "actors": self.actors,
            "folder": self.folder,
        }

    def own(self) -> dict[str, Any]:
        """The same with those values alone that a host may have of its own."""
        return self.to_dict() | {"config": {key: self.config[key] for key in self.config if is_own(key)}}

    def plain(self) -> Introduction:
        """The same as it arrives at another host: tuples are lists there.

        Raises:
            ProtocolError: it is too large, or holds what no introduction may.
        """
        return parse_introduction(decode_control(encode_control(self.to_dict())))


def is_own(key: str) -> bool:
    """Whether hosts may differ in a value."""
    return key in _OWN_KEYS or key.startswith(_OWN_SECTIONS)


def text(message: Mapping[str, Any], key: str, limit: int, *, least: int = 1) -> str:
    """A text of a message, made of printable characters; raises ProtocolError."""
    value = message.get(key)
    if not isinstance(value, str) or not least <= len(value) <= limit or not value.isprintable():
        raise ProtocolError(f"{key} must be a text of {least} to {limit} printable characters")
    return value


def number(message: Mapping[str, Any], key: str, high: int) -> int:
    """An integer of a message, from 0 to `high`; raises ProtocolError."""
    value = message.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= high:
        raise ProtocolError(f"{key} must be an integer from 0 to {high}")
    return value


def table(message: Mapping[str, Any], key: str, most: int) -> dict[str, Any]:
    """An object of a message with at most so many fields; raises ProtocolError."""
    value = message.get(key)
    if not isinstance(value, dict) or len(value) > most:
        raise ProtocolError(f"{key} must be an object of at most {most} fields")
    return value


def _address(message: Mapping[str, Any], key: str) -> str:
    value = message.get(key)
    if not isinstance(value, str) or len(value) > 300 or split_host_port(value) is None:
        raise ProtocolError(f"{key} must be host:port")
    return value


def parse_introduction(message: Mapping[str, Any]) -> Introduction:
    """Check every field of an introduction; raises ProtocolError."""
    only(message, frozenset(("config", "version", "tensorflow", "actors", "folder")))
    config = table(message, "config", _MAX_KEYS)
    actors = table(message, "actors", _MAX_TRANSPORTS)
    for key in (*config, *actors):
        text({"a key": key}, "a key", _MAX_KEY)
    return Introduction(
        config=config,
        version=text(message, "version", _MAX_VERSION),
        tensorflow=_address(message, "tensorflow"),
        actors={transport: _address(actors, transport) for transport in actors},
        folder=text(message, "folder", _MAX_FOLDER, least=0),
    )


def parse_ended(message: Mapping[str, Any]) -> tuple[str, bool]:
    """Why a host has ended, and whether that is the user's to mend; raises ProtocolError."""
    only(message, frozenset(("reason", "usage")))
    if not isinstance(message.get("usage"), bool):
        raise ProtocolError("usage must be true or false")
    return text(message, "reason", MAX_SENTENCE, least=0), message["usage"]


def called(hosts: Sequence[str], index: int) -> str:
    """A host for people: its number, as they write it, and address."""
    where = f" ({hosts[index]})" if 0 <= index < len(hosts) else ""
    return f"host {index}{where}"


def disagreement(hosts: Sequence[str], index: int, chief: Introduction, other: Introduction) -> str:
    """What is wrong between the chief and the host `index`: one sentence, "" for nothing."""
    who, first = called(hosts, index), called(hosts, 0)
    if chief.version != other.version:
        return f"{who} runs seedcli {other.version} and {first} {chief.version}: install one version on every host"
    for key in sorted(chief.config.keys() | other.config.keys()):
        if is_own(key):
            continue
        both = key in chief.config and key in other.config
        if not both or chief.config[key] != other.config[key]:
            mine, theirs = (_shown(config, key) for config in (chief.config, other.config))
            return f"{who} has {key} = {theirs} and {first} has {mine}: give every host the same configuration"
    if not 1 <= index < len(hosts):
        return f"topology.host_index = {index} of one host must be from 1 to {len(hosts) - 1}: {first} is the chief"
    return ""


def _shown(config: Mapping[str, Any], key: str) -> str:
    if key not in config:
        return "no such value"
    value = repr(config[key])
    return value if len(value) <= _SHOWN else value[:_SHOWN] + "…"
