"""Writes SLURM job scripts for `sbatch` from a `Job`.

The processes of a run share only its folder. The learner writes its address there, the actors read it, and a requeued
job resumes the run it finds there. So a script holds no host, port or secret.

The learner runs as a separate step because SLURM sends SIGTERM to the processes of a step: at preemption (twice in
quick succession, which the learner counts as one), at `scancel`, and through `--signal=TERM@SECONDS` ahead of the time
limit. The script never forwards the signal, because a second one would end the learner without a checkpoint. Status 143
means that the learner was interrupted, whatever the cause.

A learner that is killed or crashes ends with 128 plus the signal's number, and `srun` ends with that status regardless
of the status of other tasks. The job is then requeued too, but only a few times: a learner that dies soon after each
start has a permanent fault. SLURM_RESTART_COUNT does not help, because it also counts preemptions and time limits, so
the script keeps its own count beside the logs.

Several learner hosts are tasks of that step, one per node: SLURM numbers and signals them. When a host dies, SLURM must
not kill the others (`--kill-on-bad-exit=0`): they end by themselves, and the chief writes a checkpoint. If a whole node
fails, the step waits for it (`--wait=0`) until SLURM requeues the job.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from seedcli.config.sections import ActorsConfig
from seedcli.slurm.job import Job, command
from seedcli.slurm.request import check

_RESTARTS = 5  # restarts of one actor, each within an hour of the one before
_REQUEUES = 3  # requeues of a job whose learner dies, each within an hour of a start


def job_script(job: Job) -> str:
    """The script of a job.

    Raises:
        UsageError: as `slurm.request.check` does.
    """
    fleet = check(job)
    layout = _array_layout if job.array else _steps_layout
    return "\n".join(layout(job, fleet)) + "\n"


_HEAD = """\
# {what}
# Printed by: {command}
#
# The run's folder must be on a disk that all nodes share: learner and actors find each other through it, and a job
# that is requeued resumes the run in it. SEED_RUN=FOLDER sbatch ... chooses another folder, or another run
# to resume."""

_FOLDER = """
run={run}
export SEED_RUN=${{SEED_RUN:-$run}}
mkdir -p "$SEED_RUN/slurm" || exit 1
SEED_RUN=$(realpath "$SEED_RUN")
logs=$SEED_RUN/slurm"""

_ACTOR = """
# One actor. It is restarted after a failure, {restarts} times; an hour without a failure resets the count. It is not
# restarted after: done (0), wrong usage (2), refused (4), stopped (130, 143).
actor() {{
  local failures=0 status
  while ((failures <= {restarts})); do
    SECONDS=0
    seed actor --connect "$SEED_RUN" --envs {envs} --streams {streams} --threads {threads} --actor-id "actor-$1"
    status=$?
    case $status in 0 | 2 | 4 | 130 | 143) return "$status" ;; esac
    ((SECONDS < 3600)) || failures=0
    failures=$((failures + 1))
    echo "actor $1 ended with status $status, failure $failures of {allowed}"
    sleep 5
  done
  return "$status"
}}"""

_STEPS = """
# The job's steps share its memory (--mem=0) and have separate CPUs (--exact); one that dies does not end the others.
step=(srun --exact --mem=0 --open-mode=append --kill-on-bad-exit=0 --wait=0)
unset SLURM_NTASKS_PER_NODE # of the job; its steps have another"""

_LEARNER = """
"${{step[@]}}" --job-name=learner --nodes=1 --ntasks=1 --cpus-per-task={cpus}{gpus} --output="$logs/learner-%j.log" \\
  {command} \\
  --logdir "$SEED_RUN" --continue --grpc-port 0 --zmq-port 0 --no-live &
learner=$!"""

