"""The loggers by name: what each needs, and those of a run."""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from seedcli.config.schema import Config
from seedcli.config.sections import TelemetryConfig
from seedcli.errors import EXIT_DONE, UsageError
from seedcli.telemetry.loggers.base import LoggedRun, Logger
from seedcli.telemetry.loggers.feed import Feed
from seedcli.telemetry.loggers.tags import scalars
from seedcli.telemetry.metrics import Snapshot


class LoggerKind(NamedTuple):
    """What is known of a logger without loading it.

    Attributes:
        logger: "module:Class"; the class is called with a `LoggedRun`.
        package: that it imports.
        local: it writes into the run's folder alone, so each of several learner hosts may have one.
    """

    logger: str
    package: str
    local: bool = False


RUNS = "runs"  # folder of runs without --logdir
_HERE = "seedcli.telemetry.loggers"
# By name; its folder in a run's folder and the extra of seedcli that installs its package have the same name.
LOGGERS: Mapping[str, LoggerKind] = {
    "tensorboard": LoggerKind(f"{_HERE}.tensorboard:TensorBoardLogger", "tensorboard", local=True),
    "wandb": LoggerKind(f"{_HERE}.wandb:WandbLogger", "wandb"),
    "mlflow": LoggerKind(f"{_HERE}.mlflow:MlflowLogger", "mlflow"),
}


def check_loggers(config: TelemetryConfig) -> None:
    """Refuse loggers that are not installed, without loading those that are.

    Raises:
        UsageError: one is not installed.
    """
    for name in config.loggers:
        if find_spec(LOGGERS[name].package) is None:
            raise UsageError(
                f"telemetry.loggers has \"{name}\", whose package is not installed: pip install 'seedcli[{name}]', or "
                "leave it out"
            )


class Loggers:
    """The loggers of a run, each fed from its own thread: no method waits, except `close`.

    Args:
        names: keys of `LOGGERS`.
        run: the run.
    """

    def __init__(self, names: Sequence[str], run: LoggedRun) -> None:
        self._feeds = [Feed(name, functools.partial(_make, LOGGERS[name], run)) for name in names]

    def write(self, snapshot: Snapshot) -> None:
        """Send a line of metrics; one without a time gets the current time."""
        at, values = time.time() if snapshot.time is None else snapshot.time, scalars(snapshot)
        for feed in self._feeds:
            feed.put(lambda logger: logger.scalars(snapshot.env_steps, at, values))

    def result(self, step: int, values: Mapping[str, float]) -> None:
        """Send the result of an evaluation after `step` environment steps, by tag."""
        at = time.time()
        for feed in self._feeds:
            feed.put(lambda logger: logger.result(step, at, values))

    def video(self, step: int, path: Path) -> None:
        """Send an MP4 file that shows the agent after `step` environment steps."""
        for feed in self._feeds:
            feed.put(lambda logger: logger.video(step, path))

    def close(self, seconds: float, status: int = EXIT_DONE) -> None:
        """Let them store what is pending, for at most `seconds` together; safe to call twice.

        Args:
            seconds: how long to wait.
            status: see `Logger.close`.
        """
        deadline = time.monotonic() + seconds
        for feed in self._feeds:
            feed.end(status)  # all of them first, so that none waits for one that hangs
        for feed in self._feeds:
            feed.join(deadline)


def open_loggers(folder: Path, config: Config, *, resumed_at: int | None = None, chief: bool = True) -> Loggers:
    """The loggers that a run's configuration names.

    Args:
        folder: of the run.
        config: of the run.
        resumed_at: see `LoggedRun`.
        chief: False on a learner host but the first: it has only loggers that write into its own folder.
    """
    names = [name for name in config.telemetry.loggers if chief or LOGGERS[name].local]
    path = folder.absolute()
    # The path below a folder "runs", or else the last two folders: pong/20250101-120000.
    below = path.parts[::-1].index(RUNS) if RUNS in path.parts else 2
    values = config.model_dump(mode="json", by_alias=True)
    return Loggers(names, LoggedRun("/".join(path.parts[-max(1, below) :]), path, values, resumed_at))


def _make(kind: LoggerKind, run: LoggedRun) -> Logger:
    module, name = kind.logger.split(":")
    logger: Logger = getattr(importlib.import_module(module), name)(run)
    return logger
