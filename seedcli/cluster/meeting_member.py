"""A learner host that is not the chief; see `cluster.meeting`."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from seedcli.cluster.introductions import (
    MAX_SENTENCE,
    Introduction,
    called,
    is_own,
    number,
    parse_ended,
    parse_introduction,
    table,
    text,
)
from seedcli.cluster.meeting_base import MAX_ENVS, MAX_HOSTS, Meeting
from seedcli.errors import DistrustedError, ProtocolError, SeedError, UnreachableError, UsageError
from seedcli.net.addresses import check_known
from seedcli.net.frames import decode_control, encode_control
from seedcli.net.messages import only
from seedcli.net.router import watch
from seedcli.net.security.curve import protect_client

_REJECTIONS = 3  # connections that were accepted and ended before anything was said
_REJECTED = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_OTHER = zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_IDENTITY_BYTES = 16
_WAITING = 16  # messages kept for a chief that is away; all is said anew with each heartbeat


class Member(Meeting):
    """Every host but the chief."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._introduction = encode_control(
            {"kind": "introduce", "index": self.index, "introduction": self._mine.to_dict()}
        )
        self._heard = time.monotonic()
        self._proposal: dict[str, Any] | None = None
        self._still_missing: list[int] = [0]
        self._taken = False
        self._connected = False
        self._accepted = False
        self._rejections = 0
        self._chief_left = False

    def _open(self) -> None:
        self._socket = self._new_socket(zmq.DEALER)
        self._socket.setsockopt(zmq.SNDHWM, _WAITING)
        self._socket.setsockopt(zmq.IDENTITY, b"H" + os.urandom(_IDENTITY_BYTES))
        if self._security is not None:
            protect_client(self._socket, self._security)
        self._monitor = watch(self._socket, _REJECTED | _OTHER)
        try:
            self._socket.connect(f"tcp://{self.hosts[0]}")
        except zmq.ZMQError as error:
            raise UsageError(
                f'topology.hosts: "{self.hosts[0]}" is no address to connect to ({error.strerror}): check it'
            ) from error

    def _sockets(self) -> list[zmq.Socket[bytes]]:
        return [self._socket, self._monitor]

    def _missing(self) -> Sequence[int]:
        return self._still_missing

    def _overdue(self, timeout: float, missing: Sequence[int]) -> SeedError:
        if not self._connected:
            check_known(self.hosts[0], self.hosts[0])
            return UnreachableError(
                f"topology.host_timeout = {timeout:g} s: {called(self.hosts, 0)} does not answer: start it, check "
                "topology.hosts, or raise it"
            )
        if self._taken:
            return UsageError(
                f"topology.host_timeout = {timeout:g} s: {called(self.hosts, 0)} has its "
                f"{called(self.hosts, self.index)} already: stop that one, or give each its own --host-index"
            )
        return super()._overdue(timeout, missing)

    def _propose(self, spec: dict[str, Any]) -> None:
        self._proposal = self._proposal or spec

    def _take(self, parts: list[bytes], now: float) -> None:
        if len(parts) != 1:
            raise ProtocolError("a message that is not of one part")
        self._heard = now
        message = decode_control(parts[0])
        kind = message.pop("kind", None)
        take = {
            "wait": self._wait,
            "host": self._host,
            "beat": self._heartbeat,
            "spec": self._agreed,
            "told": self._was_told,
            "ended": self._ended,
        }.get(str(kind))
        if take is None:
            raise ProtocolError(f"a message of the kind {kind!r:.80}")
        take(message)

    def _wait(self, message: dict[str, Any]) -> None:
        only(message, frozenset(("missing", "taken")))
        missing = message.get("missing")
        if not isinstance(missing, list) or len(missing) > MAX_HOSTS or not isinstance(message.get("taken"), bool):
            raise ProtocolError("missing must be a list of hosts, and taken true or false")
        with self._changed:
            self._still_missing = [number({"missing": index}, "missing", MAX_HOSTS) for index in missing]
            self._taken = message["taken"]

    def _host(self, message: dict[str, Any]) -> None:
        only(message, frozenset(("index", "introduction")))
        index = number(message, "index", len(self.hosts) - 1)
        found = parse_introduction(table(message, "introduction", 16))
        # What no host may have of its own is as here: the chief has compared it.
        agreed = {key: value for key, value in self._mine.config.items() if not is_own(key)}
        whole = Introduction(agreed | found.config, found.version, found.tensorflow, found.actors, found.folder)
        with self._changed:
            self._known.setdefault(index, whole)
            self._met = len(self._known) == len(self.hosts)
            self._due = self._due or self._met
            self._changed.notify_all()

    def _heartbeat(self, message: dict[str, Any]) -> None:
        only(message, frozenset(("loads", "lost")))
        loads = table(message, "loads", len(self.hosts))
        found = {}
        for key in loads:
            if not key.isdecimal() or len(key) > 4 or int(key) >= len(self.hosts):
                raise ProtocolError("loads must be by host")
            found[int(key)] = number(loads, key, MAX_ENVS)
        sentence = text(message, "lost", MAX_SENTENCE, least=0)
        with self._changed:
            self._loads = found | {self.index: self._loads[self.index]}
        if sentence:
            self._lose(sentence)

    def _agreed(self, message: dict[str, Any]) -> None:
        only(message, frozenset(("value",)))
        value = table(message, "value", MAX_HOSTS)
        with self._changed:
            if self._spec is None:
                self._spec = value
                self._changed.notify_all()

    def _was_told(self, message: dict[str, Any]) -> None:
        only(message, frozenset(("value",)))
        value = table(message, "value", MAX_HOSTS)
        with self._changed:
            self._told = value
            self._changed.notify_all()

    def _ended(self, message: dict[str, Any]) -> None:
        reason, usage = parse_ended(message)
        if not self._met:
            whole = f"{called(self.hosts, 0)} has ended: {reason or 'it has done what it had to'}"
            self._fail(UsageError(reason) if usage else UnreachableError(whole))
        self._chief_left = True
        if reason:
            self._lose(f"{called(self.hosts, 0)} has ended: {reason}")

    def _beat(self) -> None:
        if not self._met:
            self._send(self._introduction)
            return
        with self._changed:
            spec = None if self._spec is not None else self._proposal
            body = encode_control({"kind": "beat", "envs": self._loads[self.index], "spec": spec})
        self._send(body)

    def _judge(self, now: float) -> None:
        self._watch()
        silent = now - self._heard
        if self._met and silent > self._silence_seconds and not self._chief_left:
            self._lose(f"{called(self.hosts, 0)} has not been heard for {silent:.0f} s")

    def _excuse(self, seconds: float) -> None:
        self._heard += seconds

    def _watch(self) -> None:
        """Find out whether the chief lets this host in; ZeroMQ's monitor knows."""
        while self._monitor.poll(0):
            event = int(parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))["event"])
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._connected, self._accepted, self._rejections = True, False, 0
                self._say_now()
            elif self._met:
                continue  # a chief that has gone is silent
            elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                self._fail(DistrustedError(self._refusal(": one of the two does not encrypt")))
            elif event == zmq.EVENT_CONNECTED:
                self._accepted = True
            elif self._accepted and event & _REJECTED:
                # A chief that is just ending closes a connection once; one that wants none of us does it each time.
                self._accepted, self._rejections = False, self._rejections + 1
                if self._rejections >= _REJECTIONS:
                    self._fail(DistrustedError(self._refusal()))

    def _refusal(self, reason: str = "") -> str:
        if self._security is None:
            return f"{called(self.hosts, 0)} ends unencrypted connections: give --insecure to every host, or to none"
        return (
            f"{called(self.hosts, 0)} and this host do not trust each other{reason}: this host's token is the one from "
            f"{self._security.token.source}; give every host the same token (seed token show), or --insecure to all"
        )

    def _say_ended(self, body: bytes) -> None:
        self._send(body)

    def _free(self) -> None:
        if hasattr(self, "_monitor"):
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
        super()._free()
