"""The scripts that `seed slurm` prints, without SLURM."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedcli.cli.main import main
from seedcli.errors import UsageError
from seedcli.slurm.job import Job, command
from seedcli.slurm.request import seconds_of
from seedcli.slurm.script import job_script

EXAMPLES = sorted((Path(__file__).parent.parent.parent / "examples" / "slurm").glob("*.sbatch"))
SCRIPTS = {
    "one job": Job(preset="cartpole_vtrace", actors=2),
    "not requeued": Job(preset="cartpole_vtrace", actors=2, requeue=False),
    "an array": Job(preset="atari_vtrace", actors=4, env="breakout", array=True, gpus=1, time="1-0"),
    "learner hosts": Job(preset="cartpole_vtrace", actors=5, learner_hosts=2, gpus=1),
    "learner hosts and an array": Job(preset="cartpole_vtrace", actors=4, learner_hosts=4, array=True, mem="8G"),
    "everything": Job(
        preset="cartpole_vtrace",
        actors=3,
        envs=8,
        steps="1e6",
        seed="7",
        set=("agent.network.hidden=[8, 8]", 'environment.kwargs={ sutton_barto_reward = "it\'s" }'),
        time="4:00:00",
        logdir="/scratch/it's $(here) }",
        learner_hosts=2,
        nodes=3,
        partition="long,short",
        account="group-1",
        learner_cpus=8,
        mem="64G",
        signal_seconds=120,
        sbatch=("--qos=long", "-C avx512"),
        venv="/opt/my venv/",
        setup=("module load python",),
    ),
}


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["slurm", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def directives(script: str) -> list[str]:
    """The options that sbatch reads: #SBATCH lines before the first command."""
    head = script.partition("\nrun=")[0]
    return re.findall(r"^#SBATCH (.*)$", head, re.MULTILINE)


