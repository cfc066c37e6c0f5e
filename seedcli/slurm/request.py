"""What is asked of a job script for SLURM, checked; `slurm.script` writes it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from seedcli.cluster.hosts import check_replay
from seedcli.config.conflicts import hosts_conflict
from seedcli.config.schema import Config
from seedcli.config.sections import ActorsConfig
from seedcli.config.sources import load_config
from seedcli.config.topology import Inventory, make_plan
from seedcli.envs.registry import check_environment
from seedcli.errors import UsageError

_SIGNAL_SLACK = 60  # seconds by which SLURM may send a signal too early (man sbatch, --signal)


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is asked of a job script; a field's name is its flag's.

    Attributes:
        preset: name of the preset.
        actors: actor processes, at least 1.
        env: what to play; None: as the preset says.
        envs: environments of each actor; None: as the preset says.
        steps, seed: text for the learner's flags of these names; None: as the preset says.
        sets: "section.key=value" each.
        time: time limit as SLURM writes it, such as "4:00:00"; None: the partition's.
        logdir: the run's folder; None: runs/<preset>/job-<id> where the job was submitted.
        learner_hosts: learners that train one model together, each on a node of its own.
        nodes: nodes of the one job; None: one for each learner host.
        array: the actors are an array of jobs instead of a step.
        partition, account: as sbatch takes them; None: SLURM's defaults.
        actor_partition: partition of the array's jobs; None: `partition`.
        learner_cpus, cpus_per_actor: CPUs of each process.
        gpus: GPUs of each learner host.
        mem: memory of the job on each node, such as "16G"; None: SLURM's default.
        actor_mem: memory of each of the array's jobs; None: SLURM's default.
        signal_seconds: how long before the time limit the learner is told to stop.
        requeue: whether the job is queued again when it is stopped in the middle, or its learner dies.
        sbatch: further options of sbatch, one a line.
        venv: a virtual environment to activate; None: `seed` is found as it was at submission.
        setup: lines of shell to run first.
    """

    preset: str
    actors: int
    env: str | None = None
    envs: int | None = None
    steps: str | None = None
    seed: str | None = None
    sets: Sequence[str] = ()
    time: str | None = None
    logdir: str | None = None
    learner_hosts: int = 1
    nodes: int | None = None
    array: bool = False
    partition: str | None = None
    actor_partition: str | None = None
    account: str | None = None
    learner_cpus: int = 4
    cpus_per_actor: int = 2
    gpus: int = 0
    mem: str | None = None
    actor_mem: str | None = None
    signal_seconds: int = 90
    requeue: bool = True
    sbatch: Sequence[str] = ()
    venv: str | None = None
    setup: Sequence[str] = ()

    @property
    def all_nodes(self) -> int:
        """Nodes of the job; with `array` of the learner's."""
        return self.learner_hosts if self.nodes is None else self.nodes


def command(job: Job) -> str:
    """The command that prints a job's script, quoted for the shell."""
    words = ["seed", "slurm", "--preset", job.preset]
    for name, value in _given(job):
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return shlex.join(words)


def _given(job: Job) -> Iterator[tuple[str, Any]]:
    """Flags without their dashes and values, of all that differs from the default, in a fixed order."""
    single = "env actors envs time steps seed logdir learner_hosts nodes partition account learner_cpus cpus_per_actor"
    for name in [*single.split(), "gpus", "mem", "array", "actor_partition", "actor_mem", "signal_seconds"]:
        value = getattr(job, name)
        if name == "actors" or value != getattr(Job, name):
            yield name.replace("_", "-"), value
    if not job.requeue:
        yield "no-requeue", True
    yield from (("set", value) for value in job.sets)
    yield from (("sbatch", value) for value in job.sbatch)
    if job.venv is not None:
        yield "venv", job.venv
    yield from (("setup", value) for value in job.setup)


# Checks -------------------------------------------------------------------------------------------------------

_TIME = re.compile(r"(?:(?P<d>\d+)-(?P<dh>\d+)(?::(?P<dm>\d+)(?::(?P<ds>\d+))?)?|(?P<rest>\d+(?::\d+){0,2}))")


def seconds_of(time: str) -> int:
    """Seconds of a time limit as SLURM writes it: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S.

    Raises:
        UsageError: the text is none of these, or no time at all.
    """
    match = _TIME.fullmatch(time)
    seconds = 0
    if match and match["rest"]:
        parts = [int(part) for part in match["rest"].split(":")]
        hours, minutes, rest = ([0] * (len(parts) < 3) + parts + [0])[:3]
        seconds = 3600 * hours + 60 * minutes + rest
    elif match:
        days, hours, minutes, rest = (int(match[name] or 0) for name in ("d", "dh", "dm", "ds"))
        seconds = 86400 * days + 3600 * hours + 60 * minutes + rest
    if not seconds:
        raise UsageError(
            f"--time {time!r} must be a time limit as SLURM writes it: minutes, H:MM:SS, D-HH or D-HH:MM:SS"
        )
    return seconds


