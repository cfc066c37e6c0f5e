"""Weights & Biases; its own environment variables (WANDB_MODE, WANDB_PROJECT, WANDB_ENTITY, …) apply."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from seedcli.telemetry.loggers.base import LoggedRun, LoggerUnavailable, kept_id

PROJECT = "seed"
_FINISH_SECONDS = 20  # for uploads at the end; the rest stays in the run's folder, for `wandb sync`


class WandbLogger:
    """An entry of Weights & Biases. Its files lie in the run's folder, where `wandb sync` finds those written offline.

    Args:
        run: the run.

    Raises:
        LoggerUnavailable: no user is logged in.
    """

    def __init__(self, run: LoggedRun) -> None:
        import wandb

        settings = wandb.Settings(console="off", silent=True, finish_timeout=_FINISH_SECONDS)
        if wandb.setup(settings).settings.mode == "online" and not wandb.login(prompt=False):
            raise LoggerUnavailable("no one is logged in: run wandb login, or set WANDB_API_KEY or WANDB_MODE=offline")
        self._wandb = wandb
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=kept_id(run.folder / "wandb", secrets.token_hex(4)),
            name=run.name,
            dir=run.folder,
            resume="allow",
            settings=settings,
        )
        self._run.config.update(dict(run.config), allow_val_change=True)

    def scalars(self, step: int, wall_time: float, values: Mapping[str, float]) -> None:
        # After a resume the entry already has the steps that are repeated; steps must increase.
        if step >= self._run.step:
            self._run.log(dict(values), step=step)

    def result(self, step: int, wall_time: float, values: Mapping[str, float]) -> None:
        self._run.summary.update(dict(values))  # has no step: the evaluation's may be older than the newest line's

    def video(self, step: int, path: Path) -> None:
        self._run.log({"video": self._wandb.Video(str(path), format="mp4")})

    def close(self, status: int) -> None:
        self._run.finish(exit_code=status)