def words_of(script: str, program: str) -> list[str]:
    """The words of the one line of the script that starts `program`, such as "seed learner"."""
    joined = script.replace("\\\n", " ")
    (line,) = [line.strip() for line in joined.splitlines() if f"{program} --" in line and not line.startswith("#")]
    return shlex.split(line[line.index(program) :])


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_valid_shell(name: str, tmp_path: Path) -> None:
    path = tmp_path / "job.sbatch"
    path.write_text(job_script(SCRIPTS[name]))
    subprocess.run(["bash", "-n", str(path)], check=True, timeout=10)
    # sbatch reads options only up to the first command.
    text = path.read_text().partition("END_OF_ACTORS")[0]
    commands = [number for number, line in enumerate(text.splitlines()) if line and not line.startswith("#")]
    options = [number for number, line in enumerate(text.splitlines()) if line.startswith("#SBATCH")]
    assert max(options) < commands[0]


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_passes_shellcheck(name: str, tmp_path: Path) -> None:
    path = tmp_path / "job.sbatch"
    path.write_text(job_script(SCRIPTS[name]))
    subprocess.run(["shellcheck", "--severity=warning", "--exclude=SC1090,SC1091", str(path)], check=True, timeout=30)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_equals_the_output_of_its_command(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = re.findall(r"^# Printed by: seed slurm (.*)$", path.read_text(), re.MULTILINE)
    assert printed(capsys, *shlex.split(line)) == (0, path.read_text(), "")


def test_there_are_examples_of_each_layout() -> None:
    assert [path.name for path in EXAMPLES] == [
        "array.sbatch", "cartpole.sbatch", "football.sbatch", "two_hosts.sbatch"
    ]  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_names_the_command_that_prints_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = job_script(SCRIPTS[name])
    said = command(SCRIPTS[name])
    assert f"# Printed by: {said}\n" in script
    assert printed(capsys, *shlex.split(said)[2:]) == (0, script, "")


def test_every_value_is_in_the_script() -> None:
    script = job_script(SCRIPTS["everything"])
    # 8 CPUs of a learner are 4 tasks of 2; with 3 actors 11 of them, on 3 nodes of 4.
    assert directives(script) == [
        "--job-name=cartpole_vtrace", "--output=%x-%j.log", "--nodes=3", "--ntasks-per-node=4", "--cpus-per-task=2",
        "--mem=64G", "--time=4:00:00", "--partition=long,short", "--account=group-1", "--requeue", "--open-mode=append",
        "--signal=TERM@120", "--qos=long", "-C avx512",
    ]  # fmt: skip
    learner = words_of(script, "seed learner")
    assert learner[2:8] == ["--preset", "cartpole_vtrace", "--steps", "1e6", "--seed", "7"]
    given = [learner[place + 1] for place, word in enumerate(learner) if word == "--set"]
    assert given == [*SCRIPTS["everything"].set, "actors.count=3", "actors.envs=8"]
    assert learner[learner.index("--logdir") :] == [
        "--logdir", "$SEED_RUN", "--continue", "--grpc-port", "0", "--zmq-port", "0", "--no-live", "&"
    ]  # fmt: skip


def learner_step(script: str) -> list[str]:
    """The options of srun for the learner's step."""
    (line,) = [line for line in script.replace("\\\n", " ").splitlines() if "--job-name=learner " in line]
    return shlex.split(line.partition("seed learner")[0])[1:]


def test_learner_hosts_are_tasks_of_one_step_on_separate_nodes() -> None:
    script = job_script(SCRIPTS["learner hosts"])
    # 4 CPUs of a learner are 2 tasks of 2; with 5 actors 9 of them, on 2 nodes of 5.
    assert directives(script)[2:6] == ["--nodes=2", "--ntasks-per-node=5", "--cpus-per-task=2", "--gpus-per-node=1"]
    assert learner_step(script) == [
        "--job-name=learner", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=4",
        "--gpus-per-node=1", "--output=$logs/learner-%j-%t.log",
    ]  # fmt: skip
    assert "--trust-network" in words_of(script, "seed learner")
    assert "TensorFlow's connections between the nodes are neither\n# encrypted nor authenticated" in script
    (actors,) = [line for line in script.splitlines() if "--job-name=actors" in line]
    assert "--ntasks=5" in actors and "--gpus-per-node=0" in actors


def test_the_job_of_an_array_has_a_node_for_each_learner_host() -> None:
    script = job_script(SCRIPTS["learner hosts and an array"])
    assert directives(script)[2:6] == ["--nodes=4", "--ntasks-per-node=1", "--cpus-per-task=4", "--mem=8G"]
    assert learner_step(script)[1:4] == ["--nodes=4", "--ntasks=4", "--ntasks-per-node=1"]


def test_a_single_learner_does_not_trust_the_network() -> None:
    script = job_script(SCRIPTS["one job"])
    assert "--trust-network" not in script
    assert learner_step(script) == [
        "--job-name=learner", "--nodes=1", "--ntasks=1", "--cpus-per-task=4", "--output=$logs/learner-%j.log"
    ]  # fmt: skip


def test_values_are_quoted_for_the_shell(tmp_path: Path) -> None:
    logdir = f'{tmp_path}/it\'s $(touch hacked) `touch hacked` }} "run"'
    script = job_script(Job(preset="cartpole_vtrace", actors=1, logdir=logdir))
    head = script.partition("\n# One actor.")[0]
    shown = subprocess.run(
        ["bash", "-c", head + '\nprintf %s "$SEED_RUN"'],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        timeout=10,
    )
    assert (shown.stdout, shown.stderr) == (logdir, "")
    assert (Path(logdir) / "slurm").is_dir() and not (tmp_path / "hacked").exists()


TOOLS = {
    "srun": """case "$*" in *--job-name=learner*) sleep 0.2; exit "$STATUS" ;; *) exec sleep 60 ;; esac""",
    "squeue": """case "$*" in *%j*) echo learner ;; *%T*) echo "$STATE" ;; esac""",
    "scontrol": """echo "scontrol $*" """,
}


def run_script(
    run: Path, status: int, *, job: Job = SCRIPTS["one job"], state: str = "RUNNING", seconds: int = 0
) -> str:
    """Run a job's script with fakes of SLURM's programs; returns its output. The learner ends with `status`, `seconds`
    after its start, while the job is in `state`."""
    run.mkdir(exist_ok=True)
    for name, text in TOOLS.items():
        (run / name).write_text(f"#!/bin/bash\n{text}\n")
        (run / name).chmod(0o755)
    (run / "job.sbatch").write_text(job_script(job))
    own = {"SLURM_JOB_ID": "7", "SEED_RUN": str(run), "STATUS": str(status), "STATE": state, "SECONDS": str(seconds)}
    with subprocess.Popen(
        ["bash", str(run / "job.sbatch")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"PATH": f"{run}:/usr/bin:/bin", **own},
        start_new_session=True,
    ) as process:
        try:
            assert process.wait(30) == status
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # the actors' step, which SLURM would end
        assert process.stdout is not None
        return process.stdout.read()


@pytest.mark.parametrize("status", [134, 137, 139, 143, 253])
def test_a_job_is_requeued_if_its_learner_is_stopped_or_dies(tmp_path: Path, status: int) -> None:
    assert run_script(tmp_path, status).endswith("scontrol requeue 7\n")
    assert "scontrol" not in run_script(tmp_path / "2", status, state="COMPLETING"), "SLURM decides"
    assert "scontrol" not in run_script(tmp_path / "3", status, job=SCRIPTS["not requeued"])


@pytest.mark.parametrize("status", [1, 2, 3, 4, 129, 130])
def test_a_job_is_not_requeued_if_its_learner_fails_or_is_interrupted(tmp_path: Path, status: int) -> None:
    assert "scontrol" not in run_script(tmp_path, status)


def test_a_job_is_requeued_a_limited_number_of_times_if_its_learner_dies_at_each_start(tmp_path: Path) -> None:
    for death in (1, 2, 3):
        assert f"after death {death} of 4, to resume from the checkpoint\nscontrol requeue" in run_script(tmp_path, 137)
    last = run_script(tmp_path, 139)
    assert "ended with status 139\nnot requeued: the learner has died 4 times in a row" in last
    assert "scontrol" not in last


def test_death_count_resets_after_an_hour_or_a_clean_stop(tmp_path: Path) -> None:
    run_script(tmp_path, 137)
    assert "after death 2 of 4" in run_script(tmp_path, 137)
    assert "after death 1 of 4" in run_script(tmp_path, 137, seconds=3600)
    run_script(tmp_path, 143, state="COMPLETING")  # preempted
    assert "after death 1 of 4" in run_script(tmp_path, 137)


def test_the_users_environment_does_not_change_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(preset="cartpole_vtrace", actors=1)
    before = job_script(job)
    monkeypatch.setenv("SEED_ACTORS__ENVS", "7")
    assert job_script(job) == before


@given(
    actors=st.integers(1, 60), nodes=st.integers(1, 61), cpus=st.integers(1, 9), learner=st.integers(1, 40),
    hosts=st.sampled_from([1, 2, 4]),
)  # fmt: skip
def test_learners_and_actors_fit_into_the_job(actors: int, nodes: int, cpus: int, learner: int, hosts: int) -> None:
    actors = max(actors, hosts)
    nodes = max(hosts, min(nodes, actors + hosts))
    script = job_script(
        Job(preset="cartpole_vtrace", actors=actors, envs=1, nodes=nodes, cpus_per_actor=cpus, learner_cpus=learner,
            learner_hosts=hosts, set=("actors.streams=1",))
    )  # fmt: skip
    asked = dict(option.split("=", 1) for option in directives(script) if "=" in option)
    per_node = int(asked["--ntasks-per-node"]) * cpus
    (learners,) = {int(found) for found in re.findall(r"--job-name=learner .*--cpus-per-task=(\d+)", script)}
    assert learners >= learner and learners % 2 == 0 and learners % cpus == 0
    assert learners <= per_node
    assert hosts * ((per_node - learners) // cpus) + (nodes - hosts) * (per_node // cpus) >= actors


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("90", 5400), ("1:30", 90), ("4:00:00", 14400), ("2-0", 172800), ("1-2:30", 95400), ("1-00:00:01", 86401)],
)
def test_time_limits(time: str, seconds: int) -> None:
    assert seconds_of(time) == seconds