def check(job: Job) -> ActorsConfig:
    """Refuse what cannot work; returns how many actors there are, with how many environments and streams.

    Raises:
        UsageError: an unknown preset or key, or a value that is out of its range, malformed or in conflict.
    """
    for flag, value in _given(job):
        if isinstance(value, str) and re.search(r"[\x00-\x1f\x7f]", value):
            raise UsageError(f"--{flag} {value!r} must be one line of text: leave line breaks and control codes out")
    flags = {"--env": job.env, "--envs": job.envs, "--actors": job.actors, "--steps": job.steps, "--seed": job.seed}
    # The environment is no layer here: a script is made of its command alone.
    resolved = load_config(job.preset, environ={}, sets=job.sets, flags=flags)
    config = resolved.config
    check_environment(config.environment, resolved.sources["environment.kwargs"])
    if job.time is not None and seconds_of(job.time) < job.signal_seconds + _SIGNAL_SLACK:
        raise UsageError(
            f"--time {job.time} must be at least {_SIGNAL_SLACK} s longer than --signal-seconds {job.signal_seconds}, "
            "or the job is told to stop as it begins: raise the one or lower the other"
        )
    _check_text("mem", job.mem, r"\d+[KMGT]?", "a size as SLURM writes it, such as 16G")
    _check_text("actor-mem", job.actor_mem, r"\d+[KMGT]?", "a size as SLURM writes it, such as 4G")
    _check_text("partition", job.partition, r"[\w.,+@-]+", "a partition of your cluster (sinfo lists them)")
    _check_text("actor-partition", job.actor_partition, r"[\w.,+@-]+", "a partition of your cluster (sinfo lists them)")
    _check_text("account", job.account, r"[\w.+@-]+", "an account of your cluster (sacctmgr show assoc lists them)")
    _check_text("logdir", job.logdir, r"[^%,\\]+", "a folder whose path has no %, comma or backslash in it")
    for option in job.sbatch:
        _check_text("sbatch", option, r"--?[a-zA-Z].*", "an option of sbatch, such as --qos=long")
    _check_layout(job)
    _check_learner_hosts(job, config)
    _check_devices(job, config)
    check_replay(config, job.learner_hosts)
    return config.actors


def _check_text(flag: str, value: str | None, pattern: str, rule: str) -> None:
    if value is not None and not re.fullmatch(pattern, value):
        raise UsageError(f"--{flag} {value!r} must be {rule}")


def _check_layout(job: Job) -> None:
    nodes, hosts = job.all_nodes, job.learner_hosts
    if job.array and (job.nodes or 1) > 1:
        raise UsageError(
            f"--nodes {job.nodes} is for one job, and --array makes a job of each actor, wherever there is room: "
            "give one of the two"
        )
    if not job.array and (job.actor_mem or job.actor_partition):
        flag = "--actor-mem" if job.actor_mem else "--actor-partition"
        raise UsageError(f"{flag} is for actors with jobs of their own: give --array too")
    if nodes < hosts:
        raise UsageError(
            f"--nodes {nodes} must be at least {hosts}, a node for each of the --learner-hosts {hosts}: raise it or "
            "leave it out"
        )
    if job.gpus and nodes > hosts:
        users = "the learner uses" if hosts == 1 else f"the {hosts} learner hosts use"
        raise UsageError(
            f"--gpus {job.gpus} with --nodes {nodes} would take GPUs on every node, and only {users} any: "
            "give --array instead of --nodes"
        )
    if not job.array and nodes > job.actors + hosts:
        learners = "the learner" if hosts == 1 else f"each of the --learner-hosts {hosts}"
        raise UsageError(
            f"--nodes {nodes} must be at most {job.actors + hosts}, a node for {learners} and each of the "
            f"--actors {job.actors}: lower it or raise them"
        )


def _check_learner_hosts(job: Job, config: Config) -> None:
    hosts = job.learner_hosts
    if config.topology.hosts:
        raise UsageError(
            "topology.hosts is for learners that are started by hand: leave it out, SLURM says which nodes the "
            "--learner-hosts are"
        )
    if hosts == 1:
        return
    if unfit := hosts_conflict(config, hosts, config.topology.platform, "--learner-hosts"):
        raise UsageError(unfit)
    if job.actors < hosts:
        raise UsageError(
            f"--actors {job.actors} must be at least --learner-hosts {hosts}, because the others wait for a host that "
            "no actor feeds: raise it"
        )


def _check_devices(job: Job, config: Config) -> None:
    """Refuse a topology that does not fit the devices that a learner host will have, as far as they are known."""
    topology = config.topology
    if not job.gpus and topology.platform != "cpu":
        # What a node gives without --gpus only SLURM knows: TPUs, or GPUs asked for by an option of its own.
        if topology.platform == "gpu" and not any(re.search(r"gpu|^-G", option) for option in job.sbatch):
            raise UsageError(
                "topology.platform = gpu needs GPUs, and --gpus is 0: give --gpus N, those of each learner host, or "
                "use another platform"
            )
        return
    learner = "the learner" if job.learner_hosts == 1 else "each learner host"
    gpus = Inventory(gpus=job.gpus, whose=f"{learner} with --gpus {job.gpus}" if job.gpus else learner)
    hosts = tuple(f"host:{number}" for number in range(job.learner_hosts)) if job.learner_hosts > 1 else ()
    make_plan(config.model_copy(update={"topology": topology.model_copy(update={"hosts": hosts})}), gpus)
