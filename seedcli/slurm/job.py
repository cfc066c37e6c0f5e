"""What may be asked of a job script for SLURM: the options of `seed slurm`. `slurm.request` checks them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Any

from typer import Option

from seedcli.config.presets import complete_preset


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is asked of a job script; each field is the option of its name, and a default of None leaves it out."""

    preset: Annotated[
        str, Option("--preset", metavar="NAME", help="Preset to start from.", autocompletion=complete_preset)
    ]
    env: Annotated[str | None, Option(metavar="ID", help="Game, scenario, level or Gymnasium id to play.")] = None
    actors: Annotated[int, Option(metavar="N", min=1, help="Actor processes.")] = 8
    envs: Annotated[int | None, Option(metavar="N", min=1, help="Environments of each.  [default: the preset's]")] = (
        None
    )
    time: Annotated[str | None, Option(metavar="LIMIT", help="As SLURM writes it.  [default: the partition's]")] = None
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
        int | None, Option(metavar="N", min=1, help="Nodes of the one job.  [default: one a learner host]")
    ] = None
    array: Annotated[bool, Option("--array", help="A job for the learner, and an array of one job an actor.")] = False
    learner_cpus: Annotated[int, Option(metavar="N", min=1, help="CPUs of each learner host.")] = 4
    cpus_per_actor: Annotated[int, Option(metavar="N", min=1, help="CPUs of each actor.")] = 2
    gpus: Annotated[int, Option(metavar="N", min=0, help="GPUs of each learner host.")] = 0
    mem: Annotated[str | None, Option(metavar="SIZE", help="Memory on each node; with --array, of the learner.")] = None
    actor_mem: Annotated[str | None, Option(metavar="SIZE", help="With --array: memory of each actor.")] = None
    partition: Annotated[str | None, Option(metavar="NAME", help="Where to run.")] = None
    actor_partition: Annotated[str | None, Option(metavar="NAME", help="With --array: where actors run.")] = None
    account: Annotated[str | None, Option(metavar="NAME", help="Who pays.")] = None
    signal_seconds: Annotated[
        int, Option(metavar="S", min=20, help="How long before the time limit training stops, to be saved.")
    ] = 90
    requeue: Annotated[
        bool, Option(help="Queue the job again when it is stopped in the middle, or its learner dies.")
    ] = True
    sbatch: Annotated[list[str], Option(metavar="OPTION", help="Further option of sbatch; may be repeated.")] = field(
        default_factory=list
    )
    venv: Annotated[str | None, Option(metavar="DIR", help="Virtual environment to activate in the job.")] = None
    setup: Annotated[list[str], Option(metavar="LINE", help="Line of shell to run first; may be repeated.")] = field(
        default_factory=list
    )

    @property
    def all_nodes(self) -> int:
        """Nodes of the job; with `array` of the learner's."""
        return self.learner_hosts if self.nodes is None else self.nodes

    def given(self) -> Iterator[tuple[str, Any]]:
        """Flags without their dashes and values, of all that differs from the default; True for one without a value."""
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
