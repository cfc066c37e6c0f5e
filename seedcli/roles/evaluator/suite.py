"""`seed eval --suite`: play one run per task of a benchmark and compare the scores with humans'."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from seedcli.config.sources import from_toml_file
from seedcli.envs.scores import TITLES, Estimate, Suite, aggregate
from seedcli.errors import EXIT_DONE, CheckpointError, SeedError
from seedcli.roles.evaluator.report import Evaluation
from seedcli.roles.evaluator.run import Player
from seedcli.roles.evaluator.suite_chart import write_chart
from seedcli.roles.evaluator.suite_runs import Run, print_to_stderr, warn
from seedcli.training.checkpoint import find_checkpoint


@dataclass(frozen=True)
class Result:
    """The result of playing a run.

    Attributes:
        run: the run.
        environment: id of the environment played; some levels have a separate test environment.
        evaluation: raw returns of its episodes.
        frames: simulator frames it was trained for.
        human_normalised: [N] human-normalised score of each episode.
    """

    run: Run
    environment: str
    evaluation: Evaluation
    frames: int
    human_normalised: npt.NDArray[np.float64]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, for `--json`."""
        return {
            "game": self.run.task.name,
            "environment": self.environment,
            "run": str(self.run.path),
            "env_steps": self.evaluation.env_steps,
            "frames": self.frames,
            "returns": self.evaluation.returns,
            "return_mean": float(np.mean(self.evaluation.returns)),
            "human_normalised": float(self.human_normalised.mean()),
        }


def play_run(run: Run, suite: Suite, *, episodes: int, sample: bool, seed: int, envs: int) -> Result:
    """Play the newest good checkpoint of a run in the test environment of its task.

    Other arguments as of `run_eval`.

    Raises:
        SeedError: the run can no longer be read, or cannot be played here.
    """
    checkpoint = find_checkpoint(run.path)
    environment = suite.test_environment(run.task, from_toml_file(checkpoint.config_path).environment)
    player = Player(checkpoint, sample=sample, seed=seed, envs=envs, environment=environment)
    env = player.build(envs)
    try:
        evaluation = player.play(env, episodes, seed)
    finally:
        env.close()
    frames = evaluation.env_steps * checkpoint.spec.frames_per_step
    return Result(run, environment.id, evaluation, frames, run.task.normalise(evaluation.returns))


def run_suite(
    runs: Sequence[Run],
    suite: Suite,
    *,
    episodes: int,
    sample: bool,
    seed: int,
    json_output: bool,
    chart: Path | None,
    envs: int,
) -> int:
    """Play one run per task; print each score and the statistics over the tasks present.

    Args:
        runs: from `choose_runs`.
        suite: the benchmark.
        episodes: episodes played of each task.
        sample: sample actions instead of taking the greedy one.
        seed: of environments, sampling and bootstrap.
        json_output: print one JSON object on stdout instead of tables.
        chart: a PNG file for a bar chart of the scores.
        envs: environments played at once; at most `episodes` are used.

    Returns:
        The exit status; 0 even if tasks are missing, which are listed.

    Raises:
        CheckpointError: none of the runs can be played.
    """
    results = []
    for number, run in enumerate(runs, 1):
        start = time.monotonic()
        try:
            result = play_run(run, suite, episodes=episodes, sample=sample, seed=seed, envs=min(envs, episodes))
        except SeedError as error:
            warn(f"{run.task.name} counts as missing: {error}")
            continue
        finally:
            # Networks are in reference cycles: without this, those of dozens of games would stay in memory.
            gc.collect()
        results.append(result)
        score = f"return {np.mean(result.evaluation.returns):,.2f}, {result.human_normalised.mean():.1%} of human"
        print_to_stderr(f"[{number}/{len(runs)}] {run.task.name}: {score}, {time.monotonic() - start:.0f} s")
        if result.evaluation.hint:
            print_to_stderr(f"{run.task.name}: {result.evaluation.hint}")
    if not results:
        raise CheckpointError("none of the runs could be played: see the messages above")
    estimates = aggregate([result.human_normalised for result in results], seed, suite.statistics)
    present = {result.run.task.name for result in results}
    missing = [task.name for task in suite.tasks if task.name not in present]
    if json_output:
        found = {
            "suite": suite.name,
            "actions": results[0].evaluation.actions,
            "games": [result.to_dict() for result in results],
            "aggregate": {name: estimate._asdict() for name, estimate in estimates.items()},
            "missing": missing,
        }
        print(json.dumps(found), flush=True)
    else:
        _print(results, estimates, missing, suite)
    if chart is not None:
        scores = {result.run.task.name: float(result.human_normalised.mean()) for result in results}
        write_chart(chart, suite, scores, estimates)
        print_to_stderr(f"{chart}: bar chart of {suite.count(len(results))}")
    return EXIT_DONE


def _print(results: Sequence[Result], estimates: dict[str, Estimate], missing: Sequence[str], suite: Suite) -> None:
    console = Console()
    first = results[0].evaluation
    table = Table(title=f"{suite.name}, {len(first.returns)} episodes a {suite.unit}, {first.actions} actions")
    table.add_column(suite.unit)
    for name in ("env steps", "frames", "return mean", "human-normalised"):
        table.add_column(name, justify="right")
    for result in results:
        table.add_row(
            result.environment,
            f"{result.evaluation.env_steps:,}",
            f"{result.frames:,}",
            f"{np.mean(result.evaluation.returns):,.2f}",
            f"{result.human_normalised.mean():,.1%}",
        )
    console.print(table)
    table = Table(title=f"human-normalised over {suite.count(len(results))}")
    table.add_column("")
    for name in ("value", "95 % interval"):
        table.add_column(name, justify="right")
    for name, (value, low, high) in estimates.items():
        table.add_row(TITLES[name], f"{value:,.1%}", f"{low:,.1%} to {high:,.1%}")
    console.print(table)
    if missing:
        console.print(f"missing, {len(missing)} of {len(suite.tasks)}: {', '.join(missing)}", soft_wrap=True)
