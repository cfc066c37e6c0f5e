"""What the inference service knows of the actors: those that are in, those on their way in, and what they are told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from seedcli.inference.streams import Stream
from seedcli.net.base import Peer
from seedcli.net.codecs import CODECS, RAW, RowDecoder
from seedcli.net.handshake import ServerHandshake
from seedcli.net.messages import Hello
from seedcli.serving.admission_control import MAX_UNAUTHENTICATED, PROOF_SECONDS
from seedcli.specs import EnvSpec, RowLayout

HANDSHAKE_SECONDS = 120.0  # from the proof to Ready; building environments lies in between


@dataclass
class Session:
    """An actor that is in.

    Attributes:
        number: the session id its frames carry.
        actor_id: kept by the actor when it reconnects.
        peer: where answers go.
        streams: its streams, by index.
        started, last_seen: monotonic seconds.
        steps: environment records received.
        decoders: of each stream's rows; none where rows are not encoded.
    """

    number: int
    actor_id: str
    peer: Peer
    streams: list[Stream] = field(default_factory=list)
    started: float = 0.0
    last_seen: float = 0.0
    steps: int = 0
    decoders: list[RowDecoder] = field(default_factory=list)

    def __str__(self) -> str:
        return f"actor {self.actor_id}"

    @property
    def envs(self) -> int:
        """Environments of all its streams."""
        return sum(stream.num_envs for stream in self.streams)

    @property
    def evaluation_envs(self) -> int:
        """Those of them that only evaluate."""
        return sum(stream.num_envs for stream in self.streams if stream.role == "evaluation")

    def agree(self, spec: EnvSpec, codecs: Mapping[str, str]) -> list[int]:
        """Take the codecs of its arrays; returns the bytes of the largest payload of each stream."""
        layouts = [RowLayout(spec, stream.num_envs) for stream in self.streams]
        if all(codec == RAW for codec in codecs.values()):
            return [layout.nbytes for layout in layouts]
        self.decoders = [RowDecoder(layout, codecs) for layout in layouts]
        return [decoder.max_payload for decoder in self.decoders]


@dataclass
class Admission:
    """A handshake under way.

    Attributes:
        handshake: its state.
        deadline: monotonic seconds until which it must have come to the proof, or, after that, to READY.
        evaluation_envs: that were promised in it.
    """

    handshake: ServerHandshake
    deadline: float
    evaluation_envs: int = 0

    @property
    def overdue(self) -> str:
        """What is wrong once the deadline has passed."""
        if self.handshake.proved:
            return f"no environments within {HANDSHAKE_SECONDS:.0f} s"
        return f"no proof within {PROOF_SECONDS:.0f} s"


def oldest_unauthenticated(admissions: Mapping[Peer, Admission]) -> Peer | None:
    """Whose handshake is given up for a new one: of those without proof the oldest, where there are too many of them.

    Args:
        admissions: in the order in which they have begun.
    """
    waiting = [peer for peer, entry in admissions.items() if not entry.handshake.proved]
    return waiting[0] if len(waiting) >= MAX_UNAUTHENTICATED else None


class Departed(NamedTuple):
    """An actor whose session ended without a goodbye.

    Attributes:
        actor_id: of the session.
        peer: where it connected from.
        envs, steps: of the session: environments, environment records received.
        reason: why it ended.
        last_seen, time: when anything last came from it, and when its session ended, monotonic seconds.
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
    """What actors are told and held to.

    Attributes:
        environment: the environment section of the configuration, as actors get it.
        seed: base of the environments' seeds.
        max_envs: environments at once.
        heartbeat_seconds, timeout_seconds, reconnect_timeout: see `config.NetConfig`.
        fleet_envs: environments of the configured fleet.
        evaluation_envs: those of them that only evaluate.
        compression: "auto", "off" or "on"; see `config.NetConfig`.
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

    def offered_codecs(self, transport: str) -> tuple[str, ...]:
        """The codecs that actors on `transport` may use; with rows in shared memory nothing is gained."""
        return (RAW,) if self.compression == "off" or transport == "shm" else CODECS


def evaluation_share(
    settings: FleetSettings, hello: Hello, sessions: Iterable[Session], admissions: Iterable[Admission]
) -> int:
    """How many of an actor's environments only evaluate: as the whole fleet's, rounded up while there are any."""
    wanted = settings.evaluation_envs
    given = sum(session.evaluation_envs for session in sessions if session.actor_id != hello.actor_id)
    for entry in admissions:
        other = entry.handshake.hello
        if other is not None and other.actor_id != hello.actor_id:
            given += entry.evaluation_envs
    return max(0, min(-(-hello.envs * wanted // settings.fleet_envs), wanted - given, hello.envs - 1))
