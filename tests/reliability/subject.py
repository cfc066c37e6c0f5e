"""The learner under test, which trains with an actor and serves both ports, and its measurements.

All measurements are taken from outside: from the kernel (memory, descriptors, threads) and the run's metrics.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from seedcli.net.security.keys import Security
from seedcli.net.security.token import Token, new_token
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec, RowLayout
from tests.system.harness import COUNTER, TINY, Fleet, Learner, Process, counting, last, metrics, sets, wait_for

ENVS = 8  # environments of the actor
LOG_BYTES_A_SECOND = 4096  # bound on the log of a learner under attack
_LIMIT = 60.0
# No periodic checkpoints, so that measurements show only the cost of peers.
_VALUES = (*TINY, "training.checkpoint_seconds=3600")
SPEC = EnvSpec(f"gymnasium/{COUNTER}", ArraySpec((4,), "float32"), ActionSpec((4,)))
LAYOUT = RowLayout(SPEC, 1)


@dataclass(frozen=True)
class Reading:
    """The learner at one time: memory in MB, CPU seconds so far, environment steps so far at `steps_at` (s)."""

    time: float
    memory: float
    descriptors: int
    threads: int
    cpu: float
    steps: int
    steps_at: float

    def steps_per_second(self, earlier: Reading) -> float:
        return (self.steps - earlier.steps) / max(self.steps_at - earlier.steps_at, 1e-9)


class Subject:
    """A learner and an actor, training.

    Args:
        fleet: of the processes.
        pause: minimum seconds of a step of the actor; 0 uses all of the CPU.
        values: further values of the configuration.
        transport: of the actor; "shm": `seed train` with its own actor.
        prefix: put before the learner's command.
        folder: of the run, within the fleet's.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        pause: float = 0.002,
        values: Sequence[str] = (),
        transport: str = "zmq",
        prefix: Sequence[str] = (),
        folder: str = "run",
    ) -> None:
        token = new_token()
        fleet.environ["SEED_TOKEN"] = token
        self.security = Security(Token(token, "SEED_TOKEN"))
        self.run: Path = fleet.folder / folder
        self._fleet = fleet
        options = ["--preset", "cartpole_vtrace", "--steps", str(10**12), "--logdir", folder]
        options += sets(*_VALUES, *counting(pause), *values)
        self.addresses: dict[str, str] = {}
        self.actor: Process | None = None
        self.learner: Process
        if transport == "shm":
            fleet_options = ("--set", "actors.count=1", "--set", f"actors.envs={ENVS}", "--set", "net.transport=shm")
            self.learner = fleet.start("train", *options, *fleet_options, prefix=prefix)
            wait_for(self._serves_memory, "seed train starts its actor", _LIMIT)
        else:
            learner: Learner = fleet.learner(*options, prefix=prefix)
            self.learner = learner
            # The loopback address: the test is of the learner, not of the network.
            self.addresses = {
                name: f"{'zmq://' if name == 'zmq' else ''}127.0.0.1:{address.rpartition(':')[2]}"
                for name, address in learner.wait_until_it_serves().items()
            }
            self.actor = fleet.actor(self.addresses[transport], "--envs", str(ENVS))
        wait_for(lambda: last(self.run, "learner_updates") > 0, "training begins", _LIMIT)
        self._process = psutil.Process(self.learner.pid)
        self._log_bytes = self._log.stat().st_size
        self._begun = time.monotonic()

    @property
    def _log(self) -> Path:
        return self.run / "learner.log"

    def _serves_memory(self) -> bool:
        assert self.learner.running, self.learner.stderr
        for child in self.learner.actors():
            for argument in child.cmdline():
                if argument.startswith("shm://"):
                    self.addresses["shm"] = argument
        return "shm" in self.addresses

    def read(self) -> Reading:
        """Take a reading."""
        lines = metrics(self.run)
        with self._process.oneshot():
            cpu = self._process.cpu_times()
            return Reading(
                time=time.monotonic(),
                memory=self._process.memory_info().rss / 2**20,
                descriptors=self._process.num_fds(),
                threads=self._process.num_threads(),
                cpu=cpu.user + cpu.system,
                steps=int(lines[-1]["env_steps"]),
                steps_at=float(lines[-1]["time"]),
            )

    def metric(self, name: str) -> Any:
        """The newest value of a metric."""
        return last(self.run, name)

    def failures(self, joined: int = 0) -> list[str]:
        """The failures so far, one sentence each; `joined` other actors may each have logged a line."""
        found = []
        if not self.learner.running:
            found.append(f"the learner has ended: {self.learner.stderr[-500:]}")
        if "Traceback" in self.learner.stderr or "Traceback" in self._log.read_text():
            found.append("there is a traceback in the learner's log")
        if self.actor is not None and not self.actor.running:
            found.append(f"the actor has ended: {self.actor.stderr[-500:]}")
        if self.actor is not None and "trying again" in self.actor.stderr:
            found.append("the actor has lost its connection")
        written = self._log.stat().st_size - self._log_bytes
        allowed = LOG_BYTES_A_SECOND * (1 + time.monotonic() - self._begun) + 200 * joined
        if written > allowed:
            found.append(f"the learner's log grew by {written} bytes, more than the bound of {allowed:.0f}")
        return found
