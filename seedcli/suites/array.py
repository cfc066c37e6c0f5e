"""`seed sweep --slurm`: the runs of a sweep as one job array."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from seedcli.errors import UsageError
from seedcli.slurm.request import SIGNAL_SLACK, check_text, seconds_of
from seedcli.suites.members import Member, is_trained, members_of
from seedcli.suites.sweep import Sweep

_SIGNAL_SECONDS = 90  # before the time limit: for a checkpoint

_SCRIPT = """\
#!/bin/bash
# The {count} of the sweep {name}, one for each task of this array: learner and actors on one node.
# Submit it again to resume the runs that are left; when all are trained, evaluate and show them with:
#   {evaluate}
{options}{setup}

runs=(
{runs}
)

# SLURM sends SIGTERM to the run {signal} s before the time limit, and when it preempts the job: the run writes a
# checkpoint and ends with 143. This script only waits for that.
trap : TERM
eval "srun --cpus-per-task={cpus} ${{runs[$SLURM_ARRAY_TASK_ID]}}"
status=$?

# If the job is still RUNNING, SLURM is not about to end or requeue it: the time limit is near, so it is requeued here.
if ((status == 143)) && [ "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)" = RUNNING ]; then
  echo "requeued, to resume from the checkpoint"
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
"""


def array_script(sweep: Sweep, results: Path) -> str:
    """The script of a job array that trains every run of a sweep that is not yet trained; existing runs are resumed.

    Args:
        sweep: its [slurm] table has the options of the array.
        results: folder of its results, on a disk that all nodes share.

    Raises:
        UsageError: an option is invalid, every run is trained, or the folder holds runs of other settings.
    """
    results = results.absolute()
    left = [member for member in members_of(sweep.suite.tasks, results) if not is_trained(member)]
    if not left:
        raise UsageError(f"every run in {results} is trained: seed sweep {sweep.suite.path} evaluates and shows them")
    _check(sweep)
    evaluate = ["seed", "sweep", str(sweep.suite.path.absolute()), "--results", str(results)]
    return _SCRIPT.format(
        count=f"{len(left)} runs" if len(left) > 1 else "run",
        name=sweep.suite.name,
        evaluate=shlex.join(evaluate),
        options="\n".join(f"#SBATCH {option}" for option in _options(sweep, left)),
        setup="".join(f"\n{line}" for line in sweep.slurm.setup),
        cpus=sweep.slurm.cpus,
        runs="\n".join(f"  {shlex.quote(shlex.join(['seed', *member.train_command()]))}" for member in left),
        signal=_SIGNAL_SECONDS,
    )


def _options(sweep: Sweep, left: Sequence[Member]) -> Iterator[str]:
    slurm = sweep.slurm
    name = re.sub(r"[^\w.-]", "_", sweep.suite.name)
    yield f"--job-name={name}"
    yield f"--array=0-{len(left) - 1}" + (f"%{slurm.at_once}" if slurm.at_once else "")
    yield "--output=%x-%A-%a.log"
    yield "--open-mode=append"
    yield "--nodes=1"
    yield "--ntasks=1"
    yield f"--cpus-per-task={slurm.cpus}"
    if slurm.gpus:
        yield f"--gpus={slurm.gpus}"
    for name in ("time", "mem", "partition", "account"):
        if value := getattr(slurm, name):
            yield f"--{name}={value}"
    yield "--requeue"
    yield f"--signal=TERM@{_SIGNAL_SECONDS}"
    yield from slurm.sbatch


def _check(sweep: Sweep) -> None:
    """Refuse values that would break the script or that SLURM could not read."""
    slurm, table = sweep.slurm, f"{sweep.suite.path}: slurm"
    for name in ("mem", "partition", "account"):
        if value := getattr(slurm, name):
            check_text(f"{table}.{name}", value, name)
    for option in slurm.sbatch:
        check_text(f"{table}.sbatch", option, "sbatch")
    if not slurm.time:
        return
    try:
        seconds = seconds_of(slurm.time)
    except UsageError as error:
        raise UsageError(f"{table}.time: {error}") from error
    if seconds < _SIGNAL_SECONDS + SIGNAL_SLACK:
        raise UsageError(
            f"{table}.time = {slurm.time} must be at least {_SIGNAL_SECONDS + SIGNAL_SLACK} s, or each run is stopped "
            "and requeued as it begins: raise it"
        )
