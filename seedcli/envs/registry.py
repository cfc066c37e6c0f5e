"""Builds environments of all families. Simulators are imported when first needed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from seedcli.config.choices import FAMILIES
from seedcli.config.sections import EnvironmentConfig
from seedcli.envs.base import Family, VectorEnv
from seedcli.errors import SimulatorMissing, UsageError
from seedcli.specs import EnvSpec

if TYPE_CHECKING:
    from seedcli.envs.gymnasium.plain import PlainSpaces


def family_of(config: EnvironmentConfig) -> Family:
    """The family of a configuration.

    Raises:
        UsageError: it does not exist, cannot be imported, or is not a `Family`.
    """
    found: Any = FAMILIES.load(config.family)
    if not issubclass(found, Family):
        raise UsageError(f'environment.family = "{config.family}" must be a subclass of seedcli.envs.Family')
    family: Family = found()
    return family


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
    family = family_of(config)
    try:
        env = family.make(config, num_envs, render=render, threads=threads)
    except ImportError as error:
        raise _missing(config, family, error) from error
    name = f"{config.family}/{config.id}"
    if env.spec.name != name:  # of a family that builds its environments with another's adapter
        env.spec = replace(env.spec, name=name)
    return env


def _missing(config: EnvironmentConfig, family: Family, error: ImportError) -> SimulatorMissing:
    return SimulatorMissing(
        f"environment.family {config.family} cannot be used on this machine ({error}); {family.install}"
    )


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
    if not family_of(config).adapts_gymnasium:
        from seedcli.envs.gymnasium.plain import spaces_of

        return spaces_of(spec)
    env: Any = create_env(config, 1)
    try:
        found: PlainSpaces = env.plain_spaces
        return found
    finally:
        env.close()


def check_simulator(config: EnvironmentConfig) -> None:
    """Refuse an environment whose library is not installed here, without building it where that can be avoided.

    Raises:
        SimulatorMissing, UsageError, EnvironmentFailed: what is missing, and how it is obtained.
    """
    family = family_of(config)
    try:
        family.check_simulator(config)
    except ImportError as error:
        raise _missing(config, family, error) from error


def check_environment(config: EnvironmentConfig, kwargs_source: str = "") -> None:
    """Refuse a name that is unknown, or keyword arguments that the environment does not take, without building it.

    Where the library is missing, nothing is checked.

    Args:
        config: the environment section of a configuration.
        kwargs_source: where its `kwargs` come from, for errors.

    Raises:
        UsageError: names the nearest known names, or the value, its source and what to do.
    """
    family = family_of(config)
    try:
        family.check(config, kwargs_source)
    except ImportError:
        return
