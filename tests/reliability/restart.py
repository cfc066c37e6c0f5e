"""A learner with many connected actors is killed and restarted: time until all of them step again."""

from __future__ import annotations

import time
from typing import Any

from tests.reliability.crowd import Moment, moments
from tests.system.harness import TINY, Fleet, Process, checkpoints, counting, last, metrics, sets, wait_for

_PROMISE = 10.0  # seconds
_LIMIT = 300.0
_START_AT_ONCE = 20  # processes
_PAUSE = 0.2  # seconds of an environment step


def run_restart(actors: int, fleet: Fleet, *, processes: bool = False) -> dict[str, Any]:
    """Kill and restart a learner with connected actors.

    Args:
        actors: their number; each has one environment and finds the learner in its run's folder, half over each
            transport.
        fleet: of the processes.
        processes: each actor is a `seed actor` process; else all are threads of one process.

    Returns:
        Seconds from the time when the second learner serves until all actors step again, for threads also by decile;
        and `failures`.
    """
    fleet.environ["XDG_CONFIG_HOME"] = str(fleet.folder / "config")
    values = sets(*TINY, *counting(pause=_PAUSE), "environment.step_timeout=0", f"actors.envs={actors}")
    options = ["--preset", "cartpole_vtrace", "--steps", "1e12", "--logdir", "run", "--continue", "--no-live"]
    run = fleet.folder / "run"
    learner = fleet.learner(*options, *values)
    learner.wait_until_it_serves()
    begun = time.time()
    crowd = _start(actors, fleet, processes)
    first = _wait_until_all_step(actors, fleet, crowd, begun)
    wait_for(lambda: checkpoints(run), "a checkpoint")
    learner.kill()
    killed = time.time()
    if crowd is not None:
        wait_for(lambda: moments(crowd.stdout)[-1].stepping == 0, "every session has ended", _LIMIT)
    learner = fleet.learner(*options, *values)
    learner.wait_until_it_serves()
    served = time.time()
    settled = _wait_until_all_step(actors, fleet, crowd, served)
    result: dict[str, Any] = {
        "actors": actors,
        "in": "processes" if processes else "threads of one process",
        "seconds_from_serving_until_all_step_at_first": first - begun,
        "seconds_from_kill_to_serving": served - killed,
        "seconds_from_serving_until_all_step_again": settled - served,
    }
    if crowd is not None:
        result["seconds_by_tenth_of_the_actors"] = _tenths(moments(crowd.stdout), actors, served)
    result["sessions_lost_by_the_new_learner"] = last(run, "sessions_lost")
    fleet.check()
    late = settled - served > _PROMISE
    return {**result, "failures": [f"it took more than {_PROMISE:.0f} s until all step again"] if late else []}


def _start(actors: int, fleet: Fleet, processes: bool) -> Process | None:
    """Start the actors; returns the process of all if they are threads."""
    if not processes:
        return fleet.start("--connect", "run", "--actors", str(actors), module="tests.reliability.crowd")
    for number in range(actors):
        transport = ("grpc", "zmq")[number % 2]
        fleet.actor("./run", "--envs", "1", "--transport", transport)
        if number % _START_AT_ONCE == _START_AT_ONCE - 1:
            there = number + 1
            wait_for(lambda least=there: last(fleet.folder / "run", "actors") >= least, "actors are in", _LIMIT)
    return None


def _wait_until_all_step(actors: int, fleet: Fleet, crowd: Process | None, since: float) -> float:
    """Wait until all actors step; returns the wall-clock time."""

    def when() -> float | None:
        fleet.check()
        if crowd is not None:
            return next((m.time for m in moments(crowd.stdout) if m.time >= since and m.stepping == actors), None)
        lines = [line for line in metrics(fleet.folder / "run") if line["time"] >= since]
        return next((line["time"] for line in lines if line["actors_stepping"] == actors), None)

    found = wait_for(when, f"{actors} actors step", _LIMIT)
    assert found is not None
    return found


def _tenths(seen: list[Moment], actors: int, served: float) -> list[float]:
    """Seconds until one tenth, two tenths, … and all of the actors stepped."""
    after = [moment for moment in seen if moment.time >= served]
    return [
        round(next(m.time for m in after if m.stepping * 10 >= actors * tenth) - served, 2) for tenth in range(1, 11)
    ]
