"""Checks of `seed eval` that run before TensorFlow is loaded."""

from __future__ import annotations

from pathlib import Path

from seedcli.config.sources import from_toml_file
from seedcli.envs.placement import check_simulator
from seedcli.errors import UsageError
from seedcli.training.checkpoint_files import find_checkpoint


def check_request(path: Path, *, video: Path | None, watch: bool) -> None:
    """Refuse a request that cannot be played here, or a video that cannot be written.

    Args:
        path: a run folder or a checkpoint folder; with `watch` a run folder, which need not hold a checkpoint yet.
        video: an MP4 file.
        watch: follow the run.

    Raises:
        UsageError: flags conflict, or a file or folder is of the wrong kind.
        CheckpointError: there is no good checkpoint.
        SimulatorMissing: the environment's simulator is not installed.
    """
    if video is not None:
        if watch:
            raise UsageError("--watch plays many checkpoints and --video films one: give one of the two")
        _check_video(video)
    if watch:
        if not path.is_dir() or (path / "COMPLETE").exists():
            raise UsageError(
                f"--watch follows a run, and {path} is not a run folder: give the folder of a running training"
            )
        return
    check_simulator(from_toml_file(find_checkpoint(path).config_path).environment)


def _check_video(path: Path) -> None:
    if path.suffix.lower() != ".mp4":
        raise UsageError(f"--video {path} must name an .mp4 file")
    if not path.resolve().parent.is_dir():
        raise UsageError(f"--video {path}: the folder {path.resolve().parent} does not exist; create it first")
