"""The learner's view of its actors: one row per actor, in one of six states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

State = Literal["lost", "silent", "busy", "joining", "waiting", "stepping"]
# Those that need attention come first.
STATES: tuple[State, ...] = get_args(State)
CONNECTED: tuple[State, ...] = ("silent", "busy", "waiting", "stepping")


@dataclass(frozen=True)
class ActorRow:
    """One actor.

    Attributes:
        actor_id: the id from its HELLO.
        address: its network address.
        transport: "grpc", "zmq" or "shm".
        envs: its environments.
        steps_per_second: environment steps received per second; None if not yet known.
        last_seen_seconds: seconds since its last message; None while it joins.
        state: "joining": authenticated, building its environments; "stepping"; "waiting": waiting for answers, because
            training is the bottleneck; "busy": connected, but its environments have been in a reset or step for longer
            than `net.timeout_seconds`; "silent": heartbeats are overdue; "lost": its session ended without a GOODBYE.
        steps: environment records received in its session.
        reason: why it was lost; "" otherwise.
    """

    actor_id: str
    address: str
    transport: str
    envs: int
    steps_per_second: float | None
    last_seen_seconds: float | None
    state: State
    steps: int = 0
    reason: str = ""


def count_states(fleet: Sequence[ActorRow]) -> dict[State, int]:
    """Number of actors in each state, including states with none."""
    counts = dict.fromkeys(STATES, 0)
    for row in fleet:
        counts[row.state] += 1
    return counts


def format_states(counts: Mapping[State, int]) -> str:
    """Format the states that occur, the best first: `198 stepping, 1 silent, 1 lost`."""
    return ", ".join(f"{counts[state]:,} {state}" for state in reversed(STATES) if counts.get(state))


def sort_by_urgency(fleet: Sequence[ActorRow]) -> list[ActorRow]:
    """Sort rows by state, those that need attention first; stable within a state."""
    return sorted(fleet, key=lambda row: STATES.index(row.state))
