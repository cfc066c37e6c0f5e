"""The scripts of `seed slurm`, run by a real SLURM with real learners and actors."""

from __future__ import annotations

import math
import re
import shlex
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from seedcli.cli.main import main
from tests.slurm.cluster import Cluster, Job
from tests.system.harness import TINY, checkpoints, counting, last, metrics, sets, wait_for

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "slurm"
SMALL = ("--envs", "2", "--learner-cpus", "2", "--cpus-per-actor", "1", "--time", "10", "--signal-seconds", "60")
LONG = 10**9

Print = Callable[..., Path]


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Print:
    """Print a script for a run of `Counter`, of a few hundred steps a second."""

    def print_script(*arguments: str, steps: int) -> Path:
        values = sets(*TINY, *counting(0.004))
        assert main(["slurm", "--preset", "gymnasium_vtrace", "--steps", str(steps), *SMALL, *values, *arguments]) == 0
        path = tmp_path / "job.sbatch"
        path.write_text(capsys.readouterr().out)
        return path

    return print_script


def assert_completes(job: Job, *, restarts: int) -> None:
    job.wait_for_state("COMPLETED")
    shown = job.show()
    assert (shown["ExitCode"], shown["Restarts"]) == ("0:0", str(restarts)), job.logs()


def assert_continued(job: Job, *stopped_at: int, learner: str = "") -> None:
    """Assert that a job resumed from its checkpoints, without repeating steps.

    Args:
        job: to check.
        stopped_at: steps of the checkpoints at which it was stopped.
        learner: log name of the learner that owns the run; empty: the only learner.
    """
    steps = [line["env_steps"] for line in metrics(job.run)]
    assert steps == sorted(steps) and steps[0] < min(stopped_at) and max(stopped_at) < steps[-1]
    for at in stopped_at:
        assert f"at {at:,} environment steps" in job.log(learner or f"learner-{job.number}"), job.logs()


def newer(job: Job, than: int) -> int:
    """Steps of the newest checkpoint; 0 if it is not newer than `than`."""
    return newest if (newest := max(checkpoints(job.run))) > than else 0


def stopped(job: Job, before: int) -> int:
    """Wait until a stopped job is queued again; returns the steps of the checkpoint that it wrote."""
    job.wait_for_state("PENDING")
    job.wait_until_gone()
    at = max(checkpoints(job.run))
    assert at > before, job.logs()
    return at


def killed(job: Job, *, host: int = 0) -> int:
    """Kill the learner of a host and wait until the job is queued again; returns the steps of its checkpoint."""

    def learner() -> list[psutil.Process]:
        found = [process for process in job.cluster.processes(job.run) if process.cmdline()[2:3] == ["learner"]]
        return [process for process in found if process.environ()["SLURM_PROCID"] == str(host)]

    (process,) = wait_for(learner, f"the learner of host {host}")
    process.send_signal(signal.SIGKILL)
    job.wait_for_state("PENDING")
    job.wait_until_gone()
    assert "the learner ended with status 137\nrequeued after death 1 of 4" in job.logs()
    return max(checkpoints(job.run))


def serving(run: Path) -> tuple[int, ...]:
    """Numbers of actors of two learner hosts."""
    return tuple(last(folder, "actors") for folder in (run, run / "hosts" / "1"))


def states(cluster: Cluster, array: str) -> set[str]:
    """States of an array's jobs."""
    return set(re.findall(r"JobState=(\w+)", cluster.call("scontrol", "show", "job", "--oneliner", array)))


def test_the_cartpole_example_completes(cluster: Cluster, tmp_path: Path) -> None:
    environ = {"SEED_RUN__STEPS": "60000", "SEED_TELEMETRY__INTERVAL_SECONDS": "0.2"}
    job = cluster.submit(EXAMPLES / "cartpole.sbatch", tmp_path / "run", environ)
    assert_completes(job, restarts=0)
    assert max(checkpoints(job.run)) >= 60_000
    assert max(line["actors"] for line in metrics(job.run)) == 2
    assert "trained for" in job.log(f"learner-{job.number}")
    for actor in (0, 1):
        assert "connected" in job.log(f"actor-{job.number}-{actor}")
    token = cluster.home / ".config" / "seed" / "token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert token.read_text().strip() not in job.logs()
    job.wait_until_gone()


