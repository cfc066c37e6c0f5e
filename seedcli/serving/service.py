"""The inference service: one thread that polls the transports, admits actors, batches, infers and answers.

One thread is faster than a pool: under the GIL, a hand-off between threads costs more than copying a step.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from seedcli.agents.base import Role
from seedcli.errors import ProtocolError, RefusedError, SeedError
from seedcli.inference.engine import StepEngine
from seedcli.inference.streams import Answer, Stream
from seedcli.net.base import Destination, Payload, Peer, ServerTransport
from seedcli.net.codecs import check_codecs
from seedcli.net.frames import Header, Kind, encode_control, pack_header
from seedcli.net.messages import Hello, parse_goodbye
from seedcli.serving.admission_control import AdmissionControl
from seedcli.serving.handshakes import Handshakes
from seedcli.serving.sessions import FleetSettings, LostSession, Session
from seedcli.specs import EnvSpec, split_envs
from seedcli.telemetry.logs import log_once_per
from seedcli.telemetry.metrics import Profile

_log = logging.getLogger(__name__)

_TURN_SECONDS = 0.5  # housekeeping, and the longest sleep
_LOST_SESSIONS = 1024  # most recent lost sessions that are kept


class InferenceService:
    """Connects the transports to the step engine, in one thread.

    Args:
        transports: listeners, already bound.
        settings: settings of the actors; also an attribute.
        engine_for: returns the step engine for a specification and a fault callback; called on every SPEC, and builds
            the agent on the first; raises RefusedError, naming the field, for a specification other than the agent's.

    Attributes:
        turned_away: connections that ended because their peers did not prove the token.
        environment_failures: failures of environments reported by actors.
        row_bytes_received: bytes of the rows as received.
        row_bytes_raw: bytes of the same rows, decoded.
        lost_sessions: the most recent lost sessions.
        last_turn: when the loop last received frames, monotonic seconds.
        admission_control: bounds the connections of unauthenticated peers.
        handshakes: runs the handshakes.
    """

    def __init__(
        self,
        transports: Sequence[ServerTransport],
        settings: FleetSettings,
        engine_for: Callable[[EnvSpec, Callable[[Stream, str], None]], StepEngine],
    ) -> None:
        self._transports = {transport.name: transport for transport in transports}
        self._turns = deque(transports)
        self.settings = settings
        self._engine_for = engine_for
        self._engine: StepEngine | None = None
        self._sessions: dict[Peer, Session] = {}
        self._by_number: dict[int, Session] = {}
        self._by_actor: dict[str, Session] = {}
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._wake_fd, select.POLLIN)
        for transport in transports:
            self._poll.register(transport.fileno(), select.POLLIN)
        self._stop = threading.Event()
        self._training_done = False
        self._next_housekeeping = 0.0
        self.full = False
        self.profile = Profile()
        self.protocol_errors = 0
        self.row_bytes_received = self.row_bytes_raw = 0
        self.sessions_opened = self.sessions_lost = 0
        self.lost_sessions: deque[LostSession] = deque(maxlen=_LOST_SESSIONS)
        self.last_turn = time.monotonic()
        self.environment_failures = self.turned_away = 0
        self.admission_control = AdmissionControl(transports, lambda: self.last_turn)
        self.handshakes = Handshakes(
            self._transports,
            settings,
            self.admission_control,
            sessions=self._by_number.values,
            admit=self._admit,
            failed=self._environments_failed,
            lost=self.lost,
        )

    # -- the loop ---------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """End the current sleep; safe to call from any thread."""
        os.eventfd_write(self._wake_fd, 1)

    def stop(self, *, training_done: bool) -> None:
        """End `run`; safe to call from any thread.

        Args:
            training_done: send DONE, so that the actors exit; otherwise they look for a learner that resumes the run.
        """
        self._training_done = training_done
        self._stop.set()
        self.wake()

    def run(self) -> None:
        """Serve until `stop`."""
        idle = False
        while not self._stop.is_set():
            # Sleep only after a turn without received or sent frames, as `ServerTransport.receive` requires.
            idle = not self.turn(block=idle)

    def turn(self, *, block: bool) -> bool:
        """Receive waiting frames and send due answers; returns whether there were any.

        Args:
            block: first sleep until there is work.
        """
        if block:
            self._sleep()
        clock = time.perf_counter
        begun = clock()
        received = 0
        # Start with another transport in each turn, so that none starves the others.
        self._turns.rotate()
        for transport in self._turns:
            while not self.full and (count := transport.receive(self)) > 0:
                received += count
        self.profile.add("wire", clock() - begun)
        self.last_turn = time.monotonic()
        answered = self._answer_due()
        now = time.monotonic()
        if now >= self._next_housekeeping:
            self._housekeeping(now)
            return True
        return bool(received or answered)

    def _sleep(self) -> None:
        wait = self._engine.wait() if self._engine is not None else None
        if wait is not None and wait <= 0.0:
            return
        seconds = _TURN_SECONDS if wait is None else min(wait, _TURN_SECONDS)
        begun = time.perf_counter()
        # poll takes milliseconds: round up to avoid spinning through the last one.
        for descriptor, _ in self._poll.poll(int(seconds * 1000) + 1):
            if descriptor == self._wake_fd:
                os.eventfd_read(self._wake_fd)
        self.profile.add("waiting", time.perf_counter() - begun)

    def _answer_due(self) -> int:
        engine = self._engine
        if engine is None:
            return 0
        answered = engine.unblock(self._send_answer)
        if engine.wait() == 0.0:
            self.full = False
            answered += engine.answer(self._send_answer)
        return answered

    def _send_answer(self, answer: Answer) -> None:
        stream, sequence, actions = answer
        session: Session = stream.owner
        payload = actions.tobytes()
        header = pack_header(Kind.ACTION, len(payload), stream=stream.index, sequence=sequence, session=session.number)
        self._transports[session.peer.transport].send(session.peer, header, payload)
        session.moved = time.monotonic()

    # -- FrameHandler -----------------------------------------------------------------------------------------

    def destination(self, peer: Peer, header: Header) -> Destination | None:
        """See `net.base.FrameHandler`."""
        session = self._sessions.get(peer)
        if session is None:
            return None
        if header.session != session.number:
            raise ProtocolError(f"a step is for session {header.session:x}, not the connection's {session.number:x}")
        if header.stream >= len(session.streams):
            raise ProtocolError(f"a step is for stream {header.stream}, but the session has {len(session.streams)}")
        stream = session.streams[header.stream]
        if stream.pending or header.sequence != stream.sequence:
            raise ProtocolError(
                f"step {header.sequence} of stream {header.stream} is out of order: step {stream.sequence} is expected"
                + (", after the answer to the last one" if stream.pending else "")
            )
        assert self._engine is not None
        return Destination(stream, self._engine.destination(stream), bool(session.decoders))

    def take_row(self, destination: Destination, header: Header, payload: Payload) -> None:
        """See `net.base.FrameHandler`."""
        stream: Stream = destination.owner
        session: Session = stream.owner
        assert self._engine is not None
        if destination.encoded:
            session.decoders[stream.index].decode(payload, destination.row)
        self.row_bytes_received += header.payload_bytes
        self.row_bytes_raw += len(destination.row)
        session.last_seen = session.moved = time.monotonic()
        session.steps += stream.num_envs
        self._engine.arrived(stream)
        # A full batch is answered before more rows are read: its actors step in the meantime.
        self.full = self._engine.full

    def frame(self, peer: Peer, header: Header, payload: Payload) -> None:
        """See `net.base.FrameHandler`."""
        if header.kind == Kind.STEP:
            # The learner restarted or the session timed out: the actor must start a handshake.
            self._transports[peer.transport].send(peer, pack_header(Kind.UNKNOWN))
        elif header.kind == Kind.HEARTBEAT:
            self._heartbeat(peer, header)
        elif header.kind == Kind.GOODBYE:
            session = self._sessions.get(peer)
            if session is not None:
                failure = parse_goodbye(payload)
                if failure:
                    self._environments_failed(session.actor_id, failure)
                else:
                    log_once_per(
                        f"left {session.actor_id}", 1.0, _log, logging.INFO,
                        "actor %s at %s left", session.actor_id, peer.address,
                    )  # fmt: skip
                self._end_session(session)
                self._transports[peer.transport].drop(peer)
        elif peer in self._sessions:
            raise ProtocolError(f"a session received a handshake message (kind {header.kind})")
        else:
            self.handshakes.take(peer, header, payload)

    def lost(self, peer: Peer, reason: str, *, malformed: bool = False) -> None:
        """See `net.base.FrameHandler`."""
        self.handshakes.forget(peer)
        session = self._sessions.get(peer)
        who = f"connection {peer.address}" if session is None else f"actor {session.actor_id} at {peer.address}"
        if malformed:
            self.protocol_errors += 1
            log_once_per("malformed", 5.0, _log, logging.WARNING, "%s dropped: %s", who, reason)
        elif session is not None:
            log_once_per(f"lost {session.actor_id}", 1.0, _log, logging.WARNING, "%s lost: %s", who, reason)
        else:
            _log.debug("%s ended: %s", who, reason)
        if session is not None:
            self._end_session(session)
            self.sessions_lost += 1
            self.lost_sessions.append(
                LostSession(
                    session.actor_id, peer, session.envs, session.steps, reason, session.last_seen, time.monotonic()
                )
            )

    def _heartbeat(self, peer: Peer, header: Header) -> None:
        # ZeroMQ actors send heartbeats over a second socket: the session id identifies the actor.
        session = self._by_number.get(header.session)
        transport = self._transports[peer.transport]
        if session is None:
            transport.send(peer, pack_header(Kind.UNKNOWN, session=header.session))
            return
        session.last_seen = time.monotonic()
        self._transports[session.peer.transport].send(
            session.peer, pack_header(Kind.HEARTBEAT_ACK, session=session.number)
        )

    def _environments_failed(self, actor_id: str, failure: str) -> None:
        self.environment_failures += 1
        log_once_per(
            f"failure {actor_id}", 1.0, _log, logging.WARNING, "environments of actor %s failed: %s", actor_id, failure
        )

    # -- admission --------------------------------------------------------------------------------------------

    def _admit(
        self, peer: Peer, hello: Hello, spec: EnvSpec, codecs: dict[str, str], evaluation: int
    ) -> dict[str, Any]:
        check_codecs(spec, codecs, self.settings.offered_codecs(self._transports[peer.transport]))
        self._engine = self._engine_for(spec, self.fault)
        earlier = self._by_actor.get(hello.actor_id)
        if earlier is not None:
            self._end_session(earlier)
            self._transports[earlier.peer.transport].drop(earlier.peer)
        session = Session(secrets.randbits(63) + 1, hello.actor_id, peer)
        session.started = session.last_seen = session.moved = time.monotonic()
        try:
            split = split_envs(hello.envs, hello.streams, evaluation)
            for index, envs in enumerate(split):
                role: Role = "evaluation" if evaluation and index == len(split) - 1 else "training"
                stream = self._engine.open_stream(session, index, envs, role)
                if stream is None:
                    raise RefusedError(
                        f"{hello.envs} environments do not fit in the free slots of {self.settings.max_envs}: "
                        "lower --envs or raise inference.max_envs"
                    )
                session.streams.append(stream)
            payload_bytes = session.agree(spec, codecs)
            extra = self._transports[peer.transport].open_session(peer, payload_bytes)
        except SeedError:
            for stream in session.streams:
                self._engine.close_stream(stream)
            raise
        self._sessions[peer] = session
        self._by_number[session.number] = session
        self._by_actor[session.actor_id] = session
        self.sessions_opened += 1
        log_once_per(
            f"joined {session.actor_id}", 1.0, _log, logging.INFO,
            "actor %s at %s joined with %d environments", session.actor_id, peer.address, session.envs,
        )  # fmt: skip
        return {
            "session": session.number,
            "stream_envs": [stream.num_envs for stream in session.streams],
            "payload_bytes": payload_bytes,
            "heartbeat_seconds": self.settings.heartbeat_seconds,
            "timeout_seconds": self.settings.timeout_seconds,
            "reconnect_timeout": self.settings.reconnect_timeout,
            **extra,
        }

    # -- ends -------------------------------------------------------------------------------------------------

    def _end_session(self, session: Session) -> None:
        assert self._engine is not None
        for stream in session.streams:
            self._engine.close_stream(stream)
        self._sessions.pop(session.peer, None)
        self._by_number.pop(session.number, None)
        if self._by_actor.get(session.actor_id) is session:
            del self._by_actor[session.actor_id]

    def fault(self, stream: Stream, sentence: str) -> None:
        """End the session of a stream with invalid data, and send its actor the reason."""
        session: Session = stream.owner
        self.protocol_errors += 1
        reason = f"stream {stream.index} of actor {session.actor_id} sent {sentence}: repair the environment"
        log_once_per("fault", 1.0, _log, logging.ERROR, "%s", reason)
        body = encode_control({"reason": reason})
        transport = self._transports[session.peer.transport]
        transport.send(session.peer, pack_header(Kind.REFUSED, len(body), session=session.number), body)
        self._end_session(session)
        transport.drop(session.peer)

    def _housekeeping(self, now: float) -> None:
        late = now - self._next_housekeeping > 2 * _TURN_SECONDS
        self._next_housekeeping = now + _TURN_SECONDS
        self._count_turned_away()
        self.full = False  # the pending rows may have ended with their sessions
        if late:
            return  # this thread was blocked, and frames that arrived meanwhile are not read yet
        for session in list(self._by_number.values()):
            self._end_if_silent(session, now - session.last_seen)
        self.handshakes.end_overdue(now)

    def _end_if_silent(self, session: Session, silent: float) -> None:
        """Lose an actor without a frame for `silent` seconds, unless its environments may block it."""
        transport = self._transports[session.peer.transport]
        if silent <= self.settings.timeout_seconds:
            return
        if transport.pings and session.stepping and silent <= self.settings.longest_silence:
            sentence = "%s is busy: its environments have blocked it in a reset or step for %.0f s"
            log_once_per(f"busy {session.actor_id}", 60.0, _log, logging.INFO, sentence, session, silent)
            return
        self.lost(session.peer, f"silent for {silent:.0f} s")
        transport.drop(session.peer)

    def _count_turned_away(self) -> None:
        count = self.admission_control.ended + sum(transport.turned_away for transport in self._transports.values())
        if count > self.turned_away:
            log_once_per(
                "turned away", 5.0, _log, logging.WARNING,
                "%d connections have ended in the handshake so far: wrong token, no encryption, or disconnected",
                count,
            )  # fmt: skip
        self.turned_away = count

    def finish(self) -> None:
        """Close the listeners, after sending DONE to every actor if training is done; call it after `run`."""
        if self._training_done:
            for session in list(self._by_number.values()):
                header = pack_header(Kind.DONE, session=session.number)
                self._transports[session.peer.transport].send(session.peer, header)
            for peer in self.handshakes.in_progress():
                self._transports[peer.transport].send(peer, pack_header(Kind.DONE))
        self.admission_control.close()
        for transport in self._transports.values():
            transport.close()

    def sessions(self) -> list[Session]:
        """Return a copy of the current sessions; safe to call from another thread."""
        return list(self._by_number.values())
