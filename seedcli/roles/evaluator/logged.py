"""`seed eval --log`: the result and the video of an evaluation, in the entries that the run has with its loggers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seedcli.config.sources import from_toml_file
from seedcli.errors import EXIT_DONE, EXIT_FAILED, UsageError
from seedcli.roles.run_folder import CONFIG
from seedcli.roles.run_lock import is_running
from seedcli.roles.sessions import read_sessions
from seedcli.telemetry.loggers.registry import check_loggers, open_loggers
from seedcli.training.checkpoint_files import Checkpoint

_CLOSE_SECONDS = 60.0  # for loggers to store the result and the video


def check_logged(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint whose run has no loggers to send a result to, before TensorFlow is loaded.

    Raises:
        UsageError: it lies in no run, the run is still trained, or a logger is not installed.
    """
    run = _run_of(checkpoint)
    if not (run / CONFIG).is_file():
        raise UsageError(f"--log needs a run's folder, and {checkpoint.path} is not in one: leave --log out")
    if is_running(run):
        raise UsageError(
            f"{run} is still training, and its learner writes to the loggers: give --log after it has ended"
        )
    telemetry = from_toml_file(run / CONFIG).telemetry
    if not telemetry.loggers:
        raise UsageError(f"{run} has no telemetry.loggers: leave --log out")
    check_loggers(telemetry)


def log_evaluation(checkpoint: Checkpoint, result: Mapping[str, Any], video: Path | None) -> None:
    """Send a result to the loggers of the checkpoint's run, as "final/return_mean" and so on.

    Args:
        checkpoint: the one that was played; `check_logged` has passed.
        result: figures by name; values other than numbers are left out.
        video: an MP4 file.
    """
    run = _run_of(checkpoint)
    loggers = open_loggers(run, from_toml_file(run / CONFIG))
    figures = {f"final/{name}": value for name, value in result.items() if isinstance(value, int | float)}
    loggers.result(checkpoint.env_steps, figures)
    if video is not None:
        loggers.video(checkpoint.env_steps, video)
    sessions = read_sessions(run)
    status = sessions[-1].status if sessions else EXIT_DONE
    # The status with which the training closed the entry.
    loggers.close(_CLOSE_SECONDS, EXIT_FAILED if status is None else status)


def _run_of(checkpoint: Checkpoint) -> Path:
    """The folder of the checkpoint's run: checkpoints are in RUN/checkpoints/."""
    return checkpoint.path.absolute().parents[1]
