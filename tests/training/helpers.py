"""A small R2D2 agent for tests of sources and cores."""

from __future__ import annotations

from seedcli.config.sources import Resolved, load_config
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec

SPEC = EnvSpec("test/env", ArraySpec((3,), "float32"), ActionSpec((4,)))
K, T, B = 2, 3, 4
LIMIT = 30.0  # seconds


def resolved(*values: str) -> Resolved:
    """Its configuration, with further values."""
    sets = (
        "agent.algorithm=r2d2",
        "agent.network.hidden=[8]",
        "agent.network.lstm=5",
        "agent.dueling_hidden=8",
        "agent.n_step=2",
        f"training.burn_in={K}",
        f"training.unroll_length={T}",
        f"training.batch_size={B}",
        "replay.capacity=64",
        "replay.min_size=8",
        "replay.ratio=1",
        "actors.envs=4",
        "actors.evaluation_envs=1",
        "inference.max_envs=8",
        *values,
    )
    return load_config(None, environ={}, sets=sets)
