"""Checks the options of a SLURM job before `slurm.script` writes its script."""

from __future__ import annotations

import re

from seedcli.cluster.hosts import check_replay
from seedcli.config.conflicts import hosts_conflict
from seedcli.config.schema import Config
from seedcli.config.sections import ActorsConfig
from seedcli.config.sources import load_config
from seedcli.config.topology import Inventory, make_plan
from seedcli.envs.registry import check_environment
from seedcli.errors import UsageError
from seedcli.slurm.job import Job

SIGNAL_SLACK = 60  # seconds by which SLURM may send a signal too early (man sbatch, --signal)
_TIME = re.compile(r"(?:(?P<d>\d+)-(?P<dh>\d+)(?::(?P<dm>\d+)(?::(?P<ds>\d+))?)?|(?P<rest>\d+(?::\d+){0,2}))")

# Option → pattern of its values, and a description of them for the message.
_RULES = {
    "mem": (r"\d+[KMGT]?", "a size as SLURM writes it, such as 16G"),
    "partition": (r"[\w.,+@-]+", "a partition of your cluster (sinfo lists them)"),
    "account": (r"[\w.+@-]+", "an account of your cluster (sacctmgr show assoc lists them)"),
    "logdir": (r"[^%,\\]+", "a folder whose path has no %, comma or backslash in it"),
    "sbatch": (r"--?[a-zA-Z].*", "an option of sbatch, such as --qos=long"),
}


def seconds_of(time: str) -> int:
    """Seconds of a time limit as SLURM writes it: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S.

    Raises:
        UsageError: the text has none of these forms, or the time is zero.
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
    """Refuse a job that cannot work; returns the number of actors, environments and streams.

    Raises:
        UsageError: a preset or key is unknown, or a value is out of range, malformed or in conflict.
    """
    for flag, value in job.given():
        if isinstance(value, str) and re.search(r"[\x00-\x1f\x7f]", value):
            raise UsageError(f"--{flag} {value!r} must be one line of text: leave line breaks and control codes out")
    flags = {"--env": job.env, "--envs": job.envs, "--actors": job.actors, "--steps": job.steps, "--seed": job.seed}
    flags |= {"--family": job.family, "--agent": job.agent, "--network": job.network}
    # Environment variables are no layer here: a script depends only on its command.
    resolved = load_config(job.preset, environ={}, sets=job.set, flags=flags)
    config = resolved.config
    check_environment(config.environment, resolved.sources.get("environment.kwargs", ""))
    if job.time is not None and seconds_of(job.time) < job.signal_seconds + SIGNAL_SLACK:
        raise UsageError(
            f"--time {job.time} must be at least {SIGNAL_SLACK} s longer than --signal-seconds {job.signal_seconds}, "
            "or the job is stopped as it begins: raise --time or lower --signal-seconds"
        )
    for flag in ("mem", "actor-mem", "partition", "actor-partition", "account", "logdir"):
        value = getattr(job, flag.replace("-", "_"))
        if value is not None:
            check_text(f"--{flag}", value, flag.removeprefix("actor-"))
    for option in job.sbatch:
        check_text("--sbatch", option, "sbatch")
    _check_layout(job)
    _check_learner_hosts(job, config)
    _check_devices(job, config)
    check_replay(config, job.learner_hosts)
    return config.actors


def check_text(what: str, value: str, option: str) -> None:
    """Refuse a value that SLURM could not read, or that would break a script.

    Args:
        what: name of the value, for the message.
        value: the value.
        option: a key of the rules: "mem", "partition", "account", "logdir" or "sbatch".

    Raises:
        UsageError: the value does not match the rule.
    """
    pattern, rule = _RULES[option]
    if not re.fullmatch(pattern, value):
        raise UsageError(f"{what} {value!r} must be {rule}")


def _check_layout(job: Job) -> None:
    nodes, hosts = job.all_nodes, job.learner_hosts
    if job.array and (job.nodes or 1) > 1:
        raise UsageError(
            f"--nodes {job.nodes} is for one job, and --array submits each actor as its own job: give one of the two"
        )
    if not job.array and (job.actor_mem or job.actor_partition):
        flag = "--actor-mem" if job.actor_mem else "--actor-partition"
        raise UsageError(f"{flag} is for actors that run as separate jobs: give --array too")
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
            "topology.hosts is for learners that are started by hand: leave it out, SLURM decides which nodes "
            "the --learner-hosts run on"
        )
    if hosts == 1:
        return
    if job.actors < hosts:
        raise UsageError(
            f"--actors {job.actors} must be at least --learner-hosts {hosts}, because all hosts wait for one "
            "without an actor: raise it"
        )
    if unfit := hosts_conflict(config, hosts, config.topology.platform, "--learner-hosts"):
        raise UsageError(unfit)


def _check_devices(job: Job, config: Config) -> None:
    """Refuse a topology that does not fit a learner host's devices, as far as they are known."""
    topology = config.topology
    if not job.gpus and topology.platform != "cpu":
        # Without --gpus the devices are unknown: TPUs, or GPUs requested with --sbatch.
        if topology.platform == "gpu" and not any(re.search(r"gpu|^-G", option) for option in job.sbatch):
            raise UsageError(
                "topology.platform = gpu needs GPUs, and --gpus is 0: give --gpus N for each learner host, or "
                "use another platform"
            )
        return
    learner = "the learner" if job.learner_hosts == 1 else "each learner host"
    gpus = Inventory(gpus=job.gpus, whose=f"{learner} with --gpus {job.gpus}" if job.gpus else learner)
    hosts = tuple(f"host:{number}" for number in range(job.learner_hosts)) if job.learner_hosts > 1 else ()
    make_plan(config.model_copy(update={"topology": topology.model_copy(update={"hosts": hosts})}), gpus)
