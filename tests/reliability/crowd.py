"""Many actors in one process, each with its own connections, transport and environments.

    python -m tests.reliability.crowd --connect PLACE [--connect PLACE …] --actors 200

Actors take the places in turn; a folder stands for two, gRPC and ZeroMQ. Prints a line of JSON at each change:
{"time": …, "sessions": […], "steps": […]}, for each actor the number of sessions so far (0: none yet), negative while
it has none, and the environment steps of its current or last session.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from seedcli.errors import SeedError
from seedcli.roles.actor.run import _Actor
from seedcli.roles.actor.session import ActorSession
from seedcli.roles.discovery import Discovery
from seedcli.telemetry.logs import setup_logging

_LOOK_SECONDS = 0.05


class _Member(_Actor):
    """An actor that reports its sessions and steps."""

    def __init__(self, discovery: Discovery, number: int, envs: int) -> None:
        super().__init__(
            discovery,
            envs=envs,
            streams=min(2, envs),
            actor_id=f"crowd-{os.getpid()}-{number}",
            reconnect=None,
            threads=1,
            signalled=lambda: 0,
        )
        self._sessions = 0
        self._steps_seen = 0
        self._counted: ActorSession | None = None

    def look(self) -> tuple[int, int]:
        """Number of sessions so far, negative while it has none that has stepped, and the steps of the newest."""
        session = self._session
        if session is None or session.ready is None or not session.steps:
            return -self._sessions, self._steps_seen
        if session is not self._counted:
            self._counted = session
            self._sessions += 1
        self._steps_seen = session.steps
        return self._sessions, self._steps_seen


def _run(member: _Member) -> None:
    # The actor has ended for good; the next line shows it.
    with contextlib.suppress(SeedError):
        member.run()


def main() -> None:
    """Run until every actor has ended, or this process is killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connect", action="append", required=True)
    parser.add_argument("--actors", type=int, default=200)
    parser.add_argument("--envs", type=int, default=1)
    options = parser.parse_args()
    setup_logging(None, None)
    places: list[tuple[str, str | None]] = []
    for place in options.connect:
        places += [(place, "grpc"), (place, "zmq")] if os.path.isdir(place) else [(place, None)]
    members = []
    for number in range(options.actors):
        place, transport = places[number % len(places)]
        members.append(_Member(Discovery(place, transport=transport), number, options.envs))
    threads = [threading.Thread(target=_run, args=(member,), daemon=True) for member in members]
    for thread in threads:
        thread.start()
    before: list[tuple[int, int]] = []
    while any(thread.is_alive() for thread in threads):
        now = [member.look() for member in members]
        if now != before:
            sessions, steps = zip(*now, strict=True)
            print(json.dumps({"time": time.time(), "sessions": sessions, "steps": steps}), flush=True)
            before = now
        time.sleep(_LOOK_SECONDS)


@dataclass(frozen=True)
class Moment:
    """A line printed by a crowd; see the module."""

    time: float
    sessions: Sequence[int]
    steps: Sequence[int]

    @property
    def stepping(self) -> int:
        """Number of actors that have stepped in their current session."""
        return sum(number > 0 for number in self.sessions)


def moments(output: str) -> list[Moment]:
    """Parse the output of a crowd so far."""
    lines: list[dict[str, Any]] = [json.loads(line) for line in output.splitlines(keepends=True) if line[-1] == "\n"]
    return [Moment(**line) for line in lines]


if __name__ == "__main__":
    main()
