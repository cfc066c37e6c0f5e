"""What an actor does about environments that fail: build them anew, a bounded number of times.

An exception ends the session, and the next one has new environments. A step that never returns cannot be interrupted
from within, so the process is replaced by one of the same command line; what has happened so far travels in its
environment.
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
PEACE_SECONDS = 3600.0  # without a failure, after which earlier ones no longer count


class Restarts:
    """How often the environments of this actor have failed lately, and what it has done before.

    Args:
        actor_id: the actor's name.
        clock: seconds, the same in a process that replaces this one.

    Attributes:
        actor_id: as given to the first process of this line.
        failures: those that count.
        unreported: the sentence of a failure that the learner has not been told yet; "" for none.
        given_up: the sentence with which this process is to end at once; "" for none.
        steps: environment steps of the processes before this one.
        seconds: where their time went, by activity.
    """

    def __init__(self, actor_id: str = "", clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.actor_id = actor_id
        self.failures = 0
        self._last = 0.0
        self.unreported = self.given_up = ""
        self.steps = 0
        self.seconds: dict[str, float] = {}
        # What stands there as the process is replaced: a simulator may have its own things on 1 just then.
        self._stdout = os.dup(1)
        state = os.environ.pop(_VARIABLE, "")
        with contextlib.suppress(ValueError, TypeError):  # empty, or not ours
            self.actor_id, self.failures, self._last, self.unreported, self.given_up, self.steps, self.seconds = (
                json.loads(state)
            )

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

    def replace_process(self, steps: int = 0, seconds: Mapping[str, float] | None = None) -> None:
        """Become a new process of the same command line, from any thread; does not return.

        Args:
            steps: environment steps that this process and those before it have taken.
            seconds: where their time went, by activity.
        """
        state = [self.actor_id, self.failures, self._last, self.unreported, self.given_up, steps, dict(seconds or {})]
        os.environ[_VARIABLE] = json.dumps(state)
        # Simulators of their own processes would live on beside those of the next.
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(self._stdout, 1)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
