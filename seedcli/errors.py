"""The error tree. Each error is one sentence for the user and knows the exit status it ends a command with."""

from __future__ import annotations

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_REFUSED = 4
EXIT_SIGINT = 130
EXIT_SIGTERM = 143


class SeedError(Exception):
    """Base of every error meant for the user: one sentence naming the value, the rule and what to do."""

    exit_status = EXIT_FAILED


class UsageError(SeedError):
    """A wrong flag, preset, key or value, or a run folder that cannot be used as asked."""

    exit_status = EXIT_USAGE


class CheckpointError(SeedError):
    """A checkpoint that is missing, incomplete, damaged, of another version or of another agent."""

    exit_status = EXIT_USAGE


class EnvironmentFailed(SeedError):
    """An environment that cannot be built, or that broke its own specification while running."""


class SimulatorMissing(EnvironmentFailed):
    """A simulator that is not installed here: trying again changes nothing."""

    exit_status = EXIT_USAGE


class UnreachableError(SeedError):
    """The learner does not answer, or has been lost for longer than the reconnect time-out."""

    exit_status = EXIT_UNREACHABLE


class RefusedError(SeedError):
    """The learner answered and said no: wrong version, wrong environment, no room, wrong token."""

    exit_status = EXIT_REFUSED


class DistrustedError(RefusedError):
    """The learner's address answers, but the two do not trust each other: another token, another certificate."""


class ProtocolError(SeedError):
    """A peer sent a frame that breaks the protocol; it ends that one connection."""

    exit_status = EXIT_REFUSED


class VersionError(ProtocolError):
    """A peer speaks another version of the protocol: nothing it says can be understood."""


class TrainingDone(SeedError):
    """The learner says, before an actor was let in, that training is over: nothing is left to do."""

    exit_status = EXIT_DONE


class ConnectionLost(SeedError):
    """The connection to the learner broke; the actor tries again until the reconnect time-out."""

    exit_status = EXIT_UNREACHABLE
