"""`seedcli.Run`: the folder of a run, read from Python."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from seedcli.api.loading import load_policy
from seedcli.api.processes import run_seed
from seedcli.config.presets import read_toml
from seedcli.errors import SeedError, UsageError
from seedcli.results.metrics_file import read_all_columns
from seedcli.roles.run_folder import CHECKPOINTS, CONFIG, METRICS
from seedcli.training.checkpoint_files import list_checkpoints

if TYPE_CHECKING:
    from seedcli.api.policy import Policy


@dataclass(frozen=True)
class Evaluation:
    """The result of playing a checkpoint.

    Attributes:
        checkpoint: its folder.
        env_steps: environment steps it was trained for.
        actions: "greedy" or "sampled".
        returns: [episodes] float64, raw return of each episode.
        length_mean: mean length of the episodes, environment steps.
        rates: of matches "win_rate", "draw_rate" and "loss_rate", 0 to 1; empty for other tasks.
    """

    checkpoint: Path
    env_steps: int
    actions: str
    returns: npt.NDArray[np.float64]
    length_mean: float
    rates: Mapping[str, float]

    @property
    def episodes(self) -> int:
        """Number of episodes played."""
        return len(self.returns)

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """Standard deviation of the returns."""
        return float(self.returns.std())


class Run:
    """A run of `seed train`, `seed learner` or `seedcli.train`. Files are read at each access.

    Args:
        path: its folder.

    Attributes:
        path: the folder, absolute.

    Raises:
        UsageError: the folder holds no run.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        if not (self.path / CONFIG).is_file():
            raise UsageError(f"{path} holds no run: it has no {CONFIG}")

    def __repr__(self) -> str:
        return f"seedcli.Run({str(self.path)!r})"

    @property
    def config(self) -> dict[str, Any]:
        """Every value of the configuration, by section and name: `config["training"]["batch_size"]`.

        Raises:
            UsageError: config.toml cannot be read.
        """
        return read_toml(self.path / CONFIG)

    @property
    def metrics(self) -> dict[str, npt.NDArray[np.float64]]:
        """Metrics by name, each [lines] float64, in the order of metrics.jsonl; NaN where a line has no value.

        A metric with several values is flattened: "inference_latency_ms/p50". A torn last line is left out. Empty
        before the first line is written.

        Raises:
            UsageError: the file is damaged.
        """
        return read_all_columns(self.path / METRICS)

    @property
    def frame(self) -> Any:
        """The metrics as a pandas.DataFrame, one row per line of metrics.jsonl.

        Raises:
            UsageError: pandas is not installed, or as for `metrics`.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise UsageError(
                f"run.frame needs pandas, which cannot be imported ({error}): pip install pandas, or use run.metrics"
            ) from error
        return pandas.DataFrame(self.metrics)

    @property
    def checkpoints(self) -> list[Path]:
        """Folders of the complete checkpoints, oldest first; their checksums are not verified."""
        return list_checkpoints(self.path / CHECKPOINTS)

    def policy(self, greedy: bool | None = None, seed: int = 0) -> Policy:
        """The policy of the newest good checkpoint; see `seedcli.load_policy`."""
        return load_policy(self.path, greedy=greedy, seed=seed)

    def evaluate(
        self, episodes: int = 20, greedy: bool | None = None, *, seed: int = 1, envs: int = 8, quiet: bool = False
    ) -> Evaluation:
        """Play the newest good checkpoint in a child process, as `seed eval` does.

        Args:
            episodes: episodes to play.
            greedy: take the greedy action (True), or sample as in training (False); None: as `seed eval` by default.
            seed: of environments and actions.
            envs: environments played at once.
            quiet: show no messages of the evaluation.

        Raises:
            SeedError: it failed; with the message of `seed eval`.
        """
        actions = [] if greedy is None else ["--greedy" if greedy else "--sample"]
        numbers = [f"--episodes={episodes}", f"--seed={seed}", f"--envs={envs}"]
        out = run_seed(["eval", "--json", *numbers, *actions, "--", str(self.path)], quiet=quiet, show_results=False)
        return _evaluation(out)


def _evaluation(out: str) -> Evaluation:
    try:
        found = json.loads(out.splitlines()[-1])
        return Evaluation(
            checkpoint=Path(found["checkpoint"]),
            env_steps=found["env_steps"],
            actions=found["actions"],
            returns=np.array(found["returns"], np.float64),
            length_mean=found["length_mean"],
            rates={name: value for name, value in found.items() if name.endswith("_rate")},
        )
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise SeedError(f"seed eval printed no result, but {out[-200:]!r}") from error
