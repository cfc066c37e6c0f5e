"""Where a run that is gone on with stands, and whether there is anything left to do."""

from __future__ import annotations

from seedcli.errors import CheckpointError, UsageError
from seedcli.layering import Resolved, from_toml_file
from seedcli.roles.runfolder import RunFolder
from seedcli.training.checkpoint_files import Checkpoint, list_checkpoints, open_checkpoint, take_checkpoint


def resume_point(folder: RunFolder) -> Checkpoint | None:
    """The checkpoint a resumed run continues from; None for a new run, or one that made none yet."""
    return take_checkpoint(folder.path) if folder.resume else None


def check_steps(resolved: Resolved, checkpoint: Checkpoint | None) -> None:
    """Refuse a number of steps that a resumed run has long taken, before it is written down.

    Raises:
        UsageError: somebody asked for fewer than there are.
    """
    steps = resolved.config.run.steps
    if checkpoint is None or steps > checkpoint.env_steps:
        return
    # The same number again, from a script that starts a run as often as it takes, is a run that is done.
    if steps != from_toml_file(checkpoint.config_path).run.steps:
        raise UsageError(
            f"run.steps = {steps:,} must be above the {checkpoint.env_steps:,} that this run has taken: "
            "it counts from the run's beginning"
        )


def finished(resolved: Resolved, folder: RunFolder) -> str:
    """What is to be said of a run that has taken its steps; "" for one that has not.

    Raises:
        UsageError: fewer steps are asked for than it has taken.
    """
    found = list_checkpoints(folder.checkpoints) if folder.resume else []
    if not found:
        return ""
    try:
        checkpoint = open_checkpoint(found[-1])
    except CheckpointError:
        return ""  # which is told, and mended, as the run is gone on with
    check_steps(resolved, checkpoint)
    steps = resolved.config.run.steps
    if checkpoint.env_steps < steps:
        return ""
    return f"{folder.path} is finished ({checkpoint.env_steps:,} of {steps:,} steps): a larger --steps goes on with it"
