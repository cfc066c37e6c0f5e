"""The tasks on which frameworks are compared: the same environment, network and batch for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FRAMEWORKS = {
    "seed": "seed",
    "stable_baselines3": "Stable-Baselines3",
    "sample_factory": "Sample Factory",
    "rllib": "RLlib",
}


@dataclass(frozen=True)
class Entry:
    """One algorithm of one framework.

    Attributes:
        framework: a key of `FRAMEWORKS`.
        algorithm: its name in the table.
        seed: options of `seed train`; empty for peers, which take the settings of the task.
    """

    framework: str
    algorithm: str
    seed: Sequence[str] = ()

    @property
    def name(self) -> str:
        """A name for a folder."""
        return f"{self.framework}-{self.algorithm}".replace(" ", "_").replace(",", "")


@dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
        title: the task, its network and its batch, as printed above the table.
        threshold: mean raw return of the last 100 training episodes; the time to reach it is measured.
        settings: arguments of the peers' scripts.
        entries: algorithms that train on it.
    """

    title: str
    threshold: float
    settings: Mapping[str, Any]
    entries: Sequence[Entry]


def _sets(*values: str) -> list[str]:
    return [word for value in values for word in ("--set", value)]


_LONG = ("--steps", "1_000_000_000")
_PONG = {"env": "pong", "discount": 0.99, "entropy": 0.01}
_CARTPOLE = {"env": "CartPole-v1", "hidden": [64, 64], "envs": 32, "discount": 0.99, "entropy": 0.01}

TASKS = {
    "pong": Task(
        "Pong, `nature` network, 32 environments, batches of 32 x 20 steps used once",
        18.0,
        {**_PONG, "algorithm": "vtrace", "envs": 32, "unroll": 20, "batch": 640, "epochs": 1, "minibatches": 1},
        (
            Entry(
                "seed",
                "V-trace",
                ("--preset", "atari_vtrace", "--env", "pong", *_sets("environment.full_action_set=false")),
            ),
            Entry(
                "seed",
                "V-trace, preset pong_vtrace",  # smaller batches, used twice, and normalised images
                ("--preset", "pong_vtrace", *_sets("agent.network.torso=nature")),
            ),
            Entry("stable_baselines3", "A2C"),
            Entry("sample_factory", "APPO"),
            Entry("rllib", "IMPALA"),
        ),
    ),
    "pong_ppo": Task(
        "Pong with PPO, `nature` network, 8 environments, batches of 8 x 128 steps, 4 epochs of 4 minibatches",
        18.0,
        {**_PONG, "algorithm": "ppo", "envs": 8, "unroll": 128, "batch": 1024, "epochs": 4, "minibatches": 4}
        | {"learning_rate": 2.5e-4, "clip": 0.1},
        (
            Entry("seed", "PPO", ("--preset", "atari_ppo", "--env", "pong")),
            Entry("stable_baselines3", "PPO"),
            Entry("sample_factory", "APPO"),
            Entry("rllib", "PPO"),
        ),
    ),
    "cartpole": Task(
        "CartPole-v1, 64x64 MLPs for policy and value, 32 environments, batches of 32 x 16 steps used once",
        475.0,
        {**_CARTPOLE, "algorithm": "vtrace", "unroll": 16, "batch": 512, "epochs": 1, "minibatches": 1},
        (
            Entry(
                "seed",
                "V-trace",
                ("--preset", "cartpole_vtrace", *_LONG)
                + tuple(
                    _sets(
                        "agent.separate_value=true",
                        "agent.discount=0.99",
                        "training.unroll_length=16",
                        "training.batch_size=32",
                    )
                ),
            ),
            Entry("stable_baselines3", "A2C"),
            Entry("sample_factory", "APPO"),
            Entry("rllib", "IMPALA"),
        ),
    ),
    "cartpole_ppo": Task(
        "CartPole-v1 with PPO, 64x64 MLPs, 32 environments, batches of 32 x 32 steps, 4 epochs of 4 minibatches",
        475.0,
        {**_CARTPOLE, "algorithm": "ppo", "unroll": 32, "batch": 1024, "epochs": 4, "minibatches": 4}
        | {"learning_rate": 1e-3, "clip": 0.2},
        (
            Entry(
                "seed",
                "PPO",
                ("--preset", "gymnasium_ppo", "--env", "CartPole-v1", "--envs", "32", *_LONG)
                + tuple(_sets("training.batch_size=32", "training.epochs=4", "training.minibatches=4")),
            ),
            Entry("stable_baselines3", "PPO"),
            Entry("sample_factory", "APPO"),
            Entry("rllib", "PPO"),
        ),
    ),
    "halfcheetah_sac": Task(
        "HalfCheetah-v5 with SAC, 256x256 MLPs, one environment, an update on 256 transitions for each step",
        4800.0,
        {"env": "HalfCheetah-v5", "algorithm": "sac", "hidden": [256, 256], "envs": 1, "unroll": 1, "batch": 256}
        | {"learning_rate": 3e-4, "discount": 0.99},
        (
            Entry("seed", "SAC", ("--preset", "mujoco_sac")),
            Entry("stable_baselines3", "SAC"),
            Entry("rllib", "SAC"),
        ),
    ),
}
