"""The error tree. Each error is one sentence for the user and has the exit status of the command that it ends."""

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


class DistrustedError(RefusedError):
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
