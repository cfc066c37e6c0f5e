"""MLflow; its own environment variables (MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, …) apply."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from seedcli.telemetry.loggers.base import LoggedRun, kept_id

EXPERIMENT = "seed"
STEPS = "progress/env_steps"  # a metric of its own, so that the entry shows the run's progress
_SIGNALS = 128  # statuses above it are of processes stopped by a signal
_PARAMS = 100  # MLflow's limit for one request
_TEXT = 500  # characters of a parameter that every version of MLflow stores


class MlflowLogger:
    """An entry of MLflow: a run of an experiment.

    Args:
        run: the run.
    """

    def __init__(self, run: LoggedRun) -> None:
        os.environ.setdefault("MLFLOW_CONFIGURE_LOGGING", "false")  # its messages would disturb the live view
        logging.getLogger("urllib3").setLevel(logging.ERROR)  # or each retry of a request would be reported
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        self._client = MlflowClient()
        self._last = -1
        known = kept_id(run.folder / "mlflow")
        if known is None:
            self._id = self._create(run)
            kept_id(run.folder / "mlflow", self._id)
            params = [Param(key, str(value)[:_TEXT]) for key, value in _flat(run.config)]
            for start in range(0, len(params), _PARAMS):
                self._client.log_batch(self._id, params=params[start : start + _PARAMS])
        else:
            self._id = known
            self._last = int(self._client.get_run(self._id).data.metrics.get(STEPS, -1))
            self._client.update_run(self._id, status="RUNNING")
        self._client.log_dict(self._id, dict(run.config), "config.json")

    def _create(self, run: LoggedRun) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found is not None else self._client.create_experiment(name)
        return str(self._client.create_run(experiment, run_name=run.name).info.run_id)

    def scalars(self, step: int, wall_time: float, values: Mapping[str, float]) -> None:
        # After a resume the entry already has the steps that are repeated.
        if step > self._last:
            self._store(step, wall_time, {**values, STEPS: step})

    def result(self, step: int, wall_time: float, values: Mapping[str, float]) -> None:
        self._store(step, wall_time, values)

    def _store(self, step: int, wall_time: float, values: Mapping[str, float]) -> None:
        at = int(1000 * wall_time)
        self._client.log_batch(
            self._id, metrics=[self._metric(_name(tag), value, at, step) for tag, value in values.items()]
        )

    def video(self, step: int, path: Path) -> None:
        self._client.log_artifact(self._id, str(path), "video")

    def close(self, status: int) -> None:
        ended = "KILLED" if status > _SIGNALS else "FAILED" if status else "FINISHED"
        self._client.set_terminated(self._id, status=ended, end_time=int(1000 * time.time()))


def _name(tag: str) -> str:
    """A tag as MLflow accepts it."""
    return re.sub(r"[^\w\-./ :]", "_", tag)


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
