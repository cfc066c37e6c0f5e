"""Detects environments that hang: with a thread, and with a process for hangs that block all threads.

A simulator may hang while it holds the GIL (DeepMind Lab holds it in every call). Then no thread of this process runs,
and only another process can end it. TensorFlow also holds the GIL while it connects learner hosts.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from seedcli.roles.stopping import stop_signals

_TICK_SECONDS = 1.0
_SIGNAL_SECONDS = 5.0  # how long a call may continue after a stop signal

# The guard process: each write of the watchdog thread resets its timeout. Time in which the watched process is stopped
# by a signal does not count. It does not import seedcli, so it is small and starts quickly.
_GUARD = """
import os, select, signal, sys, time
pid, limit, tick, sentence = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
silent, before = 0.0, time.monotonic()
while True:
    if select.select([0], [], [], tick)[0]:
        if not os.read(0, 65536):
            break
        silent, before = 0.0, time.monotonic()
        continue
    now = time.monotonic()
    try:
        with open(f"/proc/{pid}/stat") as stat:
            state = stat.read().rpartition(")")[2].split()[0]
    except OSError:
        break
    if state not in "Tt":
        silent += min(now - before, 2 * tick)
    before = now
    if silent > limit:
        sys.stderr.write(f"seed: {sentence}\\n")
        sys.stderr.flush()
        os.kill(pid, signal.SIGKILL)
        break
"""


class Guard:
    """A process that reports why and kills this one (SIGKILL) if no heartbeat arrives within a limit.

    Time in which this process is stopped by a signal does not count. It has no effect outside Linux.

    Args:
        limit: seconds.
        sentence: message written to standard error before the kill.
        tick: seconds between checks.
    """

    def __init__(self, limit: float, sentence: str, *, tick: float = _TICK_SECONDS) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if sys.platform == "linux":
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-E", "-c", _GUARD, str(os.getpid()), str(limit), str(tick), sentence],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # so that Ctrl-C does not reach it
            )

    def heartbeat(self) -> None:
        """Restart the guard's timeout."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                os.write(self._process.stdin.fileno(), b".")

    def close(self) -> None:
        """End the process; safe to call twice."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._process = None


class Watchdog:
    """Detects calls that do not return within a limit; a context manager around each call.

    Time in which the whole process was stopped does not count. A stop signal that the main thread cannot handle because
    it is inside a call ends the process with status 128 + its number.

    Args:
        name: what is watched, for the message on a kill.
        limit: seconds; 0: never.
        on_hang: called with the elapsed seconds in the watchdog's thread.
        signalled: returns the number of a pending stop signal; 0: none.
        tick: seconds between checks.
    """

    def __init__(
        self,
        name: str,
        limit: float,
        on_hang: Callable[[float], None],
        *,
        signalled: Callable[[], int] = lambda: 0,
        tick: float = _TICK_SECONDS,
    ) -> None:
        self._limit = limit
        self._on_hang = on_hang
        self._signalled = signalled
        self._tick = min(tick, limit / 4) if limit else tick
        self._calls = 0
        self._inside = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._guard: Guard | None = None
        if limit:
            self._guard = self._start_guard(name)
            self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
            self._thread.start()

    def _start_guard(self, name: str) -> Guard:
        # Later than the thread, which handles the hang better if it can still run.
        limit = self._limit + 5 * self._tick
        sentence = f"{name} has not returned for {limit:.0f} s and holds the GIL: killing this actor"
        return Guard(limit, sentence, tick=self._tick)

    def __enter__(self) -> None:
        self._calls += 1
        self._inside = True

    def __exit__(self, *_: object) -> None:
        self._inside = False

    def _watch(self) -> None:
        call, spent, asked, before = 0, 0.0, 0.0, time.monotonic()
        while not self._stop.wait(self._tick):
            if self._guard is not None:
                self._guard.heartbeat()
            now = time.monotonic()
            # After SIGSTOP this thread resumes late: only two ticks of that time count.
            passed, before = min(now - before, 2 * self._tick), now
            if not self._inside or self._calls != call:
                call, spent, asked = self._calls, 0.0, 0.0
                continue
            spent += passed
            number = self._signalled()
            if number:
                asked += passed
                if asked > _SIGNAL_SECONDS:
                    os._exit(128 + number)
            elif spent > self._limit:
                self._on_hang(spent)
                return

    def close(self) -> None:
        """End the thread and the process; safe to call twice."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)
        if self._guard is not None:
            self._guard.close()


class PendingSignals:
    """Stop signals as seen from any thread, even while the main thread cannot run its handlers."""

    def __init__(self) -> None:
        self._read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self._number = 0

    def __call__(self) -> int:
        """The number of the latest stop signal; 0: none."""
        with contextlib.suppress(BlockingIOError):
            for number in os.read(self._read, 4096):
                if number in stop_signals():
                    self._number = number
        return self._number
