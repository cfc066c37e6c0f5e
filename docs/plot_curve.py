"""Draw a run's return over environment steps: python docs/plot_curve.py RUN_FOLDER PICTURE.png"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def _series(lines: list[dict[str, Any]], name: str) -> tuple[list[float], list[float]]:
    found = [(line["env_steps"] / 1e6, line[name]) for line in lines if line.get(name) is not None]
    return [steps for steps, _ in found], [value for _, value in found]


def main() -> None:
    """Plot returns of training, and of evaluation where environments evaluate, from a run's metrics.jsonl."""
    folder, picture = Path(sys.argv[1]), Path(sys.argv[2])
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["episode_return_100"] is not None]
    figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
    axes.plot(*_series(lines, "episode_return"), color="#b7c9e2", linewidth=0.8, label="training episodes")
    axes.plot(*_series(lines, "episode_return_100"), color="#1f4e8c", label="mean of the last 100 of these")
    if lines[-1].get("evaluation_episodes"):
        steps, returns = _series(lines, "evaluation_return")
        axes.plot(
            steps, returns, color="#f3c892", linestyle="none", marker=".", markersize=3, label="evaluation episodes"
        )
        means = [sum(returns[max(0, i - 9) : i + 1]) / len(returns[max(0, i - 9) : i + 1]) for i in range(len(returns))]
        axes.plot(steps, means, color="#c2590c", label="mean of ten of these")
    axes.set_xlabel("environment steps, millions")
    axes.set_ylabel("return (raw)")
    axes.grid(alpha=0.3)
    axes.legend(loc="best", frameon=False, fontsize=9)
    hours = (lines[-1]["time"] - lines[0]["time"]) / 3600
    config = tomllib.loads((folder / "config.toml").read_text())
    axes.set_title(f"{config['run']['preset']}, seed {config['run']['seed']}, {hours:.2f} h", fontsize=10)
    figure.savefig(picture, dpi=130)


if __name__ == "__main__":
    main()
