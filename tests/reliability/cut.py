"""The network between learner and actors is cut and restored: time until both sides notice, and until actors step."""

from __future__ import annotations

import calendar
import re
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.reliability.crowd import Moment, moments
from tests.reliability.hosts import LEARNER_ADDRESS, Hosts
from tests.system.harness import TINY, Fleet, Process, counting, sets, wait_for

_PROMISE = 10.0  # seconds from the repair to each actor's first step
_NOTICE = 30.0  # seconds from the cut until a half-open connection is found
_LIMIT = 120.0
_TRANSPORTS = ("grpc", "zmq")
_lost = re.compile(r"^(\S+)\.(\d{3})Z WARNING \S+ actor \S+ at \S+ lost: ", re.MULTILINE)


def run_cut(
    cuts: Sequence[float], fleet: Fleet, *, actors: int = 6, timeout: float = 20.0, how: str = "silent"
) -> dict[str, Any]:
    """Cut the network for each of `cuts` seconds, one after the other.

    Args:
        cuts: seconds.
        fleet: of the processes.
        actors: half of them over each transport.
        timeout: net.timeout_seconds; sessions outlive shorter cuts.
        how: see `Hosts.cut`.

    Returns:
        For each cut: the sessions that ended, when both sides noticed it, seconds from the repair to the first step by
        transport; and `failures`.
    """
    fleet.environ["XDG_CONFIG_HOME"] = str(fleet.folder / "config")
    values = [*TINY, *counting(pause=0.02), f"net.timeout_seconds={timeout:g}", f"actors.envs={actors}"]
    options = ["--preset", "cartpole_vtrace", "--steps", "1e12", "--logdir", "run", "--no-live"]
    with Hosts() as hosts:
        try:
            learner = fleet.learner(*options, *sets(*values), prefix=hosts.learner)
            ports = {name: at.rpartition(":")[2] for name, at in learner.wait_until_it_serves().items()}
            places = [f"{LEARNER_ADDRESS}:{ports['grpc']}", f"zmq://{LEARNER_ADDRESS}:{ports['zmq']}"]
            connect = [part for place in places for part in ("--connect", place)]
            crowd = fleet.start(
                *connect, "--actors", str(actors), "--envs", "2",
                module="tests.reliability.crowd", prefix=hosts.actors,
            )  # fmt: skip
            wait_for(lambda: _newest(crowd).stepping == actors, "all actors step", _LIMIT)
            found = [_cut(seconds, hosts, crowd, fleet, how) for seconds in cuts]
        finally:
            fleet.close()  # before their namespaces are removed
    failures = [sentence for one in found for sentence in one.pop("failures")]
    return {"actors": actors, "timeout_seconds": timeout, "how": how, "cuts": found, "failures": failures}


def _newest(crowd: Process) -> Moment:
    seen = moments(crowd.stdout)
    return seen[-1] if seen else Moment(0.0, (), ())


def _cut(seconds: float, hosts: Hosts, crowd: Process, fleet: Fleet, how: str) -> dict[str, Any]:
    hosts.cut(how)
    begun = time.time()
    before = _newest(crowd)
    time.sleep(seconds)
    hosts.heal(how)
    healed = time.time()
    cut_off = _newest(crowd)

    def stepped() -> list[float] | None:
        fleet.check()
        after = [moment for moment in moments(crowd.stdout) if moment.time > healed]
        firsts = [_first_step(number, cut_off, after) for number in range(len(cut_off.sessions))]
        return [first - healed for first in firsts if first is not None] if None not in firsts else None

    resumed = wait_for(stepped, "every actor steps again", _LIMIT)
    assert resumed is not None
    now = _newest(crowd)
    ended = sum(abs(a) != abs(b) for a, b in zip(before.sessions, now.sessions, strict=True))
    noticed = {
        "actors": _spread(_ends_seen_by_actors(moments(crowd.stdout), before, begun)),
        "learner": _spread(_ends_seen_by_learner(fleet.folder / "run" / "learner.log", begun)),
    }
    failures = []
    if max(resumed) > _PROMISE:
        failures.append(f"after a cut of {seconds:g} s an actor stepped {max(resumed):.1f} s after the repair")
    for side, spread in noticed.items():
        if spread and spread["most"] > _NOTICE:
            failures.append(f"after a cut of {seconds:g} s the {side} noticed it after {spread['most']:.1f} s")
    return {
        "seconds": seconds,
        "sessions_ended": ended,
        **{f"resumed_{name}": _spread(resumed[i :: len(_TRANSPORTS)]) for i, name in enumerate(_TRANSPORTS)},
        "noticed_by_actors": noticed["actors"],
        "noticed_by_learner": noticed["learner"],
        "failures": failures,
    }


def _first_step(number: int, cut_off: Moment, after: Sequence[Moment]) -> float | None:
    """Time at which an actor first had a new step or session after the cut."""
    was = (abs(cut_off.sessions[number]), cut_off.steps[number])
    for moment in after:
        if moment.sessions[number] > 0 and (moment.sessions[number], moment.steps[number]) != was:
            return moment.time
    return None


def _ends_seen_by_actors(seen: Sequence[Moment], before: Moment, begun: float) -> list[float]:
    """Seconds from the cut until each of the actors that ended their session did so."""
    after = [moment for moment in seen if moment.time >= begun]
    found = []
    for number, session in enumerate(before.sessions):
        end = next((moment.time for moment in after if moment.sessions[number] != session), None)
        if end is not None:
            found.append(end - begun)
    return found


def _ends_seen_by_learner(log: Path, begun: float) -> list[float]:
    """Seconds from the cut until the learner declared each lost session lost."""
    found = []
    for moment, thousandths in _lost.findall(log.read_text()):
        when = calendar.timegm(time.strptime(moment, "%Y-%m-%dT%H:%M:%S")) + int(thousandths) / 1000
        if when >= begun:
            found.append(when - begun)
    return found


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 2), "most": round(max(values), 2)} if values else {}
