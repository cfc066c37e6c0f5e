"""Where environments are built: in this process, or in a separate one if their family requires it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seedcli.config.sections import EnvironmentConfig
from seedcli.envs.base import VectorEnv
from seedcli.envs.isolated import IsolatedEnv
from seedcli.envs.registry import create_env, family_of, missing
from seedcli.specs import EnvSpec

if TYPE_CHECKING:
    from seedcli.envs.gymnasium.plain import PlainSpaces


def create_env_in_actor(config: EnvironmentConfig, num_envs: int, *, threads: int = 0) -> VectorEnv:
    """Build environments for a process that must outlive them and has not loaded TensorFlow; see `create_env`."""
    if family_of(config).may_end_process:
        return IsolatedEnv(config, num_envs, threads=threads)
    return create_env(config, num_envs, threads=threads)


def create_env_beside_tensorflow(
    config: EnvironmentConfig, num_envs: int, *, render: bool = False, threads: int = 0, again: bool = False
) -> VectorEnv:
    """Build environments for a process that has loaded TensorFlow, or will; see `create_env`.

    Args:
        config, num_envs, render, threads: as for `create_env`.
        again: environments are built repeatedly for this process.

    Raises:
        UsageError, SimulatorMissing, EnvironmentFailed: see `create_env`.
    """
    family = family_of(config)
    apart = family.isolation == "always" or (render and family.isolation == "rendering")
    if apart or (again and family.keeps_finished_episodes):
        return IsolatedEnv(config, num_envs, render=render, threads=threads)
    return create_env(config, num_envs, render=render, threads=threads)


def plain_spaces(config: EnvironmentConfig, spec: EnvSpec) -> PlainSpaces:
    """The observations and actions of a plain environment, without this package's adapter.

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
    env: Any = create_env_beside_tensorflow(config, 1)
    try:
        found: PlainSpaces = env.attribute("plain_spaces") if isinstance(env, IsolatedEnv) else env.plain_spaces
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
        known = family.check_simulator(config)
    except ImportError as error:
        raise missing(config, family, error) from error
    if not known:
        create_env_beside_tensorflow(config, 1).close()
