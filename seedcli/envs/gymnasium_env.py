"""Any Gymnasium environment with a Box or Discrete observation and discrete actions."""

from __future__ import annotations

import difflib
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from seedcli.config import EnvironmentConfig
from seedcli.errors import EnvironmentFailed, SeedError, UsageError
from seedcli.specs import ArraySpec, EnvSpec, StepBatch

_SENT_AS = {"float64": "float32", "uint16": "int32", "uint32": "int64", "uint64": "int64"}


def check_id(name: str) -> None:
    """Refuse an id that is not registered, naming the nearest ones; raises UsageError.

    An id of the form `module:Id-v0` imports the module, which registers it.
    """
    module, colon, plain = name.rpartition(":")
    if colon:
        try:
            __import__(module)
        except ImportError as error:
            raise UsageError(
                f'environment "{name}" cannot be used: importing {module} failed ({error}); install it, or mend the name'
            ) from error
    try:
        gymnasium.spec(plain)
    except gymnasium.error.Error as error:
        near = difflib.get_close_matches(plain, list(gymnasium.registry), n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "see gymnasium.pprint_registry()"
        raise UsageError(f'"{name}" is no registered Gymnasium environment: {hint}') from error


def _observation_spec(space: spaces.Space[Any], name: str) -> ArraySpec:
    if isinstance(space, spaces.Discrete):
        return ArraySpec((), "int32", categories=int(space.n))
    if isinstance(space, spaces.Box):
        dtype = str(space.dtype)
        try:
            return ArraySpec(tuple(int(n) for n in space.shape), _SENT_AS.get(dtype, dtype))
        except ValueError as error:
            raise UsageError(f'environment "{name}" cannot be used: its observation has {error}') from error
    raise UsageError(
        f'environment "{name}" has observations of type {type(space).__name__}: Box and Discrete are supported; '
        "wrap it, for example in gymnasium.wrappers.FlattenObservation"
    )


class GymnasiumVectorEnv:
    """Environments stepped one after the other in this process; see `envs.base.VectorEnv`.

    Args:
        config: `id`, `kwargs` and `max_episode_steps` are read.
        num_envs: E.
        render: build the environments so that `render` gives pictures.

    Raises:
        UsageError: an unknown id, or spaces that are not supported.
        EnvironmentFailed: the environment's own constructor failed.
    """

    def __init__(self, config: EnvironmentConfig, num_envs: int, *, render: bool = False) -> None:
        check_id(config.id)
        kwargs = dict(config.kwargs)
        if render:
            kwargs["render_mode"] = "rgb_array"
        if config.max_episode_steps:
            kwargs["max_episode_steps"] = config.max_episode_steps
        self._name = config.id
        try:
            self._env = SyncVectorEnv(
                [lambda: gymnasium.make(config.id, **kwargs) for _ in range(num_envs)],
                copy=False,
                autoreset_mode=AutoresetMode.NEXT_STEP,
            )
        except SeedError:
            raise
        except Exception as error:
            raise EnvironmentFailed(f'environment "{config.id}" cannot be built: {error}') from error
        actions = self._env.single_action_space
        if not isinstance(actions, spaces.Discrete):
            self.close()
            raise UsageError(
                f'environment "{config.id}" has actions of type {type(actions).__name__}: only Discrete is supported'
            )
        self._first_action = int(actions.start)
        space = self._env.single_observation_space
        self._first_category = int(space.start) if isinstance(space, spaces.Discrete) else 0
        self.num_envs = num_envs
        self.spec = EnvSpec(
            name=f"gymnasium/{config.id}",
            observation=_observation_spec(space, config.id),
            num_actions=int(actions.n),
        )

    def reset(self, seed: int, out: StepBatch) -> None:
        """See `envs.base.VectorEnv.reset`."""
        try:
            observation, _ = self._env.reset(seed=[seed + i for i in range(self.num_envs)])
        except Exception as error:
            raise EnvironmentFailed(f'environment "{self._name}" failed in reset(): {_described(error)}') from error
        self._write(observation, out)
        out.reward[:] = 0.0
        out.terminated[:] = 0
        out.truncated[:] = 0

    def step(self, actions: npt.NDArray[np.int32], out: StepBatch) -> None:
        """See `envs.base.VectorEnv.step`."""
        try:
            observation, reward, terminated, truncated, _ = self._env.step(actions + self._first_action)
        except Exception as error:
            raise EnvironmentFailed(f'environment "{self._name}" failed in step(): {_described(error)}') from error
        self._write(observation, out)
        if not np.isfinite(reward).all():
            raise EnvironmentFailed(
                f'environment "{self._name}" gave a reward that is not finite: mend the environment'
            )
        out.reward[:] = reward
        out.terminated[:] = terminated
        out.truncated[:] = truncated

    def _write(self, observation: Any, out: StepBatch) -> None:
        values = np.asarray(observation)
        if values.shape != out.observation.shape:
            raise EnvironmentFailed(
                f'environment "{self._name}" gave observations of shape {values.shape[1:]} '
                f"where its space says {out.observation.shape[1:]}: mend the environment"
            )
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise EnvironmentFailed(
                f'environment "{self._name}" gave an observation that is not finite: mend the environment'
            )
        out.observation[:] = values - self._first_category if self._first_category else values

    def render(self) -> npt.NDArray[np.uint8]:
        """See `envs.base.VectorEnv.render`."""
        picture = self._env.envs[0].render()
        if not isinstance(picture, np.ndarray) or picture.ndim != 3:
            raise EnvironmentFailed(f'environment "{self._name}" draws no pictures in its mode rgb_array')
        return picture.astype(np.uint8)

    def close(self) -> None:
        """See `envs.base.VectorEnv.close`."""
        self._env.close()


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
