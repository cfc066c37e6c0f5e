"""The inference service's state per actor: sessions, handshakes in progress, lost sessions and the fleet's settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from seedcli.inference.streams import Stream
from seedcli.net.base import Peer, ServerTransport
from seedcli.net.codecs import CODECS, RAW, RowDecoder
from seedcli.net.handshake import ServerHandshake
from seedcli.net.messages import Hello
from seedcli.serving.admission_control import MAX_UNAUTHENTICATED, PROOF_SECONDS
from seedcli.specs import EnvSpec, RowLayout

HANDSHAKE_SECONDS = 120.0  # from the proof to Ready, beyond `environment.step_timeout`


@dataclass
class Session:
    """A connected actor.

    Attributes:
        number: the session id in its frames.
        actor_id: the actor's name, kept when it reconnects.
        peer: the connection for answers.
        streams: its streams, by index.
        started, last_seen: monotonic seconds.
        moved: when it last took a row or gave an answer, monotonic seconds.
        steps: environment records received.
        decoders: one per stream; empty if rows are not encoded.
    """

    number: int
    actor_id: str
    peer: Peer
    streams: list[Stream] = field(default_factory=list)
    started: float = 0.0
    last_seen: float = 0.0
    moved: float = 0.0
    steps: int = 0
    decoders: list[RowDecoder] = field(default_factory=list)

    def __str__(self) -> str:
        return f"actor {self.actor_id}"

    @property
    def envs(self) -> int:
        """Environments of all its streams."""
        return sum(stream.num_envs for stream in self.streams)

    @property
    def stepping(self) -> bool:
        """Whether the actor has yet to send a row, so that its environments may be in a reset or step."""
        return not all(stream.pending for stream in self.streams)

    @property
    def evaluation_envs(self) -> int:
        """Environments of its evaluation streams."""
        return sum(stream.num_envs for stream in self.streams if stream.role == "evaluation")

    def agree(self, spec: EnvSpec, codecs: Mapping[str, str]) -> list[int]:
        """Set the codecs of its arrays; returns the maximum payload size of each stream, bytes."""
        layouts = [RowLayout(spec, stream.num_envs) for stream in self.streams]
        if all(codec == RAW for codec in codecs.values()):
            return [layout.nbytes for layout in layouts]
        self.decoders = [RowDecoder(layout, codecs) for layout in layouts]
        return [decoder.max_payload for decoder in self.decoders]


@dataclass
class Admission:
    """A handshake in progress.

    Attributes:
        handshake: its state.
        deadline: of the proof or, after the proof, of READY, monotonic seconds.
        limit: seconds for which the deadline was set.
        evaluation_envs: evaluation environments assigned in it.
    """

    handshake: ServerHandshake
    deadline: float
    limit: float = PROOF_SECONDS
    evaluation_envs: int = 0

    @property
    def overdue(self) -> str:
        """The reason for ending the handshake after its deadline."""
        what = "environments" if self.handshake.proved else "proof"
        return f"no {what} within {self.limit:.0f} s"


def oldest_unauthenticated(admissions: Mapping[Peer, Admission]) -> Peer | None:
    """Return the peer of the oldest handshake without proof if there are too many of them, else None.

    Args:
        admissions: handshakes in the order in which they began.
    """
    waiting = [peer for peer, entry in admissions.items() if not entry.handshake.proved]
    return waiting[0] if len(waiting) >= MAX_UNAUTHENTICATED else None


class LostSession(NamedTuple):
    """An actor whose session ended without a goodbye.

    Attributes:
        actor_id: the actor's name.
        peer: its connection.
        envs, steps: environments, and environment records received in the session.
        reason: why it ended.
        last_seen, time: when its last frame arrived, and when its session ended, monotonic seconds.
    """

    actor_id: str
    peer: Peer
    envs: int
    steps: int
    reason: str
    last_seen: float
    time: float


@dataclass(frozen=True)
class FleetSettings:
    """The settings that actors receive and the limits they must keep.

    Attributes:
        environment: the environment section of the configuration, as sent to actors.
        seed: base of the environments' seeds.
        max_envs: maximum number of connected environments.
        heartbeat_seconds, timeout_seconds, reconnect_timeout: see `config.NetConfig`.
        fleet_envs: environments of the configured fleet.
        evaluation_envs: number of these that only evaluate.
        compression: "auto", "off" or "on"; see `config.NetConfig`.
        step_timeout: `environment.step_timeout`.
    """

    environment: dict[str, Any]
    seed: int
    max_envs: int
    heartbeat_seconds: float
    timeout_seconds: float
    reconnect_timeout: float
    fleet_envs: int = 1
    evaluation_envs: int = 0
    compression: str = "auto"
    step_timeout: float = 300.0

    @property
    def longest_step(self) -> float:
        """How long environments may take for a reset or step, seconds; infinite without a limit."""
        return self.step_timeout or math.inf

    @property
    def longest_silence(self) -> float:
        """Seconds without a frame after which an actor is lost although its connection answers pings.

        While environments hold the interpreter's lock, no thread of the actor sends heartbeats.
        """
        return self.longest_step + self.timeout_seconds

    def offered_codecs(self, transport: ServerTransport) -> tuple[str, ...]:
        """Return the codecs that actors on `transport` may use; only raw for rows in shared memory."""
        return (RAW,) if self.compression == "off" or transport.shares_memory else CODECS


def evaluation_share(
    settings: FleetSettings, hello: Hello, sessions: Iterable[Session], admissions: Iterable[Admission]
) -> int:
    """Return how many of an actor's environments only evaluate: the fleet's share, rounded up while any are left."""
    wanted = settings.evaluation_envs
    given = sum(session.evaluation_envs for session in sessions if session.actor_id != hello.actor_id)
    for entry in admissions:
        other = entry.handshake.hello
        if other is not None and other.actor_id != hello.actor_id:
            given += entry.evaluation_envs
    return max(0, min(-(-hello.envs * wanted // settings.fleet_envs), wanted - given, hello.envs - 1))
