"""Vector environments that are registered with Gymnasium as such (`vector_entry_point`), like CartPole's."""

from __future__ import annotations

import logging
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv

from seedcli.envs.gymnasium.config import GymnasiumConfig
from seedcli.envs.gymnasium.env import FAILURES, SEEDS, GymnasiumVectorEnv, registration, require_id
from seedcli.envs.gymnasium.plain import PlainSpaces
from seedcli.envs.gymnasium.spaces import Actions, Observations
from seedcli.errors import EnvironmentFailed, first_line, place_of
from seedcli.specs import EnvSpec, Rows

_log = logging.getLogger(__name__)


class RegisteredVectorEnv:
    """E environments that one registered vector environment steps together.

    Attributes:
        spec, num_envs, observation_bounds, notice: as of `GymnasiumVectorEnv`.
        one_generator: the environments draw from one random generator, so a single one of them cannot be reproduced.
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
            with np.errstate(over="ignore"):  # values beyond float32 become infinite, which the learner reports
                for name, value, rows in (
                    ("reward", reward, out.reward),
                    ("terminated", terminated, out.terminated),
                    ("truncated", truncated, out.truncated),
                ):
                    if np.shape(value) != (self.num_envs,):
                        raise ValueError(f"{name} has shape {np.shape(value)}, not ({self.num_envs},)")
                    rows[...] = value
        except FAILURES as error:
            raise self._failure("step", error) from error
        self._observations.write_batch(observations, out.observation)

    def _failure(self, where: str, error: BaseException) -> EnvironmentFailed:
        return EnvironmentFailed(f"{self._name} failed in {where}: {first_line(error)}{place_of(error)}")

    def render(self) -> npt.NDArray[np.uint8]:
        """Not supported: instances render pictures."""
        raise EnvironmentFailed(f"{self._name} was built without rendering; build it with render=True")

    def close(self) -> None:
        """Close the vector environment; safe to call twice."""
        while self.envs:
            self.envs.pop().close()


def make_registered(config: GymnasiumConfig, num_envs: int) -> RegisteredVectorEnv | None:
    """Build the vector environment that is registered for an id; arguments are those of `GymnasiumVectorEnv`.

    Returns:
        None if none is registered, or the registered one cannot replace instances of the id; the log says why.

    Raises:
        UsageError, EnvironmentFailed: as for `GymnasiumVectorEnv`.
    """
    require_id(config.id)
    registered = registration(config.id)
    if registered.vector_entry_point is None:
        return None
    why = "it is registered with wrappers for single instances" if registered.additional_wrappers else _unfit(config)
    if why:
        _log.info("%s is stepped one by one, without the vector environment registered for it: %s", config.id, why)
        return None
    try:
        return RegisteredVectorEnv(config, _make(config, num_envs))
    except FAILURES as error:
        raise EnvironmentFailed(f"gymnasium/{config.id} cannot be built: {first_line(error)}") from error


def _make(config: GymnasiumConfig, num_envs: int) -> VectorEnv[Any, Any, Any]:
    options: dict[str, Any] = dict(config.kwargs)
    if config.max_episode_steps:
        options["max_episode_steps"] = config.max_episode_steps
    return gymnasium.make_vec(config.id, num_envs, vectorization_mode="vector_entry_point", **options)


def _unfit(config: GymnasiumConfig) -> str:
    """Why an id's vector environment cannot replace instances, the end of a sentence; "": it can."""
    instances = GymnasiumVectorEnv(config, 1)
    vector = None
    try:
        vector = _make(config, 1)
        if vector.num_envs != 1:
            return f"it makes {vector.num_envs} environments when asked for 1"
        for space in ("observation_space", "action_space"):
            own, expected = getattr(vector, f"single_{space}"), getattr(instances.envs[0], space)
            if own != expected:
                return f"its {space} is {own}, but that of an instance is {expected}"
        if vector.metadata.get("autoreset_mode") != AutoresetMode.NEXT_STEP:
            return "it does not reset in the step after an end (AutoresetMode.NEXT_STEP)"
        if vector.metadata.get("jax"):
            return "Gymnasium's vector environments for JAX set all environments back by a step when one is reset"
        return ""
    except FAILURES as error:
        return first_line(error)
    finally:
        instances.close()
        if vector is not None:
            vector.close()
