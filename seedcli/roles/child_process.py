"""Commands of `seed` as child processes that do not outlive the one that starts them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

# Exit statuses of a clean stop on a signal, with the signal's name.
STOPPED = {128 + number: number.name for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}

# The child stops as on SIGTERM when this process dies, however it dies (Linux).
_START = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.executable, [sys.executable, "-m", "seedcli", *sys.argv[2:]])
"""


def seed_command(arguments: Sequence[str]) -> list[str]:
    """The command line that runs `python -m seedcli` with these arguments.

    The thread that starts the command must outlive it: the kernel treats the thread's end as the parent's death.
    """
    return [sys.executable, "-c", _START, str(os.getpid()), *arguments]


def error_sentence(stderr: Sequence[str]) -> str:
    """The sentence with which a command of `seed` failed, from the last lines of its stderr."""
    lines = [line.strip() for line in stderr if line.strip()]
    sentence = next((line for line in reversed(lines) if line.startswith("seed: ")), "")
    return sentence.removeprefix("seed: ") or (lines[-1] if lines else "it left no message")
