"""Signals that ask a process to stop: a learner is to end in order (`Signals`), other commands where they are."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

_ONE_STOP_SECONDS = 1.0  # SIGTERMs so close together are one: SLURM sends two when it preempts a job


class Stopped(BaseException):
    """A signal asked to stop. No Exception: an environment must not take it for its own.

    Attributes:
        status: the exit status, 128 and the signal's number.
    """

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def stop_signals() -> tuple[signal.Signals, ...]:
    """The signals that ask a process to stop: SIGHUP, of a terminal that was closed, unless nohup has it ignored."""
    asked = (signal.SIGTERM, signal.SIGINT)
    return asked if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (*asked, signal.SIGHUP)


@contextlib.contextmanager
def raising_stopped() -> Iterator[None]:
    """Within it a signal that asks to stop raises `Stopped` in the main thread; a second one ends the process."""
    asked = stop_signals()

    def handle(number: int, frame: FrameType | None) -> None:
        for each in asked:
            signal.signal(each, signal.SIG_DFL)
        raise Stopped(128 + number)

    with _handling(asked, handle):
        yield


@contextlib.contextmanager
def exiting_at_once(undo: Callable[[], None]) -> Iterator[None]:
    """Within it a signal that asks to stop ends the process at once, without a word, once `undo` has been called."""

    def handle(number: int, frame: FrameType | None) -> None:
        try:
            undo()
        finally:
            os._exit(128 + number)

    with _handling(stop_signals(), handle):
        yield


@contextlib.contextmanager
def _handling(asked: Sequence[signal.Signals], handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # where no handler can be set, and none is run
        return
    previous = {number: signal.signal(number, handle) for number in asked}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class Signals:
    """For a learner: the first signal that asks to stop is noted, the second ends the process at once.

    Attributes:
        status: the exit status that the first one stands for; None: none has come.
        raised: set by it.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        self.raised = threading.Event()
        self._first = 0.0
        self._previous = {number: signal.signal(number, self._handle) for number in stop_signals()}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.status is None:
            self.status, self._first = 128 + number, now
            self.raised.set()
        elif number != signal.SIGTERM or now - self._first >= _ONE_STOP_SECONDS:
            os._exit(128 + number)

    def insist(self) -> None:
        """Take the signals again from a library that has put handlers of its own in place of these."""
        for number in self._previous:
            signal.signal(number, self._handle)

    def restore(self) -> None:
        """Put the earlier handlers back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
