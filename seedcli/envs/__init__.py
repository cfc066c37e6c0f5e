"""What is played: one file a family, imported only when it is used."""

from __future__ import annotations

import importlib.util

from seedcli.config import EnvironmentConfig
from seedcli.envs.base import VectorEnv

__all__ = ["VectorEnv", "check_environment_name", "create_env"]


def create_env(config: EnvironmentConfig, num_envs: int, *, render: bool = False, threads: int = 0) -> VectorEnv:
    """Build E environments.

    Args:
        config: what is played.
        num_envs: E.
        render: `VectorEnv.render` will be called.
        threads: worker threads, for a family that has its own; 0: as many as cores.

    Raises:
        UsageError: an unknown environment, or one that is not supported.
        EnvironmentFailed: it cannot be built.
    """
    if config.family == "atari":
        from seedcli.envs.atari import AtariVectorEnv

        return AtariVectorEnv(config, num_envs, render=render, threads=threads)
    from seedcli.envs.gymnasium_env import GymnasiumVectorEnv

    return GymnasiumVectorEnv(config, num_envs, render=render)


def check_environment_name(config: EnvironmentConfig) -> None:
    """Refuse an unknown environment without building it, as far as its library is installed; raises UsageError."""
    library = "ale_py" if config.family == "atari" else "gymnasium"
    if importlib.util.find_spec(library) is None:
        return  # a learner's machine needs no simulator: the actors will tell
    if config.family == "atari":
        from seedcli.envs.atari import check_game

        check_game(config.id)
    else:
        from seedcli.envs.gymnasium_env import check_id

        check_id(config.id)
