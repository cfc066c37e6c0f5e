"""The error tree. Each error is one sentence for the user and has the exit status of the command that it ends."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

# Keras wraps what a layer raises: the message is the part in bold.
_IN_KERAS = re.compile(r"Exception encountered when calling .*?\x1b\[1m(.+?)\x1b\[0m", re.DOTALL)

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_REFUSED = 4
EXIT_SIGINT = 130


class SeedError(Exception):
    """Base of every error meant for the user: one sentence naming the value, the rule and what to do."""

    exit_status = EXIT_FAILED


class UsageError(SeedError):
    """An invalid flag, preset, key or value, or an unusable run folder."""

    exit_status = EXIT_USAGE


class CheckpointError(SeedError):
    """A checkpoint is missing, incomplete, damaged, or from another version or another agent."""

    exit_status = EXIT_USAGE


class EnvironmentFailed(SeedError):
    """An environment cannot be built, failed, or violated its specification."""


class SimulatorMissing(EnvironmentFailed):
    """A simulator is not installed on this machine: a retry cannot succeed."""

    exit_status = EXIT_USAGE


class UnreachableError(SeedError):
    """The learner does not respond, or the connection was lost for longer than the reconnect timeout."""

    exit_status = EXIT_UNREACHABLE


class RefusedError(SeedError):
    """The learner refused the connection: wrong version, environment or token, or no capacity."""

    exit_status = EXIT_REFUSED


class AuthenticationError(RefusedError):
    """Authentication failed: the peers have different tokens or certificates."""


class ProtocolError(SeedError):
    """A peer sent a frame that violates the protocol; only its connection is closed."""

    exit_status = EXIT_REFUSED


class VersionError(ProtocolError):
    """A peer uses another version of the protocol, so its messages cannot be read."""


class TrainingDone(SeedError):
    """The learner reported, before it accepted the actor, that training is complete."""

    exit_status = EXIT_DONE


class ConnectionLost(SeedError):
    """The connection to the learner broke; the actor retries until the reconnect timeout."""

    exit_status = EXIT_UNREACHABLE


def message_line(error: BaseException) -> str:
    """The first line of an exception's message, without Keras' additions and the full stop; "" if it has none."""
    text = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
    wrapped = _IN_KERAS.match(text)
    lines = (wrapped[1] if wrapped else str(error)).strip().splitlines()
    return lines[0].rstrip(".") if lines else ""


def first_line(error: BaseException) -> str:
    """An exception as part of a sentence: its type and the first line of its message."""
    line = message_line(error)
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def place_of(error: BaseException) -> str:
    """Where an exception was raised, as the end of a sentence: " (my_env.py, line 12)"; "" if unknown."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
