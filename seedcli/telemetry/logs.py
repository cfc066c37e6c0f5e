"""Logging to `learner.log` and to stderr or the view."""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from pathlib import Path
from typing import Protocol


class LogSink(Protocol):
    """Where log lines for people go: a view."""

    def log(self, message: str) -> None:
        """Show one message."""


class _SinkHandler(logging.Handler):
    """Passes records to a view, which adds the time."""

    def __init__(self, sink: LogSink) -> None:
        super().__init__()
        self._sink = sink

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._sink.log(self.format(record))
        except Exception:
            self.handleError(record)


class _FileHandler(logging.FileHandler):
    """On a full disk, drops lines of the file without a traceback; other handlers still show them."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (the base class's name)
        """Drop the line."""


class _PeopleFormatter(logging.Formatter):
    """The message, prefixed by the level for warnings and errors."""

    def __init__(self, clock: bool) -> None:
        super().__init__("%(asctime)s %(message)s" if clock else "%(message)s", datefmt="%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the base class's name)
        if record.levelno >= logging.WARNING:
            record.message = f"{record.levelname.lower()}: {record.message}"
        return super().formatMessage(record)


def setup_logging(log_path: Path | None, view: LogSink | None, debug: bool = False) -> None:
    """Send the records of all libraries to a file and to a view or stderr; replaces an earlier set-up.

    `seedcli`'s own records are shown from INFO on (DEBUG with `debug`), those of others from WARNING on.

    Args:
        log_path: appended to, with UTC times; None: no file.
        view: gets each message; None: stderr, with local times.
        debug: show debugging messages, and tracebacks of logged exceptions on stderr.
    """
    root = logging.getLogger()
    for handler in [h for h in root.handlers if getattr(h, "seedcli", False)]:
        root.removeHandler(handler)
        handler.close()
    handlers: list[logging.Handler] = []
    people: logging.Handler = logging.StreamHandler(sys.stderr) if view is None else _SinkHandler(view)
    people.setFormatter(_PeopleFormatter(clock=view is None))
    handlers.append(people)
    if log_path is not None:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        file = _FileHandler(log_path, encoding="utf-8")
        formatter = logging.Formatter(
            "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", datefmt="%Y-%m-%dT%H:%M:%S"
        )
        formatter.converter = time.gmtime
        file.setFormatter(formatter)
        handlers.append(file)
    for handler in handlers:
        handler.seedcli = True  # type: ignore[attr-defined]  # marks it for the next call
        root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("seedcli").setLevel(logging.DEBUG if debug else logging.INFO)


def log_to_file(level: int, message: str, error: BaseException | None = None) -> None:
    """Write a line to the log file alone, if `setup_logging` has opened one; for text already shown otherwise.

    Args:
        level: e.g. logging.ERROR.
        message: the line.
        error: its traceback follows, where given.
    """
    trace = (type(error), error, error.__traceback__) if error is not None else None
    record = logging.LogRecord("seedcli", level, "", 0, message, None, trace)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _FileHandler):
            handler.handle(record)


_MAX_KEYS = 1024  # bounds the memory that misbehaving peers can use
_limiter_lock = threading.Lock()
_limiter: dict[str, tuple[float, int]] = {}  # key → (time of the last line, lines held back since)


def log_once_per(key: str, seconds: float, logger: logging.Logger, level: int, message: str, *args: object) -> bool:
    """Log at most one line of a kind every `seconds`; the next line says how many were held back.

    Args:
        key: what counts as one kind.
        seconds: the shortest time between two lines of the kind.
        logger: where to.
        level: e.g. logging.WARNING.
        message: with `%` placeholders for `args`.

    Returns:
        Whether the line was logged.
    """
    now = time.monotonic()
    with _limiter_lock:
        last, held = _limiter.get(key, (-float("inf"), 0))
        if now - last < seconds:
            _limiter[key] = (last, held + 1)
            return False
        _limiter.pop(key, None)  # re-inserted at the end, so that the first key is the oldest
        while len(_limiter) >= _MAX_KEYS:
            del _limiter[next(iter(_limiter))]
        _limiter[key] = (now, 0)
    if held:
        message, args = message + " (%d more like it were not shown)", (*args, held)
    logger.log(level, message, *args)
    return True


def log_notice(logger: logging.Logger, notice: str) -> None:
    """Log a warning about the use of environments once per process."""
    log_once_per(f"notice: {notice}", math.inf, logger, logging.WARNING, "%s", notice)
