"""Commands of `seed` as child processes: their output, their errors and their end."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import IO, TextIO

from seedcli.errors import (
    EXIT_DONE,
    EXIT_REFUSED,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    RefusedError,
    SeedError,
    UnreachableError,
    UsageError,
)
from seedcli.roles.child_process import STOPPED, error_sentence, seed_command

_STOP_SECONDS = 60.0  # for a checkpoint to be written after an interrupt, before the child is killed
_DRAIN_SECONDS = 10.0  # for the last lines, if a process that the child has left behind keeps the pipe open
_LINES = 200  # last lines of stderr that are kept for the error
_ERRORS = {EXIT_USAGE: UsageError, EXIT_UNREACHABLE: UnreachableError, EXIT_REFUSED: RefusedError}


def run_seed(arguments: Sequence[str], *, quiet: bool, show_results: bool = True) -> str:
    """Run `python -m seedcli` with these arguments in this working folder, and wait for its end.

    Its output appears on `sys.stdout` and `sys.stderr` line by line, so that notebooks show it. An exception here, such
    as KeyboardInterrupt, asks the child once to stop (SIGINT), waits for its end, and propagates; a second one kills
    the child.

    Args:
        arguments: a command and its options.
        quiet: show none of its output.
        show_results: show its stdout too.

    Returns:
        Its stdout, at most the last 200 lines.

    Raises:
        SeedError: it failed; a subclass by its exit status, with its own message.
    """
    process = subprocess.Popen(
        seed_command(arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # Ctrl-C reaches only this process, which then stops the child in order
    )
    assert process.stdout is not None and process.stderr is not None
    out: deque[str] = deque(maxlen=_LINES)
    err: deque[str] = deque(maxlen=_LINES)
    readers = [
        _start_reader(process.stdout, out, sys.stdout if show_results and not quiet else None),
        _start_reader(process.stderr, err, None if quiet else sys.stderr),
    ]
    try:
        status = process.wait()
    except BaseException:
        _stop(process)
        raise
    finally:
        for reader in readers:
            reader.join(_DRAIN_SECONDS)
    if status != EXIT_DONE:
        raise _error(arguments[0], status, err)
    return "".join(out)


def _start_reader(stream: IO[str], kept: deque[str], shown: TextIO | None) -> threading.Thread:
    def read() -> None:
        with stream:
            for line in stream:
                kept.append(line)
                if shown is not None:
                    with contextlib.suppress(OSError, ValueError):  # closed: training continues
                        shown.write(line)
                        shown.flush()

    reader = threading.Thread(target=read, name="seed output", daemon=True)
    reader.start()
    return reader


def _stop(process: subprocess.Popen[str]) -> None:
    """Ask the child to stop and wait for its checkpoint; kill it if that takes too long or is interrupted."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_STOP_SECONDS)
    except BaseException:
        process.kill()
        process.wait()


def _error(command: str, status: int, stderr: Sequence[str]) -> SeedError:
    if status < 0:
        return SeedError(f"seed {command} was ended by {signal.Signals(-status).name}")
    if status in STOPPED:
        return SeedError(f"seed {command} was stopped by {STOPPED[status]}")
    make: Callable[[str], SeedError] = _ERRORS.get(status, SeedError)
    return make(error_sentence(stderr))