_LEARNER_HOSTS = """
# {hosts} learner hosts train one model together, one per node. TensorFlow's connections between the nodes are neither
# encrypted nor authenticated, which --trust-network accepts: the network must be private or behind a firewall. If a
# host dies, the others end by themselves within a minute, and the step ends with its status.
"${{step[@]}}" --job-name=learner --nodes={hosts} --ntasks={hosts} --ntasks-per-node=1 --cpus-per-task={cpus}{gpus} \\
  --output="$logs/learner-%j-%t.log" \\
  {command} --trust-network \\
  --logdir "$SEED_RUN" --continue --grpc-port 0 --zmq-port 0 --no-live &
learner=$!"""

_ACTORS_STEP = """
# The learner's step comes first: actors placed before it could leave no node with room for it.
until squeue --noheader --steps --jobs="$SLURM_JOB_ID" --format=%j | grep -qx learner || ! alive "$learner"; do
  sleep 1
done

export -f actor
"${{step[@]}}" --job-name=actors --nodes={nodes} --ntasks={actors} --cpus-per-task={cpus}{gpus} \\
  --output="$logs/actor-%j-%t.log" bash -c 'actor "$SLURM_JOB_ID-$SLURM_PROCID"' &
actors=$!"""

_ACTORS_ARRAY = """
# The number of the array is kept in a file. An array that an earlier start of this job left behind, because its node
# failed, is cancelled.
array=$logs/actors-of-$SLURM_JOB_ID
[ -f "$array" ] && scancel --quiet "$(cut -d ';' -f 1 "$array")"

sbatch --parsable --output="$logs/actor-%A-%a.log" > "$array" << 'END_OF_ACTORS' || exit 1
{script}
END_OF_ACTORS
actors=$(cut -d ';' -f 1 "$array") # the cluster's name may follow it
echo "the actors are job $actors"
# It ends with this job in any case; SLURM may be sending SIGTERM to all processes here.
trap 'trap "" TERM; scancel --quiet "$actors"' EXIT"""

_ALIVE = """
# SLURM sends SIGTERM to the learner, which writes a checkpoint and ends with 143. This script only waits for that: a
# second signal would end the learner at once.
trap : TERM
alive() { kill -0 "$1" 2> /dev/null; }"""

_WATCH_STEP = """
while alive "$learner" && alive "$actors"; do wait -n "$learner" "$actors"; done

# Actors end shortly before the learner when training is done or the job is stopped; otherwise they have given up.
for ((i = 0; i < 120; i++)); do
  alive "$learner" || break
  sleep 1
done
if alive "$learner"; then
  wait "$actors"
  status=$?
  echo "every actor has ended (status $status) and the learner has not: see $logs"
  exit $((status ? status : 1)) # ends the learner too, with a checkpoint
fi"""

_WATCH_ARRAY = """
# Check once a minute whether actors are left. When training is done they end shortly before the learner; otherwise
# they have given up.
gone=0
while alive "$learner"; do
  sleep 60 &
  wait -n "$learner" $!
  kill $! 2> /dev/null
  jobs=$(squeue --noheader --me --format=%F) || continue
  if grep -qx "$actors" <<< "$jobs"; then gone=0; else gone=$((gone + 1)); fi
  if ((gone > 2)) && alive "$learner"; then
    echo "every actor has ended and the learner has not: see $logs"
    exit 1 # ends the learner too, with a checkpoint
  fi
done"""

_STATUS = """
wait "$learner"
status=$?
echo "the learner ended with status $status\""""

_DONE_STEP = """
# Training is done: the learner has notified the actors, which end by themselves.
for ((i = 0; i < 30 && status == 0; i++)); do
  alive "$actors" || break
  sleep 1
done"""

_DONE_ARRAY = """
# Training is done: the learner has notified the actors, which end by themselves; pending ones are cancelled.
((status)) || scancel --quiet --state=PENDING "$actors"
for ((i = 0; i < 30 && status == 0; i++)); do
  squeue --noheader --me --format=%F | grep -qx "$actors" || break
  sleep 1
done"""

