"""Builds environments of all families. Simulators are imported when first needed."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from seedcli.config.choices import FAMILIES
from seedcli.config.sections import EnvironmentConfig
from seedcli.envs.base import Family, VectorEnv
from seedcli.errors import EnvironmentFailed, SeedError, SimulatorMissing, UsageError, first_line, place_of
from seedcli.specs import EnvSpec


def family_of(config: EnvironmentConfig) -> Family:
    """The family of a configuration.

    Raises:
        UsageError: it does not exist, cannot be imported, is not a `Family`, lacks `make`, or cannot be constructed.
    """
    found: Any = FAMILIES.load(config.family)
    setting = f'environment.family = "{config.family}"'
    if not issubclass(found, Family):
        raise UsageError(f"{setting} must be a subclass of seedcli.envs.Family")
    if found.make is Family.make:
        raise UsageError(
            f"{setting} has no method make, which builds its environments (docs/writing-an-environment.md)"
        )
    try:
        inspect.signature(found.make).bind(None, config, 1, render=False, threads=0)
    except TypeError as error:
        raise UsageError(f"{setting}: make must take (config, num_envs, *, render, threads): {error}") from error
    try:
        family: Family = found()
    except Exception as error:
        raise UsageError(f"{setting} must be constructed without arguments: {first_line(error)}") from error
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
    except SeedError:
        raise
    except Exception as error:
        raise EnvironmentFailed(
            f'environment.family = "{config.family}" cannot build {config.id}: {first_line(error)}{place_of(error)}'
        ) from error
    _check_built(env, config.family, num_envs)
    name = f"{config.family}/{config.id}"
    if env.spec.name != name:  # of a family that builds its environments with another's adapter
        env.spec = replace(env.spec, name=name)
    return env


def _check_built(env: Any, family: str, num_envs: int) -> None:
    """Raise UsageError if what a family's `make` returned is no `VectorEnv` of `num_envs` environments."""
    for name in ("spec", "num_envs", "reset", "step", "close"):
        if not hasattr(env, name):
            raise UsageError(
                f'environment.family = "{family}": make returned {type(env).__name__}, which has no {name}: it must be '
                "a seedcli.envs.VectorEnv"
            )
    if not isinstance(env.spec, EnvSpec):
        raise UsageError(
            f'environment.family = "{family}": the spec of its environments is {type(env.spec).__name__}, and must be '
            "a seedcli.specs.EnvSpec"
        )
    if env.num_envs != num_envs:
        raise UsageError(f'environment.family = "{family}": make returned {env.num_envs} environments, not {num_envs}')


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
