"""Real processes of `seed`: started, observed through their output, and ended with the test."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

import seedcli

# Generous, because a busy machine takes half a minute to import TensorFlow.
LIMIT = 150.0

COUNTER = "seedcli.envs.testing:Counter-v0"
# A run that takes seconds: tiny network, short unrolls, many lines of metrics, many checkpoints.
TINY = (
    "agent.network.hidden=[8]",
    "training.unroll_length=8",
    "training.batch_size=8",
    "training.checkpoint_seconds=1",
    "telemetry.interval_seconds=0.2",
    "telemetry.loggers=[]",
    "net.heartbeat_seconds=0.5",
)
TINY_TOML = "\n".join(TINY)  # the same values as lines of a TOML table
# On Linux the kernel kills a process when its tests are killed: a run of 10¹² steps would never end.
_START = """
import ctypes, os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup of the tests must not reach their processes
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
os.execv(sys.executable, [sys.executable, "-m", *sys.argv[1:]])
"""
_MARK = "PYTEST_SEED_SESSION"  # environment variable that marks all processes of a fleet

T = TypeVar("T")


def wait_for(condition: Callable[[], T], what: str, limit: float = LIMIT) -> T:
    """Wait until `condition` returns a true value; returns it."""
    deadline = time.monotonic() + limit
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {limit:.0f} s: {what}"
        time.sleep(0.05)
    return value


def sets(*values: str) -> list[str]:
    """Put `--set` before each value."""
    return [part for value in values for part in ("--set", value)]


def counting(pause: float = 0.0) -> list[str]:
    """Values for a run of `Counter`, with at least `pause` seconds per environment step."""
    return ["environment.family=gymnasium", f"environment.id={COUNTER}", f"environment.kwargs={{ pause = {pause} }}"]


def metrics(run: Path) -> list[dict[str, Any]]:
    """The complete lines of a run's metrics.jsonl."""
    path = run / "metrics.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def last(run: Path, name: str) -> Any:
    """The newest value of a metric; 0 before there is one."""
    lines = metrics(run)
    return (lines[-1][name] or 0) if lines else 0


def checkpoints(run: Path) -> list[int]:
    """Environment steps of a run's complete checkpoints, in order."""
    return sorted(int(path.parent.name) for path in (run / "checkpoints").glob("[0-9]*/COMPLETE"))


class Process:
    """One `seed` process in its own session, with its output in files.

    Args:
        arguments: of the command line.
        folder: working folder, also for the output files.
        mark: of its fleet.
        environ: added to the environment.
        module: to run with `python -m`.
        prefix: put before Python's command.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        mark: str,
        *,
        environ: Mapping[str, str] | None = None,
        module: str = "seedcli",
        prefix: Sequence[str] = (),
    ) -> None:
        self.arguments = list(arguments)
        number = len(list(folder.glob("*.out")))
        self._out, self._err = folder / f"{number}.out", folder / f"{number}.err"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SEED_")}
        own = {"PYTHONPATH": str(Path(seedcli.__file__).parent.parent), _MARK: mark}
        own["XDG_CONFIG_HOME"] = str(folder / "config")  # holds the token of this fleet
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.popen = subprocess.Popen(
                [*prefix, sys.executable, "-c", _START, module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=inherited | own | dict(environ or {}),
                cwd=folder,
                start_new_session=True,
            )
        self.pid = self.popen.pid
        self.killed = False

    @property
    def stdout(self) -> str:
        return self._out.read_text()

    @property
    def stderr(self) -> str:
        return self._err.read_text()

    @property
    def running(self) -> bool:
        return self.popen.poll() is None

    @property
    def sentence(self) -> str:
        """The last line of stderr, which must be an error; there must be no traceback."""
        assert "Traceback" not in self.stderr, self.stderr
        lines = [line for line in self.stderr.splitlines() if line.strip()]
        assert lines and lines[-1].startswith("seed: "), self.stderr
        return lines[-1]

    def children(self) -> list[psutil.Process]:
        """All its descendants."""
        return psutil.Process(self.pid).children(recursive=True)

    def actors(self) -> list[psutil.Process]:
        """Its children, the actors."""
        return psutil.Process(self.pid).children()

    def send(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def wait(self, limit: float = LIMIT) -> int:
        """Wait for its end; returns the exit status."""
        try:
            return self.popen.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"seed {' '.join(self.arguments)} still runs after {limit:.0f} s; its stderr:\n{self.stderr}"
            ) from None

    def ends_with(self, status: int, limit: float = LIMIT) -> None:
        """Wait for its end and check the exit status."""
        ended = self.wait(limit)
        assert ended == status, f"seed {' '.join(self.arguments)} ended with {ended}, not {status}:\n{self.stderr}"

    def kill(self) -> None:
        """Kill it and its process group."""
        self.killed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.popen.wait(LIMIT)


class Learner(Process):
    """A `seed learner` on free ports."""

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses that it prints, by transport."""
        found = re.findall(r"seed actor --connect (\S+) --envs \d+", self.stderr)
        return {"zmq" if address.startswith("zmq://") else "grpc": address for address in found}

    def wait_until_it_serves(self) -> dict[str, str]:
        def serves() -> bool:
            assert self.running, self.stderr
            return len(self.addresses) == 2

        wait_for(serves, "the learner prints its addresses")
        return self.addresses


class Fleet:
    """The processes of one test.

    Attributes:
        folder: working folder of all.
        environ: added to the environment of processes started later.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ: dict[str, str] = {}
        self._mark = uuid.uuid4().hex
        self._processes: list[Process] = []

    def start(self, *arguments: str, module: str = "seedcli", prefix: Sequence[str] = ()) -> Process:
        """Start `seed`, or another module, with these arguments."""
        process = Process(arguments, self.folder, self._mark, environ=self.environ, module=module, prefix=prefix)
        self._processes.append(process)
        return process

    def learner(
        self, *arguments: str, ports: Sequence[int] = (0, 0), module: str = "seedcli", prefix: Sequence[str] = ()
    ) -> Learner:
        """Start a `seed learner` on the given ports (gRPC, ZeroMQ); 0: any free port."""
        grpc_port, zmq_port = map(str, ports)
        process = Learner(
            ["learner", *arguments, "--grpc-port", grpc_port, "--zmq-port", zmq_port],
            self.folder,
            self._mark,
            environ=self.environ,
            module=module,
            prefix=prefix,
        )
        self._processes.append(process)
        return process

    def actor(self, address: str, *arguments: str) -> Process:
        """Start a `seed actor`."""
        return self.start("actor", "--connect", address, *arguments)

    def check(self) -> None:
        """Check that no process has failed."""
        for process in self._processes:
            if not process.killed and process.popen.poll():
                raise AssertionError(f"seed {' '.join(process.arguments)} failed:\n{process.stderr}")

    def marked(self) -> list[psutil.Process]:
        """All live processes of this fleet, including descendants."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(_MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def close(self) -> None:
        """Kill all processes; check that no descendant outlives them."""
        for process in self._processes:
            process.kill()
        try:
            wait_for(lambda: not self.marked(), "the end of every process that was started", limit=15)
        finally:
            orphans = self.marked()
            for orphan in orphans:
                with contextlib.suppress(psutil.Error):
                    orphan.kill()


@contextlib.contextmanager
def fleet_in(folder: Path) -> Iterator[Fleet]:
    """A fleet that is closed at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    fleet = Fleet(folder)
    try:
        yield fleet
    finally:
        fleet.close()
