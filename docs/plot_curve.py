"""Draw returns over environment steps: python docs/plot_curve.py RUN_FOLDER [RUN_FOLDER …] PICTURE.png"""

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


def _one(axes: Any, lines: list[dict[str, Any]]) -> None:
    """Training episodes, and evaluation episodes where environments evaluate, each with a running mean."""
    axes.plot(*_series(lines, "episode_return"), color="#b7c9e2", linewidth=0.8, label="training episodes")
    axes.plot(*_series(lines, "episode_return_100"), color="#1f4e8c", label="mean of the last 100 of these")
    if lines[-1].get("evaluation_episodes"):
        steps, returns = _series(lines, "evaluation_return")
        axes.plot(
            steps, returns, color="#f3c892", linestyle="none", marker=".", markersize=3, label="evaluation episodes"
        )
        means = [sum(returns[max(0, i - 9) : i + 1]) / len(returns[max(0, i - 9) : i + 1]) for i in range(len(returns))]
        axes.plot(steps, means, color="#c2590c", label="mean of ten of these")


def main() -> None:
    """Plot one run in detail, or the mean return of the last 100 training episodes of several."""
    *folders, picture = (Path(argument) for argument in sys.argv[1:])
    if not folders or picture.suffix not in (".png", ".svg", ".pdf"):
        sys.exit("name run folders, then the picture to write: a .png, .svg or .pdf file")
    figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
    titles = []
    for folder in folders:
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        lines = [line for line in lines if line["episode_return_100"] is not None]
        config = tomllib.loads((folder / "config.toml").read_text())
        if len(folders) == 1:
            _one(axes, lines)
            hours = (lines[-1]["time"] - lines[0]["time"]) / 3600
            titles.append(f"{config['run']['preset']}, seed {config['run']['seed']}, {hours:.2f} h")
        else:
            axes.plot(
                *_series(lines, "episode_return_100"),
                label=f"{config['environment']['id']}, seed {config['run']['seed']}",
            )
            titles.append(f"{config['run']['preset']}, mean of the last 100 training episodes")
    axes.set_xlabel("environment steps, millions")
    axes.set_ylabel("return (raw)")
    axes.grid(alpha=0.3)
    axes.legend(loc="best", frameon=False, fontsize=9)
    axes.set_title(titles[0], fontsize=10)
    figure.savefig(picture, dpi=130)


if __name__ == "__main__":
    main()