_REQUEUE = """
# If the job is still RUNNING, SLURM is not about to end or requeue it, so this script requeues it.
running() {{ [ "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)" = RUNNING ]; }}

# The learner was stopped before its end (143: the time limit is near), killed (137; 253 if SLURM saw it run out of
# memory), or has crashed. A job whose learner dies {allowed} times in a row, each within an hour of its start, is not
# requeued, nor is one whose count cannot be written, e.g. because the disk is full.
deaths=$logs/deaths-of-$SLURM_JOB_ID
((status > 130 && status != 143 && SECONDS < 3600)) || rm -f "$deaths"
if ((status == 143)) && running; then
  echo "requeued, to resume from the checkpoint"
  scontrol requeue "$SLURM_JOB_ID"
elif ((status > 130 && status != 143)) && running; then
  count=$(($(cat "$deaths" 2> /dev/null) + 1))
  if ((count > {requeues})); then
    rm -f "$deaths"
    echo "not requeued: the learner has died {allowed} times in a row, each within an hour of its start"
  elif echo "$count" > "$deaths"; then
    echo "requeued after death $count of {allowed}, to resume from the checkpoint"
    scontrol requeue "$SLURM_JOB_ID"
  fi
fi"""

_EXIT = """
exit "$status\""""


def _steps_layout(job: Job, fleet: ActorsConfig) -> Iterator[str]:
    """One job: the learner is a step of it, and all actors are another."""
    cpus = job.cpus_per_actor
    learner_slots, slots = _slots(job)
    size = [f"--nodes={job.all_nodes}", f"--ntasks-per-node={slots}", f"--cpus-per-task={cpus}"]
    steps = f"{_learners(job)} and {_count(job.actors, 'actor')}"
    what = f"One job on {_count(job.all_nodes, 'node')}: {steps} are steps of it."
    gpus = f" --{_gpu_option(job)}=0" if job.gpus else ""
    nodes = f"1-{job.all_nodes}" if job.all_nodes > 1 else "1"
    yield from _head(job, what, size)
    yield _actor(job, fleet)
    yield from (_STEPS, _ALIVE)
    yield _learner(job, fleet, learner_slots * cpus)
    yield _ACTORS_STEP.format(nodes=nodes, actors=job.actors, cpus=cpus, gpus=gpus)
    yield from (_WATCH_STEP, _STATUS, _DONE_STEP)
    yield from _end(job)


def _array_layout(job: Job, fleet: ActorsConfig) -> Iterator[str]:
    """A job for the learner, which submits an array with one job per actor."""
    whose = "The learner's job" if job.learner_hosts == 1 else f"The job of {_learners(job)}"
    what = f"{whose}; it submits {_count(job.actors, 'actor')} as an array of jobs, which ends with it."
    tasks = "--ntasks=1" if job.learner_hosts == 1 else "--ntasks-per-node=1"
    yield from _head(job, what, [f"--nodes={job.learner_hosts}", tasks, f"--cpus-per-task={job.learner_cpus}"])
    yield _ACTORS_ARRAY.format(script="\n".join(_actor_job(job, fleet)))
    yield from (_STEPS, _ALIVE)
    yield _learner(job, fleet, job.learner_cpus)
    yield from (_WATCH_ARRAY, _STATUS, _DONE_ARRAY)
    yield from _end(job)


def _actor_job(job: Job, fleet: ActorsConfig) -> Iterator[str]:
    """The script of the array; SEED_RUN and the path come from the learner's job."""
    options = [f"--job-name={job.preset}-actors", f"--array=0-{job.actors - 1}", "--nodes=1", "--ntasks=1"]
    options += [f"--cpus-per-task={job.cpus_per_actor}"]
    options += _optional(time=job.time, partition=job.actor_partition or job.partition, account=job.account)
    options += _optional(mem=job.actor_mem)
    yield "#!/bin/bash"
    yield from (f"#SBATCH {option}" for option in [*options, "--requeue", "--open-mode=append", *job.sbatch])
    yield from _setup(job)
    yield _actor(job, fleet)
    yield '\nactor "$SLURM_ARRAY_JOB_ID-$SLURM_ARRAY_TASK_ID"'


