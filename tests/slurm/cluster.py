"""A SLURM of two nodes on this machine: its daemons, its files and its sockets belong to the test alone."""

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
from tests.system.harness import checkpoints, wait_for

# More CPUs than the machine may have, so that a job of several processes fits: config_overrides has slurmd accept it.
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
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
_MARK = "PYTEST_SLURM_CLUSTER"  # inherited by what a job starts, so that it is found again


def missing() -> str:
    """Why there can be no cluster here; empty if there can."""
    absent = [name for name in ("slurmctld", "slurmd", "munged", "sbatch", "setpriv") if shutil.which(name) is None]
    if absent:
        return f"{', '.join(absent)} not installed (Debian: slurm-wlm, munge)"
    return "" if os.geteuid() == 0 else "a SLURM of one's own needs root"


class Job:
    """A job that was submitted, with the run it trains."""

    def __init__(self, cluster: Cluster, number: str, run: Path) -> None:
        self.cluster, self.number, self.run = cluster, number, run

    def show(self) -> dict[str, str]:
        """What SLURM says of it, such as JobState and ExitCode."""
        line = self.cluster.call("scontrol", "show", "job", "--oneliner", self.number)
        return dict(word.split("=", 1) for word in line.split() if "=" in word)

    @property
    def state(self) -> str:
        return self.show()["JobState"]

    @property
    def running_seconds(self) -> int:
        """How long it has run since it was last started."""
        hours, minutes, seconds = self.show()["RunTime"].split(":")
        return 3600 * int(hours) + 60 * int(minutes) + int(seconds)

    @property
    def array(self) -> str:
        """The number of its array of actors."""
        return (self.run / "slurm" / f"actors-of-{self.number}").read_text().strip()

    def wait_for_state(self, state: str) -> None:
        def reached() -> bool:
            time.sleep(0.2)  # each question starts a process
            now = self.state
            ended = now in {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}
            assert now == state or not ended, f"job {self.number} is {now}, not {state}:\n{self.logs()}"
            return now == state

        wait_for(reached, f"job {self.number} is {state}")

    def wait_for_checkpoint(self) -> int:
        """Steps of its newest checkpoint, once there is one."""

        def newest() -> int:
            assert self.state in {"PENDING", "RUNNING"}, self.logs()
            return max(checkpoints(self.run), default=0)

        return wait_for(newest, f"job {self.number} writes a checkpoint")

    def start_now(self, **values: str) -> None:
        """Queued again, it would wait two minutes; further values of the job are set too."""
        self.wait_for_state("PENDING")
        wait_for(lambda: not self.cluster.steps(self.number), f"the end of all steps of job {self.number}")
        # SLURM counts in seconds: a start in the one in which the last run ended finds its credential revoked.
        updates = [f"{name}={value}" for name, value in {"StartTime": "now+3", **values}.items()]
        self.cluster.call("scontrol", "update", f"JobId={self.number}", *updates)

    def log(self, name: str) -> str:
        """One of its processes' logs, "learner-4" or "actor-4-0"."""
        return (self.run / "slurm" / f"{name}.log").read_text()

    def logs(self) -> str:
        """All of them, and its own, for messages of failed tests."""
        files = [*self.run.glob("slurm/*"), *self.cluster.work.glob(f"*-{self.number}.log")]
        return "\n".join(f"--- {file}\n{file.read_text()}" for file in files)


class Cluster:
    """Two nodes, two partitions: jobs of `high` push those of `low`, the default, back into the queue.

    Args:
        folder: for everything that is written.
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
        """Start its daemons and wait until both nodes take jobs."""
        for name in ("work", "home", "state"):
            (self.folder / name).mkdir()
        (self.folder / "slurm.conf").write_text(
            CONFIGURATION.format(host=socket.gethostname().partition(".")[0], folder=self.folder, ports=_free_ports(3))
        )
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
            # The kernel kills it should the tests be killed.
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
        """Run a command of SLURM and return what it prints."""
        done = subprocess.run(
            command, capture_output=True, text=True, env=self._environ | environ, cwd=self.work, timeout=60
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def submit(self, script: Path, run: Path, environ: Mapping[str, str] | None = None) -> Job:
        """Submit a script whose run is in the folder `run`."""
        number = self.call("sbatch", "--parsable", str(script), **(environ or {}), SEED_RUN=str(run)).strip()
        return Job(self, number, run)

    def processes(self, run: Path) -> list[psutil.Process]:
        """Every process that jobs of this run have started and that still lives."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                environ = process.environ()
                ours = environ.get(_MARK) == self._mark and environ.get("SEED_RUN") == str(run)
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def steps(self, number: str) -> list[psutil.Process]:
        """The processes that watch over a job's steps. The end of a job that has just been started again may still
        come from one of an earlier start, and would count as the new one's."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.cmdline()[:1] and process.cmdline()[0].startswith(f"slurmstepd: [{number}."):
                    found.append(process)
        return found

    def is_empty(self) -> bool:
        """Whether no job is queued, runs or is just ending."""
        return not self.call("squeue", "--noheader").strip()

    def stop(self) -> None:
        """End all jobs and then the daemons; nothing outlives this."""
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
    """A cluster that is gone in the end."""
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in sockets]
