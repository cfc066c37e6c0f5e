"""Draw a run's return over environment steps: python docs/plot_curve.py RUN_FOLDER PICTURE.png (needs matplotlib)."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def main() -> None:
    """Plot `episode_return_100` and `episode_return` of metrics.jsonl, and the wall-clock time above."""
    folder, picture = Path(sys.argv[1]), Path(sys.argv[2])
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["episode_return_100"] is not None]
    steps = [line["env_steps"] / 1e6 for line in lines]
    figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
    each = [(line["env_steps"] / 1e6, line["episode_return"]) for line in lines if line["episode_return"] is not None]
    axes.plot(*zip(*each, strict=True), color="#b7c9e2", linewidth=0.8, label="episodes finished between two lines")
    axes.plot(
        steps, [line["episode_return_100"] for line in lines], color="#1f4e8c", label="mean of the last 100 episodes"
    )
    axes.set_xlabel("environment steps, millions")
    axes.set_ylabel("return (raw)")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    hours = (lines[-1]["time"] - lines[0]["time"]) / 3600
    config = tomllib.loads((folder / "config.toml").read_text())
    axes.set_title(f"{config['run']['preset']}, seed {config['run']['seed']}, {hours:.2f} h", fontsize=10)
    figure.savefig(picture, dpi=130)


if __name__ == "__main__":
    main()
