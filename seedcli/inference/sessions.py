"""What the inference service knows of the actors: those that are in, those on their way in, and what they are told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from seedcli.inference.streams import Stream
from seedcli.net.base import Peer
from seedcli.net.handshake import ServerHandshake


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
    """

    number: int
    actor_id: str
    peer: Peer
    streams: list[Stream] = field(default_factory=list)
    started: float = 0.0
    last_seen: float = 0.0
    steps: int = 0

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


@dataclass
class Admission:
    """A handshake under way, until `deadline` (monotonic seconds), with the evaluation environments promised in it."""

    handshake: ServerHandshake
    deadline: float
    evaluation_envs: int = 0


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
    """

    environment: dict[str, Any]
    seed: int
    max_envs: int
    heartbeat_seconds: float
    timeout_seconds: float
    reconnect_timeout: float
    fleet_envs: int = 1
    evaluation_envs: int = 0
