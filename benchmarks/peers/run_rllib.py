"""Trains with RLlib until it is stopped: run_rllib.py SETTINGS PROGRESS (JSON, a file)."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import gymnasium
import numpy as np
import ray
from environments import make_env
from progress import Progress
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune.registry import register_env


class _ForRLlib(gymnasium.ObservationWrapper):
    """Images as RLlib takes them: [84, 84, 4] float32 in [0, 1]."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        height_width_stack = (*env.observation_space.shape[1:], env.observation_space.shape[0])
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, height_width_stack, np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return np.moveaxis(observation, 0, -1).astype(np.float32) / 255.0


def _make(settings: dict[str, Any]) -> gymnasium.Env:
    env = make_env(settings["env"])
    return _ForRLlib(env) if settings["env"] == "pong" else env


def configure(settings: dict[str, Any]) -> Any:
    """The configuration of the algorithm."""
    algorithm = settings["algorithm"]
    config = {"sac": SACConfig, "ppo": PPOConfig}.get(algorithm, IMPALAConfig)()
    if algorithm == "sac":
        config = config.training(
            train_batch_size_per_learner=settings["batch"],
            actor_lr=settings["learning_rate"],
            critic_lr=settings["learning_rate"],
            alpha_lr=settings["learning_rate"],
            gamma=settings["discount"],
            training_intensity=settings["batch"],  # an update for every step
            num_steps_sampled_before_learning_starts=100,  # as Stable-Baselines3 has it
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": 1_000_000},
        )
    elif algorithm == "ppo":
        config = config.training(
            train_batch_size_per_learner=settings["batch"],
            minibatch_size=settings["batch"] // settings["minibatches"],
            num_epochs=settings["epochs"],
            lr=settings["learning_rate"],
            entropy_coeff=settings["entropy"],
            clip_param=settings["clip"],
            gamma=settings["discount"],
            lambda_=0.95,  # from here on as in Stable-Baselines3
            vf_clip_param=float("inf"),
            vf_loss_coeff=0.5,
            use_kl_loss=False,
            grad_clip=0.5,
        )
    else:
        config = config.training(
            train_batch_size_per_learner=settings["batch"],
            entropy_coeff=settings["entropy"],
            gamma=settings["discount"],
        )
    if settings["env"] == "pong":
        network = DefaultModelConfig(
            conv_filters=[[32, 8, 4], [64, 4, 2], [64, 3, 1]],
            conv_activation="relu",
            head_fcnet_hiddens=[512],
            head_fcnet_activation="relu",
            vf_share_layers=True,
        )
    else:
        activation = "relu" if algorithm == "sac" else "tanh"
        network = DefaultModelConfig(fcnet_hiddens=settings["hidden"], fcnet_activation=activation)
    # IMPALA collects in a separate process, the others in the learner's.
    runners = 0 if algorithm in ("sac", "ppo") else 1
    return (
        config.environment("peer", env_config=settings)
        .env_runners(
            num_env_runners=runners,
            num_envs_per_env_runner=settings["envs"] // max(1, runners),
            rollout_fragment_length=settings["unroll"],
        )
        .learners(num_learners=0)
        .rl_module(model_config=network)
        .reporting(
            min_time_s_per_iteration=1, min_sample_timesteps_per_iteration=0, metrics_num_episodes_for_smoothing=100
        )
        .debugging(seed=settings["seed"])
    )


def main() -> None:
    """Train."""
    settings, progress = json.loads(sys.argv[1]), Progress(sys.argv[2])
    register_env("peer", _make)
    # By default Ray lowers the priority of its workers to niceness 15, below most other processes.
    os.environ.setdefault("RAY_worker_niceness", "0")
    ray.init(include_dashboard=False, num_cpus=max(2, len(os.sched_getaffinity(0))))
    algorithm = configure(settings).build_algo()
    while True:
        found = algorithm.train().get("env_runners", {})
        episodes = min(100, int(found.get("num_episodes_lifetime", 0)))
        steps = found.get("num_env_steps_sampled_lifetime", 0)  # missing from the first results of IMPALA
        progress.write(steps, [found.get("episode_return_mean", 0.0)] * episodes)


if __name__ == "__main__":
    main()
