"""Builds environments of all families. Simulators are imported when first needed."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from seedcli.config.sections import EnvironmentConfig
from seedcli.envs.base import VectorEnv
from seedcli.errors import SimulatorMissing
from seedcli.specs import EnvSpec

if TYPE_CHECKING:
    from seedcli.envs.gymnasium.plain import PlainSpaces

# How a family's simulator is had, as the end of a sentence.
_INSTALL = {
    "gymnasium": "install its package",
    "atari": "pip install ale-py",
    "football": "pip install 'seedcli[football]' (Linux, Python 3.11)",
    "dmlab": "build DeepMind Lab's Python module, or the package dmlab-gym that builds it (docs/deepmind-lab.md)",
}


def create_env(config: EnvironmentConfig, num_envs: int, *, render: bool = False, threads: int = 0) -> VectorEnv:
    """Build the configured family's vector environment.

    Args:
        config: the environment section of a configuration.
        num_envs: E, at least 1.
        render: build it so that `render()` gives pictures of the first environment.
        threads: for families that step in threads of their own; 0: as many as this process has cores.

    Raises:
        UsageError: the configuration asks for something that does not exist or is not supported.
        SimulatorMissing: the family's library is not installed.
        EnvironmentFailed: the environment cannot be built.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs is {num_envs}; a vector environment holds at least one")
    try:
        if config.family == "atari":
            from seedcli.envs.atari import AtariVectorEnv

            return AtariVectorEnv(config, num_envs, render=render, threads=threads)
        if config.family == "football":
            from seedcli.envs.football.env import FootballVectorEnv

            return FootballVectorEnv(config, num_envs, render=render, threads=threads)
        if config.family == "dmlab":
            from seedcli.envs.dmlab.env import LabVectorEnv

            return LabVectorEnv(config, num_envs, render=render)
        from seedcli.envs.gymnasium.env import GymnasiumVectorEnv

        return GymnasiumVectorEnv(config, num_envs, render=render)
    except ImportError as error:
        raise SimulatorMissing(
            f"environment.family {config.family} cannot be used on this machine ({error}); {_INSTALL[config.family]}"
        ) from error


def plain_spaces(config: EnvironmentConfig, spec: EnvSpec) -> PlainSpaces:
    """What a plain environment, without this package's adapter, gives and takes.

    Where the family is an adapter of Gymnasium environments, one is built to learn its spaces. Environments of other
    families give and take the arrays of their specification.

    Args:
        config: the environment section of a configuration.
        spec: the specification that an agent was built from.

    Raises:
        UsageError, SimulatorMissing, EnvironmentFailed: see `create_env`.
    """
    if config.family != "gymnasium":
        from seedcli.envs.gymnasium.plain import spaces_of

        return spaces_of(spec)
    from seedcli.envs.gymnasium.env import GymnasiumVectorEnv

    env = GymnasiumVectorEnv(config, 1)
    try:
        return env.plain_spaces
    finally:
        env.close()


def check_simulator(config: EnvironmentConfig) -> None:
    """Refuse an environment whose library is not installed here, without building it.

    Raises:
        SimulatorMissing, UsageError, EnvironmentFailed: what is missing, and how it is had.
    """
    if config.family == "gymnasium":
        from seedcli.envs.gymnasium import env

        env.check_simulator(config)
        return
    package = {"atari": "ale_py", "football": config.engine, "dmlab": "deepmind_lab"}[config.family]
    if importlib.util.find_spec(package) is None:
        create_env(config, 1).close()  # raises the error with its message


def check_environment(config: EnvironmentConfig, kwargs_source: str) -> None:
    """Refuse a name that is unknown, or keyword arguments that the environment does not take, without building it.

    Where the library is missing, nothing is checked.

    Args:
        config: the environment section of a configuration.
        kwargs_source: where its `kwargs` come from, for errors.

    Raises:
        UsageError: names the nearest known names, or the value, its source and what to do.
    """
    check_environment_name(config)
    if config.family == "gymnasium" and config.kwargs:
        try:
            from seedcli.envs.gymnasium.env import check_kwargs

            check_kwargs(config, kwargs_source)
        except ImportError:
            return


def check_environment_name(config: EnvironmentConfig) -> None:
    """Refuse an unknown game or id without building anything; where the library is missing, nothing is checked.

    Raises:
        UsageError: names the nearest known ones.
    """
    try:
        if config.family == "atari":
            from seedcli.envs.atari import check_game

            check_game(config.id)
        elif config.family == "football":
            from seedcli.envs.football.env import check_scenario

            check_scenario(config.id)
        elif config.family == "dmlab":
            from seedcli.envs.dmlab.env import check_level

            check_level(config.id)
        else:
            from seedcli.envs.gymnasium.env import check_id

            check_id(config.id)
    except ImportError:
        return
