"""Where a run that is resumed stands, in which mode it goes, and whether there is anything left to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from seedcli.config.presets import read_toml
from seedcli.config.sources import DEFAULT, Resolved, from_toml_file
from seedcli.errors import CheckpointError, UsageError
from seedcli.roles.run_folder import RunFolder
from seedcli.training.checkpoint_files import Checkpoint, list_checkpoints, open_checkpoint, take_checkpoint


def was_deterministic(folder: RunFolder) -> bool:
    """Whether the run in a folder, which is to be resumed, was deterministic when it last ran."""
    try:
        run = read_toml(folder.config_path).get("run", {})
    except UsageError:
        return False  # a configuration that is given takes the place of one that cannot be read
    return isinstance(run, dict) and run.get("deterministic") is True


def keep_mode(resolved: Resolved, folder: RunFolder) -> Resolved:
    """The configuration with which a resumed run stays deterministic, unless a layer says otherwise.

    Where a preset or file is given again, the run's own values are no layer: this one is taken over all the same.
    """
    if not folder.resume or resolved.sources["run.deterministic"] != DEFAULT or not was_deterministic(folder):
        return resolved
    config = resolved.config
    run = config.run.model_copy(update={"deterministic": True})
    sources = {**resolved.sources, "run.deterministic": f"run {folder.path}"}
    return replace(resolved, config=config.model_copy(update={"run": run}), sources=sources)


def check_threaded(resolved: Resolved, logdir: Path | None) -> None:
    """Refuse a deterministic run to `seed learner`, whose actors are processes of their own.

    Args:
        resolved: its configuration.
        logdir: its folder, as the user gave it.

    Raises:
        UsageError: it is one; says what to do instead.
    """
    if not resolved.config.run.deterministic:
        return
    source = resolved.sources["run.deterministic"]
    instead = f"seed train --resume --logdir {logdir}" if source.startswith("run ") else "seed train"
    raise UsageError(
        f"run.deterministic = true (from {source}) is for seed train, which has its actors in its own thread: use "
        f"{instead}, or train with threads from here on with --set run.deterministic=false"
    )


def mode_note(resolved: Resolved, folder: RunFolder) -> str:
    """What to tell people of how a run is resumed, before its configuration is written again; "" for nothing."""
    if not folder.resume:
        return ""
    before, now = was_deterministic(folder), resolved.config.run.deterministic
    source = resolved.sources["run.deterministic"]
    if before and now:
        return "resuming a deterministic run: one thread in lock-step, as before"
    if before:
        return f"this run was deterministic and is resumed with threads (run.deterministic = false from {source})"
    if now:
        return (
            "this run was trained with threads and is resumed deterministically (run.deterministic = true from "
            f"{source}): only what follows its last checkpoint can be repeated"
        )
    return ""


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
        return ""  # which is logged, and fixed, as the run is resumed
    check_steps(resolved, checkpoint)
    steps = resolved.config.run.steps
    if checkpoint.env_steps < steps:
        return ""
    return f"{folder.path} is finished ({checkpoint.env_steps:,} of {steps:,} steps): give a larger --steps to go on"