def test_a_job_on_two_nodes_resumes_after_requeue_preemption_and_kill(
    cluster: Cluster, script: Print, tmp_path: Path
) -> None:
    job = cluster.submit(script("--actors", "3", "--nodes", "2", steps=9_000), tmp_path / "run")
    before = job.wait_for_checkpoint()
    cluster.call("scontrol", "requeue", job.number)
    requeued_at = stopped(job, before)
    job.start_now()
    before = wait_for(lambda: newer(job, requeued_at), "a checkpoint after the first stop")
    cluster.call("sbatch", "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=true")
    preempted_at = stopped(job, before)
    job.start_now()
    wait_for(lambda: newer(job, preempted_at), "a checkpoint after the second stop")
    killed_at = killed(job)
    job.start_now()
    assert_completes(job, restarts=3)
    assert_continued(job, requeued_at, preempted_at, killed_at)


@pytest.mark.slow
def test_a_job_resumes_from_a_checkpoint_after_its_time_limit(cluster: Cluster, script: Print, tmp_path: Path) -> None:
    job = cluster.submit(script("--actors", "2", steps=12_000), tmp_path / "run")
    before = job.wait_for_checkpoint()
    # Lower the limit once it trains: SLURM, which checks every half minute, stops it a minute ahead.
    minutes = math.ceil((job.running_seconds + 40) / 60)
    cluster.call("scontrol", "update", f"JobId={job.number}", f"TimeLimit={minutes}")
    at = stopped(job, before)
    assert "requeued" in job.logs()
    job.start_now(TimeLimit="10")
    assert_completes(job, restarts=1)
    assert_continued(job, at)


@pytest.mark.slow
def test_an_array_of_actors_starts_and_ends_with_its_learner(cluster: Cluster, script: Print, tmp_path: Path) -> None:
    job = cluster.submit(script("--array", "--actors", "2", steps=6_000), tmp_path / "run")
    before = job.wait_for_checkpoint()
    first = job.array
    cluster.call("scancel", "--signal=TERM", job.number)  # the script requeues the job and ends its array
    at = stopped(job, before)
    job.start_now()
    assert_completes(job, restarts=1)
    assert_continued(job, at)
    wait_for(cluster.is_empty, "the end of the array")
    second = job.array
    assert states(cluster, first) == {"CANCELLED"}
    assert states(cluster, second) == {"COMPLETED"}, job.logs()
    assert max(line["actors"] for line in metrics(job.run)) == 2
    assert all("connected" in job.log(f"actor-{second}-{actor}") for actor in (0, 1))


@pytest.mark.slow
def test_a_killed_actor_is_restarted_and_scancel_ends_the_job_with_a_checkpoint(
    cluster: Cluster, script: Print, tmp_path: Path
) -> None:
    job = cluster.submit(
        script("--actors", "2", "--set", "training.checkpoint_seconds=1000", steps=LONG), tmp_path / "run"
    )
    wait_for(lambda: last(job.run, "actors") == 2, "both actors have joined")
    actors = [process for process in cluster.processes(job.run) if "actor" in process.cmdline()[2:3]]
    actors[0].send_signal(signal.SIGKILL)
    wait_for(lambda: "failure 1 of 6" in job.logs(), "the actor's end is noticed")
    wait_for(
        lambda: job.logs().count("connected to") == 3 and last(job.run, "actors") == 2, "another actor has replaced it"
    )
    job.wait_for_checkpoint()  # that of the first update
    cluster.call("scancel", job.number)
    job.wait_for_state("CANCELLED")
    job.wait_until_gone(30)
    assert len(checkpoints(job.run)) == 2, job.logs()
    wait_for(cluster.is_empty, "the job has left the queue")
    assert job.show()["Restarts"] == "0"


