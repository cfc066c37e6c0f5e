"""One row per actor with its state, for the live view and monitoring."""

from __future__ import annotations

import time

from seedcli.serving.service import InferenceService
from seedcli.serving.sessions import LostSession, Session
from seedcli.telemetry.fleet import ActorRow, State

SILENT_HEARTBEATS = 2.5  # heartbeat intervals without a frame, after which an actor is silent
LOST_SECONDS = 60.0  # for which a lost actor is shown
_WAITING_SECONDS = 0.25  # an answer takes milliseconds: an older step is held back


class FleetWatch:
    """Samples the actors' states; call it from one thread, which need not be the service's.

    Args:
        service: the service of the actors.
        heartbeat_seconds: interval between their heartbeats.
    """

    def __init__(self, service: InferenceService, heartbeat_seconds: float) -> None:
        self._service = service
        self._heartbeat = heartbeat_seconds
        self._steps: dict[int, int] = {}
        self._present: dict[str, float] = {}  # when an actor was last found connected
        self._looked = time.monotonic()

    def sample(self) -> list[ActorRow]:
        """Return one row for each actor that is connected, joining, or was lost within the last minute.

        An actor that reconnected has a single row and is not lost.
        """
        now, service = time.monotonic(), self._service
        before, self._steps = self._steps, {}
        span, self._looked = max(now - self._looked, 1e-9), now
        rows: dict[str, ActorRow] = {}
        for lost in service.lost_sessions.copy():
            if lost.time > max(now - LOST_SECONDS, self._present.get(lost.actor_id, 0.0)):
                rows[lost.actor_id] = _lost_row(lost, now)
        for peer, admission in service.handshakes.in_progress().items():
            hello = admission.handshake.hello
            # Unauthenticated peers are not shown: their HELLO is not trusted.
            if hello is not None and admission.handshake.proved:
                rows[hello.actor_id] = ActorRow(
                    hello.actor_id, peer.address, peer.transport, hello.envs, None, None, "joining"
                )
        for session in service.sessions():
            steps = self._steps[session.number] = session.steps
            self._present[session.actor_id] = now
            known = before.get(session.number)
            rate = None if known is None else (steps - known) / span
            rows[session.actor_id] = ActorRow(
                actor_id=session.actor_id,
                address=session.peer.address,
                transport=session.peer.transport,
                envs=session.envs,
                steps_per_second=rate,
                last_seen_seconds=max(0.0, now - session.last_seen),
                state=self._state(session),
                steps=steps,
            )
        self._present = {name: at for name, at in self._present.items() if now - at < LOST_SECONDS}
        return list(rows.values())

    def _state(self, session: Session) -> State:
        # Relative to the service's last turn: while it builds an agent it reads no frames.
        turn = self._service.last_turn
        if session.stepping and turn - session.moved > self._service.settings.timeout_seconds:
            return "busy"
        if turn - session.last_seen > SILENT_HEARTBEATS * self._heartbeat:
            return "silent"
        now = time.perf_counter()
        held = all(stream.pending and now - stream.arrived > _WAITING_SECONDS for stream in session.streams)
        return "waiting" if held else "stepping"


def _lost_row(session: LostSession, now: float) -> ActorRow:
    return ActorRow(
        actor_id=session.actor_id,
        address=session.peer.address,
        transport=session.peer.transport,
        envs=session.envs,
        steps_per_second=None,
        last_seen_seconds=now - session.last_seen,
        state="lost",
        steps=session.steps,
        reason=session.reason,
    )
