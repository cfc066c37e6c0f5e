"""The logger protocol, and the description of the run that a logger receives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class LoggedRun:
    """The run that a logger gets.

    Attributes:
        name: short name, such as "cartpole_vtrace/20250101-120000".
        folder: its folder, absolute.
        config: every value, by section and name.
        resumed_at: for a resumed run, the environment steps from which on points logged earlier are invalid; else None.
    """

    name: str
    folder: Path
    config: Mapping[str, Any]
    resumed_at: int | None = None


class Logger(Protocol):
    """Stores a run somewhere. Used by one thread; every method may raise, and may take long."""

    def scalars(self, step: int, wall_time: float, values: Mapping[str, float]) -> None:
        """Store a line of metrics.

        Args:
            step: environment steps.
            wall_time: Unix seconds.
            values: tag such as "episode/episode_return" → value.
        """

    def result(self, step: int, wall_time: float, values: Mapping[str, float]) -> None:
        """Store the result of an evaluation after `step` environment steps, by tag."""

    def video(self, step: int, path: Path) -> None:
        """Store an MP4 file that shows the agent after `step` environment steps."""

    def close(self, status: int) -> None:
        """Store what is pending and close the run's entry.

        Args:
            status: with which the run ended: 0: it is done; above 128: a signal stopped it; others: it failed.
        """


class LoggerUnavailable(Exception):
    """A logger cannot take the run; one sentence that says why and what to do."""


def kept_id(folder: Path, new: str | None = None) -> str | None:
    """The id of the run's entry in a service, kept in `folder`/id, so that a resumed run continues its entry.

    Args:
        folder: of the service in the run's folder; created if needed.
        new: kept if there is none yet.
    """
    path = folder / "id"
    # A crash may have left it empty.
    if path.is_file() and (known := path.read_text(encoding="utf-8").strip()):
        return known
    if new is not None:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(new + "\n", encoding="utf-8")
    return new
