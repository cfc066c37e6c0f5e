"""`seed train`: a learner in this process and its actors as child processes, on this machine."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from seedcli.config.schema import Config
from seedcli.config.sources import Resolved, set_for_listeners
from seedcli.envs.scratch import remove_unused_folders
from seedcli.errors import EXIT_FAILED, EXIT_REFUSED, EXIT_USAGE, RefusedError, SeedError, UsageError
from seedcli.net.security.keys import Security
from seedcli.net.security.token import VARIABLE, Token, new_token
from seedcli.net.transports import transport_of
from seedcli.roles.learner.setup import Setup
from seedcli.roles.learner.supervise import supervise, use_devices
from seedcli.roles.learner.threads import Learner
from seedcli.roles.restarts import FAILURE_MEMORY_SECONDS
from seedcli.roles.resuming import mode_note
from seedcli.roles.run_folder import RunFolder
from seedcli.telemetry.exporter import open_exporter
from seedcli.telemetry.live import View, make_view
from seedcli.telemetry.logs import setup_logging
from seedcli.telemetry.numbers import counted

_log = logging.getLogger(__name__)

_FAILURES = 2  # times an actor may exit with status 1, each within an hour of the one before
_RESTARTS = 8  # quick deaths in a row of one actor; the pause before each restart doubles
_QUICK_SECONDS = 15.0  # an actor that dies earlier than this counts as a quick death
_LEAVE_SECONDS = 2.0  # for actors to exit by themselves after training
_EXIT_SECONDS = 10.0  # for actors to exit after SIGTERM, before SIGKILL


@dataclass
class _Child:
    index: int
    process: subprocess.Popen[str]
    started: float
    log: Path
    restarts: int = 0
    failures: int = 0
    restart_at: float = 0.0


class ActorProcesses:
    """The actors of a local run: started, restarted when they die, and ended with the run.

    Args:
        config: sets the number of actors and environments.
        address: the learner's address.
        logs: folder for their standard error.
        token: of this run only; "" without encryption.
    """

    def __init__(self, config: Config, address: str, logs: Path, token: str = "") -> None:
        self._config = config
        self._address = address
        self._logs = logs
        # Not on the command line, which every user of the machine can read.
        self._environ = os.environ | ({VARIABLE: token} if token else {})
        self._children: list[_Child] = []
        self._has_stepped: Callable[[], bool] = lambda: False

    def start(self, has_stepped: Callable[[], bool]) -> None:
        """Start all of them.

        Args:
            has_stepped: whether the run has taken a step; until then its folder may be removed.
        """
        self._has_stepped = has_stepped
        self._logs.mkdir(parents=True, exist_ok=True)
        for index in range(self._config.actors.count):
            log = self._logs / f"actor-{index}.log"
            self._children.append(_Child(index, self._spawn(index, log), time.monotonic(), log))

    def _spawn(self, index: int, log: Path) -> subprocess.Popen[str]:
        actors = self._config.actors
        command = [sys.executable, "-m", "seedcli", "actor", "--connect", self._address]
        command += ["--envs", str(actors.envs), "--streams", str(actors.streams)]
        command += ["--actor-id", f"local-{index}", "--parent", str(os.getpid()), "--json"]
        command += ["--threads", str(max(1, (os.cpu_count() or 1) // actors.count))]
        error: IO[str]
        with log.open("a") as error:
            # In its own session: Ctrl-C reaches only the learner, which then stops its actors in order.
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=error,
                text=True,
                env=self._environ,
                start_new_session=True,
            )

    def tick(self) -> None:
        """Restart actors that died.

        Raises:
            SeedError: an actor cannot run (with the actor's own message), or keeps failing.
        """
        now = time.monotonic()
        for child in self._children:
            status = child.process.poll()
            if status is None:
                continue
            if not child.restart_at:
                self._plan_restart(child, status, now)
            elif now >= child.restart_at:
                child.process = self._spawn(child.index, child.log)
                child.started, child.restart_at = now, 0.0

    def _plan_restart(self, child: _Child, status: int, now: float) -> None:
        sentence = self._last_line(child.log)
        if status in (EXIT_USAGE, EXIT_REFUSED):
            raise UsageError(sentence) if status == EXIT_USAGE else RefusedError(sentence)
        quick = now - child.started < _QUICK_SECONDS
        child.restarts = child.restarts + 1 if quick else 0
        if status == EXIT_FAILED:
            # The actor has already rebuilt its environments `environment.restarts` times.
            child.failures = child.failures + 1 if now - child.started < FAILURE_MEMORY_SECONDS else 1
        if child.failures > _FAILURES or child.restarts > _RESTARTS:
            see = f"; see {child.log}" if self._has_stepped() else ""
            raise SeedError(f"actor {child.index} keeps failing (exit status {status}){see}: {sentence}")
        pause = min(10.0, 0.2 * 2**child.restarts)
        child.restart_at = now + pause
        _log.warning("actor %d ended with exit status %d; restarting it in %.1f s", child.index, status, pause)

    @staticmethod
    def _last_line(log: Path) -> str:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1].removeprefix("seed: ") if lines else "it left no message"

    def _all_ended_by(self, deadline: float) -> bool:
        """Whether all actors have ended by then (monotonic seconds)."""
        for child in self._children:
            try:
                child.process.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                return False
        return True

    def end(self) -> dict[str, dict[str, float]]:
        """Wait for the actors to exit and terminate those that do not; returns their time profiles."""
        deadline = time.monotonic() + _EXIT_SECONDS
        profiles: dict[str, dict[str, float]] = {}
        if not self._all_ended_by(time.monotonic() + _LEAVE_SECONDS):
            for child in self._children:
                if child.process.poll() is None:
                    child.process.terminate()
        for child in self._children:
            out = self._end_and_read(child.process, max(0.1, deadline - time.monotonic()))
            with contextlib.suppress(ValueError, KeyError, TypeError):
                profiles[f"actor {child.index}"] = json.loads(out)["profile"]
        return profiles

    @staticmethod
    def _end_and_read(process: subprocess.Popen[str], seconds: float) -> str:
        """End an actor and every process its simulators started; returns its output."""
        try:
            out, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            out = ""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # it leads its own session
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        return out


def schedule_as_batch() -> None:
    """Keep threads of this process and its children from preempting each other when they wake up (SCHED_BATCH).

    Learner and actors wake each other thousands of times a second. On few cores Linux would often preempt the waking
    thread to run the woken one on the same core, although another core is about to become free; see
    docs/performance.md. A policy that was set with chrt is kept.
    """
    if os.sched_getscheduler(0) == os.SCHED_OTHER:
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def run_train(resolved: Resolved, folder: RunFolder, *, live: bool, profile: bool = False) -> int:
    """`seed train`: train on this machine until run.steps are taken, deterministically if run.deterministic is set.

    Args:
        resolved: the configuration with its sources.
        folder: the run's folder, locked; the run is not finished.
        live: show a live view.
        profile: print the time profile at the end.

    Returns:
        0 when done, 143 or 130 after a signal; either way a checkpoint is written.
    """
    schedule_as_batch()
    deterministic = resolved.config.run.deterministic
    # First, so that a port in use leaves the folder untouched.
    exporter = None if deterministic else open_exporter(resolved.config.net)
    view = make_view(live and not deterministic, profile=profile)
    setup_logging(folder.log_path, view, debug=False)
    if note := mode_note(resolved, folder):
        _log.info("%s", note)
    if deterministic:
        from seedcli.roles.serial import run_serial

        return run_serial(resolved, folder, view)
    config = resolved.config
    for value in set_for_listeners(resolved):
        _log.warning("%s (from %s) has no effect: seed train listens on this machine only", value.key, value.source)
    # Socket paths are limited to about 100 bytes, so the socket does not live in the run folder.
    sockets = Path(tempfile.mkdtemp(prefix="seed-"))
    actors: ActorProcesses | None = None
    try:
        token = new_token()
        # Not reachable from other machines, nor by other users of this one.
        security = Security(Token(token, "this run"))
        transport = transport_of(config.net.transport).listen_here(sockets, security, config.net.timeout_seconds)
        actors = ActorProcesses(config, transport.address, folder.actor_logs, token)

        def announce(learner: Learner, view: View) -> None:
            envs = counted(config.actors.envs, "environment")
            each = " each" if config.actors.count > 1 else ""
            view.log(f"starting {counted(config.actors.count, 'actor')} with {envs}{each}")
            assert actors is not None
            actors.start(lambda: learner.has_stepped)

        setup = Setup(
            resolved,
            [transport],
            view,
            exporter=exporter,
            announce=announce,
            tick=actors.tick,
            closing=actors.end,
            resumed_with="seed train",
        )
        return supervise(setup, folder, use_devices(config))
    finally:
        if actors is not None:
            actors.end()
        shutil.rmtree(sockets, ignore_errors=True)
        remove_unused_folders()  # of simulators whose actor had to be killed
