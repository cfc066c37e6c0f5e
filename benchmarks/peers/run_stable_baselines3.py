"""Trains with Stable-Baselines3 until it is stopped: run_stable_baselines3.py SETTINGS PROGRESS (JSON, a file)."""

from __future__ import annotations

import json
import sys

from environments import make_env
from progress import Progress
from stable_baselines3 import A2C, PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env


class Reporter(BaseCallback):
    """Writes progress."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def _on_step(self) -> bool:
        # Monitor, which make_vec_env adds, has raw returns.
        self._progress.write(self.num_timesteps, [episode["r"] for episode in self.model.ep_info_buffer])
        return True


def main() -> None:
    """Train."""
    settings, progress = json.loads(sys.argv[1]), Progress(sys.argv[2])
    env = make_vec_env(lambda: make_env(settings["env"]), n_envs=settings["envs"], seed=settings["seed"])
    images = settings["env"] == "pong"
    common = {"env": env, "seed": settings["seed"], "device": "cpu", "gamma": settings["discount"]}
    kwargs = {} if images else {"net_arch": settings["hidden"]}
    policy = "CnnPolicy" if images else "MlpPolicy"
    if settings["algorithm"] == "sac":
        model = SAC(policy, batch_size=settings["batch"], learning_rate=settings["learning_rate"], **common)
    elif settings["algorithm"] == "ppo":
        model = PPO(
            policy,
            n_steps=settings["unroll"],
            batch_size=settings["batch"] // settings["minibatches"],
            n_epochs=settings["epochs"],
            learning_rate=settings["learning_rate"],
            ent_coef=settings["entropy"],
            clip_range=settings["clip"],
            policy_kwargs=kwargs,
            **common,
        )
    else:
        model = A2C(policy, n_steps=settings["unroll"], ent_coef=settings["entropy"], policy_kwargs=kwargs, **common)
    model.learn(10**9, callback=Reporter(progress))


if __name__ == "__main__":
    main()
