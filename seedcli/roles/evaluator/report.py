"""The result of an evaluation, as a table, JSON or a video."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from seedcli.config.sections import EnvironmentConfig
from seedcli.envs.base import VectorEnv
from seedcli.roles.evaluator.video import VideoWriter


@dataclass(frozen=True)
class Evaluation:
    """The result of playing a checkpoint.

    Attributes:
        checkpoint: its folder.
        env_steps: environment steps it was trained for.
        returns: raw return of each episode, in the order of environments and episodes.
        lengths: environment steps of each episode.
        actions: "greedy" or "sampled".
        hint: one-line advice if greedy play falls clearly short of training; "" for none.
        matches: episodes are matches, and returns are goal differences.
    """

    checkpoint: str
    env_steps: int
    returns: list[float]
    lengths: list[int]
    actions: str = "greedy"
    hint: str = ""
    matches: bool = False

    def rates(self) -> dict[str, float]:
        """Shares of matches won, drawn and lost; empty if episodes are not matches."""
        if not self.matches:
            return {}
        signs = np.sign(self.returns)
        return {f"{name}_rate": float(np.mean(signs == sign)) for name, sign in (("win", 1), ("draw", 0), ("loss", -1))}

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, for `--json`."""
        return {
            "checkpoint": self.checkpoint,
            "env_steps": self.env_steps,
            "actions": self.actions,
            "episodes": len(self.returns),
            "return_mean": float(np.mean(self.returns)),
            "return_std": float(np.std(self.returns)),
            "returns": self.returns,
            "length_mean": float(np.mean(self.lengths)),
            **self.rates(),
        }


def _print(evaluation: Evaluation, environment: EnvironmentConfig) -> None:
    console = Console()
    table = Table(title=f"{environment.family}/{environment.id}, {evaluation.actions} actions")
    returns = np.array(evaluation.returns)
    columns = {"env steps": f"{evaluation.env_steps:,}", "episodes": f"{len(returns)}"}
    if evaluation.matches:
        columns |= {"score mean": f"{returns.mean():.2f}", "std": f"{returns.std():.2f}"}
        columns |= {name.removesuffix("_rate"): f"{100 * rate:.0f} %" for name, rate in evaluation.rates().items()}
    else:
        columns |= {"return mean": f"{returns.mean():.2f}", "std": f"{returns.std():.2f}"}
        columns |= {"min": f"{returns.min():g}", "max": f"{returns.max():g}"}
    columns["length mean"] = f"{np.mean(evaluation.lengths):,.1f}"
    for name in columns:
        table.add_column(name, justify="right")
    table.add_row(*columns.values())
    console.print(table)
    console.print(f"checkpoint {evaluation.checkpoint}", soft_wrap=True)


def report(evaluation: Evaluation, environment: EnvironmentConfig, *, json_output: bool, hint: bool = True) -> None:
    """Print an evaluation on stdout, and its hint on stderr."""
    if json_output:
        print(json.dumps(evaluation.to_dict()), flush=True)
    else:
        _print(evaluation, environment)
    if hint and evaluation.hint:
        print(f"seed: {evaluation.hint}", file=sys.stderr, flush=True)


def film(
    build: Callable[[], VectorEnv],
    play: Callable[[VectorEnv, int, int, VideoWriter], Evaluation],
    path: Path,
    environment: EnvironmentConfig,
    seed: int,
) -> None:
    """Film one episode and say so on stderr.

    Args:
        build: makes the environment, which renders.
        play: plays a number of episodes with a seed.
        path: the MP4 file.
        environment: the environment.
        seed: of environment and actions.
    """
    with VideoWriter(path, environment) as video:
        env = build()
        try:
            evaluation = play(env, 1, seed, video)
        finally:
            env.close()
    print(f"{path}: one episode, return {evaluation.returns[0]:g}, {evaluation.lengths[0]:,} steps", file=sys.stderr)
