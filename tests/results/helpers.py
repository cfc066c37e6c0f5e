"""Made-up runs: folders with a configuration and lines of metrics."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CONFIG = """[run]
preset = "{preset}"  # preset {preset}
steps = {steps}  # --steps
seed = {seed}  # --seed

[environment]
family = "gymnasium"  # preset {preset}
id = "{task}"  # --env

[agent]
algorithm = "vtrace"  # preset {preset}

[training]
batch_size = {batch_size}  # default
"""
START = 1_000_000.0  # Unix seconds


def line(steps: int, mean: float | None, **more: Any) -> dict[str, Any]:
    """A line of metrics: 100 steps a second, an episode every 10 steps."""
    return {
        "time": START + steps / 100,
        "env_steps": steps,
        "episodes": steps // 10,
        "episode_return": mean,
        "episode_return_100": mean,
        "evaluation_episodes": 0,
        "evaluation_return": None,
        "evaluation_return_20": None,
        "devices": [{"device": "CPU:0"}],
        **more,
    }


def make_run(
    path: Path,
    lines: Sequence[Mapping[str, Any]] | None,
    *,
    preset: str = "made_up",
    task: str = "CartPole-v1",
    steps: int = 10_000,
    seed: int = 1,
    batch_size: int = 8,
    checkpoint: int | None = None,
    sessions: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Write a run; `lines` None: no metrics.jsonl; `checkpoint`: steps of a complete one."""
    (path / "checkpoints").mkdir(parents=True)
    text = CONFIG.format(preset=preset, steps=steps, seed=seed, task=task, batch_size=batch_size)
    (path / "config.toml").write_text(text)
    if lines is not None:
        (path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    if checkpoint is not None:
        (path / "checkpoints" / str(checkpoint)).mkdir()
        (path / "checkpoints" / str(checkpoint) / "COMPLETE").touch()
    if sessions:
        (path / "sessions.jsonl").write_text("".join(json.dumps(each) + "\n" for each in sessions))
    return path