def _slots(job: Job) -> tuple[int, int]:
    """Task slots that a learner takes, and task slots per node, so that a learner fits on one node.

    A learner takes an even number of CPUs: with two CPUs per core, actors could not use the other half of a core.
    """
    learner = -(-job.learner_cpus // job.cpus_per_actor)
    learner += learner * job.cpus_per_actor % 2
    return learner, max(learner, -(-(learner * job.learner_hosts + job.actors) // job.all_nodes))


def _head(job: Job, what: str, size: Sequence[str]) -> Iterator[str]:
    """The script from its first line to the run's folder."""
    yield "#!/bin/bash"
    yield _HEAD.format(what=what, command=command(job))
    yield "#"
    options = [f"--job-name={job.preset}", "--output=%x-%j.log", *size]
    options += [f"--{_gpu_option(job)}={job.gpus}"] if job.gpus else []
    options += _optional(mem=job.mem, time=job.time, partition=job.partition, account=job.account)
    yield from (f"#SBATCH {option}" for option in options)
    if job.requeue:
        yield "# After preemption or a node failure the job is requeued under the same number, and its logs continue."
        yield "#SBATCH --requeue"
    else:
        yield "#SBATCH --no-requeue"
    yield "#SBATCH --open-mode=append"
    yield f"# {job.signal_seconds} s before the time limit SLURM signals learner and actors, not this script, to stop."
    yield f"#SBATCH --signal=TERM@{job.signal_seconds}"
    yield from (f"#SBATCH {option}" for option in job.sbatch)
    yield from _setup(job)
    run = f'"$SLURM_SUBMIT_DIR"/runs/{job.preset}/job-"$SLURM_JOB_ID"'
    yield _FOLDER.format(run=run if job.logdir is None else shlex.quote(job.logdir))


def _setup(job: Job) -> Iterator[str]:
    lines = list(job.setup)
    if job.venv is not None:
        lines.append(f"source {shlex.quote(job.venv.rstrip('/') + '/bin/activate')} || exit 1")
    if lines:
        yield "\n" + "\n".join(lines)


def _actor(job: Job, fleet: ActorsConfig) -> str:
    return _ACTOR.format(
        envs=fleet.envs, streams=fleet.streams, threads=job.cpus_per_actor, restarts=_RESTARTS, allowed=_RESTARTS + 1
    )


def _learner(job: Job, fleet: ActorsConfig, cpus: int) -> str:
    words = ["seed", "learner", "--preset", job.preset]
    chosen = (("--env", job.env), ("--family", job.family), ("--agent", job.agent), ("--network", job.network))
    for flag, value in (*chosen, ("--steps", job.steps), ("--seed", job.seed)):
        words += [flag, value] if value is not None else []
    # The size of the fleet: the learner spreads exploration and evaluation over its environments.
    for value in (*job.set, f"actors.count={fleet.count}", f"actors.envs={fleet.envs}"):
        words += ["--set", value]
    gpus = f" --{_gpu_option(job)}={job.gpus}" if job.gpus else ""
    step = _LEARNER if job.learner_hosts == 1 else _LEARNER_HOSTS
    return step.format(hosts=job.learner_hosts, cpus=cpus, gpus=gpus, command=shlex.join(words))


def _gpu_option(job: Job) -> str:
    """The option that requests a learner host's GPUs; a job total would not fix their distribution over nodes."""
    return "gpus" if job.learner_hosts == 1 else "gpus-per-node"


def _learners(job: Job) -> str:
    return "the learner" if job.learner_hosts == 1 else f"{job.learner_hosts} learner hosts"


def _end(job: Job) -> Iterator[str]:
    if job.requeue:
        yield _REQUEUE.format(requeues=_REQUEUES, allowed=_REQUEUES + 1)
    yield _EXIT


def _optional(**options: object) -> list[str]:
    """Options of sbatch, for values that are not None."""
    return [f"--{name}={value}" for name, value in options.items() if value is not None]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
