"""R2D2 as real processes: a replay that survives its learner, and reproducible runs."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seedcli.agents.registry import create_agent
from seedcli.config.schema import make_config
from seedcli.telemetry.metrics import COUNTERS
from seedcli.training.checkpoint import Checkpoint, find_checkpoint
from seedcli.training.replay.blocks import BlockCodec
from seedcli.training.replay.buffer import Replay
from seedcli.training.replay.data import Snapshot
from seedcli.training.replay.store import MANIFEST, PRIORITIES, ReplayStore
from seedcli.training.replay.unrolls import unroll_fields
from tests.system.harness import TINY, Fleet, Process, checkpoints, counting, last, metrics, sets, wait_for

# Small enough that the oldest unrolls are dropped during a test.
SMALL = (
    *TINY,
    "agent.network.lstm=4",
    "agent.dueling_hidden=8",
    "agent.n_step=3",
    "agent.target_period=10",
    "training.burn_in=4",
    "replay.capacity=400",
    "replay.min_size=32",
    "replay.ratio=2",
    "replay.save=true",
    "actors.envs=8",
    "actors.evaluation_envs=2",
)


def _kept(checkpoint: Checkpoint, folder: Path) -> tuple[Snapshot, list[dict[str, np.ndarray]]]:
    """The replay of a checkpoint as a learner would read it: its snapshot, and every unroll."""
    config = make_config(tomllib.loads(checkpoint.config_path.read_text()))
    agent = create_agent(config.agent, config.training, checkpoint.spec, config.run.seed)
    codec = BlockCodec(unroll_fields(agent, checkpoint.spec))
    replay = Replay(codec, config.replay, config.training.batch_size, seed=0)
    assert ReplayStore(folder, codec.signature).restore(checkpoint.path, replay)
    snapshot = replay.snapshot()
    arrays = codec.unpacked(list(snapshot.rows.blocks(snapshot.oldest)))
    unrolls = [
        {f.name: arrays[f.name][:, i] if f.per_record else arrays[f.name][i] for f in codec.fields}
        for i in range(snapshot.next - snapshot.oldest)
    ]
    return snapshot, unrolls


def _check_records(unrolls: list[dict[str, np.ndarray]]) -> set[float]:
    """Check that each unroll has consecutive records of one environment; returns the environments' numbers."""
    numbers = set()
    for unroll in unrolls:
        number, episode, step, action = unroll["observation"].T
        final = (unroll["terminated"] | unroll["truncated"]) != 0
        assert (number == number[0]).all()
        numbers.add(float(number[0]))
        np.testing.assert_array_equal(np.diff(episode), final[:-1])
        np.testing.assert_array_equal(step[1:], np.where(final[:-1], 0, step[:-1] + 1))
        np.testing.assert_array_equal(action[1:], np.where(final[:-1], -1, unroll["action"][:-1]))
        assert (unroll["reward"][step == 0] == 0).all() and (unroll["recorded/q_max"] != 0).any()
    return numbers


def _until(run: Path, process: Process, name: str, value: float) -> None:
    def there() -> bool:
        assert process.running, process.stderr
        return last(run, name) > value

    wait_for(there, f"{name} beyond {value}")


