"""Trains with Sample Factory's APPO until it is stopped: run_sample_factory.py SETTINGS PROGRESS (JSON, a file)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from environments import make_env
from progress import Progress
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner


class Reporter(AlgoObserver):
    """Writes progress."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        """Write a line after an update."""
        returns = runner.policy_avg_stats.get("reward", [[]])[0]
        self._progress.write(runner.env_steps.get(0, 0), list(returns))


def make_one(name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> Any:
    """Create an environment; Sample Factory calls this in its workers."""
    return make_env(name)


def arguments(settings: dict[str, Any], folder: Path) -> list[str]:
    """Sample Factory's own options."""
    workers = len(os.sched_getaffinity(0))
    ppo = settings["algorithm"] == "ppo"
    options: dict[str, Any] = {
        "env": settings["env"],
        "experiment": folder.name,
        "train_dir": folder.parent,
        "device": "cpu",
        "seed": settings["seed"],
        "train_for_env_steps": 10**9,
        "num_workers": workers,
        "num_envs_per_worker": settings["envs"] // workers,
        "worker_num_splits": 2,
        "rollout": settings["unroll"],
        "recurrence": 1,
        "with_vtrace": False,  # version 2.1.1 fails with it as soon as it writes a summary
        "batch_size": settings["batch"] // settings["minibatches"],
        "num_batches_per_epoch": settings["minibatches"],
        "num_epochs": settings["epochs"],
        "gamma": settings["discount"],
        "exploration_loss_coeff": settings["entropy"],
        "use_rnn": False,
        "normalize_input": False,
        "env_frameskip": 1,
        "save_every_sec": 10**6,
        "restart_behavior": "overwrite",
        "decorrelate_experience_max_seconds": 0,
        "decorrelate_envs_on_one_worker": False,
    }
    if ppo:
        options |= {"learning_rate": settings["learning_rate"], "ppo_clip_ratio": settings["clip"]}
    if settings["env"] == "pong":
        options |= {"encoder_conv_architecture": "convnet_atari", "encoder_conv_mlp_layers": 512}
        options |= {"obs_scale": 255.0, "nonlinearity": "relu"}
        networks: list[str] = []
    else:
        options |= {"nonlinearity": "tanh", "actor_critic_share_weights": False}
        networks = ["--encoder_mlp_layers", *map(str, settings["hidden"])]
    return [f"--{name}={value}" for name, value in options.items()] + networks


def main() -> None:
    """Train."""
    settings, path = json.loads(sys.argv[1]), Path(sys.argv[2]).absolute()
    register_env(settings["env"], make_one)
    given = arguments(settings, path.parent / "sample_factory")
    parser, _ = parse_sf_args(given)
    _, runner = make_runner(parse_full_cfg(parser, given))
    runner.register_observer(Reporter(Progress(str(path))))
    runner.init()
    runner.run()


if __name__ == "__main__":
    main()
