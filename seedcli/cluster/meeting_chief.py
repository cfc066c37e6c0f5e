"""The chief of the learner hosts: it listens, and puts together what the others say; see `cluster.meeting`."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import math
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import zmq

from seedcli.cluster.introductions import (
    Introduction,
    called,
    disagreement,
    number,
    parse_ended,
    parse_introduction,
    table,
)
from seedcli.cluster.meeting_base import MAX_ENVS, MAX_HOSTS, Meeting
from seedcli.errors import ProtocolError, UsageError
from seedcli.net.addresses import join_host_port, split_host_port
from seedcli.net.frames import decode_control, encode_control
from seedcli.net.messages import only, printable
from seedcli.net.security.curve import HANDSHAKE_MILLISECONDS, protect_listener

_log = logging.getLogger(__name__)

_TRUSTED_SECONDS = 10.0
_RIVAL_BEATS = 2  # heartbeats after which a host that is still heard has not just given way to another


@dataclass
class _Guest:
    """A host as the chief knows it.

    Attributes:
        identity: of its connections.
        heard: monotonic seconds.
        left: it has ended.
    """

    identity: bytes
    heard: float
    left: bool = False


class Door:
    """Whose connections to the chief's port may stay (an `serving.admission_control.Listener`); safe from any thread.

    Those over which a message was understood a moment ago: a host says something every second. So a stranger that is
    given the descriptor of a connection which has just ended gains no more than that moment.

    Args:
        chief: "host:port" of the chief.

    Attributes:
        port: of it.
    """

    def __init__(self, chief: str) -> None:
        parts = split_host_port(chief)
        self.port: int | None = parts and parts[1]
        self._heard: dict[int, float] = {}

    def heard(self, descriptor: int) -> None:
        """A message of a host has come over the connection with this descriptor."""
        self._heard[descriptor] = time.monotonic()

    def trusts(self, descriptor: int, address: tuple[str, int]) -> bool:
        """See `serving.admission_control.Listener.trusts`."""
        return time.monotonic() - self._heard.get(descriptor, -math.inf) < _TRUSTED_SECONDS


class Chief(Meeting):
    """The host 0: what the others say is put together here.

    Args:
        door: told whose connections may stay; all others as for every host.
    """

    def __init__(self, *args: Any, door: Door | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._door = door
        self._guests: dict[int, _Guest] = {}
        # When another has first come as a host that is there already, and its identity.
        self._rivals: dict[int, tuple[float, bytes]] = {}
        self._met = len(self.hosts) == 1

    def _open(self) -> None:
        address = _own_address(self.hosts[0], protected=self._security is not None)
        self._new_gate()
        self._socket = self._new_socket(zmq.ROUTER)
        for option, value in (
            (zmq.ROUTER_MANDATORY, 1),
            (zmq.ROUTER_HANDOVER, 1),
            (zmq.SNDHWM, 4 * MAX_HOSTS),
            (zmq.HANDSHAKE_IVL, HANDSHAKE_MILLISECONDS),
        ):
            self._socket.setsockopt(option, value)
        if self._security is not None:
            protect_listener(self._socket, self._security)
        try:
            self._socket.bind(f"tcp://{address}")
        except zmq.ZMQError as error:
            raise _listen_error(self.hosts[0], error.errno or 0) from error

    def _missing(self) -> Sequence[int]:
        return [index for index in range(len(self.hosts)) if index not in self._known]

    def _propose(self, spec: dict[str, Any]) -> None:
        self._spec = spec

    def _take(self, parts: list[bytes], now: float) -> None:
        if len(parts) != 2:
            raise ProtocolError("a message that is not of one part")
        identity, message = parts[0], decode_control(parts[1])
        kind = message.pop("kind", None)
        index = next((i for i, guest in self._guests.items() if guest.identity == identity), None)
        if index is not None:
            self._guests[index].heard = now
            if index in self._rivals and now - self._rivals[index][0] > _RIVAL_BEATS * self._beat_seconds:
                self._disagree(f"two hosts say that they are {called(self.hosts, index)}: give each its --host-index")
        if kind == "introduce":
            self._introduced(identity, index, message, now)
        elif index is not None and kind == "beat":
            self._heartbeat(index, message)
        elif index is not None and kind == "ended":
            self._ended(index, message)
        elif index is not None:
            raise ProtocolError(f"a message of the kind {kind!r:.80}")

    def _understood(self, frame: zmq.Frame) -> None:
        if self._door is not None:
            # A peer of ZeroMQ's first protocol has none: it is no host.
            with contextlib.suppress(zmq.ZMQError):
                self._door.heard(int(frame.get(zmq.SRCFD)))

    def _introduced(self, identity: bytes, index: int | None, message: dict[str, Any], now: float) -> None:
        only(message, frozenset(("index", "introduction")))
        claimed = number(message, "index", MAX_HOSTS)
        introduction = parse_introduction(table(message, "introduction", 16))
        if index is None:
            if claimed in self._guests or self._met:
                # The one that is there may have died a moment ago, and this be its successor: time will tell.
                self._send(encode_control({"kind": "wait", "missing": [], "taken": True}), identity)
                if not self._met:
                    self._rivals.setdefault(claimed, (now, identity))
                return
            sentence = disagreement(self.hosts, claimed, self._mine, introduction)
            if sentence:
                self._guests[claimed] = _Guest(identity, now)  # who is to be told
                self._disagree(sentence)
                return
            self._guests[claimed] = _Guest(identity, now)
            self._come(claimed, introduction)
        if self._met:
            self._say_who_is_here(identity)

    def _come(self, index: int, introduction: Introduction) -> None:
        _log.info("%s has come", called(self.hosts, index))
        with self._changed:
            self._known[index] = introduction
            self._loads[index] = 0
            self._met = not self._missing()
            self._changed.notify_all()
        if self._met:
            for guest in self._guests.values():
                self._say_who_is_here(guest.identity)

    def _say_who_is_here(self, identity: bytes) -> None:
        for index, introduction in self._known.items():
            self._send(encode_control({"kind": "host", "index": index, "introduction": introduction.own()}), identity)

    def _disagree(self, sentence: str) -> None:
        self._fail(UsageError(sentence))

    def _heartbeat(self, index: int, message: dict[str, Any]) -> None:
        only(message, frozenset(("envs", "spec")))
        envs = number(message, "envs", MAX_ENVS)
        spec = message.get("spec")
        if spec is not None and not isinstance(spec, dict):
            raise ProtocolError("spec must be an object or null")
        with self._changed:
            self._loads[index] = envs
            if spec is None or self._spec is not None:
                return
            self._spec = spec
            self._due = True
            self._changed.notify_all()

    def _ended(self, index: int, message: dict[str, Any]) -> None:
        reason, usage = parse_ended(message)
        if not self._met:
            if usage:
                self._fail(UsageError(reason))
            self._forget(index)
            return
        self._guests[index].left = True
        if reason:
            self._lose(f"{called(self.hosts, index)} has ended: {reason}")
            self._beat()

    def _forget(self, index: int) -> None:
        """A host that has gone before all were there may come again."""
        del self._guests[index]
        self._rivals.pop(index, None)
        with self._changed:
            self._known.pop(index, None)
            self._loads.pop(index, None)

    def _beat(self) -> None:
        with self._changed:
            loads = {str(index): envs for index, envs in self._loads.items()}
            bodies: list[Mapping[str, Any]] = [{"kind": "beat", "loads": loads, "lost": printable(self._lost)}]
            if self._spec is not None:
                bodies.append({"kind": "spec", "value": self._spec})
            if self._told:
                bodies.append({"kind": "told", "value": self._told})
            if not self._met:
                bodies = [{"kind": "wait", "missing": self._missing(), "taken": False}]
        for body in map(encode_control, bodies):
            for guest in self._guests.values():
                self._send(body, guest.identity)

    def _judge(self, now: float) -> None:
        for index, guest in list(self._guests.items()):
            silent = now - guest.heard
            if guest.left or silent <= self._silence_seconds:
                continue
            if self._met:
                self._lose(f"{called(self.hosts, index)} has not been heard for {silent:.0f} s")
            else:
                _log.warning("%s has not been heard for %.0f s", called(self.hosts, index), silent)
                self._forget(index)

    def _excuse(self, seconds: float) -> None:
        for guest in self._guests.values():
            guest.heard += seconds

    def _say_ended(self, body: bytes) -> None:
        for identity in [guest.identity for guest in self._guests.values()] + [
            rival for _, rival in self._rivals.values()
        ]:
            self._send(body, identity)


def _own_address(chief: str, *, protected: bool) -> str:
    """The "address:port" that the chief binds: that of its name, or of every interface where that says nothing.

    Raises:
        UsageError: the name means nothing here.
    """
    parts = split_host_port(chief)
    if parts is None:
        raise UsageError(f'topology.hosts: "{chief}" must be host:port')
    host, port = parts
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"topology.hosts: this machine knows no host {host}, which topology.host_index = 0 says it is: check both"
        ) from error
    address = str(found[0][4][0])
    # Some systems give a machine's own name a loopback address, where no other would find it.
    if protected and ipaddress.ip_address(address.partition("%")[0]).is_loopback and not _is_loopback(host):
        address = "0.0.0.0"
    return join_host_port(address, port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _listen_error(chief: str, reason: int) -> UsageError:
    if reason == errno.EADDRINUSE:
        return UsageError(
            f"{chief}, where the hosts of topology.hosts meet, is in use: another process is host 0 already (give each "
            "its own --host-index), or choose another port"
        )
    if reason in (errno.EADDRNOTAVAIL, errno.ENODEV):
        return UsageError(
            f"{chief} is no address of this machine, which topology.host_index = 0 says it is: give each host its own "
            "--host-index"
        )
    return UsageError(f"cannot listen at {chief} ({errno.errorcode.get(reason, reason)}): check topology.hosts")
