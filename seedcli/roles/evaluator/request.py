"""Checks of `seed eval` that run before TensorFlow is loaded."""

from __future__ import annotations

from pathlib import Path

from seedcli.config.sources import from_toml_file
from seedcli.envs.placement import check_simulator
from seedcli.errors import UsageError
from seedcli.models.formats import format_of_file
from seedcli.roles.evaluator.logged import check_logged
from seedcli.roles.evaluator.suite_runs import check_output
from seedcli.training.checkpoint_files import find_checkpoint


def check_request(path: Path, *, video: Path | None, watch: bool, log: bool) -> None:
    """Refuse a request that cannot be played here, a video that cannot be written, or loggers that cannot be used.

    Args:
        path: a run folder or a checkpoint folder; with `watch` a run folder, which need not hold a checkpoint yet.
        video: an MP4 file.
        watch: follow the run.
        log: the result is for the run's loggers.

    Raises:
        UsageError: flags conflict, or a file or folder is of the wrong kind.
        CheckpointError: there is no good checkpoint.
        SimulatorMissing: the environment's simulator is not installed.
    """
    if video is not None:
        if watch:
            raise UsageError("--watch plays many checkpoints and --video records one: give one of the two")
        check_output("--video", video, ".mp4")
    if watch:
        if log:
            raise UsageError("--watch plays many checkpoints and --log sends one final result: give one of the two")
        if not path.is_dir() or (path / "COMPLETE").exists():
            raise UsageError(
                f"--watch follows a run, and {path} is not a run folder: give the folder of a running training"
            )
        return
    if format_of_file(path) is not None:
        raise UsageError(f"{path} is a model of seed export: give --model {path}")
    checkpoint = find_checkpoint(path)
    if log:
        check_logged(checkpoint)
    check_simulator(from_toml_file(checkpoint.config_path).environment)
