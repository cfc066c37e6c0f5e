"""`seedcli.load_policy`: checks everything that does not need TensorFlow before loading it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from seedcli.config.presets import read_toml
from seedcli.config.sources import from_toml_file
from seedcli.envs.placement import plain_spaces
from seedcli.errors import UsageError
from seedcli.models.formats import format_of_file
from seedcli.tensorflow_import import import_tensorflow
from seedcli.training.checkpoint_files import check_environment, find_checkpoint

if TYPE_CHECKING:
    from seedcli.api.policy import Policy

_SEEDS = 2**31


def load_policy(path: str | os.PathLike[str], greedy: bool | None = None, seed: int = 0) -> Policy:
    """The policy of a trained agent: of a run, or of a model that `seed export` has written.

    For a run, the environment is built once to read its spaces, so its package must be installed. A model does not need
    that package, and needs TensorFlow only if it is a SavedModel.

    Args:
        path: a run's folder or its checkpoints/ (the newest good checkpoint is used), a checkpoint's, or a model.
        greedy: take the greedy action (True), or sample as in training (False); None: greedy for a run, like
            `seed eval`, and as exported for a model.
        seed: of sampled actions, 0 to 2³¹ - 1: with the same seed, the same calls give the same actions.

    Raises:
        CheckpointError: there is no good checkpoint, or its environment or agent differs from the one here; a model is
            truncated or damaged, or was not written by `seed export`.
        UsageError: the seed is out of range, or the run's configuration does not fit this version; a model was exported
            with other actions, or its runtime is not installed.
        SimulatorMissing, EnvironmentFailed: the environment cannot be built.
        SeedError: the device is out of memory.
    """
    if not 0 <= seed < _SEEDS:
        raise UsageError(f"seed = {seed} must be between 0 and {_SEEDS - 1}")
    if format_of_file(Path(path)) is not None:
        return _load_model(Path(path), greedy, seed)
    checkpoint = find_checkpoint(Path(path))
    config = from_toml_file(checkpoint.config_path)
    spaces = plain_spaces(config.environment, checkpoint.spec)
    check_environment(checkpoint, checkpoint.spec, spaces.spec)
    if "tensorflow" not in sys.modules:
        import_tensorflow()
    from seedcli.api.policy import Origin, Policy
    from seedcli.api.trained import TrainedActor

    greedy = greedy is not False
    actor = TrainedActor(checkpoint, config, spaces, greedy=greedy, seed=seed)
    return Policy(
        actor, spaces, Origin(read_toml(checkpoint.config_path), checkpoint.env_steps, checkpoint.path, greedy)
    )


def _load_model(path: Path, greedy: bool | None, seed: int) -> Policy:
    from seedcli.api.policy import Origin, Policy
    from seedcli.models.acting import ModelActor
    from seedcli.models.runtimes import open_model

    model = open_model(path)
    found = model.description
    if greedy not in (None, found.greedy):
        has, wants = ("greedy", "--sample") if found.greedy else ("sampled", "--greedy")
        raise UsageError(f"greedy={greedy}, but {path} was exported with {has} actions: export the run with {wants}")
    return Policy(ModelActor(model, seed), found.spaces, Origin(found.config, found.env_steps, path, found.greedy))
