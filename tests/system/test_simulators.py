"""Simulators that block or end their process, or must not share it with TensorFlow."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.envs.dmlab.lab_double import COMPILE_SECONDS, EXITS, MODULE_PATH, ROOT
from tests.system.harness import TINY, Fleet, last, metrics, sets, wait_for

pytestmark = pytest.mark.timeout(300)

# An environment that holds the interpreter's lock, as simulators in C may, whenever there is a file for its process.
LOCKS = """
import ctypes, os
from pathlib import Path
import gymnasium
from seedcli.envs.testing import Counter

class Locks(Counter):
    def step(self, action):
        file = Path("locks") / str(os.getpid())
        if file.exists():
            seconds = float(file.read_text())
            file.unlink()
            ctypes.PyDLL(None).sleep(int(seconds))
        return super().step(action)

gymnasium.register("Locks-v0", entry_point=Locks, kwargs={"pause": 0.002})
"""


@pytest.mark.parametrize(
    ("seconds", "timeout"), [(8, 3), pytest.param(60, 20, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_an_actor_whose_environments_hold_the_lock_stays_connected_and_is_busy(
    fleet: Fleet, seconds: int, timeout: int
) -> None:
    (fleet.folder / "locks.py").write_text(LOCKS)
    (fleet.folder / "locks").mkdir()
    run = fleet.folder / "run"
    environment = ("environment.family=gymnasium", "environment.id=locks:Locks-v0")
    learner = fleet.learner(
        "--preset", "cartpole_vtrace", "--steps", "1000000000", "--logdir", str(run), "--no-live",
        *sets(*TINY, *environment, f"net.timeout_seconds={timeout}"),
    )  # fmt: skip
    addresses = learner.wait_until_it_serves()
    actors = {name: fleet.actor(address, "--envs", "2", "--actor-id", name) for name, address in addresses.items()}
    third = fleet.actor(addresses["zmq"], "--envs", "2", "--actor-id", "third")
    wait_for(lambda: last(run, "envs") == 6 and last(run, "learner_updates") > 0, "all take part")
    began = time.monotonic()
    for actor in actors.values():
        new = fleet.folder / "locks" / f"{actor.pid}.new"
        new.write_text(str(seconds))
        new.rename(new.with_suffix(""))
    wait_for(lambda: last(run, "actors_busy") == 2, "both are shown as busy")
    wait_for(lambda: last(run, "actors_busy") == 0, "they continue")
    assert time.monotonic() - began >= seconds
    steps = last(run, "trained_steps")
    wait_for(lambda: last(run, "trained_steps") > steps + 500 and last(run, "actors_stepping") == 3, "all step")
    assert last(run, "sessions_lost") == 0 and last(run, "envs") == 6
    for name, actor in actors.items():
        assert f"actor {name} is busy: its environments have blocked it in a reset or step for" in learner.stderr
        assert actor.stderr.count("connected to") == 1, actor.stderr
    assert third.running and "busy" not in third.stderr
    # One that is stopped answers no pings.
    actors["grpc"].send(signal.SIGSTOP)
    actors["zmq"].send(signal.SIGSTOP)
    wait_for(lambda: last(run, "sessions_lost") == 2, "stopped actors are lost", limit=timeout + 20)
    for actor in actors.values():
        actor.send(signal.SIGCONT)
    wait_for(lambda: last(run, "envs") == 6, "they reconnect")


def test_an_environment_that_dies_beside_tensorflow_is_trained_and_evaluated(fleet: Fleet) -> None:
    family, env = "tests.own_code.apart:ApartFamily", "tests.own_code.apart:Clash-v0"
    fleet.start(
        "train", "--preset", "cartpole_vtrace", "--family", family, "--env", env, "--deterministic", "--steps", "200",
        "--logdir", "run", *sets(*TINY, "actors.envs=4"),
    ).ends_with(0)  # fmt: skip
    played = fleet.start("eval", "run", "--episodes", "2", "--json", "--video", "clash.mp4")
    played.ends_with(0)
    assert json.loads(played.stdout)["episodes"] == 2
    assert (fleet.folder / "clash.mp4").stat().st_size > 0
    fleet.environ["CARELESS"] = "1"
    fleet.start("eval", "run", "--episodes", "2").ends_with(-signal.SIGABRT)


@pytest.fixture
def labs(fleet: Fleet) -> Fleet:
    """A fleet whose environments use the double of DeepMind Lab."""
    fleet.environ["PYTHONPATH"] = os.pathsep.join([MODULE_PATH, str(ROOT)])
    fleet.environ["XDG_CACHE_HOME"] = str(fleet.folder / "cache")
    fleet.environ["TMPDIR"] = str(fleet.folder / "tmp")
    (fleet.folder / "tmp").mkdir()
    return fleet


SMALL = ("environment.height=16", "environment.width=16", "agent.network.torso=mlp", "agent.network.lstm=0")


def train(labs: Fleet, level: str, *values: str) -> list[str]:
    """The arguments of a run of a level, with two environments."""
    small = sets(*TINY, *SMALL, "actors.envs=2", *values)
    return ["train", "--preset", "dmlab_vtrace", "--env", level, "--logdir", "run", "--no-live", *small]


def test_a_simulator_that_ends_its_process_ends_the_run_with_its_name(labs: Fleet) -> None:
    training = labs.start(*train(labs, EXITS, "environment.restarts=0"))
    training.ends_with(1)
    sentence = f"the process of dmlab/{EXITS} ended with status 1 in reset of environment 0"
    assert sentence in training.sentence and "environment.restarts = 0" in training.sentence
    assert f"environments of actor local-0 failed: {sentence}" in training.stderr
    assert not list((labs.folder / "tmp").glob("seed-simulator-*"))


@pytest.mark.slow
def test_levels_that_compile_for_long_are_trained_and_cached(labs: Fleet) -> None:
    labs.environ[COMPILE_SECONDS] = "5"
    values = ("net.timeout_seconds=4", "environment.kwargs={episodeLengthSeconds = 1}", "agent.entropy_cost=0.01")
    training = labs.start(*train(labs, "explore_goal_locations_small", *values), "--steps", "300")
    training.ends_with(0)
    run = labs.folder / "run"
    assert max(line["sessions_lost"] for line in metrics(run)) == 0
    assert max(line["environment_failures"] for line in metrics(run)) == 0
    assert 1 <= len(list((Path(labs.environ["XDG_CACHE_HOME"]) / "seed" / "dmlab").glob("*/*"))) <= 3
    assert not list((labs.folder / "tmp").iterdir())


def test_doctor_plays_a_level(labs: Fleet) -> None:
    second = sets("environment.kwargs={episodeLengthSeconds = 1}", "environment.frame_skip=6")
    played = labs.start("doctor", "--preset", "dmlab_vtrace", "--env", "seekavoid_arena_01", "--json", *second)
    played.ends_with(0)
    findings = {finding["name"]: finding for finding in json.loads(played.stdout)["findings"]}
    assert {name: f["detail"] for name, f in findings.items() if f["status"] not in ("ok", "skipped")} == {}
    assert findings["truncation"]["status"] == "ok" and findings["truncation"]["value"]["terminated"] > 3
    ended = labs.start("doctor", "--preset", "dmlab_vtrace", "--env", EXITS, "--json")
    ended.ends_with(1)
    (finding,) = json.loads(ended.stdout)["findings"]
    assert "ended with status 1 in reset of environment 0" in finding["detail"]
