"""Environments that fail during a run: named, counted, rebuilt a bounded number of times."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.system.harness import TINY, Fleet, Learner, Process, last, sets, wait_for

# A process fails as often as the file named by its pid says; every failure decrements the number.
MODULE = """
import ctypes, os, subprocess, time
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Faulty(gymnasium.Env):
    observation_space = Box(-1.0, 1.0, (3,), np.float32)
    action_space = Discrete(2)

    def __init__(self, how):
        self._how, self._steps = how, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        time.sleep(0.001)
        self._steps += 1
        observation = np.zeros(3, np.float32)
        faults = Path("faults") / str(os.getpid())
        left = int(faults.read_text()) if faults.exists() else 0
        if left > 0:
            faults.write_text(str(left - 1))
            if self._how in ("raises", "stuck"):
                raise RuntimeError("the simulator broke")
            if self._how == "hangs":
                subprocess.run(["sleep", "3600"])  # a simulator in a child process
            if self._how == "locks":
                ctypes.PyDLL(None).sleep(3600)  # holds the GIL
            observation = np.full(3, np.nan, np.float32) if self._how == "nan" else np.zeros(4, np.float32)
        return observation, 0.0, False, self._steps % 10 == 0, {}

    def close(self):
        if self._how == "stuck" and self._steps and Path("stuck").exists():
            Path("stuck").unlink()
            time.sleep(3600)


gymnasium.register("Faulty-v0", entry_point="faulty:Faulty", disable_env_checker=True)
"""
SENTENCES = {
    "raises": "failed in step: RuntimeError: the simulator broke",
    "nan": "returned the observation nan",
    "shape": "(4,)",
    "hangs": "has not returned for",
}


TIMEOUT = ("environment.step_timeout=3",)  # a busy machine may take a second to build an environment


def start(fleet: Fleet, how: str, *values: str) -> tuple[Learner, Process, Process, Path]:
    """Start a learner whose environments can fail, and two actors that have joined."""
    (fleet.folder / "faulty.py").write_text(MODULE)
    (fleet.folder / "faults").mkdir()
    run = fleet.folder / "run"
    environment = (
        "environment.family=gymnasium",
        "environment.id=faulty:Faulty-v0",
        f'environment.kwargs={{how="{how}"}}',
    )
    learner = fleet.learner(
        "--preset", "cartpole_vtrace", "--steps", "1000000000", "--logdir", str(run), "--no-live",
        *sets(*TINY, *environment, *values),
    )  # fmt: skip
    address = learner.wait_until_it_serves()["zmq"]
    one, other = (
        fleet.actor(address, "--envs", "2", "--streams", "2", "--actor-id", name) for name in ("one", "other")
    )
    wait_for(lambda: last(run, "envs") == 4 and last(run, "learner_updates") > 0, "both actors take part in training")
    return learner, one, other, run


def fail_times(fleet: Fleet, actor: Process, times: int) -> None:
    """Make the actor's environments fail `times` times."""
    path = fleet.folder / "faults" / str(actor.pid)
    path.with_suffix(".new").write_text(str(times))
    path.with_suffix(".new").rename(path)


@pytest.mark.parametrize("how", SENTENCES)
def test_a_failure_is_named_and_counted_and_the_actor_continues(fleet: Fleet, how: str) -> None:
    learner, one, other, run = start(fleet, how, "environment.restarts=3", *(TIMEOUT if how == "hangs" else ()))
    for number in (1, 2):
        fail_times(fleet, one, 1)
        wait_for(lambda n=number: last(run, "environment_failures") == n, "the learner counts the failure")  # type: ignore[misc]
        wait_for(lambda: last(run, "envs") == 4, "the actor is back")
    assert one.running and other.running, "no actor must have ended"
    assert SENTENCES[how] in one.stderr and "(2 of 3)" in one.stderr and "faulty:Faulty-v0" in one.stderr
    assert SENTENCES[how] in learner.stderr and "one" in learner.stderr
    assert SENTENCES[how] not in other.stderr
    steps = last(run, "trained_steps")
    wait_for(lambda: last(run, "trained_steps") > steps + 500, "training continues")
    assert last(run, "protocol_errors") == 0
    assert not [process for process in fleet.marked() if process.name() == "sleep"], (
        "the hanging process must have ended"
    )
    one.send(signal.SIGTERM)
    one.ends_with(143)


@pytest.mark.parametrize("how", ["raises", "hangs"])
def test_an_actor_whose_environments_keep_failing_ends_and_others_continue(fleet: Fleet, how: str) -> None:
    learner, one, other, run = start(fleet, how, "environment.restarts=2", *TIMEOUT)
    fail_times(fleet, one, 1000)
    one.ends_with(1)
    assert SENTENCES[how] in one.sentence and "environment.restarts = 2" in one.sentence
    wait_for(lambda: last(run, "envs") == 2, "the learner has noticed")
    steps = last(run, "trained_steps")
    wait_for(lambda: last(run, "trained_steps") > steps + 500, "the other actor continues")
    assert other.running and learner.running
    assert last(run, "environment_failures") == 3, "the last failure is counted too"


def test_environments_that_hang_while_they_are_closed(fleet: Fleet) -> None:
    _, one, _, run = start(fleet, "stuck", "environment.restarts=3", *TIMEOUT)
    (fleet.folder / "stuck").touch()
    fail_times(fleet, one, 1)
    wait_for(lambda: last(run, "environment_failures") == 2, "both failures are counted")
    wait_for(lambda: last(run, "envs") == 4, "the actor is back")
    assert "the simulator broke" in one.stderr and "has not returned for" in one.stderr


def test_an_environment_that_hangs_with_the_gil_ends_its_actor(fleet: Fleet) -> None:
    """The process cannot recover; a supervisor may restart it."""
    _, one, other, run = start(fleet, "locks", *TIMEOUT)
    fail_times(fleet, one, 1)
    one.ends_with(-signal.SIGKILL)
    assert "gymnasium/faulty:Faulty-v0 has not returned for" in one.sentence and "holds the GIL" in one.sentence
    steps = last(run, "trained_steps")
    wait_for(lambda: last(run, "trained_steps") > steps + 500, "the other actor continues")
    assert other.running


def test_a_signal_ends_an_actor_whose_environments_hang(fleet: Fleet) -> None:
    _, one, _, _ = start(fleet, "hangs", "environment.step_timeout=300")
    fail_times(fleet, one, 1)
    wait_for(lambda: [p for p in fleet.marked() if p.name() == "sleep"], "the environment hangs")
    one.send(signal.SIGTERM)
    one.ends_with(143, limit=15)
