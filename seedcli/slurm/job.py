"""The options of `seed slurm`, which describe a SLURM job. `slurm.request` checks them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Any

from typer import Option

from seedcli.config.presets import complete_preset


@dataclass(frozen=True, kw_only=True)
class Job:
    """Describes a SLURM job. Each field is the option of its name; None leaves the option out."""

    preset: Annotated[
        str, Option("--preset", metavar="NAME", help="Preset to start from.", autocompletion=complete_preset)
    ]
    env: Annotated[str | None, Option(metavar="ID", help="Game, scenario, level or Gymnasium id to play.")] = None
    family: Annotated[
        str | None, Option(metavar="NAME", help="Family of environments, or module:Class of your own.")
    ] = None
    agent: Annotated[str | None, Option(metavar="NAME", help="Learning algorithm, or module:Class of your own.")] = None
    network: Annotated[str | None, Option(metavar="NAME", help="Network torso, or module:Class of your own.")] = None
    actors: Annotated[int, Option(metavar="N", min=1, help="Actor processes.")] = 8
    envs: Annotated[int | None, Option(metavar="N", min=1, help="Environments per actor.  [default: the preset's]")] = (
        None
    )
    time: Annotated[
        str | None, Option(metavar="LIMIT", help="Time limit in SLURM's format.  [default: the partition's]")
    ] = None
    steps: Annotated[str | None, Option(metavar="N", help="Environment steps to train on.")] = None
    seed: Annotated[str | None, Option(metavar="N", help="Seed of networks, actions and environments.")] = None
    set: Annotated[list[str], Option(metavar="SECTION.KEY=VALUE", help="Set one value; may be repeated.")] = field(
        default_factory=list
    )
    logdir: Annotated[
        str | None, Option(metavar="DIR", help="The run's folder.  [default: runs/<preset>/job-<number>]")
    ] = None
    learner_hosts: Annotated[
        int, Option(metavar="N", min=1, help="Learners that train one model together, each on its own node.")
    ] = 1
    nodes: Annotated[
        int | None, Option(metavar="N", min=1, help="Nodes of the job.  [default: one per learner host]")
    ] = None
    array: Annotated[bool, Option("--array", help="One job for the learner and an array with a job per actor.")] = False
    learner_cpus: Annotated[int, Option(metavar="N", min=1, help="CPUs of each learner host.")] = 4
    cpus_per_actor: Annotated[int, Option(metavar="N", min=1, help="CPUs of each actor.")] = 2
    gpus: Annotated[int, Option(metavar="N", min=0, help="GPUs of each learner host.")] = 0
    mem: Annotated[str | None, Option(metavar="SIZE", help="Memory on each node; with --array, of the learner.")] = None
    actor_mem: Annotated[str | None, Option(metavar="SIZE", help="With --array: memory of each actor.")] = None
    partition: Annotated[str | None, Option(metavar="NAME", help="Partition of the job.")] = None
    actor_partition: Annotated[str | None, Option(metavar="NAME", help="With --array: partition of the actors.")] = None
    account: Annotated[str | None, Option(metavar="NAME", help="Account to charge.")] = None
    signal_seconds: Annotated[
        int, Option(metavar="S", min=20, help="How long before the time limit to stop training and save.")
    ] = 90
    requeue: Annotated[bool, Option(help="Requeue the job when it is interrupted or its learner dies.")] = True
    sbatch: Annotated[list[str], Option(metavar="OPTION", help="Additional sbatch option; may be repeated.")] = field(
        default_factory=list
    )
    venv: Annotated[str | None, Option(metavar="DIR", help="Virtual environment to activate in the job.")] = None
    setup: Annotated[list[str], Option(metavar="LINE", help="Shell line to run first; may be repeated.")] = field(
        default_factory=list
    )

    @property
    def all_nodes(self) -> int:
        """Nodes of the job; with `array`, of the learner's job."""
        return self.learner_hosts if self.nodes is None else self.nodes

    def given(self) -> Iterator[tuple[str, Any]]:
        """Flags (without dashes) and values that differ from the default; True for a flag without a value."""
        for option in fields(self):
            name, value = option.name.replace("_", "-"), getattr(self, option.name)
            if option.default_factory is not MISSING:
                yield from ((name, each) for each in value)
            elif value != option.default:
                yield ("no-" + name, True) if value is False else (name, value)


def command(job: Job) -> str:
    """The command that prints a job's script, quoted for the shell."""
    words = ["seed", "slurm"]
    for name, value in job.given():
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return shlex.join(words)
