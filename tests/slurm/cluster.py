"""A SLURM cluster of two nodes on this machine, with its own daemons, files and sockets."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

import seedcli
from tests.ports import reserve_ports
from tests.system.harness import LIMIT, checkpoints, wait_for

# More CPUs than the machine may have, so that jobs of several processes fit; config_overrides makes slurmd accept it.
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
FirstJobId={first_job}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=1000
SchedulerParameters=bf_interval=1,sched_interval=1
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
PreemptMode=REQUEUE
PreemptType=preempt/partition_prio
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8 RealMemory=20000 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8 RealMemory=20000 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=off
"""
_MARK = "PYTEST_SLURM_CLUSTER"  # environment variable that marks all processes of a job


def missing() -> str:
    """Why this machine cannot run a cluster; "" if it can."""
    absent = [name for name in ("slurmctld", "slurmd", "munged", "sbatch", "setpriv") if shutil.which(name) is None]
    if absent:
        return f"{', '.join(absent)} not installed (Debian: slurm-wlm, munge)"
    return "" if os.geteuid() == 0 else "starting SLURM needs root"


class Job:
    """A submitted job and its run."""

    def __init__(self, cluster: Cluster, number: str, run: Path) -> None:
        self.cluster, self.number, self.run = cluster, number, run

    def show(self) -> dict[str, str]:
        """SLURM's values of the job, such as JobState and ExitCode."""
        line = self.cluster.call("scontrol", "show", "job", "--oneliner", self.number)
        return dict(word.split("=", 1) for word in line.split() if "=" in word)

    @property
    def state(self) -> str:
        return self.show()["JobState"]

    @property
    def running_seconds(self) -> int:
        """Seconds since its last start."""
        hours, minutes, seconds = self.show()["RunTime"].split(":")
        return 3600 * int(hours) + 60 * int(minutes) + int(seconds)

    @property
    def array(self) -> str:
        """The number of its array of actors."""
        return (self.run / "slurm" / f"actors-of-{self.number}").read_text().strip()

    def wait_for_state(self, state: str) -> None:
        def reached() -> bool:
            time.sleep(0.2)  # each query starts a process
            now = self.state
            ended = now in {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}
            assert now == state or not ended, f"job {self.number} is {now}, not {state}:\n{self.logs()}"
            return now == state

        wait_for(reached, f"job {self.number} is {state}")

    def wait_for_checkpoint(self) -> int:
        """Wait for a checkpoint; returns the steps of the newest."""

        def newest() -> int:
            assert self.state in {"PENDING", "RUNNING"}, self.logs()
            return max(checkpoints(self.run), default=0)

        return wait_for(newest, f"job {self.number} writes a checkpoint")

    def start_now(self, **values: str) -> None:
        """Start a requeued job, which would wait two minutes; sets further values of the job."""
        self.wait_for_state("PENDING")
        wait_for(lambda: not self.cluster.steps(self.number), f"the end of all steps of job {self.number}")
        # SLURM counts in seconds: a job that starts in the second in which its last run ended has a revoked credential.
        updates = [f"{name}={value}" for name, value in {"StartTime": "now+3", **values}.items()]
        self.cluster.call("scontrol", "update", f"JobId={self.number}", *updates)

    def wait_until_gone(self, limit: float = LIMIT) -> None:
        """Wait until none of its processes is left; the error names those that are."""
        try:
            wait_for(lambda: not self.cluster.processes(self.run), "the end of the job's processes", limit)
        except AssertionError as error:
            left = [p.as_dict(["pid", "ppid", "status", "cmdline", "cwd"]) for p in self.cluster.processes(self.run)]
            raise AssertionError(f"{error}: {left}\n{self.logs()}") from None

    def log(self, name: str) -> str:
        """The log of a process, e.g. "learner-4" or "actor-4-0"."""
        return (self.run / "slurm" / f"{name}.log").read_text()

    def logs(self) -> str:
        """The logs of all processes and of the job, for messages of failed tests."""
        files = [*self.run.glob("slurm/*"), *self.cluster.work.glob(f"*-{self.number}.log")]
        return "\n".join(f"--- {file}\n{file.read_text()}" for file in files)


