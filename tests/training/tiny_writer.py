"""A tiny checkpoint writer, for tests of checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from seedcli.specs import ActionSpec, ArraySpec, EnvSpec
from seedcli.training.checkpoint import Checkpointer, open_checkpoint, restore

SPEC = EnvSpec("test/env", ArraySpec((2,), "uint8"), ActionSpec((3,)))


def make_writer(folder: Path, size: int = 6, **options: Any) -> tuple[Checkpointer, tf.Variable]:
    """A writer of one variable with `size` numbers."""
    variable = tf.Variable(np.zeros(size, np.float32))
    return Checkpointer(
        folder, "[run]\n", SPEC, {"agent": {"tiny": variable}}, **{"keep": 3, "keep_every_hours": 0.0} | options
    ), variable


def save(writer: Checkpointer, variable: tf.Variable, env_steps: int) -> Path:
    """Write a checkpoint whose variable holds its number of environment steps."""
    variable.assign(tf.fill(variable.shape, float(env_steps)))
    return writer.save({"env_steps": env_steps}, wait=True)


def holds(path: Path, size: int, value: float) -> None:
    """Assert the content of a checkpoint."""
    variable = tf.Variable(np.zeros(size, np.float32))
    restore(open_checkpoint(path), {"agent": {"tiny": variable}})
    np.testing.assert_array_equal(variable, np.float32(value))


def names(folder: Path) -> list[str]:
    """Names of the entries of a folder."""
    return sorted(path.name for path in folder.iterdir())
