"""Signals that stop a process: a learner shuts down in order (`Signals`), other commands stop where they are."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

_ONE_STOP_SECONDS = 1.0  # SIGTERMs within this time count as one: SLURM sends two when it preempts a job
_raised: list[Stopped] = []  # by `raising_stopped`, until its context ends


class Stopped(BaseException):
    """A signal asked to stop. A BaseException, so that environments do not catch it.

    Attributes:
        status: the exit status, 128 and the signal's number.
    """

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def stop_signals() -> tuple[signal.Signals, ...]:
    """The signals that ask a process to stop; SIGHUP (a closed terminal) is among them unless nohup ignores it."""
    asked = (signal.SIGTERM, signal.SIGINT)
    return asked if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (*asked, signal.SIGHUP)


@contextlib.contextmanager
def raising_stopped() -> Iterator[None]:
    """Context in which a stop signal raises `Stopped` in the main thread; a second signal ends the process.

    On exit it raises again a `Stopped` that a library has swallowed.
    """
    asked = stop_signals()

    def handle(number: int, frame: FrameType | None) -> None:
        for each in asked:
            signal.signal(each, signal.SIG_DFL)
        _raised.append(Stopped(128 + number))
        raise _raised[0]

    with _handle_with(asked, handle):
        try:
            yield
            raise_if_stopped()
        except Exception as error:
            if _raised:  # a library has replaced it with its own error
                raise _raised[0] from error
            raise
        finally:
            _raised.clear()


def raise_if_stopped() -> None:
    """Raise the `Stopped` of an enclosing `raising_stopped` again: an extension module's import may swallow it."""
    if _raised:
        raise _raised[0]


@contextlib.contextmanager
def exiting_at_once(undo: Callable[[], None]) -> Iterator[None]:
    """Context in which a stop signal calls `undo`, then ends the process at once and silently."""

    def handle(number: int, frame: FrameType | None) -> None:
        try:
            undo()
        finally:
            os._exit(128 + number)

    with _handle_with(stop_signals(), handle):
        yield


@contextlib.contextmanager
def _handle_with(asked: Sequence[signal.Signals], handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can set handlers
        return
    previous = {number: signal.signal(number, handle) for number in asked}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class Signals:
    """Stop signals of a learner: the first is recorded, the second ends the process at once.

    Attributes:
        status: the exit status for the first signal; None before it.
        raised: set by the first signal.

    Raises:
        Stopped: an earlier signal raised it, and a library swallowed it.
    """

    def __init__(self) -> None:
        raise_if_stopped()
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

    def reinstall(self) -> None:
        """Install the handlers again after a library has replaced them."""
        for number in self._previous:
            signal.signal(number, self._handle)

    def restore(self) -> None:
        """Restore the earlier handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