def test_a_replay_survives_a_killed_learner(fleet: Fleet, tmp_path: Path) -> None:
    run = fleet.folder / "run"
    options = ["--preset", "recall_r2d2", "--steps", "1e12", "--logdir", "run"]
    learner = fleet.learner(*options, *sets(*SMALL, *counting(pause=0.001), "training.checkpoint_seconds=0.5"))
    addresses = learner.wait_until_it_serves()
    actor = fleet.actor(addresses["zmq"], "--envs", "8")
    _until(run, learner, "learner_updates", 300)
    _until(run, learner, "evaluation_episodes", 5)
    wait_for(lambda: checkpoints(run) and last(run, "env_steps") > checkpoints(run)[-1] + 100, "steps to lose")
    learner.kill()

    checkpoint = find_checkpoint(run)
    shutil.copytree(run, tmp_path / "as killed")
    kept, unrolls = _kept(checkpoint, run / "replay")
    assert kept.next > 400 and len(unrolls) == 400, "the replay is full and has dropped its oldest unrolls"
    assert len(_check_records(unrolls)) == 6, "unrolls of the 2 evaluation environments of 8 are not stored"
    assert len(set(kept.priorities.tolist())) > 50, "training has updated priorities"
    assert checkpoint.counters["evaluation_episodes"] > 5

    lines = [line for line in metrics(run) if all(line[name] <= checkpoint.counters[name] for name in COUNTERS)]
    ports = [int(addresses[name].rpartition(":")[2]) for name in ("grpc", "zmq")]
    resumed = fleet.learner("--resume", "--logdir", "run", ports=ports)
    wait_for(lambda: "resuming from" in resumed.stderr, "the training continues")
    # The first line is of the restored replay, before any new step.
    wait_for(lambda: len(metrics(run)) > len(lines), "a line")
    first = metrics(run)[len(lines)]
    held = sum(array.nbytes for unroll in unrolls for array in unroll.values())  # small records are stored plain
    assert first["replay_size"] == 400 and first["replay_mb"] == pytest.approx(held / 1e6)
    for name in COUNTERS:
        assert checkpoint.counters[name] <= first[name] <= checkpoint.counters[name] + 2000
    assert "contains no replay" not in resumed.stderr
    _until(run, resumed, "learner_updates", checkpoint.counters["learner_updates"] + 100)
    wait_for(lambda: checkpoints(run)[-1] > checkpoint.env_steps, "another checkpoint")
    resumed.kill()
    actor.kill()

    after, later = _kept(find_checkpoint(run), run / "replay")
    assert kept.next < after.next and kept.sampled < after.sampled
    assert _check_records(later)
    # The unrolls in both are equal; serials continue, so no unroll has taken the number of another.
    both = range(after.oldest, kept.next)
    for serial in both:
        for name, values in unrolls[serial - kept.oldest].items():
            np.testing.assert_array_equal(values, later[serial - after.oldest][name], err_msg=name)
    ratio = (after.sampled - kept.sampled) / (after.next - kept.next)
    assert 1 < ratio < 4, "the replay ratio of 2 holds after the restart"

    _a_torn_segment_loses_only_the_replay(fleet, tmp_path / "as killed")


