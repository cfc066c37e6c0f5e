"""What both sides of a meeting of learner hosts have in common, and what everybody may ask; see `cluster.meeting`."""

from __future__ import annotations

import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import zmq

from seedcli.cluster.introductions import Introduction, called
from seedcli.errors import ProtocolError, SeedError, UnreachableError, UsageError
from seedcli.net.frames import CONTROL_LIMIT, decode_control, encode_control
from seedcli.net.messages import printable
from seedcli.net.router import keep_alive
from seedcli.net.security.curve import Gate
from seedcli.net.security.keys import Security

_log = logging.getLogger(__name__)

MAX_HOSTS = 1024
MAX_ENVS = 2**40
_LOOK_SECONDS = 0.1
_LINGER_MILLISECONDS = 1000
_JOIN_SECONDS = 10.0
_A_TURN = 256  # messages read before anything else is done


class MeetingCancelled(Exception):
    """`meet` was told to stop before every host had come."""


class Meeting(ABC):
    """The learner hosts of a run, once all of them are there; safe from any thread. Leave it with `close`.

    Attributes:
        hosts: "host:port" each, the chief first.
        index: which of them this is.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        index: int,
        introduction: Introduction,
        security: Security | None,
        *,
        beat_seconds: float,
        silence_seconds: float,
    ) -> None:
        self.hosts = tuple(hosts)
        self.index = index
        self._mine = introduction.plain()
        self._security = security
        self._beat_seconds = beat_seconds
        self._silence_seconds = silence_seconds
        self._changed = threading.Condition()
        # Under the condition's lock:
        self._known = {index: self._mine}
        self._failure: SeedError | None = None  # why the hosts cannot meet
        self._met = False
        self._loads = {index: 0}
        self._spec: dict[str, Any] | None = None
        self._told: dict[str, Any] = {}
        self._lost = ""
        self._closing: tuple[str, bool] | None = None  # reason, and whether it is the user's to mend
        self._due = True  # something is to be said before the next heartbeat
        self._asked = self._said = 0  # how often that was asked for, and up to which of these it has been done
        # The thread's own:
        self._malformed = 0
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes]
        self._thread = threading.Thread(target=self._run, name="meeting", daemon=True)

    # -- for everybody ----------------------------------------------------------------------------------------

    @property
    def introductions(self) -> tuple[Introduction, ...]:
        """Of every host, by index."""
        with self._changed:
            return tuple(self._known[index] for index in range(len(self.hosts)))

    @property
    def spec(self) -> dict[str, Any] | None:
        """The specification that every host builds for: the first that the chief has seen; None before there is one."""
        with self._changed:
            return self._spec

    def propose_spec(self, spec: Mapping[str, Any]) -> None:
        """Propose what every host is to build for; `spec` says later what has been agreed on.

        Raises:
            ProtocolError: it is larger than a message may be.
        """
        proposal = _as_sent(spec)
        with self._changed:
            if self._spec is None:
                self._propose(proposal)
                self._changed.notify_all()
        self._say_now()

    def wait_spec(self, timeout: float) -> dict[str, Any] | None:
        """`spec`, after at most `timeout` seconds; None where there is none by then, or a host is lost before."""
        with self._changed:
            self._changed.wait_for(lambda: self._spec is not None or self._lost or self._closing is not None, timeout)
            return self._spec

    def report(self, envs: int) -> None:
        """Say how many environments this host serves; the others know within a heartbeat."""
        with self._changed:
            self._loads[self.index] = envs

    @property
    def loads(self) -> dict[int, int]:
        """Environments of each host that has said, by index."""
        with self._changed:
            return dict(self._loads)

    def tell(self, state: Mapping[str, Any]) -> None:
        """The chief's: have `told` be this on every host.

        Raises:
            ProtocolError: it is larger than a message may be.
        """
        assert self.index == 0, "only the chief tells"
        told = _as_sent(state)
        with self._changed:
            self._told = told
        self._say_now()

    @property
    def told(self) -> dict[str, Any]:
        """What the chief has last told; empty before."""
        with self._changed:
            return dict(self._told)

    def flush(self, timeout: float) -> bool:
        """Wait until all that was reported and told is on its way, whatever this process does next.

        Args:
            timeout: seconds at most.

        Returns:
            Whether it is.
        """
        self._say_now()
        with self._changed:
            asked = self._asked
            return self._changed.wait_for(lambda: self._said >= asked or self._closing is not None, timeout)

    @property
    def lost(self) -> str:
        """A sentence that names the first host that has not been heard, or that said why it ended; "" for none."""
        with self._changed:
            return self._lost

    def close(self, reason: str = "") -> None:
        """Leave; safe to call twice. Takes at most about a second.

        Args:
            reason: why the others cannot go on; "" where this host has done all it had to.
        """
        self.end(reason, usage=False)

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close(str(error) or type(error).__name__ if error is not None else "")

    # -- meeting ----------------------------------------------------------------------------------------------

    def gather(self, timeout: float, stopped: Callable[[], bool]) -> None:
        """Start, and wait until every host is there; raises as `cluster.meeting.meet` does."""
        self._open()
        self._thread.start()
        deadline = time.monotonic() + timeout
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._met or self._failure is not None, _LOOK_SECONDS)
                if self._failure is not None:
                    raise self._failure
                if self._met:
                    return
                missing = self._missing()
            if stopped():
                raise MeetingCancelled(f"{called(self.hosts, self.index)} was stopped")
            if time.monotonic() >= deadline:
                raise self._overdue(timeout, missing)

    def _overdue(self, timeout: float, missing: Sequence[int]) -> SeedError:
        names = ", ".join(called(self.hosts, index) for index in missing or (0,))
        return UsageError(
            f"topology.host_timeout = {timeout:g} s: {names} did not come to {self.hosts[0]}: start every host of "
            "topology.hosts, each with its own --host-index, or raise it"
        )

    def _fail(self, error: SeedError) -> None:
        """The hosts cannot meet; the thread's."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def _lose(self, sentence: str) -> None:
        with self._changed:
            if self._lost or self._closing is not None:
                return
            self._lost = sentence
            self._changed.notify_all()

    # -- the thread -------------------------------------------------------------------------------------------

    @abstractmethod
    def _open(self) -> None:
        """Make the socket; raises UsageError."""

    @abstractmethod
    def _missing(self) -> Sequence[int]:
        """The hosts that have not come, as far as this one knows; with the lock held."""

    @abstractmethod
    def _propose(self, spec: dict[str, Any]) -> None:
        """Propose a specification where none is agreed on; with the lock held."""

    @abstractmethod
    def _take(self, parts: list[bytes], now: float) -> None:
        """Take a message; raises ProtocolError."""

    def _understood(self, frame: zmq.Frame) -> None:  # noqa: B027  # most have nothing to do
        """A message was taken; `frame` is the last of its parts."""

    @abstractmethod
    def _beat(self) -> None:
        """Say everything there is to say."""

    @abstractmethod
    def _judge(self, now: float) -> None:
        """Find out who has been silent for too long."""

    @abstractmethod
    def _excuse(self, seconds: float) -> None:
        """So many seconds have passed in which this host could hear nobody."""

    @abstractmethod
    def _say_ended(self, body: bytes) -> None:
        """Tell everybody else that this host has ended."""

    def _new_socket(self, kind: int) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        for option, value in (
            (zmq.LINGER, _LINGER_MILLISECONDS),
            (zmq.MAXMSGSIZE, CONTROL_LIMIT),
            (zmq.RCVHWM, _A_TURN),
            (zmq.RECONNECT_IVL, 100),
            (zmq.RECONNECT_IVL_MAX, 1000),
            (zmq.IPV6, int(self.hosts[0].startswith("["))),
        ):
            socket.setsockopt(option, value)
        keep_alive(socket)
        return socket

    def _sockets(self) -> list[zmq.Socket[bytes]]:
        """What the thread waits for."""
        return [self._socket]

    def _new_gate(self) -> None:
        if self._security is not None:
            Gate(self._context, self._security)

    def _run(self) -> None:
        try:
            self._loop()
        except Exception as error:  # whatever it is, the others must not wait for this host
            _log.exception("the meeting of the learner hosts has failed")
            self._fail(UnreachableError(f"the meeting of the learner hosts has failed: {error}"))
            self._lose(f"{called(self.hosts, self.index)} cannot speak with the others: {error}")
        finally:
            self._free()

    def _loop(self) -> None:
        poller = zmq.Poller()
        for socket in self._sockets():
            poller.register(socket, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        turn = next_beat = time.monotonic()
        while True:
            # poll counts milliseconds: round up, so as not to spin through the last one.
            poller.poll(int(max(0.0, next_beat - time.monotonic()) * 1000) + 1)
            self._read()
            with self._changed:
                closing, due, self._due = self._closing, self._due, False
                asked = self._asked
            if closing is not None:
                reason, usage = closing
                self._say_ended(encode_control({"kind": "ended", "reason": printable(reason), "usage": usage}))
                return
            now = time.monotonic()
            if due or now >= next_beat:
                next_beat = now + self._beat_seconds
                self._beat()
                with self._changed:
                    self._said = asked
                    self._changed.notify_all()
            # Where this process was held up, as all are while TensorFlow connects them, that is nobody's silence.
            if now - turn < 2 * self._beat_seconds + _LOOK_SECONDS:
                self._judge(now)
            else:
                self._excuse(now - turn)
            turn = now

    def _read(self) -> None:
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            pass
        for _ in range(_A_TURN):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                self._take([frame.bytes for frame in frames], time.monotonic())
                self._understood(frames[-1])
            except ProtocolError as error:
                self._malformed += 1
                if self._malformed == 1:
                    _log.warning("a message of another learner host is thrown away: %s", error)

    def _send(self, body: bytes, identity: bytes | None = None) -> None:
        """Queue a message; one for a host that is gone or does not read is not worth keeping."""
        try:
            self._socket.send_multipart([body] if identity is None else [identity, body], zmq.NOBLOCK)
        except zmq.ZMQError:
            _log.debug("a message to another learner host could not be sent")

    def _say_now(self) -> None:
        with self._changed:
            if self._closing is None:
                self._asked += 1
                self._due = True
                os.eventfd_write(self._wake, 1)

    def end(self, reason: str, *, usage: bool) -> None:
        """`close`, where `usage` says whether the reason is the user's to mend."""
        with self._changed:
            if self._closing is not None:
                return
            self._closing = (reason, usage)
            os.eventfd_write(self._wake, 1)
            self._changed.notify_all()
        if self._thread.ident is None:
            self._free()
        else:
            self._thread.join(_JOIN_SECONDS)
        os.close(self._wake)

    def _free(self) -> None:
        if hasattr(self, "_socket"):
            self._socket.close()
        self._context.term()


def _as_sent(value: Mapping[str, Any]) -> dict[str, Any]:
    """A value as it arrives at the others; raises ProtocolError where it does not fit into a message."""
    sent: dict[str, Any] = decode_control(encode_control({"kind": "told", "value": value}))["value"]
    return sent
