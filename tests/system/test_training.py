"""Runs that are stopped, killed and resumed, and runs that are reproducible."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from seedcli.build.contents import ACTOR
from seedcli.telemetry.metrics import COUNTERS
from seedcli.training.checkpoint import find_checkpoint
from tests.build.importing import unlisted
from tests.system.harness import (
    TINY,
    Fleet,
    Process,
    checkpoints,
    counting,
    last,
    metrics,
    sets,
    wait_for,
)

STOP_SECONDS = 15.0  # limit for a stopped learner, checkpoint included


def wait_until(run: Path, process: Process, env_steps: int) -> None:
    """Wait until a run has more than `env_steps` environment steps and an update."""

    def there() -> bool:
        assert process.running, process.stderr
        return last(run, "env_steps") > env_steps and last(run, "learner_updates") > 0

    wait_for(there, f"more than {env_steps} environment steps")


def stop(process: Process, number: signal.Signals) -> int:
    """Send a signal; returns the exit status, within the limit."""
    begun = time.monotonic()
    process.send(number)
    status = process.wait()
    assert time.monotonic() - begun < STOP_SECONDS
    assert "Traceback" not in process.stderr, process.stderr
    return status


def test_actors_reconnect_after_killed_learner_resumes(fleet: Fleet) -> None:
    run = fleet.folder / "run"
    values = sets(*TINY, *counting(pause=0.001), "training.checkpoint_seconds=0.5")
    options = ["--preset", "cartpole_vtrace", "--steps", "8000", "--logdir", "run"]
    learner = fleet.learner(*options, *values)
    addresses = learner.wait_until_it_serves()
    actors = [
        fleet.start("actor", "--connect", address, "--envs", "8", module="tests.build.importing")
        for address in addresses.values()
    ]
    wait_until(run, learner, 1000)
    wait_for(lambda: checkpoints(run) and last(run, "env_steps") > checkpoints(run)[-1] + 200, "steps to lose")
    learner.kill()
    lines = metrics(run)
    checkpoint = find_checkpoint(run)
    assert checkpoint.env_steps == checkpoints(run)[-1] < lines[-1]["env_steps"] < 8000

    ports = [int(addresses[name].rpartition(":")[2]) for name in ("grpc", "zmq")]
    resumed = fleet.learner("--resume", "--logdir", "run", ports=ports)
    resumed.ends_with(0)
    for actor in actors:
        actor.ends_with(0)
        assert "trying again" in actor.stderr
        # A file of `seed build actor` holds all that an actor imports, over either transport.
        imported = json.loads(actor.stdout)
        assert {"gymnasium", "numpy"} < set(imported) and unlisted(imported, ACTOR) == set()
    kept = [line for line in lines if all(line[name] <= checkpoint.counters[name] for name in COUNTERS)]
    after = metrics(run)
    new = after[len(kept) :]
    assert after[: len(kept)] == kept and new
    for name in COUNTERS:
        assert checkpoint.counters[name] <= new[0][name]
        assert [line[name] for line in after] == sorted(line[name] for line in after)
    # Both counters continue from the checkpoint, so they grow alike: no step is counted twice.
    grown = {name: after[-1][name] - checkpoint.counters[name] for name in ("env_steps", "trained_steps")}
    assert after[-1]["env_steps"] >= 8000
    assert 0.5 < grown["trained_steps"] / grown["env_steps"] < 1.5
    assert find_checkpoint(run).env_steps == after[-1]["env_steps"]


def test_resuming_with_fewer_steps_is_refused(fleet: Fleet) -> None:
    run = fleet.folder / "run"
    fleet.start("train", "--preset", "cartpole_vtrace", "--steps", "2000", "--logdir", "run", *sets(*TINY)).ends_with(0)
    before = (run / "config.toml").read_bytes()
    again = fleet.start("train", "--resume", "--logdir", "run", "--steps", "1000")
    again.ends_with(2)
    assert f"run.steps = 1,000 must be above the {checkpoints(run)[-1]:,}" in again.sentence
    assert (run / "config.toml").read_bytes() == before
    fleet.start("train", "--resume", "--logdir", "run").ends_with(0)


def test_actors_of_a_killed_training_end_and_sigterm_stops_the_resumed_one(fleet: Fleet) -> None:
    run = fleet.folder / "run"
    options = ["--preset", "cartpole_vtrace", "--steps", "1e12", "--logdir", "run", "--actors", "2", "--envs", "4"]
    train = fleet.start("train", *options, *sets(*TINY))
    wait_until(run, train, 500)
    wait_for(lambda: checkpoints(run), "a checkpoint")
    assert len(train.actors()) == 2
    os.kill(train.pid, signal.SIGKILL)
    train.wait()
    wait_for(lambda: not fleet.marked(), "the end of its actors", limit=20)

    train = fleet.start("train", "--resume", "--logdir", "run")
    resumed_at = checkpoints(run)[-1]
    # Until then the file holds the lines of the first run.
    wait_for(lambda: "resuming from" in train.stderr, "the training continues")
    wait_until(run, train, resumed_at + 500)
    children = train.children()
    assert stop(train, signal.SIGTERM) == 143
    assert not [child for child in children if child.is_running()]
    assert f"at {resumed_at:,} environment steps" in train.stderr
    assert find_checkpoint(run).env_steps == checkpoints(run)[-1] == last(run, "env_steps")


def test_a_killed_actor_is_restarted_and_sigint_stops_all(fleet: Fleet) -> None:
    run = fleet.folder / "run"
    options = ["--preset", "cartpole_vtrace", "--steps", "1e12", "--logdir", "run"]
    train = fleet.start("train", *options, *sets(*TINY))
    wait_until(run, train, 300)
    (actor,) = train.actors()
    actor.kill()
    wait_for(lambda: [child for child in train.actors() if child.pid != actor.pid], "another actor")
    wait_for(lambda: last(run, "actors") == 1, "that it connects")
    wait_until(run, train, last(run, "env_steps") + 300)
    children = train.children()
    assert stop(train, signal.SIGINT) == 130
    assert not [child for child in children if child.is_running()]
    assert find_checkpoint(run).env_steps == last(run, "env_steps")


def test_a_stopped_learner_writes_a_checkpoint_and_its_actors_time_out(fleet: Fleet) -> None:
    run = fleet.folder / "run"
    options = ["--preset", "cartpole_vtrace", "--steps", "1e12", "--logdir", "run"]
    learner = fleet.learner(*options, *sets(*TINY, *counting(pause=0.001)))
    actors = [
        fleet.actor(address, "--envs", "4", "--reconnect-timeout", "2")
        for address in learner.wait_until_it_serves().values()
    ]
    # Signals mostly arrive inside environment code, where any other Exception counts as an environment failure.
    stopped = [fleet.actor(address, "--envs", "4") for address in learner.addresses.values()]
    wait_for(lambda: last(run, "actors") == 4, "all actors have joined")
    for actor, number in zip(stopped, (signal.SIGTERM, signal.SIGINT), strict=True):
        assert stop(actor, number) == 128 + number
    # They sent GOODBYE, so their slots are freed without a timeout.
    wait_for(lambda: last(run, "actors") == 2, "their slots are free", limit=15)
    wait_until(run, learner, last(run, "env_steps") + 100)
    assert stop(learner, signal.SIGTERM) == 143
    assert find_checkpoint(run).env_steps == last(run, "env_steps")
    for actor in actors:
        actor.ends_with(3)
        assert "has been lost" in actor.sentence


def test_equal_seeds_produce_equal_runs(fleet: Fleet) -> None:
    """Byte-identical; another seed differs."""
    options = ["--preset", "cartpole_vtrace", "--steps", "1500", "--envs", "4", "--actors", "2", "--deterministic"]
    options += sets(*TINY, "training.unroll_length=4", "training.batch_size=4")
    runs = [
        (fleet.start("train", *options, "--seed", seed, "--logdir", name), fleet.folder / name)
        for name, seed in (("one", "5"), ("same", "5"), ("other", "6"))
    ]
    written = []
    for process, run in runs:
        process.ends_with(0)
        written.append((run / "metrics.jsonl").read_bytes())
        lines = metrics(run)
        assert len(lines) >= 3 and lines[-1]["env_steps"] >= 1500 and lines[-1]["learner_updates"] > 10
        assert lines[-1]["loss"] is not None and lines[-1]["episode_return_100"] is not None
    one, same, other = written
    assert one == same
    assert one != other


def test_environments_wait_for_training_if_it_is_synchronous(fleet: Fleet) -> None:
    """All but the first record of an unroll are then acted on with the weights that the batch is trained with."""
    lags: dict[str, list[float]] = {}
    for synchronous in ("true", "false"):
        process = fleet.start(
            "train", "--preset", "gymnasium_ppo", "--steps", "8000", "--no-live", "--logdir", synchronous,
            *sets(f"training.synchronous={synchronous}", "telemetry.interval_seconds=0.2"),
        )  # fmt: skip
        process.ends_with(0)
        lags[synchronous] = [line["policy_lag"] for line in metrics(fleet.folder / synchronous) if line["policy_lag"]]
    updates, length = 32, 32
    assert lags["true"] and max(lags["true"]) <= updates / length
    assert max(lags["false"]) > 2 * updates / length, "training takes longer than a step of the environments"
