"""Runs for the tests of the Python API: trained for seconds, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

import seedcli
from seedcli.agents.registry import create_agent
from seedcli.config.sources import load_config, to_toml
from seedcli.envs.registry import create_env
from seedcli.training.checkpoint import Checkpointer

# A run that takes seconds: a tiny network, short unrolls, no TensorBoard.
TINY: dict[str, Any] = {
    "agent.network.hidden": [8],
    "training.unroll_length": 8,
    "training.batch_size": 8,
    "actors.envs": 8,
    "telemetry.interval_seconds": 0.2,
    "telemetry.loggers": [],
}
# Every kind of memory that a network can have.
MEMORY: dict[str, Any] = {
    "agent.network.lstm": 8,
    "agent.network.frame_stack": 2,
    "agent.network.previous_action_reward": True,
    "agent.dueling_hidden": 8,
    "training.burn_in": 2,
    "replay.min_size": 8,
    "replay.capacity": 100,
    "actors.evaluation_envs": 1,
}


def untrained(folder: Path, preset: str, env: str, **sets: Any) -> Path:
    """The folder of a run that has not been trained, with one checkpoint."""
    values = [f"environment.{key}={value}" for key, value in sets.items()]
    resolved = load_config(preset, sets=["agent.network.hidden=[8]", *values], flags={"--env": env}, environ={})
    environment = create_env(resolved.config.environment, 1)
    environment.close()
    agent = create_agent(resolved.config.agent, resolved.config.training, environment.spec, 3)
    groups = {"agent": agent.variables()}
    writer = Checkpointer(
        folder / "checkpoints", to_toml(resolved), environment.spec, groups, keep=3, keep_every_hours=0
    )
    writer.save({"env_steps": 70, "learner_updates": 1}, wait=True)
    (folder / "config.toml").write_text(to_toml(resolved))
    return folder


def play(policy: seedcli.Policy, env: gymnasium.Env[Any, Any], episodes: int, seed: int) -> npt.NDArray[np.float64]:
    """Returns of whole episodes, played as `seed eval --envs 1` plays: it also acts on final observations."""
    observation, _ = env.reset(seed=seed)
    reward, first, ended, returns = 0.0, True, False, [0.0]
    while True:
        if ended:
            if len(returns) == episodes:
                return np.array(returns)
            returns.append(0.0)
        action = policy(observation, reward, first)
        first = ended
        if ended:
            (observation, _), reward, ended = env.reset(), 0.0, False
            continue
        observation, reward, terminated, truncated, _ = env.step(action)
        reward = float(reward)
        returns[-1] += float(np.float32(reward))
        ended = terminated or truncated
