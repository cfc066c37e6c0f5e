"""Any Gymnasium environment with a Box or Discrete observation and discrete actions."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from seedcli.config import EnvironmentConfig
from seedcli.envs.checks import check_actions, check_finite, first_line, nearest
from seedcli.errors import EnvironmentFailed, UsageError
from seedcli.specs import ArraySpec, EnvSpec, StepBatch

# What this file passes to gymnasium.make itself.
_RESERVED = ("id", "max_episode_steps", "render_mode", "disable_env_checker", "vectorization_mode")
# Double precision would only double the bytes on the wire; TensorFlow's kernels want signed integers above 8 bits.
_SENT_AS = {"float64": "float32", "uint16": "int32", "uint32": "int64"}
_SEEDS = 2**31  # seeds wrap round here, so that every simulator can take them


def check_id(env_id: str) -> None:
    """Refuse an id that Gymnasium does not know; "module:Id-v0" imports the module first.

    Raises:
        ImportError: the module cannot be imported on this machine.
        UsageError: no environment of that id is registered; names the nearest ones.
        EnvironmentFailed: the module failed while it was imported.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ImportError:
            raise
        except Exception as error:
            raise EnvironmentFailed(
                f"module {module} of environment.id {env_id!r} failed: {first_line(error)}"
            ) from error
    if name not in gymnasium.registry:
        near = nearest(name, gymnasium.registry)
        hint = f"did you mean {' or '.join(near)}?" if near else "a package's own need its module: module:Id-v0"
        raise UsageError(f"environment.id {env_id!r} is not a registered Gymnasium environment; {hint}")


def _observation_spec(space: gymnasium.Space[Any], name: str) -> ArraySpec:
    if isinstance(space, Discrete):
        if space.n >= 2**31:
            raise UsageError(f"{name} observes {space.n} categories; an int32 must hold them")
        return ArraySpec((), "int32", categories=int(space.n))
    if not isinstance(space, Box):
        raise UsageError(
            f"{name} has a {type(space).__name__} observation space; supported are Box and Discrete, "
            "so register it with gymnasium.wrappers.FlattenObservation around it"
        )
    dtype = str(space.dtype)
    try:
        return ArraySpec(tuple(int(n) for n in space.shape), _SENT_AS.get(dtype, dtype))
    except ValueError as error:
        raise UsageError(f"{name} has the observation space {space}, which is not supported: {error}") from error


