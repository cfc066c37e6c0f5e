"""A family's own library in a bare loop: the environments of a run, stepped with random actions.

The denominator of `seed bench training`. Groups of environments alternate, as an actor's streams do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from seedcli.config.schema import Config
from seedcli.config.sections import EnvironmentConfig
from seedcli.errors import UsageError
from seedcli.specs import split_envs

_ACTION_SETS = 64

# A call does some work and returns the number of environment steps it amounts to.
Turn = Callable[[], int]

_LIBRARIES = {
    "atari": "ale_py AtariVectorEnv",
    "football": "envpool gfootball",
    "gymnasium": "gymnasium SyncVectorEnv",
}


def library(config: EnvironmentConfig) -> str:
    """The name of the library that is stepped."""
    return _LIBRARIES[config.family]


def _atari(config: EnvironmentConfig, envs: int, cores: int, seed: int) -> Any:
    from ale_py.vector_env import AtariVectorEnv

    group = AtariVectorEnv(
        config.id,
        envs,
        num_threads=min(cores, envs),
        max_num_frames_per_episode=config.max_frames,
        repeat_action_probability=config.repeat_action_probability,
        full_action_space=config.full_action_set,
        img_height=config.height,
        img_width=config.width,
        stack_num=1,
        frameskip=config.frame_skip,
        noop_max=config.noop_max,
        episodic_life=config.episodic_life,
        use_fire_reset=config.fire_reset,
        reward_clipping=False,
    )
    group.reset(seed=seed)
    return group


def _football(config: EnvironmentConfig, envs: int, cores: int, seed: int) -> Any:
    import envpool

    group = envpool.make(
        f"gfootball/{config.id}-v1", env_type="gymnasium", num_envs=envs, num_threads=min(cores, envs), seed=seed
    )
    group.reset()
    return group


def _gymnasium(config: EnvironmentConfig, envs: int, cores: int, seed: int) -> Any:
    import gymnasium
    from gymnasium.vector import AutoresetMode, SyncVectorEnv

    options: dict[str, Any] = dict(config.kwargs)
    if config.max_episode_steps:
        options["max_episode_steps"] = config.max_episode_steps
    group = SyncVectorEnv([lambda: gymnasium.make(config.id, **options)] * envs, autoreset_mode=AutoresetMode.NEXT_STEP)
    group.reset(seed=seed)
    return group


def _actions(group: Any, envs: int, family: str) -> list[Any]:
    if family == "football":  # envpool's action space is that of one environment, and its engine takes int32
        rng = np.random.default_rng(1)
        return [rng.integers(0, group.action_space.n, envs, np.int32) for _ in range(_ACTION_SETS)]
    group.action_space.seed(1)
    return [group.action_space.sample() for _ in range(_ACTION_SETS)]


@contextmanager
def environment_turn(config: Config, cores: int) -> Iterator[Turn]:
    """Step as many environments as the run has, in two groups as an actor does, with random actions.

    Args:
        config: of the run.
        cores: threads for libraries that have their own.

    Raises:
        UsageError: the family has no bare loop.
    """
    played = config.environment
    if played.family not in _LIBRARIES:
        raise UsageError(f"environment.family {played.family} cannot be measured bare: choose another preset")
    make = {"atari": _atari, "football": _football, "gymnasium": _gymnasium}[played.family]
    total = config.actors.count * config.actors.envs
    sizes = split_envs(total, 2)
    groups = [make(played, envs, cores, 1 + i * total) for i, envs in enumerate(sizes)]
    actions = [_actions(group, envs, played.family) for group, envs in zip(groups, sizes, strict=True)]
    native = played.family == "atari"
    turns = 0
    if native:
        for group, choices in zip(groups, actions, strict=True):
            group.send(choices[0])

    def turn() -> int:
        nonlocal turns
        turns += 1
        for group, choices in zip(groups, actions, strict=True):
            chosen = choices[turns % _ACTION_SETS]
            if native:
                # One group steps while the other is taken in.
                group.recv()
                group.send(chosen)
            else:
                group.step(chosen)
        return total

    try:
        yield turn
    finally:
        if native:
            for group in groups:
                group.recv()
        for group in groups:
            group.close()
