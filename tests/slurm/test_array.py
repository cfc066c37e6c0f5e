"""The job array of a sweep, run by a real SLURM."""

from __future__ import annotations

from pathlib import Path

import pytest

from seedcli.results.runs import read_run
from seedcli.suites.array import array_script
from seedcli.suites.members import members_of
from seedcli.suites.sweep import load_sweep
from tests.slurm.cluster import Cluster, Job
from tests.system.harness import COUNTER, TINY_TOML, checkpoints, last, wait_for

SWEEP = f"""
[sweep]
preset = "gymnasium_vtrace"
env = "{COUNTER}"
steps = 4_000
seeds = [1, 2]

[set]
{TINY_TOML}
environment.kwargs = {{ pause = 0.01 }}
actors.envs = 2

[slurm]
time = "10"
"""


@pytest.mark.slow
def test_an_array_trains_each_run_and_resumes_one_that_is_stopped(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "array.toml"
    file.write_text(SWEEP)
    sweep, results = load_sweep(file), tmp_path / "results"
    script = tmp_path / "array.sbatch"
    script.write_text(array_script(sweep, results))
    number = cluster.call("sbatch", "--parsable", str(script)).strip()
    first, second = members_of(sweep.suite.tasks, results)
    stopped = Job(cluster, f"{number}_0", first.folder)
    wait_for(lambda: checkpoints(first.folder) and last(first.folder, "env_steps") > 200, "the first run trains")
    cluster.call("scancel", "--signal=TERM", stopped.number)  # what SLURM sends near the time limit
    stopped.wait_for_state("PENDING")
    at = checkpoints(first.folder)[-1]
    stopped.start_now()
    for job in (stopped, Job(cluster, f"{number}_1", second.folder)):
        job.wait_for_state("COMPLETED")
        assert read_run(job.run).state == "finished"
    sessions = read_run(first.folder).sessions
    assert [session.status for session in sessions] == [143, 0]
    steps = read_run(first.folder).metrics["env_steps"]
    assert list(steps) == sorted(steps) and steps[0] < at < steps[-1], "resumed, not started again"