class GymnasiumVectorEnv:
    """E instances of one Gymnasium environment, stepped one after the other by SyncVectorEnv.

    float64 observations become float32, uint16 int32, uint32 int64; a Discrete observation becomes an int32
    scalar that counts from 0.

    Attributes:
        spec: named "gymnasium/<id>"; `observation.categories` is set for a Discrete observation.
        num_envs: E.
    """

    def __init__(self, config: EnvironmentConfig, num_envs: int, render: bool = False) -> None:
        """Build the environments.

        Args:
            config: `id`, `max_episode_steps` (0: as registered) and `kwargs` are used.
            num_envs: E, at least 1.
            render: the first environment is built with render_mode "rgb_array".

        Raises:
            UsageError: an unknown id or module, a reserved keyword, an unsupported space, or pictures asked
                of an environment that gives none.
            EnvironmentFailed: the environment's own code failed.
        """
        self.num_envs = num_envs
        self._name = f"gymnasium/{config.id}"
        self._rendering = render
        try:
            check_id(config.id)
        except ImportError as error:
            raise UsageError(
                f"the module of environment.id {config.id!r} cannot be imported ({first_line(error)}); "
                "install it, or put its folder on PYTHONPATH"
            ) from error
        for key in _RESERVED:
            if key in config.kwargs:
                raise UsageError(f"environment.kwargs must not hold {key!r}, which has a place of its own")

        envs: list[gymnasium.Env[Any, Any]] = []
        try:
            for index in range(num_envs):
                envs.append(self._make(config, render=render and index == 0))
            self.spec = self._make_spec(envs[0])
            self._vector: SyncVectorEnv[Any, Any] = SyncVectorEnv(
                [lambda env=env: env for env in envs],  # type: ignore[misc]
                copy=False,  # what it returns is copied once, into the caller's row
                autoreset_mode=AutoresetMode.NEXT_STEP,
            )
        except BaseException as error:
            for env in envs:
                env.close()
            if isinstance(error, (UsageError, EnvironmentFailed)) or not isinstance(error, Exception):
                raise
            raise EnvironmentFailed(f"{self._name} cannot be built: {first_line(error)}") from error
        self._actions = np.zeros(num_envs, np.int64)

    def _make(self, config: EnvironmentConfig, *, render: bool) -> gymnasium.Env[Any, Any]:
        env = gymnasium.make(
            config.id,
            max_episode_steps=config.max_episode_steps or None,
            disable_env_checker=True,  # every step is checked here
            # Given only where it is wanted: an environment that draws nothing need not know the argument.
            **({"render_mode": "rgb_array"} if render else {}),
            **config.kwargs,
        )
        if render and "rgb_array" not in env.metadata.get("render_modes", ()):
            env.close()
            raise UsageError(f"{self._name} gives no pictures (rgb_array is not among its render modes)")
        return env

    def _make_spec(self, env: gymnasium.Env[Any, Any]) -> EnvSpec:
        space = env.action_space
        if not isinstance(space, Discrete):
            raise UsageError(f"{self._name} has a {type(space).__name__} action space; only Discrete is supported")
        observation = _observation_spec(env.observation_space, self._name)
        self._action_start = int(space.start)
        self._observation_start = int(getattr(env.observation_space, "start", 0))
        self._is_float = np.dtype(observation.dtype).kind == "f"
        return EnvSpec(self._name, observation, num_actions=int(space.n))

    def reset(self, seed: int, out: StepBatch) -> None:
        """Seed environment i with (seed + i) mod 2³¹, start new episodes, write their first records.

        Raises:
            EnvironmentFailed: as for `step`.
        """
        try:
            observations, _ = self._vector.reset(seed=[(seed + i) % _SEEDS for i in range(self.num_envs)])
        except Exception as error:
            raise self._failure("reset", error) from error
        self._write_observations(observations, out.observation)
        out.reward[...] = 0
        out.terminated[...] = 0
        out.truncated[...] = 0

    def step(self, actions: npt.NDArray[np.int32], out: StepBatch) -> None:
        """Take actions [E] in 0..num_actions-1 and write the next records into `out`.

        Raises:
            EnvironmentFailed: the environment's own code failed, an action is out of range, or an observation is not
                finite or not what the observation space says. A reward that is not finite is passed on: the learner
                drops what holds it.
        """
        check_actions(actions, self.num_envs, self.spec.num_actions, self._name)
        np.add(actions, self._action_start, out=self._actions, dtype=np.int64)
        try:
            observations, rewards, terminated, truncated, _ = self._vector.step(self._actions)
        except Exception as error:
            raise self._failure("step", error) from error
        self._write_observations(observations, out.observation)
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, which the learner names
            out.reward[...] = rewards
        out.terminated[...] = terminated
        out.truncated[...] = truncated

    def _write_observations(self, observations: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        if self.spec.observation.categories:
            observations = observations - self._observation_start
            outside = (observations < 0) | (observations >= self.spec.observation.categories)
            if outside.any():
                index = int(np.flatnonzero(outside)[0])
                raise EnvironmentFailed(
                    f"environment {index} of {self._name} gave category {observations[index]}, "
                    f"which is not one of 0 to {self.spec.observation.categories - 1}"
                )
        with np.errstate(over="ignore"):
            np.copyto(out, observations, casting="same_kind")
        if self._is_float:
            check_finite(out, "observation", self._name)

    def _failure(self, where: str, error: Exception) -> EnvironmentFailed:
        expected = tuple(self.spec.observation.shape)
        for index, observation in enumerate(self._vector._env_obs):
            if observation is not None and np.shape(observation) != expected:
                return EnvironmentFailed(
                    f"environment {index} of {self._name} gave an observation of shape {np.shape(observation)} "
                    f"where its observation space says {expected}"
                )
        return EnvironmentFailed(f"{self._name} failed in {where}: {first_line(error)}")

    def render(self) -> npt.NDArray[np.uint8]:
        """The first environment as an RGB picture [height, width, 3] uint8.

        Raises:
            EnvironmentFailed: it was not built with `render`, or gives something else.
        """
        if not self._rendering:
            raise EnvironmentFailed(f"{self._name} was built without rendering; build it with render=True")
        try:
            picture: Any = self._vector.envs[0].render()
        except Exception as error:
            raise EnvironmentFailed(f"{self._name} failed in render: {first_line(error)}") from error
        if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.shape[2] != 3:
            raise EnvironmentFailed(
                f"{self._name} rendered {type(picture).__name__} where [height, width, 3] is expected"
            )
        return picture.astype(np.uint8, copy=False)

    def close(self) -> None:
        """Close every environment; safe to call twice."""
        self._vector.close()