@pytest.mark.parametrize("time", ["", "4h", "0", "1:2:3:4", "-5", "1-", "1-2:3:4:5", "infinite", "1.5", "00:00"])
def test_malformed_time_limits(time: str) -> None:
    with pytest.raises(UsageError, match="--time"):
        seconds_of(time)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--preset", "cartpol_vtrace"], "Did you mean cartpole_vtrace"),
        ([], "--preset"),
        (["--preset", "cartpole_vtrace", "--actors", "0"], "0"),
        (["--preset", "cartpole_vtrace", "--envs", "0"], "0"),
        (["--preset", "cartpole_vtrace", "--time", "4h"], "4h"),
        (["--preset", "cartpole_vtrace", "--time", "2"], "--signal-seconds 90"),
        (["--preset", "cartpole_vtrace", "--steps", "many"], "run.steps"),
        (["--preset", "cartpole_vtrace", "--set", "training.batch_sice=1"], "training.batch_size"),
        (["--preset", "atari_vtrace", "--env", "breakaut"], "breakout"),
        (["--preset", "cartpole_vtrace", "--actors", "999", "--envs", "9"], "inference.max_envs"),
        (["--preset", "cartpole_vtrace", "--mem", "lots"], "lots"),
        (["--preset", "cartpole_vtrace", "--partition", "a b"], "a b"),
        (["--preset", "cartpole_vtrace", "--account", "x;y"], "x;y"),
        (["--preset", "cartpole_vtrace", "--sbatch", "qos=long"], "qos=long"),
        (["--preset", "cartpole_vtrace", "--logdir", "a%j"], "a%j"),
        (["--preset", "cartpole_vtrace", "--logdir", "a\n#SBATCH --uid=0"], "one line"),
        (["--preset", "cartpole_vtrace", "--setup", "a\nb"], "one line"),
        (["--preset", "cartpole_vtrace", "--array", "--nodes", "2"], "--array"),
        (["--preset", "cartpole_vtrace", "--actor-mem", "2G"], "--array"),
        (["--preset", "cartpole_vtrace", "--actor-partition", "cpu"], "--array"),
        (["--preset", "cartpole_vtrace", "--gpus", "1", "--nodes", "2"], "--array"),
        (["--preset", "cartpole_vtrace", "--actors", "2", "--nodes", "4"], "at most 3"),
        (["--preset", "cartpole_vtrace", "--learner-hosts", "0"], "0"),
        (["--preset", "cartpole_vtrace", "--learner-hosts", "3", "--nodes", "2"], "at least 3"),
        (["--preset", "cartpole_vtrace", "--learner-hosts", "2", "--array", "--nodes", "2"], "--array"),
        (["--preset", "cartpole_vtrace", "--learner-hosts", "2", "--array", "--nodes", "1"], "at least 2"),
        (["--preset", "cartpole_vtrace", "--learner-hosts", "2", "--gpus", "1", "--nodes", "3"], "2 learner hosts"),
        (["--preset", "cartpole_vtrace", "--learner-hosts", "2", "--actors", "2", "--nodes", "5"], "at most 4"),
        (["--preset", "cartpole_vtrace", "--learner-hosts", "3", "--actors", "2"], "--learner-hosts 3"),
        (
            ["--preset", "cartpole_vtrace", "--learner-hosts", "2", "--set", "training.batch_size=7"],
            "training.batch_size = 7 must be a multiple of 2, the number of --learner-hosts",
        ),
        (["--preset", "cartpole_vtrace", "--learner-hosts", "2", "--set", "topology.platform=tpu"], "tpu"),
        (
            ["--preset", "football_vtrace", "--set", "topology.training_devices=5", "--gpus", "4"],
            "topology.training_devices = 5 is more than the 4 GPUs of the learner with --gpus 4",
        ),
        (
            ["--preset", "football_vtrace_8gpu", "--learner-hosts", "2", "--gpus", "2"],
            "= 4 is more than the 2 GPUs of each learner host with --gpus 2",
        ),
        (
            ["--preset", "football_vtrace", "--set", "topology.training_devices=3", "--gpus", "4"],
            "training.batch_size = 32 must be a multiple of 3",
        ),
        (
            [
                "--preset",
                "football_vtrace",
                "--learner-hosts",
                "4",
                "--set",
                "topology.training_devices=3",
                "--gpus",
                "4",
            ],
            "training.batch_size = 32 must be a multiple of 12, 3 training devices on each of 4 hosts",
        ),
        (["--preset", "football_vtrace_8gpu"], "--gpus is 0: give --gpus N"),
        (["--preset", "football_vtrace_tpu8", "--gpus", "1"], "finds none on the learner with --gpus 1"),
        (
            [
                "--preset",
                "cartpole_vtrace",
                "--set",
                "topology.platform=cpu",
                "--set",
                "topology.training_devices=2",
            ],
            "the 1 CPU of the learner",
        ),
        (
            [
                "--preset",
                "cartpole_vtrace",
                "--set",
                "topology.trust_network=true",
                "--set",
                "topology.hosts=['a:1', 'b:2']",
            ],
            "--learner-hosts",
        ),
    ],
)
def test_wrong_usage_is_refused_in_one_sentence(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = printed(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("seed: ") and err.count("\n") == 1 and said in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["football_vtrace_8gpu", "--gpus", "8"],
        ["football_vtrace_8gpu", "--gpus", "4"],  # all of them infer and train
        ["football_vtrace_8gpu", "--learner-hosts", "2", "--gpus", "8"],
        ["football_vtrace_8gpu", "--sbatch=--gres=gpu:a100:8"],
        ["football_vtrace_tpu8"],
        ["football_vtrace", "--set", "topology.training_devices=2"],  # only SLURM knows the devices of the node
    ],
)
def test_a_topology_that_may_fit_is_printed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = printed(capsys, "--preset", *arguments)
    assert (status, out[:12], err) == (0, "#!/bin/bash\n", "")
