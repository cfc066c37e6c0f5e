"""The learner's view of its actors: a row each, in one of five states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

State = Literal["lost", "silent", "joining", "waiting", "stepping"]
# Those that need a look first.
STATES: tuple[State, ...] = get_args(State)
CONNECTED: tuple[State, ...] = ("silent", "waiting", "stepping")


@dataclass(frozen=True)
class ActorRow:
    """One actor.

    Attributes:
        actor_id: the id it introduced itself with.
        address: where it connects from.
        transport: "grpc", "zmq" or "shm".
        envs: its environments.
        steps_per_second: environment steps it delivers; None where not yet known.
        last_seen_seconds: seconds since anything arrived from it; None while it joins.
        state: "joining": let in by its token, it builds its environments; "stepping"; "waiting": it has sent all it
            can and the learner does not answer, because training is the limit; "silent": its heartbeats stay away;
            "lost": its session ended without a goodbye.
        steps: environment records received in its session.
        reason: why it was lost, "" otherwise.
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
    """How many actors are in each state, none left out."""
    counts = dict.fromkeys(STATES, 0)
    for row in fleet:
        counts[row.state] += 1
    return counts


def say_states(counts: Mapping[State, int]) -> str:
    """`198 stepping, 1 silent, 1 lost`: the states that occur, the best first."""
    return ", ".join(f"{counts[state]:,} {state}" for state in reversed(STATES) if counts.get(state))


def trouble_first(fleet: Sequence[ActorRow]) -> list[ActorRow]:
    """The rows by state, those that need a look first; in the order given within a state."""
    return sorted(fleet, key=lambda row: STATES.index(row.state))
