"""A second learner waits for the run of the first and takes it over."""

from __future__ import annotations

import re
import signal
import time

from seedcli.training.checkpoint import find_checkpoint
from tests.ports import reserve_ports
from tests.system.harness import TINY, Fleet, Learner, checkpoints, counting, last, metrics, sets, wait_for

COUNTERS = ("env_steps", "episodes", "learner_updates", "trained_steps")
AT_ONCE = 2.0  # seconds


def _wait_until_it_waits(standby: Learner, holder: Learner) -> None:
    wait_for(lambda: "standing by" in standby.stderr, "it stands by")
    assert f"process {holder.pid} on " in standby.stderr
    assert standby.running and not standby.addresses


def test_a_standby_takes_over_and_actors_follow(fleet: Fleet) -> None:
    fleet.environ["XDG_CONFIG_HOME"] = str(fleet.folder / "config")
    run = fleet.folder / "run"
    # At most about 500 steps a second, so that the run is far from its end when the first learner is killed.
    values = sets(*TINY, *counting(pause=0.008), "training.checkpoint_seconds=0.5")
    options = ["--preset", "cartpole_vtrace", "--steps", "6000", "--logdir", "run"]
    first = fleet.learner(*options, *values)
    was = first.wait_until_it_serves()

    # The ports of the standby are fixed in advance, as on a cluster, so that actors can be given them.
    ports = reserve_ports(2)
    standby = fleet.learner("--standby", "--logdir", "run", ports=ports)
    _wait_until_it_waits(standby, first)
    refused = fleet.learner("--continue", "--logdir", "run")
    refused.ends_with(2)
    assert "belongs to a running learner" in refused.sentence
    idle = fleet.learner("--standby", "--logdir", "run")
    _wait_until_it_waits(idle, first)
    begun = time.monotonic()
    idle.send(signal.SIGTERM)
    idle.ends_with(143)
    assert time.monotonic() - begun < AT_ONCE

    grpc, zmq = ports
    actors = [
        fleet.actor(f"{was['grpc']},127.0.0.1:{grpc}", "--envs", "4"),
        fleet.actor(f"{was['zmq']},zmq://127.0.0.1:{zmq}", "--envs", "4"),
        fleet.actor("./run", "--envs", "4"),
        fleet.actor("./run", "--envs", "4", "--transport", "zmq"),
    ]
    wait_for(lambda: last(run, "actors_stepping") == 4, "all actors have joined")
    wait_for(lambda: checkpoints(run) and last(run, "env_steps") > checkpoints(run)[-1] + 100, "steps to lose")
    first.kill()
    checkpoint = find_checkpoint(run)
    lost = metrics(run)[-1]
    assert checkpoint.env_steps < lost["env_steps"]

    standby.wait_until_it_serves()
    resumed = re.search(r"resuming from \S+ at ([\d,]+) environment steps", standby.stderr)
    assert resumed and int(resumed[1].replace(",", "")) == checkpoint.env_steps
    wait_for(
        lambda: metrics(run)[-1]["time"] > lost["time"] and last(run, "actors_stepping") == 4,
        "all actors have followed",
    )
    wait_for(lambda: last(run, "env_steps") > lost["env_steps"], "it passes the first learner's steps")
    lines = metrics(run)
    for name in COUNTERS:
        assert [line[name] for line in lines] == sorted(line[name] for line in lines)
        assert next(line[name] for line in lines if line["time"] > lost["time"]) >= checkpoint.counters[name]
    standby.ends_with(0)
    for actor in actors:
        actor.ends_with(0)
    assert find_checkpoint(run).env_steps == last(run, "env_steps") >= 6000


def test_a_standby_ends_when_the_run_is_done(fleet: Fleet) -> None:
    fleet.environ["XDG_CONFIG_HOME"] = str(fleet.folder / "config")
    options = ["--preset", "cartpole_vtrace", "--steps", "3000", "--logdir", "run"]
    first = fleet.learner(*options, *sets(*TINY, *counting(pause=0.001)))
    first.wait_until_it_serves()
    standby = fleet.learner("--standby", "--logdir", "run")
    _wait_until_it_waits(standby, first)
    actor = fleet.actor("./run", "--envs", "8")
    first.ends_with(0)
    standby.ends_with(0)
    actor.ends_with(0)
    assert find_checkpoint(fleet.folder / "run").env_steps >= 3000
