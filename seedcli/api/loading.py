"""`seedcli.load_policy`: what can be checked without TensorFlow is checked before it is loaded."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from seedcli.config.sources import from_toml_file
from seedcli.envs.placement import plain_spaces
from seedcli.errors import UsageError
from seedcli.tensorflow_import import import_tensorflow
from seedcli.training.checkpoint_files import check_environment, find_checkpoint

if TYPE_CHECKING:
    from seedcli.api.policy import Policy

_SEEDS = 2**31


def load_policy(path: str | os.PathLike[str], greedy: bool | None = None, seed: int = 0) -> Policy:
    """The policy of a trained agent.

    The environment is built once to learn its spaces, so its package must be installed.

    Args:
        path: a run's folder or its checkpoints/, of which the newest good checkpoint is taken, or a checkpoint's.
        greedy: take the greedy action (True), or sample as in training (False); None: greedy, as `seed eval`.
        seed: of sampled actions, 0 to 2³¹ - 1: the same calls give the same actions.

    Raises:
        CheckpointError: there is no good checkpoint, or its environment or agent is another one here.
        UsageError: the seed is out of range, or the run's configuration does not fit this version.
        SimulatorMissing, EnvironmentFailed: the environment cannot be built.
        SeedError: the device is out of memory.
    """
    if not 0 <= seed < _SEEDS:
        raise UsageError(f"seed = {seed} must be between 0 and {_SEEDS - 1}")
    checkpoint = find_checkpoint(Path(path))
    config = from_toml_file(checkpoint.config_path)
    spaces = plain_spaces(config.environment, checkpoint.spec)
    check_environment(checkpoint, checkpoint.spec, spaces.spec)
    if "tensorflow" not in sys.modules:
        import_tensorflow()
    from seedcli.api.policy import Policy

    return Policy(checkpoint, config, spaces, greedy=greedy is not False, seed=seed)
