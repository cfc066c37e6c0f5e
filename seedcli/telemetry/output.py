"""Output that may go away: a terminal is closed, a reader of a pipe leaves, and training goes on all the same."""

from __future__ import annotations

import sys
from typing import Any, TextIO


class SteadyStream:
    """A text stream whose writes do not fail: what cannot be written any more is lost.

    Args:
        stream: the one behind it; everything but writing and flushing is asked of it.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, or lose it; returns the number of characters as if it had been written."""
        try:
            return self._stream.write(text)
        except (OSError, ValueError):  # gone, or closed
            return len(text)

    def flush(self) -> None:
        """Hand on what is buffered, or lose it."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def outlive_output() -> None:
    """From now on nothing fails because stdout or stderr has gone away: a run matters more than its words."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, SteadyStream):
            setattr(sys, name, SteadyStream(stream))
