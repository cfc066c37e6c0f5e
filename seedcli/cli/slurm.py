"""The command `seed slurm`. Nothing heavy is imported at the top; see `seedcli.cli.main`."""

from __future__ import annotations

import typer

from seedcli.cli.options import examples, options_of
from seedcli.errors import EXIT_DONE
from seedcli.slurm.job import Job


def register_slurm(app: typer.Typer) -> None:
    """Add the command to `seed`."""
    app.command(
        epilog=examples(
            "seed slurm --preset cartpole_vtrace --actors 2 --time 1:00:00 | sbatch",
            "seed slurm --preset football_vtrace --actors 64 --nodes 8 --time 2-00:00:00 > football.sbatch",
            "seed slurm --preset atari_vtrace --env breakout --array --gpus 1 --actor-partition cpu --time 1-0",
            "seed slurm --preset football_vtrace --learner-hosts 2 --gpus 1 --actors 32 --time 1-0 > two_hosts.sbatch",
        )
    )(slurm)


@options_of(Job)
def slurm(job: Job) -> int:
    """Print a job script for SLURM's sbatch. It depends on these options only."""
    from seedcli.slurm.script import job_script

    typer.echo(job_script(job), nl=False)
    return EXIT_DONE
