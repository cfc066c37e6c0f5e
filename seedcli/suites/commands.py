"""Commands of `seed` that run at the same time and are stopped together."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from seedcli.errors import SeedError
from seedcli.roles.child_process import STOPPED, error_sentence, seed_command

_STOP_SECONDS = 60.0  # for a checkpoint to be written after an interrupt, before a child is killed
_TAIL = 20_000  # bytes at the end of a log that are searched for the error message


class Interrupted(Exception):
    """A command was stopped by a signal."""


class Commands:
    """The commands that run now; any thread may run one.

    Attributes:
        stopping: set by `stop`.
    """

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()

    def run(self, arguments: Sequence[str], log: Path) -> str:
        """Run `seed` with these arguments and wait for its end.

        Args:
            arguments: a command and its options.
            log: its stderr is appended to this file, after a line with the command.

        Returns:
            Its stdout.

        Raises:
            Interrupted: it was stopped by a signal, or `stop` was called before.
            SeedError: it failed, with its own sentence.
        """
        # Configurations depend only on the suite, so variables such as SEED_TRAINING__BATCH_SIZE are not passed on.
        environ = {name: value for name, value in os.environ.items() if not (name.startswith("SEED_") and "__" in name)}
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab", buffering=0) as file:
            file.write(f"$ seed {' '.join(arguments)}\n".encode())
            begin = file.tell()
            with self._lock:
                if self.stopping.is_set():
                    raise Interrupted
                process = subprocess.Popen(
                    seed_command(arguments),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=file,
                    env=environ,
                    start_new_session=True,  # Ctrl-C reaches only this process, which then stops its children in order
                )
                self._running.add(process)
            try:
                out = process.communicate()[0].decode(errors="replace")
            finally:
                with self._lock:
                    self._running.discard(process)
            file.write(out.encode())
        if process.returncode in STOPPED or (self.stopping.is_set() and process.returncode):
            raise Interrupted
        if process.returncode < 0:
            raise SeedError(f"seed {arguments[0]} was ended by {signal.Signals(-process.returncode).name}")
        if process.returncode:
            raise SeedError(error_sentence(_tail(log, begin)))
        return out

    def stop(self) -> None:
        """Ask all commands to stop (SIGTERM); kill those that take longer than a minute. Later ones do not start."""
        with self._lock:
            self.stopping.set()
            running = list(self._running)
            for process in running:
                process.terminate()
        killer = threading.Timer(_STOP_SECONDS, _kill, [running])
        killer.daemon = True
        killer.start()


def _kill(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()


def _tail(log: Path, begin: int) -> list[str]:
    with log.open("rb") as file:
        file.seek(max(begin, log.stat().st_size - _TAIL))
        return file.read().decode(errors="replace").splitlines()
