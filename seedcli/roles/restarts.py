"""What an actor does about environments that fail: build them anew, a bounded number of times; notice those that hang.

An exception ends the session, and the next one has new environments. A step that never returns cannot be interrupted
from within, so the process is replaced by one of the same command line; what has happened so far travels in its
environment.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable

from seedcli.errors import EXIT_FAILED

_log = logging.getLogger(__name__)

_VARIABLE = "SEED_ACTOR_FAILURES"
_TICK_SECONDS = 1.0
PEACE_SECONDS = 3600.0  # without a failure, after which earlier ones no longer count


class Restarts:
    """How often the environments of this actor have failed lately.

    Args:
        clock: seconds, the same in a process that replaces this one.

    Attributes:
        actor_id: the actor's name, the same in a process that replaces this one.
        failures: those that count.
        unreported: the sentence of a failure that the learner has not been told yet; "" for none.
    """

    def __init__(self, actor_id: str = "", clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.actor_id = actor_id
        self.failures = 0
        self._last = 0.0
        self.unreported = ""
        try:
            self.actor_id, self.failures, self._last, self.unreported = json.loads(os.environ.pop(_VARIABLE, "[]"))
        except (ValueError, TypeError):
            pass  # not ours, or the first of its line

    def failed(self, sentence: str, limit: int) -> bool:
        """Count a failure; whether the environments may be built anew.

        Args:
            sentence: what happened.
            limit: how many restarts are allowed, `environment.restarts`.
        """
        now = self._clock()
        if now - self._last > PEACE_SECONDS:
            self.failures = 0
        self.failures, self._last, self.unreported = self.failures + 1, now, sentence
        again = self.failures <= limit
        if again:
            _log.warning("%s; building the environments anew (%d of %d)", sentence, self.failures, limit)
        return again

    def replace_process(self) -> None:
        """Become a new process of the same command line; does not return."""
        os.environ[_VARIABLE] = json.dumps([self.actor_id, self.failures, self._last, self.unreported])
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


class Watchdog:
    """Notices a call that has not returned for too long; a context manager around each such call.

    Time in which the whole process was stopped does not count. A simulator that hangs while it holds Python's global
    lock stops this watchdog too: then the learner finds the actor silent and goes on without it.

    Args:
        limit: seconds; 0: never.
        on_hang: called with the seconds in the watchdog's thread.
    """

    def __init__(self, limit: float, on_hang: Callable[[float], None], tick: float = _TICK_SECONDS) -> None:
        self._limit = limit
        self._on_hang = on_hang
        self._tick = min(tick, limit / 4) if limit else tick
        self._calls = 0
        self._inside = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if limit:
            self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
            self._thread.start()

    def __enter__(self) -> None:
        self._calls += 1
        self._inside = True

    def __exit__(self, *_: object) -> None:
        self._inside = False

    def _watch(self) -> None:
        call, spent, before = 0, 0.0, time.monotonic()
        while not self._stop.wait(self._tick):
            now = time.monotonic()
            # After SIGSTOP this thread comes back late: only a tick of that counts.
            spent += min(now - before, 2 * self._tick)
            before = now
            if not self._inside or self._calls != call:
                call, spent = self._calls, 0.0
            elif spent > self._limit:
                self._on_hang(spent)
                return

    def close(self) -> None:
        """End the thread; safe to call twice."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)


def leave(sentence: str) -> None:
    """End the process at once, from any thread, with its one sentence; the main thread cannot be reached."""
    print(f"seed: {sentence}", file=sys.stderr, flush=True)
    os._exit(EXIT_FAILED)
