"""`seedcli.train`: a training run as a function call."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from seedcli.api.processes import run_seed
from seedcli.api.run import Run
from seedcli.config.presets import preset_layers
from seedcli.config.toml_text import format_value
from seedcli.errors import UsageError
from seedcli.roles.run_folder import new_folder, remove_empty

# Argument of `train` → the flag of `seed train` that it stands for; None and False leave the flag out.
_FLAGS = {
    "preset": "--preset",
    "steps": "--steps",
    "seed": "--seed",
    "env": "--env",
    "agent": "--agent",
    "network": "--network",
    "family": "--family",
    "logdir": "--logdir",
    "resume": "--resume",
    "overwrite": "--overwrite",
}


def train(
    preset: str | None = None,
    *,
    steps: int | None = None,
    seed: int | None = None,
    env: str | None = None,
    agent: str | None = None,
    network: str | None = None,
    family: str | None = None,
    logdir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    set: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> Run:
    """Train on this machine, as `seed train` does, and return the run when training is done.

    Training runs in a child process. KeyboardInterrupt asks it once to stop, waits for its checkpoint (a second one
    does not) and is raised again; `resume=True` continues the run.

    Args:
        preset: name of a preset, see `seed presets list`; not needed to resume.
        steps: environment steps to train on.
        seed: seed of networks, actions and environments.
        env: game, scenario, level or Gymnasium id to play.
        agent: learning algorithm: a built-in name, or "module:Class" of your own in a module in the working folder or
            on PYTHONPATH.
        network: network torso, likewise.
        family: family of environments, likewise.
        logdir: the run's folder; None: `runs/<preset>/<time>` in the working folder.
        resume: resume the run in `logdir`.
        overwrite: replace the run in `logdir`.
        set: configuration key such as "training.batch_size" → value.
        quiet: show no output of the training.

    Raises:
        UsageError: wrong arguments, or an unusable folder.
        SeedError: training failed, or was stopped by another process; with the message of `seed train`.
    """
    with _folder(preset, logdir, resume) as path:
        given = {"preset": preset, "steps": steps, "seed": seed, "env": env, "logdir": path}
        given |= {"agent": agent, "network": network, "family": family, "resume": resume, "overwrite": overwrite}
        sets = [f"--set={key}={_as_toml(value)}" for key, value in (set or {}).items()]
        run_seed(["train", "--no-live", *_flags(given), *sets], quiet=quiet)
        assert path is not None  # the command has refused to resume without a folder
        return Run(path)


def _flags(given: Mapping[str, Any]) -> Iterator[str]:
    for name, flag in _FLAGS.items():
        value = given[name]
        if value is True:
            yield flag
        elif value is not None and value is not False:
            yield f"{flag}={value}"


def _as_toml(value: Any) -> str:
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    return format_value(value)


@contextlib.contextmanager
def _folder(preset: str | None, logdir: str | os.PathLike[str] | None, resume: bool) -> Iterator[Path | None]:
    """The folder of the run; one that is made here is removed again if no run begins in it."""
    if logdir is not None or preset is None or resume:
        yield None if logdir is None else Path(logdir).absolute()
        return
    preset_layers(preset)  # an unknown preset makes no folder
    parent = Path("runs", preset)
    missing = [folder.absolute() for folder in (parent, parent.parent) if not folder.exists()]
    try:
        path = new_folder(parent).absolute()
    except OSError as error:
        raise UsageError(
            f"{parent} cannot be used as the folder of runs ({error.strerror}): give another logdir"
        ) from error
    try:
        yield path
    except BaseException:
        with contextlib.suppress(OSError):
            remove_empty(path)
            for folder in missing:
                folder.rmdir()
        raise
