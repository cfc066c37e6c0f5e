"""Output streams that survive a closed terminal or pipe, so that training continues."""

from __future__ import annotations

import sys
from typing import Any, TextIO


class SteadyStream:
    """A text stream whose writes do not fail: text that cannot be written is lost.

    Args:
        stream: the underlying stream; all calls except writing and flushing are forwarded to it.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write or lose the text; returns its number of characters in both cases."""
        try:
            return self._stream.write(text)
        except (OSError, ValueError):  # gone, or closed
            return len(text)

    def flush(self) -> None:
        """Flush or lose the buffered text."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def outlive_output() -> None:
    """Wrap stdout and stderr so that writes to a closed terminal or pipe do not end the run."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, SteadyStream):
            setattr(sys, name, SteadyStream(stream))
