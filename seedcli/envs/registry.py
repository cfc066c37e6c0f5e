"""Builds environments of all families. Simulators are imported when first needed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seedcli.config.choices import FAMILIES
from seedcli.config.sections import EnvironmentConfig
from seedcli.envs.base import Family, VectorEnv
from seedcli.errors import SimulatorMissing, UsageError


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
    """Build the configured family's vector environment in this process; callers outside `envs` use `envs.placement`.

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
        raise missing(config, family, error) from error
    name = f"{config.family}/{config.id}"
    if env.spec.name != name:  # of a family that builds its environments with another's adapter
        env.spec = replace(env.spec, name=name)
    return env


def missing(config: EnvironmentConfig, family: Family, error: ImportError) -> SimulatorMissing:
    """Return the error for a simulator that cannot be imported."""
    return SimulatorMissing(
        f"environment.family {config.family} cannot be used on this machine ({error}); {family.install}"
    )


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
