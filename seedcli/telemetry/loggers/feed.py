"""Feeds a logger from a thread of its own, through a bounded queue: it can neither stop nor slow its caller."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from seedcli.telemetry.loggers.base import Logger, LoggerUnavailable
from seedcli.telemetry.numbers import counted

_log = logging.getLogger(__name__)

CAPACITY = 1000  # lines that wait: half an hour's at two seconds a line, a few megabytes
_QUIET_SECONDS = 1.0  # of waiting at the end of a run before it is announced

Call = Callable[[Logger], None]


class Feed:
    """The queue and the thread of one logger.

    A logger that cannot be opened gets nothing, and a line that it cannot take, or for which the queue has no room, is
    lost; both are logged once, and the lost lines are counted.

    Args:
        name: of the logger, for messages.
        make: opens the logger, on its thread.
        capacity: calls that may wait.

    Attributes:
        lost: calls that did not reach the logger.
    """

    def __init__(self, name: str, make: Callable[[], Logger], capacity: int = CAPACITY) -> None:
        self._name = name
        self._make = make
        self._capacity = capacity
        # Unbounded, so that the end can always be queued; `put` keeps the bound, as its only producer.
        self._queue: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._status: int | None = None
        self._joined = False
        self._lock = threading.Lock()  # of `lost`
        self.lost = 0
        self._thread = threading.Thread(target=self._run, name=f"logger {name}", daemon=True)
        self._thread.start()

    def put(self, call: Call) -> None:
        """Queue a call of a method of the logger. Returns at once."""
        if not self._thread.is_alive():
            return
        if self._queue.qsize() < self._capacity:
            self._queue.put(call)
        else:
            self._lose("it is slower than training")

    def end(self, status: int) -> None:
        """Close the logger once it has received everything. Returns at once; safe to call twice.

        Args:
            status: see `Logger.close`.
        """
        if self._status is None:
            self._status = status
            self._queue.put(None)

    def join(self, deadline: float) -> None:
        """Wait for the logger after `end`, and log how many calls were lost; safe to call twice.

        Args:
            deadline: monotonic seconds until which to wait; calls that it has not received by then are lost.
        """
        if self._joined:
            return
        self._joined = True
        self._thread.join(min(_QUIET_SECONDS, max(0.0, deadline - time.monotonic())))
        left = deadline - time.monotonic()
        if self._thread.is_alive() and left > 0:
            _log.info("waiting at most %.0f s for %s to store this run", left, self._name)
            self._thread.join(left)
        if self._thread.is_alive():
            _log.warning("%s is still busy at the end of the run: what it has not stored by now is lost", self._name)
        if self.lost:
            _log.warning("%s did not get %s of this run", self._name, counted(self.lost, "line"))

    def _run(self) -> None:
        try:
            logger = self._make()
        except Exception as error:
            _log.warning(
                "%s receives nothing from this run, which continues without it: %s", self._name, _sentence(error)
            )
            return
        while (call := self._queue.get()) is not None:
            try:
                call(logger)
            except Exception as error:
                self._lose(_sentence(error))
        try:
            assert self._status is not None
            logger.close(self._status)
        except Exception as error:
            _log.warning("%s could not close its entry of this run: %s", self._name, _sentence(error))

    def _lose(self, why: str) -> None:
        with self._lock:
            self.lost += 1
            first = self.lost == 1
        if first:
            _log.warning("%s loses lines of this run, which continues: %s", self._name, why)


def _sentence(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else "no reason given"
    return text if isinstance(error, LoggerUnavailable) else f"{type(error).__name__}: {text}"