class Cluster:
    """A cluster of two nodes and two partitions: jobs in `high` preempt those in `low`, the default.

    Args:
        folder: of all files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work = folder / "work"
        self.home = folder / "home"
        self._mark = secrets.token_hex(8)
        self._daemons: list[subprocess.Popen[bytes]] = []
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("SEED_", "SLURM", "XDG_"))}
        self._environ = environ | {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "HOME": str(self.home),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(seedcli.__file__).parent.parent),
            _MARK: self._mark,
        }

    def start(self) -> None:
        """Start the daemons and wait until both nodes accept jobs."""
        for name in ("work", "home", "state"):
            (self.folder / name).mkdir()
        host, ports = socket.gethostname().partition(".")[0], reserve_ports(3)
        # Random: steps that a killed run of the tests left alive must not be taken for those of a job with the same
        # number, nor take the ports that such a job would choose.
        first_job = 1 + secrets.randbelow(10_000_000)
        values = {"host": host, "folder": self.folder, "ports": ports, "first_job": first_job}
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(**values))
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        munge = [f"--{option}={self.folder}/munge.{suffix}" for option, suffix in files.items()]
        self._daemon("munged", "--foreground", "--force", *munge)
        wait_for((self.folder / "munge.socket").exists, "munged listens", 20)
        self._daemon("slurmctld", "-D", "-c")
        for node in ("n1", "n2"):
            self._daemon("slurmd", "-D", "-N", node)
        wait_for(self._idle, "both nodes are idle", 60)

    def _daemon(self, *command: str) -> None:
        with (self.folder / "daemons.log").open("ab") as log:
            # The kernel kills it if the tests are killed.
            self._daemons.append(
                subprocess.Popen(
                    ["setpriv", "--pdeathsig", "KILL", *command], stdout=log, stderr=log, env=self._environ
                )
            )

    def _idle(self) -> bool:
        for daemon in self._daemons:
            assert daemon.poll() is None, (self.folder / "daemons.log").read_text()
        shown = subprocess.run(
            ["sinfo", "--noheader", "--Node", "--partition=low", "--format=%T"],
            capture_output=True,
            text=True,
            env=self._environ,
        )
        return shown.stdout.split() == ["idle", "idle"]

    def call(self, *command: str, **environ: str) -> str:
        """Run a command of SLURM; returns its output."""
        done = subprocess.run(
            command, capture_output=True, text=True, env=self._environ | environ, cwd=self.work, timeout=60
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def submit(self, script: Path, run: Path, environ: Mapping[str, str] | None = None) -> Job:
        """Submit a script with its run in the folder `run`."""
        number = self.call("sbatch", "--parsable", str(script), **(environ or {}), SEED_RUN=str(run)).strip()
        return Job(self, number, run)

    def processes(self, run: Path) -> list[psutil.Process]:
        """All live processes that jobs of this run have started."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                environ = process.environ()
                ours = environ.get(_MARK) == self._mark and environ.get("SEED_RUN") == str(run)
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def steps(self, number: str) -> list[psutil.Process]:
        """The processes that manage a job's steps. One of an earlier start may still report the end of its step, which
        would count as the end of a restarted job."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.cmdline()[:1] and process.cmdline()[0].startswith(f"slurmstepd: [{number}."):
                    found.append(process)
        return found

    def is_empty(self) -> bool:
        """Whether no job is queued, running or ending."""
        return not self.call("squeue", "--noheader").strip()

    def stop(self) -> None:
        """End all jobs, then the daemons, then any process left."""
        try:
            if all(daemon.poll() is None for daemon in self._daemons):
                self.call("scancel", "--full", "--signal=KILL", "--user=root")
                self.call("scancel", "--user=root")
                wait_for(self.is_empty, "the end of all jobs", 60)
        finally:
            for daemon in reversed(self._daemons):
                daemon.send_signal(signal.SIGTERM)
            for daemon in self._daemons:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    daemon.wait(20)
                daemon.kill()
                daemon.wait()
            for process in psutil.process_iter():
                with contextlib.suppress(psutil.Error):
                    if process.environ().get(_MARK) == self._mark:
                        process.kill()


@contextlib.contextmanager
def cluster_in(folder: Path) -> Iterator[Cluster]:
    """A cluster that is stopped at the end."""
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
