"""How an actor recovers from failing environments: it rebuilds them, a bounded number of times.

An exception ends the session, and the next session builds new environments. A step that never returns cannot be
interrupted from within, so the process replaces itself with one of the same command line. The state so far passes
through an environment variable.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping

import psutil

_log = logging.getLogger(__name__)

_VARIABLE = "SEED_ACTOR_FAILURES"
_END_SECONDS = 5.0  # for killed processes to end; one that waits for a device takes longer
FAILURE_MEMORY_SECONDS = 3600.0  # without a failure, after which earlier failures no longer count


class Restarts:
    """Recent environment failures of this actor, and the steps and times of its earlier processes.

    Args:
        actor_id: the actor's name.
        clock: seconds; must continue in a process that replaces this one.

    Attributes:
        actor_id: as given to the first process.
        failures: number of recent failures.
        unreported: message of a failure not yet reported to the learner; "" for none.
        given_up: the message with which this process must exit at once; "" for none.
        steps: environment steps of the processes before this one.
        seconds: time of those processes, by activity.
    """

    def __init__(self, actor_id: str = "", clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.actor_id = actor_id
        self.failures = 0
        self._last = 0.0
        self.unreported = self.given_up = ""
        self.steps = 0
        self.seconds: dict[str, float] = {}
        # The replacement process gets this copy: a simulator may have redirected descriptor 1.
        self._stdout = os.dup(1)
        state = os.environ.pop(_VARIABLE, "")
        with contextlib.suppress(ValueError, TypeError):  # empty, or set by another program
            self.actor_id, self.failures, self._last, self.unreported, self.given_up, self.steps, self.seconds = (
                json.loads(state)
            )
            _kill_children()  # started by simulators of the previous process

    def failed(self, sentence: str, limit: int) -> bool:
        """Count a failure; returns whether the environments may be rebuilt.

        Args:
            sentence: the error message.
            limit: restarts allowed, `environment.restarts`.
        """
        now = self._clock()
        if now - self._last > FAILURE_MEMORY_SECONDS:
            self.failures = 0
        self.failures, self._last, self.unreported = self.failures + 1, now, sentence
        again = self.failures <= limit
        if again:
            _log.warning("%s; rebuilding the environments (%d of %d)", sentence, self.failures, limit)
        return again

    def replace_process(self, steps: int = 0, seconds: Mapping[str, float] | None = None) -> None:
        """Replace this process with a new one of the same command line, from any thread; does not return.

        Args:
            steps: environment steps that this process and those before it have taken.
            seconds: time of those processes, by activity.
        """
        state = [self.actor_id, self.failures, self._last, self.unreported, self.given_up, steps, dict(seconds or {})]
        os.environ[_VARIABLE] = json.dumps(state)
        # Its children are killed by the next process: if they ended now, the call that hangs could still return and the
        # main thread report whatever it returned as a second failure.
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(self._stdout, 1)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _kill_children() -> None:
    children = psutil.Process().children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.Error):
            child.kill()
    psutil.wait_procs(children, timeout=_END_SECONDS)