@pytest.mark.slow
def test_two_learner_hosts_resume_after_requeue_and_kill(cluster: Cluster, script: Print, tmp_path: Path) -> None:
    job = cluster.submit(script("--learner-hosts", "2", "--actors", "2", steps=8_000), tmp_path / "run")
    other = job.run / "hosts" / "1"
    wait_for(
        lambda: serving(job.run) == (1, 1), "each host serves one of the actors, which are given only the run's folder"
    )
    before = job.wait_for_checkpoint()
    cluster.call("scontrol", "requeue", job.number)
    at = stopped(job, before)
    job.start_now()
    wait_for(lambda: newer(job, at), "a checkpoint after the first stop")
    killed_at = killed(job, host=1)
    lines = {folder: len(metrics(folder)) for folder in (job.run, other)}
    job.start_now()
    assert_completes(job, restarts=2)

    assert_continued(job, at, killed_at, learner=f"learner-{job.number}-0")
    assert "host 1/2: " in job.log(f"learner-{job.number}-1")
    assert [folder.name for folder in (job.run / "hosts").iterdir()] == ["1"] and not checkpoints(other)
    for folder, earlier in lines.items():
        now = metrics(folder)
        assert {line["learner_updates"] for line in now[:earlier]} - {0}, "updates before the last stop"
        assert max(line["actors"] for line in now[earlier:]) == 1, "each host had an actor after it"
        for counter in ("env_steps", "learner_updates"):
            counted = [line[counter] for line in now]
            assert counted == sorted(counted), f"{counter} of {folder} decrease"
    ends = [metrics(folder)[-1] for folder in lines]
    assert ends[0]["env_steps"] == ends[1]["env_steps"] == max(checkpoints(job.run)) >= 8_000
    assert ends[0]["learner_updates"] == ends[1]["learner_updates"] > 0


PLAIN = """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --time=10 --output=plain-%j.log
for i in 0 1; do seed actor --connect "$SEED_RUN" --envs 2 & done
srun -N2 seed learner --preset gymnasium_vtrace --steps {steps} --trust-network --logdir "$SEED_RUN" \\
  --grpc-port 0 --zmq-port 0 {values}
status=$?
kill %1 %2
exit "$status"
"""


@pytest.mark.slow
def test_a_plain_step_of_two_tasks_trains_and_ends_when_a_host_dies(cluster: Cluster, tmp_path: Path) -> None:
    values = sets(*TINY, *counting(0.004), "training.checkpoint_seconds=1000")
    path = tmp_path / "plain.sbatch"
    path.write_text(PLAIN.format(steps=LONG, values=shlex.join(values)))
    job = cluster.submit(path, tmp_path / "run")
    wait_for(lambda: serving(job.run) == (1, 1) and last(job.run, "learner_updates"), "both hosts train")
    job.wait_for_checkpoint()  # that of the first update
    (member,) = [
        process
        for process in cluster.processes(job.run)
        if process.cmdline()[2:3] == ["learner"] and process.environ()["SLURM_PROCID"] == "1"
    ]
    member.send_signal(signal.SIGKILL)
    job.wait_for_state("FAILED")
    assert (job.show()["ExitCode"], job.show()["Restarts"]) == ("137:0", "0")
    assert "start all hosts again with --continue" in job.logs()
    assert len(checkpoints(job.run)) == 2, job.logs()
    job.wait_until_gone()


def test_a_learner_that_fails_ends_the_job_with_its_status(cluster: Cluster, script: Print, tmp_path: Path) -> None:
    job = cluster.submit(script("--actors", "2", steps=LONG), tmp_path / "run", {"SEED_AGENT__DISCOUNT": "7"})
    job.wait_for_state("FAILED")
    assert (job.show()["ExitCode"], job.show()["Restarts"]) == ("2:0", "0")
    assert "agent.discount" in job.log(f"learner-{job.number}")
