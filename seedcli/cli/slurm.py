"""The command `seed slurm`. Nothing heavy is imported at the top; see `seedcli.cli.main`."""

from __future__ import annotations

from typing import Annotated

import typer

from seedcli.cli.options import Debug, Sets, complete_preset, examples
from seedcli.errors import EXIT_DONE


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


def slurm(
    preset: Annotated[
        str, typer.Option("--preset", metavar="NAME", help="Preset to start from.", autocompletion=complete_preset)
    ],
    env: Annotated[
        str | None, typer.Option("--env", metavar="ID", help="Game, scenario, level or Gymnasium id to play.")
    ] = None,
    actors: Annotated[int, typer.Option("--actors", metavar="N", min=1, help="Actor processes.")] = 8,
    envs: Annotated[
        int | None, typer.Option("--envs", metavar="N", min=1, help="Environments of each.  [default: the preset's]")
    ] = None,
    time: Annotated[
        str | None, typer.Option("--time", metavar="LIMIT", help="As SLURM writes it.  [default: the partition's]")
    ] = None,
    steps: Annotated[str | None, typer.Option("--steps", metavar="N", help="Environment steps to train on.")] = None,
    seed: Annotated[
        str | None, typer.Option("--seed", metavar="N", help="Seed of networks, actions and environments.")
    ] = None,
    sets: Sets = None,
    logdir: Annotated[
        str | None,
        typer.Option("--logdir", metavar="DIR", help="The run's folder.  [default: runs/<preset>/job-<number>]"),
    ] = None,
    learner_hosts: Annotated[
        int,
        typer.Option(
            "--learner-hosts", metavar="N", min=1, help="Learners that train one model together, each on its own node."
        ),
    ] = 1,
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", metavar="N", min=1, help="Nodes of the one job.  [default: one a learner host]"),
    ] = None,
    array: Annotated[
        bool, typer.Option("--array", help="A job for the learner, and an array of one job an actor.")
    ] = False,
    learner_cpus: Annotated[
        int, typer.Option("--learner-cpus", metavar="N", min=1, help="CPUs of each learner host.")
    ] = 4,
    cpus_per_actor: Annotated[
        int, typer.Option("--cpus-per-actor", metavar="N", min=1, help="CPUs of each actor.")
    ] = 2,
    gpus: Annotated[int, typer.Option("--gpus", metavar="N", min=0, help="GPUs of each learner host.")] = 0,
    mem: Annotated[
        str | None, typer.Option("--mem", metavar="SIZE", help="Memory on each node; with --array, of the learner.")
    ] = None,
    actor_mem: Annotated[
        str | None, typer.Option("--actor-mem", metavar="SIZE", help="With --array: memory of each actor.")
    ] = None,
    partition: Annotated[str | None, typer.Option("--partition", metavar="NAME", help="Where to run.")] = None,
    actor_partition: Annotated[
        str | None, typer.Option("--actor-partition", metavar="NAME", help="With --array: where actors run.")
    ] = None,
    account: Annotated[str | None, typer.Option("--account", metavar="NAME", help="Who pays.")] = None,
    signal_seconds: Annotated[
        int,
        typer.Option(
            "--signal-seconds", metavar="S", min=20, help="How long before the time limit training stops, to be saved."
        ),
    ] = 90,
    requeue: Annotated[
        bool,
        typer.Option(
            "--requeue/--no-requeue", help="Queue the job again when it is stopped in the middle, or its learner dies."
        ),
    ] = True,
    sbatch: Annotated[
        list[str] | None, typer.Option("--sbatch", metavar="OPTION", help="Further option of sbatch; may be repeated.")
    ] = None,
    venv: Annotated[
        str | None, typer.Option("--venv", metavar="DIR", help="Virtual environment to activate in the job.")
    ] = None,
    setup: Annotated[
        list[str] | None, typer.Option("--setup", metavar="LINE", help="Line of shell to run first; may be repeated.")
    ] = None,
    debug: Debug = False,
) -> int:
    """Print a job script for SLURM's sbatch, made of these options alone."""
    from seedcli.slurm.request import Job
    from seedcli.slurm.script import job_script

    job = Job(
        preset=preset,
        env=env,
        actors=actors,
        envs=envs,
        time=time,
        steps=steps,
        seed=seed,
        sets=tuple(sets or ()),
        logdir=logdir,
        learner_hosts=learner_hosts,
        nodes=nodes,
        array=array,
        learner_cpus=learner_cpus,
        cpus_per_actor=cpus_per_actor,
        gpus=gpus,
        mem=mem,
        actor_mem=actor_mem,
        partition=partition,
        actor_partition=actor_partition,
        account=account,
        signal_seconds=signal_seconds,
        requeue=requeue,
        sbatch=tuple(sbatch or ()),
        venv=venv,
        setup=tuple(setup or ()),
    )
    typer.echo(job_script(job), nl=False)
    return EXIT_DONE
