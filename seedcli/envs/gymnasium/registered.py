"""Vector environments that are registered with Gymnasium as such (`vector_entry_point`), like CartPole's."""

from __future__ import annotations

import logging
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv

from seedcli.envs.checks import first_line, place_of
from seedcli.envs.gymnasium.config import GymnasiumConfig
from seedcli.envs.gymnasium.env import FAILURES, SEEDS, GymnasiumVectorEnv, checked_picture, registration, require_id
from seedcli.envs.gymnasium.plain import PlainSpaces
from seedcli.envs.gymnasium.spaces import Actions, Observations
from seedcli.errors import EnvironmentFailed
from seedcli.specs import EnvSpec, Rows

_log = logging.getLogger(__name__)


class RegisteredVectorEnv:
    """E environments that one registered vector environment steps together.

    Attributes:
        spec, num_envs, observation_bounds, notice: as of `GymnasiumVectorEnv`.
        one_generator: the environments draw from one random generator, so one of them cannot be repeated alone.
        envs: the vector environment, until it is closed.
    """

    one_generator = True

    def __init__(self, config: GymnasiumConfig, vector: VectorEnv[Any, Any, Any]) -> None:
        self.envs = [vector]
        self.num_envs = vector.num_envs
        self._name = f"gymnasium/{config.id}"
        self._observations = Observations(vector.single_observation_space, self._name, config.observation_keys)
        self._actions = Actions(vector.single_action_space, self._name)
        self.spec = EnvSpec(self._name, self._observations.spec, self._actions.spec)
        self.observation_bounds = self._observations.bounds
        self.notice = self._observations.notice

    @property
    def plain_spaces(self) -> PlainSpaces:
        """Reads observations and writes actions as instances have them."""
        return PlainSpaces(self.spec, self._observations, self._actions)

    def reset(self, seed: int, out: Rows) -> None:
        """Seed the generator with seed mod 2³¹, start new episodes, write their first records.

        Raises:
            EnvironmentFailed: as for `step`.
        """
        try:
            observations, _ = self.envs[0].reset(seed=seed % SEEDS)
        except FAILURES as error:
            raise self._failure("reset", error) from error
        self._observations.write_batch(observations, out.observation)
        out.reward[...] = 0.0
        out.terminated[...] = out.truncated[...] = False

    def step(self, actions: npt.NDArray[Any], out: Rows) -> None:
        """Take actions [E, *spec.action.array.shape] and write the next records into `out`.

        Raises:
            EnvironmentFailed: as for `GymnasiumVectorEnv.step`.
        """
        native = self._actions.read(actions, self.num_envs)
        try:
            observations, reward, terminated, truncated, _ = self.envs[0].step(native)
            with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, which the learner names
                out.reward[...] = reward
            out.terminated[...] = terminated
            out.truncated[...] = truncated
        except FAILURES as error:
            raise self._failure("step", error) from error
        self._observations.write_batch(observations, out.observation)

    def _failure(self, where: str, error: BaseException) -> EnvironmentFailed:
        return EnvironmentFailed(f"{self._name} failed in {where}: {first_line(error)}{place_of(error)}")

    def render(self) -> npt.NDArray[np.uint8]:
        """The first environment as an RGB picture [height, width, 3] uint8.

        Raises:
            EnvironmentFailed: as for `GymnasiumVectorEnv.render`.
        """
        if self.envs[0].render_mode is None:
            raise EnvironmentFailed(f"{self._name} was built without rendering; build it with render=True")
        try:
            pictures = self.envs[0].render()
        except FAILURES as error:
            raise EnvironmentFailed(f"{self._name} failed in render: {first_line(error)}") from error
        return checked_picture(pictures[0] if pictures else None, self._name)

    def close(self) -> None:
        """Close the vector environment; safe to call twice."""
        while self.envs:
            self.envs.pop().close()


def make_registered(config: GymnasiumConfig, num_envs: int, render: bool = False) -> RegisteredVectorEnv | None:
    """Build the vector environment that is registered for an id; arguments are those of `GymnasiumVectorEnv`.

    Returns:
        None if none is registered, or it cannot stand for instances of the id: it does not take `environment.kwargs`,
        has other spaces (Atari's has preprocessed images), does not reset in the step after an end, or gives no
        pictures where they are wanted.

    Raises:
        UsageError, EnvironmentFailed: as for `GymnasiumVectorEnv`.
    """
    require_id(config.id)
    registered = registration(config.id)
    if registered.vector_entry_point is None or registered.additional_wrappers:
        return None
    instances = GymnasiumVectorEnv(config, 1)
    try:
        vector = _fitting(config, instances.envs[0], num_envs, render)
    finally:
        instances.close()
    return RegisteredVectorEnv(config, vector) if vector else None


def _fitting(
    config: GymnasiumConfig, instance: gymnasium.Env[Any, Any], num_envs: int, render: bool
) -> VectorEnv[Any, Any, Any] | None:
    options: dict[str, Any] = dict(config.kwargs)
    if config.max_episode_steps:
        options["max_episode_steps"] = config.max_episode_steps
    if render:
        options["render_mode"] = "rgb_array"
    try:
        vector = gymnasium.make_vec(config.id, num_envs, vectorization_mode="vector_entry_point", **options)
    except FAILURES as error:
        _log.debug("%s is stepped one by one: %s", config.id, first_line(error))
        return None
    spaces = instance.observation_space, instance.action_space
    if (
        (vector.single_observation_space, vector.single_action_space) == spaces
        and vector.metadata.get("autoreset_mode") == AutoresetMode.NEXT_STEP
        and (not render or "rgb_array" in vector.metadata.get("render_modes", ()))
    ):
        return vector
    _log.debug("%s is stepped one by one: its vector environment has other spaces, resets or pictures", config.id)
    vector.close()
    return None
