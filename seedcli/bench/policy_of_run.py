"""`seed bench policy RUN`: the agent of a checkpoint in TensorFlow, and its models in the runtime of each format."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seedcli.bench.output import print_progress
from seedcli.bench.policy import Subject, of_model, run_bench_policy
from seedcli.config.schema import Config
from seedcli.export.exporter import Exporter
from seedcli.models.formats import FORMATS
from seedcli.roles.trained_agent import TrainedAgent
from seedcli.training.checkpoint_files import Checkpoint


def run_bench_run(checkpoint: Checkpoint, config: Config, *, seconds: float, json_output: bool) -> int:
    """Measure all of them; call `policy.on_one_core` before TensorFlow is loaded.

    Args:
        checkpoint, config: of the run.
        seconds: length of each measurement.
        json_output: print JSON instead of a table.

    Raises:
        SeedError: a format lacks an operation of the agent; or as for `Exporter`.
    """
    policy = TrainedAgent(checkpoint, config, seed=1).make_policy(1, greedy=True, detailed=True).devices[0]
    slots = np.zeros(1, np.int32)

    def act(observation: Any, reward: npt.NDArray[np.float32], first: npt.NDArray[np.bool_]) -> Any:
        return policy.act(observation, reward, first, slots)

    exporter = Exporter(checkpoint, config, greedy=True, batch=1)
    with tempfile.TemporaryDirectory() as folder:

        def subjects() -> Iterator[Subject]:
            yield Subject("TensorFlow, the run", act)
            for name, each in FORMATS.items():
                print_progress(f"exporting for {each.runtime}")
                yield of_model(exporter.write(Path(folder) / f"policy{each.suffix}", name))

        return run_bench_policy(
            checkpoint.spec, subjects(), str(checkpoint.path), seconds=seconds, json_output=json_output
        )