def _a_torn_segment_loses_only_the_replay(fleet: Fleet, run: Path) -> None:
    checkpoint = find_checkpoint(run)
    manifest = json.loads((checkpoint.path / MANIFEST).read_text())
    assert (checkpoint.path / PRIORITIES).exists()
    segment = run / "replay" / manifest["segments"][-1]["name"]
    size = segment.stat().st_size
    segment.write_bytes(segment.read_bytes()[: size // 2])
    resumed = fleet.learner("--resume", "--logdir", str(run))
    addresses = resumed.wait_until_it_serves()
    for text in (resumed.stderr, (run / "learner.log").read_text()):
        (line,) = [line for line in text.splitlines() if segment.name in line]
        assert f"is cut short or too long ({size // 2} bytes instead of {size}), so the replay is ignored" in line
        assert "it refills to replay.min_size = 32 unrolls before training continues" in line
    wait_for(lambda: f"at {checkpoint.env_steps:,} environment steps" in resumed.stderr, "the weights are resumed")
    actor = fleet.actor(addresses["grpc"], "--envs", "8")
    _until(run, resumed, "learner_updates", checkpoint.counters["learner_updates"] + 20)
    assert metrics(run)[-1]["replay_size"] >= 32
    wait_for(lambda: checkpoints(run)[-1] > checkpoint.env_steps, "another checkpoint")
    resumed.kill()
    actor.kill()
    newest = find_checkpoint(run)
    assert (newest.path / MANIFEST).exists() and newest.env_steps > checkpoint.env_steps

    again = fleet.learner("--resume", "--logdir", str(run), "--set", "replay.save=false")
    again.wait_until_it_serves()
    assert (
        "the saved replay is ignored (replay.save = false): it refills to replay.min_size = 32 unrolls" in again.stderr
    )
    again.kill()


def _deterministic(fleet: Fleet, name: str, *arguments: str) -> Process:
    return fleet.start("train", "--logdir", name, "--deterministic", *arguments)


def _lines(run: Path) -> list[dict[str, Any]]:
    lines = metrics(run)
    assert len(lines) >= 3 and lines[-1]["learner_updates"] > 20
    return lines


@pytest.mark.slow
def test_equal_seeds_produce_equal_runs_with_a_replay(fleet: Fleet) -> None:
    """Byte-identical; another seed differs; a resumed run continues with its replay."""
    values = sets(*SMALL, "replay.capacity=200", "training.checkpoint_seconds=1000")
    options = ["--preset", "recall_r2d2", "--steps", "2500", "--actors", "2", *values]
    runs = [
        (_deterministic(fleet, n, *options, "--seed", s), fleet.folder / n) for n, s in (("one", "5"), ("two", "5"))
    ]
    other = _deterministic(fleet, "other", *options, "--seed", "6")
    for process, _ in runs:
        process.ends_with(0)
    other.ends_with(0)
    one, two = (run / "metrics.jsonl" for _, run in runs)
    assert one.read_bytes() == two.read_bytes() != (fleet.folder / "other" / "metrics.jsonl").read_bytes()
    lines = _lines(fleet.folder / "one")
    end = lines[-1]
    assert end["env_steps"] >= 2500 and end["replay_size"] > 32 and end["evaluation_return_20"] is not None
    assert end["epsilon_max"] == pytest.approx(0.4) and end["epsilon_min"] == pytest.approx(0.4**8, rel=1e-4)

    checkpoint = find_checkpoint(fleet.folder / "one")
    _, unrolls = _kept(checkpoint, fleet.folder / "one" / "replay")
    assert (len(unrolls), checkpoint.env_steps) == (end["replay_size"], end["env_steps"])
    again = [_deterministic(fleet, name, "--resume", "--steps", "3500") for name in ("one", "two")]
    for process in again:
        process.ends_with(0)
    assert one.read_bytes() == two.read_bytes()
    resumed = _lines(fleet.folder / "one")
    assert resumed[: len(lines)] == lines and len(resumed) > len(lines)
    first = resumed[len(lines)]
    for name in COUNTERS:
        assert first[name] >= checkpoint.counters[name]
        assert [line[name] for line in resumed] == sorted(line[name] for line in resumed)
    assert first["replay_size"] >= min(200, end["replay_size"]), "the replay was restored"


def test_narrowest_window_does_not_stall(fleet: Fleet) -> None:
    """Training is slower than playing, neither may run ahead, and no evaluation environment keeps the loop going."""
    values = sets(*SMALL, "replay.ratio=40", "replay.window=24", "actors.evaluation_envs=0", "actors.streams=1")
    process = _deterministic(fleet, "narrow", "--preset", "recall_r2d2", "--steps", "600", *values)
    process.ends_with(0)
    lines = _lines(fleet.folder / "narrow")
    assert lines[-1]["env_steps"] >= 600 and lines[-1]["evaluation_return"] is None


def _losing_rewards(fleet: Fleet, period: int, steps: int) -> list[dict[str, Any]]:
    """Train to the end with NaN as every `period`-th reward of each environment; returns the metrics."""
    values = [value for value in counting() if not value.startswith("environment.kwargs")]
    values += [f"environment.kwargs={{ lost_reward_period = {period} }}", "actors.evaluation_envs=0"]
    options = ["--preset", "recall_r2d2", "--steps", str(steps), "--logdir", "run"]
    run = fleet.start("train", *options, *sets(*SMALL, *values))
    run.ends_with(0, limit=120)
    assert "returned a non-finite reward" in run.stderr and "actor local-0" in run.stderr
    return metrics(fleet.folder / "run")


def test_unrolls_with_a_non_finite_reward_are_dropped_and_training_continues(fleet: Fleet) -> None:
    lines = _losing_rewards(fleet, 60, 4_000)
    end = lines[-1]
    assert end["learner_updates"] > 20 and end["dropped_updates"] == 0 and end["actors"] <= 1
    # Unrolls of 13 records begin every 8 records: about 13 of 60 contain a lost reward, which is one record in 60.
    unrolls = end["dropped_unrolls"] + end["replay_size"]
    assert 0.1 < end["dropped_unrolls"] / unrolls < 0.4
    assert end["env_steps"] >= 4_000 and end["protocol_errors"] == 0


def test_a_run_ends_even_if_all_unrolls_are_dropped(fleet: Fleet) -> None:
    end = _losing_rewards(fleet, 1, 2_000)[-1]
    assert end["env_steps"] >= 2_000 and end["learner_updates"] == 0
    assert end["replay_size"] == 0 and end["dropped_unrolls"] > 200
