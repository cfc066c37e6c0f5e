"""Suites: the tasks of a benchmark, the scores that normalise returns, and statistics over tasks.

The Atari scores are those of DQN Zoo (github.com/google-deepmind/dqn_zoo, atari_data.py): mean returns of random play
and of human testers on the 57 games, episodes begun with up to 30 no-ops, as in Agent57 (arXiv 2003.13350). Those of
DMLab-30 are IMPALA's (arXiv 1802.01561, appendix B; dmlab30.py of its repository, games.py of SEED RL's).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seedcli.config.sections import EnvironmentConfig
from seedcli.envs.dmlab.levels import TEST_SETTINGS
from seedcli.errors import UsageError

RESAMPLES = 2_000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Task:
    """One task of a suite.

    Attributes:
        name: the environment's id in its family, e.g. "breakout": what a run was trained on.
        random: mean return of random play, raw rewards.
        human: mean return of humans, raw rewards.
        test: the id that runs are evaluated on, to which the scores apply; "": `name`.
    """

    name: str
    random: float
    human: float
    test: str = ""

    def normalise(self, score: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Human-normalised scores [...], (score - random) / (human - random): 0 is random play, 1 is human."""
        return (np.asarray(score, np.float64) - self.random) / (self.human - self.random)


@dataclass(frozen=True)
class Suite:
    """A benchmark.

    Attributes:
        name: e.g. "atari57".
        family: `environment.family` of its tasks.
        tasks: all of them.
        unit: what a task is called: "game" or "level".
        statistics: names of the statistics that `aggregate` computes.
        test_kwargs: `environment.kwargs` of evaluation, in addition to those of training.
    """

    name: str
    family: str
    tasks: tuple[Task, ...]
    unit: str = "game"
    statistics: tuple[str, ...] = ("median", "mean", "iqm")
    test_kwargs: Mapping[str, str] = field(default_factory=dict)

    def count(self, tasks: int) -> str:
        """A number of tasks in words: "1 game", "30 levels"."""
        return f"{tasks} {self.unit}{'s' if tasks != 1 else ''}"

    def test_environment(self, task: Task, trained_on: EnvironmentConfig) -> EnvironmentConfig:
        """The environment that a run of `task` is evaluated on, given the one it was trained on."""
        changes: dict[str, Any] = {"id": task.test or task.name}
        if self.test_kwargs:
            changes["kwargs"] = {**getattr(trained_on, "kwargs", {}), **self.test_kwargs}
        return trained_on.model_copy(update=changes)


# Without their tasks, which are in scores/<name>.csv.
_SUITES = {
    suite.name: suite
    for suite in (
        Suite("atari57", "atari", ()),
        Suite("dmlab30", "dmlab", (), "level", ("median", "mean", "iqm", "capped_mean"), TEST_SETTINGS),
    )
}


def load_suite(name: str) -> Suite:
    """Read a suite's tasks and scores.

    Raises:
        UsageError: there is no such suite; lists the known ones.
    """
    if name not in _SUITES:
        raise UsageError(f"{name!r} is not a suite; known: {', '.join(sorted(_SUITES))}")
    text = (resources.files("seedcli.envs") / "scores" / f"{name}.csv").read_text(encoding="utf-8")
    tasks = []
    for row in csv.DictReader(text.splitlines()):
        game, test = row["game"], row.get("test", "")
        tasks.append(Task(game, float(row["random"]), float(row["human"]), test if test != game else ""))
    return replace(_SUITES[name], tasks=tuple(tasks))


class Estimate(NamedTuple):
    """A statistic and the bounds of its confidence interval."""

    value: float
    low: float
    high: float


def interquartile_mean(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The mean over the last axis [..., G] without its lowest and highest quarters, ⌊G/4⌋ values each.

    IQM of Agarwal et al., "Deep RL at the Edge of the Statistical Precipice" (NeurIPS 2021, arXiv 2108.13264), section
    4.3; rounded as in their library rliable. For fewer than four values it is the mean.
    """
    cut = scores.shape[-1] // 4
    ordered = np.sort(scores, axis=-1)
    return np.asarray(ordered[..., cut : ordered.shape[-1] - cut].mean(axis=-1), np.float64)


def capped_mean(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The mean over the last axis [..., G] of scores, each capped at 1, a human's score.

    The mean capped human-normalised score of IMPALA (Espeholt et al., arXiv 1802.01561, section 5.3): progress on
    every task counts, and high scores on a few cannot make up for the rest.
    """
    return np.asarray(np.minimum(scores, 1.0).mean(axis=-1), np.float64)


# Names of the statistics for people.
TITLES = {"median": "median", "mean": "mean", "iqm": "interquartile mean", "capped_mean": "mean, each capped at 100 %"}
# Each reduces [..., G] to [...].
_STATISTICS: dict[str, Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]] = {
    "median": lambda scores: np.asarray(np.median(scores, axis=-1)),
    "mean": lambda scores: np.asarray(scores.mean(axis=-1)),
    "iqm": interquartile_mean,
    "capped_mean": capped_mean,
}


def aggregate(scores: Sequence[npt.NDArray[np.float64]], seed: int, statistics: Sequence[str]) -> dict[str, Estimate]:
    """Statistics over tasks, each with a 95 % interval of a stratified bootstrap.

    A task's score is the mean of its episodes. A resample draws as many episodes with replacement within each task; the
    interval lies between percentiles of the 2,000 resampled statistics (Agarwal et al., section 4.1, which resamples
    runs: with one run a task the interval covers the choice of episodes, not the variation between trainings).

    Args:
        scores: for each of G tasks the normalised scores of its episodes [N], at least one; N may differ.
        seed: of the resampling.
        statistics: any of "median", "mean", "iqm" (the interquartile mean) and "capped_mean".
    """
    random = np.random.default_rng(seed)
    resampled = np.empty((RESAMPLES, len(scores)))
    for g, task in enumerate(scores):
        resampled[:, g] = task[random.integers(len(task), size=(RESAMPLES, len(task)))].mean(axis=1)
    means = np.array([task.mean() for task in scores])
    tail = (1 - CONFIDENCE) / 2
    estimates = {}
    for name in statistics:
        statistic = _STATISTICS[name]
        low, high = np.quantile(statistic(resampled), (tail, 1 - tail))
        estimates[name] = Estimate(float(statistic(means)), float(low), float(high))
    return estimates
