"""The handshakes in progress at the learner, and the messages it sends in them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from seedcli.errors import ProtocolError, RefusedError, SeedError
from seedcli.net.addresses import machine_id
from seedcli.net.base import Payload, Peer, ServerTransport
from seedcli.net.frames import Header, Kind, encode_control, pack_header
from seedcli.net.handshake import NoAuthenticator, ServerHandshake
from seedcli.net.messages import Hello
from seedcli.net.security.keys import TokenAuthenticator
from seedcli.serving.admission_control import PROOF_SECONDS, AdmissionControl, descriptor_limit
from seedcli.serving.sessions import (
    HANDSHAKE_SECONDS,
    Admission,
    FleetSettings,
    Session,
    evaluation_share,
    oldest_unauthenticated,
)
from seedcli.specs import EnvSpec
from seedcli.telemetry.logs import log_notice, log_once_per

_log = logging.getLogger(__name__)

Place = Callable[[Hello, str], str | None]
Admit = Callable[[Peer, Hello, EnvSpec, dict[str, str], int], dict[str, Any]]


class Handshakes:
    """Runs the handshakes in the inference thread; other threads may only call `envs` and `in_progress`.

    Args:
        transports: transports by name.
        settings: settings of the actors.
        admission_control: knows whether descriptors are left for another actor.
        sessions: returns the open sessions.
        admit: opens a session; returns READY's message for a peer, its HELLO, specification, codecs and number of
            evaluation environments; raises RefusedError.
        failed: called with an actor's name and error if its environments have failed.
        lost: called with a peer and the reason when its handshake is ended.

    Attributes:
        seeds_given: number of environments that have received a seed; no two receive the same.
        place: returns the address of the learner host that serves an actor, from its HELLO and transport, or None for
            this host; None: this host serves every actor. Set it before actors connect.
    """

    def __init__(
        self,
        transports: Mapping[str, ServerTransport],
        settings: FleetSettings,
        admission_control: AdmissionControl,
        *,
        sessions: Callable[[], Iterable[Session]],
        admit: Admit,
        failed: Callable[[str, str], None],
        lost: Callable[[Peer, str], None],
    ) -> None:
        self._transports = transports
        self._settings = settings
        self._admission_control = admission_control
        self._sessions = sessions
        self._admit = admit
        self._failed = failed
        self._lost = lost
        self._handshakes: dict[Peer, Admission] = {}
        self.seeds_given = 0
        self.place: Place | None = None

    def envs(self, apart_from: str = "") -> int:
        """Return the number of environments of connected actors and of authenticated actors in the handshake.

        Safe to call from another thread.

        Args:
            apart_from: the name of an actor to leave out.
        """
        there = {session.actor_id: session.envs for session in list(self._sessions())}
        for entry in self.in_progress().values():
            hello = entry.handshake.hello
            if hello is not None and entry.handshake.proved:
                there[hello.actor_id] = hello.envs
        there.pop(apart_from, None)
        return sum(there.values())

    def take(self, peer: Peer, header: Header, payload: Payload) -> None:
        """Take a frame of a handshake and answer it.

        Raises:
            ProtocolError: the frame is not the expected one.
            SeedError: the learner itself must stop.
        """
        entry = self._handshakes.get(peer) or self._begin(peer)
        transport = self._transports[peer.transport]
        try:
            kind, message = entry.handshake.receive(header, payload)
        except ProtocolError:
            raise
        except SeedError as error:
            body = encode_control({"reason": str(error)})
            transport.send(peer, pack_header(Kind.REFUSED, len(body)), body)
            transport.drop(peer)
            self.forget(peer)
            if not isinstance(error, RefusedError):
                raise  # the learner must stop, and the actor need not look for it
            log_once_per("refused", 1.0, _log, logging.WARNING, "actor at %s refused: %s", peer.address, error)
            return
        body = encode_control(message)
        transport.send(peer, pack_header(kind, len(body)), body)
        if kind == Kind.CONFIGURE:
            entry.limit = HANDSHAKE_SECONDS + self._settings.longest_step
            entry.deadline = time.monotonic() + entry.limit
            transport.trust(peer)
        if entry.handshake.notice:
            log_notice(_log, entry.handshake.notice)
        if entry.handshake.complete:
            self.forget(peer)
        if kind == Kind.REDIRECT:
            transport.drop(peer)
            _log.debug("actor at %s redirected to %s", peer.address, message["address"])

    def _begin(self, peer: Peer) -> Admission:
        oldest = oldest_unauthenticated(self._handshakes)
        if oldest is not None:
            self._end(oldest, "too many handshakes at once")
        token = self._transports[peer.transport].token
        handshake = ServerHandshake(
            lambda hello: self._configure(peer, hello),
            lambda hello, spec, codecs: self._admit(peer, hello, spec, codecs, self._handshakes[peer].evaluation_envs),
            NoAuthenticator() if token is None else TokenAuthenticator(token),
            lambda hello: None if self.place is None else self.place(hello, peer.transport),
        )
        entry = self._handshakes[peer] = Admission(handshake, time.monotonic() + PROOF_SECONDS)
        return entry

    def _configure(self, peer: Peer, hello: Hello) -> dict[str, Any]:
        settings = self._settings
        self._check_room(hello)
        if hello.failure:
            self._failed(hello.actor_id, hello.failure)
        # Every environment of the fleet gets another seed, also after a reconnection.
        seed = settings.seed * 1_000_003 + self.seeds_given
        self.seeds_given += hello.envs
        share = evaluation_share(settings, hello, self._sessions(), self._handshakes.values())
        self._handshakes[peer].evaluation_envs = share
        return {
            "environment": settings.environment,
            "seed": seed % (2**31 - 2**17),
            "evaluation_envs": share,
            "compression": settings.compression,
            "codecs": list(settings.offered_codecs(self._transports[peer.transport])),
            "machine": machine_id(),
        }

    def _check_room(self, hello: Hello) -> None:
        if self._admission_control.descriptors_exhausted:
            raise RefusedError(
                f"the learner has {self._admission_control.descriptors} files and sockets open, and its system allows "
                f"{descriptor_limit()}: raise its limit (ulimit -Hn), or run fewer actors with more --envs each"
            )
        in_use = sum(session.envs for session in self._sessions() if session.actor_id != hello.actor_id)
        if hello.envs > self._settings.max_envs - in_use:
            raise RefusedError(
                f"{hello.envs} environments do not fit: the learner accepts {self._settings.max_envs} and "
                f"{in_use} are connected; lower --envs or raise inference.max_envs"
            )

    def forget(self, peer: Peer) -> None:
        """Remove the peer's handshake, if there is one."""
        self._handshakes.pop(peer, None)

    def end_overdue(self, now: float) -> None:
        """End the handshakes whose deadline has passed; `now` in monotonic seconds."""
        for peer, entry in list(self._handshakes.items()):
            if now > entry.deadline:
                self._end(peer, entry.overdue)

    def _end(self, peer: Peer, reason: str) -> None:
        self._lost(peer, reason)
        self._transports[peer.transport].drop(peer)

    def in_progress(self) -> dict[Peer, Admission]:
        """Return a copy of the handshakes in progress; safe to call from another thread."""
        return self._handshakes.copy()
