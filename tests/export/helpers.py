"""Agents with random variables, and their models in every format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seedcli.agents.base import Agent
from seedcli.agents.registry import create_agent
from seedcli.config.schema import Config
from seedcli.config.sources import Resolved, load_config, to_toml
from seedcli.envs.registry import create_env
from seedcli.export.function import Acting, ActingFunction
from seedcli.models.formats import FORMATS
from seedcli.specs import ArraySpec, EnvSpec, map_arrays
from seedcli.training.checkpoint import Checkpointer

# Every kind of memory that a network can have, and every input besides observations.
MEMORY = (
    "agent.network.hidden=[8]",
    "agent.network.lstm=8",
    "agent.network.frame_stack=3",
    "agent.network.previous_action_reward=true",
    "agent.network.normalize_observations=true",
)


def random_agent(config: Config, spec: EnvSpec, seed: int = 3) -> Agent:
    """An agent whose outputs differ clearly from one observation to the next, and whose normalizers have statistics."""
    agent = create_agent(config.agent, config.training, spec, seed)
    rng = np.random.default_rng(seed)
    for variable in agent.network.variables:
        shape = tuple(variable.shape)
        if variable.dtype == "float64":  # statistics
            mean, deviation = (60.0, 40.0) if len(shape) == 3 else (0.0, 1.0)
            drawn = {
                "count": np.full(shape, 100.0),
                "mean": rng.normal(mean, 0.3 * deviation, shape),
                "squares": 100.0 * deviation**2 * rng.uniform(0.5, 2.0, shape),
            }
            variable.assign(drawn.get(variable.name, np.ones(shape)))
        elif len(shape) >= 2:
            variable.assign(rng.normal(size=shape) / np.sqrt(np.prod(shape[:-1])) * 1.5)
        else:
            variable.assign(rng.normal(size=shape) * 0.3)
    return agent


def saved_run(folder: Path, resolved: Resolved, spec: EnvSpec) -> Path:
    """The folder of a run with one checkpoint of such an agent."""
    agent = random_agent(resolved.config, spec)
    writer = Checkpointer(
        folder / "checkpoints", to_toml(resolved), spec, {"agent": agent.variables()}, keep=3, keep_every_hours=0
    )
    writer.save({"env_steps": 70, "learner_updates": 1}, wait=True)
    (folder / "config.toml").write_text(to_toml(resolved))
    return folder


def make_run(folder: Path, preset: str, env: str, *sets: str) -> Path:
    """The folder of such a run with a small network."""
    resolved = load_config(preset, sets=["agent.network.hidden=[8]", *sets], flags={"--env": env}, environ={})
    environment = create_env(resolved.config.environment, 1)
    environment.close()
    return saved_run(folder, resolved, environment.spec)


def cartpole_run(folder: Path) -> Path:
    """The folder of such a run of CartPole."""
    return make_run(folder, "cartpole_vtrace", "CartPole-v1")


def function_of(agent: Agent, spaces: Any, *, greedy: bool = True, batch: int | None = None) -> ActingFunction:
    """The acting function of an agent, in the role of evaluation if it has one."""
    role = "evaluation" if "evaluation" in agent.algorithm.roles else "training"
    return ActingFunction(Acting(agent, role, spaces, greedy, batch))


def paths(folder: Path) -> Mapping[str, Path]:
    """Where the model of each format is written."""
    return {name: folder / f"policy{each.suffix}" for name, each in FORMATS.items()}


def observations(spec: EnvSpec, rows: int, rng: np.random.Generator) -> Any:
    """Random observations [rows, ...]."""

    def values(array: ArraySpec) -> npt.NDArray[Any]:
        shape = (rows, *array.shape)
        if array.categories:
            drawn: Any = rng.integers(0, np.reshape(array.categories, array.shape), shape)
        elif array.binary:
            drawn = rng.choice(array.binary, shape)
        elif np.dtype(array.dtype).kind == "f":
            drawn = rng.normal(size=shape)
        else:
            drawn = rng.integers(0, 2 if array.dtype == "bool" else 127, shape)
            if len(array.shape) == 3:  # images whose left half is darker
                drawn[:, :, : array.shape[1] // 2] //= rng.integers(1, 100, (rows, 1, 1, 1))
        return np.asarray(drawn).astype(array.dtype)

    return map_arrays(values, spec.observation)
