"""The script that submits a suite's runs as jobs of a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from seedcli.cli.main import main
from seedcli.errors import UsageError
from seedcli.suites.cluster import submit_script
from tests.suites.helpers import SUITE, finish, members, path_with, write_suite

SLURM = '[slurm]\nactors = 4\ntime = "1-0"\n'


def test_each_run_is_a_job_that_bash_submits(tmp_path: Path) -> None:
    """With an `sbatch` that records its input."""
    suite = write_suite(tmp_path, SUITE.replace("[1, 2, 3]", "[1, 2]") + SLURM)
    finish(members(suite, tmp_path / "results")["easy", 2], {}, [1.0, 1.0])
    script = submit_script(suite, suite.tasks, tmp_path / "results")
    programs = {"seed": f'exec {sys.executable} -m seedcli "$@"', "sbatch": f"cat >> {tmp_path}/submitted"}
    path = path_with(tmp_path / "bin", programs)
    subprocess.run(["bash"], input=script, text=True, check=True, env={**os.environ, "PATH": path}, timeout=60)
    submitted = (tmp_path / "submitted").read_text()
    learners = [line.strip() for line in submitted.splitlines() if "seed learner" in line]
    assert [line.split("--seed ")[1].split()[0] for line in learners] == ["1", "7"]  # seed 2 has been trained
    assert submitted.count("#SBATCH --time=1-0") == 2 and submitted.count("--ntasks=4 ") == 2
    assert f"run={tmp_path}/results/hard/seed-7" in submitted and "--set training.batch_size=8" in learners[0]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("actor = 4", "unknown key slurm.actor: did you mean actors?"),
        ("logdir = 'x'", "unknown key slurm.logdir"),
        ("actors = 0", "slurm.actors = 0 must be at least 1"),
        ('actors = "4"', 'slurm.actors = "4" must be a whole number'),
        ('time = "soon"', "table slurm: --time 'soon' must be a time limit"),
    ],
)
def test_wrong_options_of_jobs_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    suite = write_suite(tmp_path, f"{SUITE}[slurm]\n{text}\n")
    with pytest.raises(UsageError) as refused:
        submit_script(suite, suite.tasks, tmp_path)
    assert sentence in str(refused.value)


def test_jobs_take_no_options_of_local_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["benchmark", "run", "small", "--slurm", "--jobs", "2", "--results", str(tmp_path)]) == 2
    assert "--jobs is for runs on this machine, and --slurm prints jobs" in capsys.readouterr().err
    assert main(["benchmark", "run", "small", "--slurm", "--only", "pong_vtrace", "--results", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("| sbatch") == 3
