"""Resuming a run: its checkpoint, its mode (deterministic or threaded), and whether steps remain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from seedcli.config.presets import read_toml
from seedcli.config.sources import DEFAULT, Resolved, from_toml_file
from seedcli.errors import CheckpointError, UsageError
from seedcli.roles.run_folder import RunFolder
from seedcli.training.checkpoint_files import Checkpoint, list_checkpoints, open_checkpoint, take_checkpoint


def was_deterministic(folder: RunFolder) -> bool:
    """Whether the run to be resumed was deterministic when it last ran."""
    try:
        run = read_toml(folder.config_path).get("run", {})
    except UsageError:
        return False  # an unreadable configuration is replaced by the given one
    return isinstance(run, dict) and run.get("deterministic") is True


def keep_mode(resolved: Resolved, folder: RunFolder) -> Resolved:
    """Keep a resumed run deterministic, unless a configuration layer sets run.deterministic.

    When a preset or file is given, the run's old values are not a layer; run.deterministic is carried over even then.
    """
    if not folder.resume or resolved.sources["run.deterministic"] != DEFAULT or not was_deterministic(folder):
        return resolved
    config = resolved.config
    run = config.run.model_copy(update={"deterministic": True})
    sources = {**resolved.sources, "run.deterministic": f"run {folder.path}"}
    return replace(resolved, config=config.model_copy(update={"run": run}), sources=sources)


def check_threaded(resolved: Resolved, logdir: Path | None) -> None:
    """Refuse a deterministic run in `seed learner`, whose actors are separate processes.

    Args:
        resolved: its configuration.
        logdir: the run's folder, as the user gave it.

    Raises:
        UsageError: the run is deterministic.
    """
    if not resolved.config.run.deterministic:
        return
    source = resolved.sources["run.deterministic"]
    instead = f"seed train --resume --logdir {logdir}" if source.startswith("run ") else "seed train"
    raise UsageError(
        f"run.deterministic = true (from {source}) is for seed train, which runs its actors in its own thread: use "
        f"{instead}, or give --set run.deterministic=false to train with threads from here on"
    )


def mode_note(resolved: Resolved, folder: RunFolder) -> str:
    """A note on a changed or kept mode of a resumed run, made before its configuration is rewritten; "" for none."""
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
            f"{source}): only the steps after its last checkpoint are reproducible"
        )
    return ""


def resume_point(folder: RunFolder) -> Checkpoint | None:
    """The checkpoint a resumed run continues from; None for a new run, or one without a checkpoint."""
    return take_checkpoint(folder.path) if folder.resume else None


def check_steps(resolved: Resolved, checkpoint: Checkpoint | None) -> None:
    """Refuse a run.steps that a resumed run has already exceeded, before config.toml is written.

    Raises:
        UsageError: run.steps is below the steps already taken.
    """
    steps = resolved.config.run.steps
    if checkpoint is None or steps > checkpoint.env_steps:
        return
    # An equal number means a finished run, not an error: scripts restart a run until it is done.
    if steps != from_toml_file(checkpoint.config_path).run.steps:
        raise UsageError(
            f"run.steps = {steps:,} must be above the {checkpoint.env_steps:,} that this run has already taken: "
            "it counts from the start of the run"
        )


def finished(resolved: Resolved, folder: RunFolder) -> str:
    """The message for a run that has taken its steps; "" for an unfinished run.

    Raises:
        UsageError: run.steps is below the steps already taken.
    """
    found = list_checkpoints(folder.checkpoints) if folder.resume else []
    if not found:
        return ""
    try:
        checkpoint = open_checkpoint(found[-1])
    except CheckpointError:
        return ""  # logged and handled when the run is resumed
    check_steps(resolved, checkpoint)
    steps = resolved.config.run.steps
    if checkpoint.env_steps < steps:
        return ""
    return f"{folder.path} is finished ({checkpoint.env_steps:,} of {steps:,} steps): give a larger --steps to continue"
