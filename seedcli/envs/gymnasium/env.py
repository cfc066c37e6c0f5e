"""Any Gymnasium environment whose spaces `seedcli.envs.gymnasium.spaces` knows."""

from __future__ import annotations

import ctypes.util
import functools
import importlib
import inspect
import logging
import os
import re
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from seedcli.config.toml_text import format_value
from seedcli.envs.checks import nearest
from seedcli.envs.gymnasium.config import GymnasiumConfig
from seedcli.envs.gymnasium.plain import PlainSpaces
from seedcli.envs.gymnasium.spaces import Actions, Observations
from seedcli.errors import EnvironmentFailed, SimulatorMissing, UsageError, first_line, place_of
from seedcli.specs import EnvSpec, Rows

_log = logging.getLogger(__name__)

# What this file passes to gymnasium.make itself.
_RESERVED = ("id", "max_episode_steps", "render_mode", "disable_env_checker", "vectorization_mode")
# Renderers that need no screen, by their MUJOCO_GL names, and the library each needs; EGL may use a GPU.
_OFFSCREEN = {"egl": "EGL", "osmesa": "OSMesa"}
_FRAMES_PER_SECOND = 30
_OTHER_KWARGS = "give kwargs that it takes, or none with --set 'environment.kwargs={}'"
# Failures of an environment's code; sys.exit() in it must not end the process with status 0.
FAILURES = (Exception, SystemExit)
SEEDS = 2**31  # seeds wrap round here, so that every simulator can take them


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
        except FAILURES as error:
            raise EnvironmentFailed(
                f"module {module} of environment.id {env_id!r} failed: {first_line(error)}"
            ) from error
    if name not in gymnasium.registry:
        near = _nearest_ids(name)
        hints = [f"did you mean {' or '.join(near)}?"] if near else []
        if module:
            hints.append(f"module {module} does not register it")
        else:
            hints.append(f"for one of your own write my_module:{name}, with the module that registers it")
        raise UsageError(f"environment.id {env_id!r} is not a registered Gymnasium environment; {' '.join(hints)}")


def _nearest_ids(name: str) -> list[str]:
    """The newest ids whose names, without versions, are close: with versions, all short names are alike."""
    newest: dict[str, str] = {}
    for each in sorted(gymnasium.registry, key=lambda each: gymnasium.registry[each].version or 0):
        newest[_without_version(each)] = each
    return [newest[each] for each in nearest(_without_version(name), newest, count=2, cutoff=0.7)]


def _without_version(env_id: str) -> str:
    return re.sub(r"-v\d+$", "", env_id)


def require_id(env_id: str) -> None:
    """Like `check_id`, but refuse a module that cannot be imported too."""
    try:
        check_id(env_id)
    except ImportError as error:
        raise UsageError(
            f"the module of environment.id {env_id!r} cannot be imported ({first_line(error)}); "
            "install it, start seed in the folder that holds it, or put that folder on PYTHONPATH"
        ) from error


def has_simulator(config: GymnasiumConfig) -> bool:
    """Whether the creator of an environment can be imported here.

    Raises:
        UsageError: its id or module is unknown.
    """
    require_id(config.id)
    try:
        _creator(config.id)
    except (*FAILURES, ImportError):
        return False
    return True


def registration(env_id: str) -> Any:
    """The registration of an id that has passed `check_id`."""
    return gymnasium.spec(env_id.rpartition(":")[2])


def _creator(env_id: str) -> Any:
    """The creator of a registered environment: its class, or a function."""
    entry = registration(env_id).entry_point
    return gymnasium.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry


def _parameters(env_id: str) -> Mapping[str, inspect.Parameter] | None:
    """The parameters of an environment's creator; None if it takes any keyword, or its module cannot be loaded here."""
    try:
        parameters = inspect.signature(_creator(env_id)).parameters
    except (*FAILURES, ImportError):
        return None  # building the environment reports the error
    any_keyword = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    return None if any_keyword else parameters


def check_kwargs(config: GymnasiumConfig, source: str) -> None:
    """Refuse `environment.kwargs` that an environment, whose id has passed `check_id`, does not take.

    Where its signature takes any keyword, or its module cannot be loaded here, nothing is checked.

    Args:
        config: `id` and `kwargs` are used.
        source: of `kwargs`, for the error.

    Raises:
        UsageError: names the value, its source and what is not taken.
    """
    parameters = _parameters(config.id)
    if parameters is None:
        return
    unknown = [key for key in config.kwargs if key not in parameters and key not in _RESERVED]
    if unknown:
        known = [key for key in parameters if key not in _RESERVED]
        takes = f" (it takes {', '.join(known)})" if known else ""
        raise UsageError(
            f"environment.kwargs = {format_value(config.kwargs)} (from {source}) does not fit {config.id}, which takes "
            f"no {' or '.join(map(repr, unknown))}{takes}: {_OTHER_KWARGS}"
        )


def frames_per_second(config: GymnasiumConfig) -> float:
    """Steps in a second of the environment's own time: "render_fps" of its metadata, 30 if it has none.

    Raises:
        UsageError, EnvironmentFailed: as for building it, which is done where its class leaves that open.
    """
    check_id(config.id)
    found = getattr(_creator(config.id), "metadata", {}).get("render_fps")
    if found is None:
        # MuJoCo environments know their time step only once they are built.
        env = GymnasiumVectorEnv(config, 1)
        try:
            found = env.envs[0].metadata.get("render_fps", _FRAMES_PER_SECOND)
        finally:
            env.close()
    return float(found)


def is_mujoco(env_id: str) -> bool:
    """Whether a registered environment is one of MuJoCo's; the id has passed `check_id`."""
    return "mujoco" in str(registration(env_id).entry_point).lower()


@functools.cache
def _log_mujoco(message: str) -> None:
    """Log a message of MuJoCo once per process: MuJoCo repeats it for every environment that is built."""
    _log.log(logging.DEBUG if "deprecated" in message else logging.WARNING, "MuJoCo: %s", message.strip())


def _prepare_mujoco(name: str, render: bool) -> None:
    """Send MuJoCo's warnings to the log, and for rendering choose a renderer that needs no screen.

    Raises:
        SimulatorMissing: MuJoCo is not installed, or no renderer for it works here.
    """
    headless = not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    if render and headless and not os.environ.get("MUJOCO_GL"):
        found = [backend for backend, library in _OFFSCREEN.items() if ctypes.util.find_library(library)]
        if not found:
            raise SimulatorMissing(
                f"{name} cannot be rendered on this machine, which has neither a screen nor the libraries to render "
                "without one: apt-get install libegl1 libgl1-mesa-dri (or libosmesa6)"
            )
        os.environ["MUJOCO_GL"] = found[0]  # before MuJoCo is imported, which reads it
    try:
        mujoco = importlib.import_module("mujoco")
    except ImportError as error:
        raise SimulatorMissing(
            f"{name} needs MuJoCo, which is not installed ({first_line(error)}): pip install 'seedcli[mujoco]'"
        ) from error
    # By default MuJoCo writes them to stderr and to MUJOCO_LOG.TXT in the working directory.
    mujoco.set_mju_user_warning(_log_mujoco)


class GymnasiumVectorEnv:
    """E instances of one Gymnasium environment, stepped one after the other.

    Attributes:
        spec: named "gymnasium/<id>"; `envs.gymnasium.spaces` says how spaces become specifications.
        num_envs: E.
        envs: the instances.
        observation_bounds: by the name of the array, the bounds its space declares.
        notice: one sentence for the user on how its observations are used; "" for none.
    """

    def __init__(self, config: GymnasiumConfig, num_envs: int, render: bool = False) -> None:
        """Build the environments.

        Args:
            config: `id`, `max_episode_steps` (0: as registered), `kwargs` and `observation_keys` are used.
            num_envs: E, at least 1.
            render: the first environment is built with render_mode "rgb_array".

        Raises:
            UsageError: an unknown id or module, a reserved keyword, an unsupported space, an unknown observation key,
                or rendering requested of an environment that has none.
            EnvironmentFailed: the environment's own code failed.
        """
        self.num_envs = num_envs
        self._name = f"gymnasium/{config.id}"
        self._rendering = render
        require_id(config.id)
        for key in _RESERVED:
            if key in config.kwargs:
                raise UsageError(f"environment.kwargs must not hold {key!r}, which another setting or seed itself sets")

        self.envs: list[gymnasium.Env[Any, Any]] = []
        try:
            if is_mujoco(config.id):
                _prepare_mujoco(self._name, render)
            for index in range(num_envs):
                self.envs.append(self._make(config, render=render and index == 0))
            first = self.envs[0]
            self._observations = Observations(first.observation_space, self._name, config.observation_keys)
            self._actions = Actions(first.action_space, self._name)
            for index, env in enumerate(self.envs):
                for space in ("observation_space", "action_space"):
                    if getattr(env, space) != getattr(first, space):
                        raise EnvironmentFailed(
                            f"environment {index} of {self._name} has the {space} {getattr(env, space)} where "
                            f"environment 0 has {getattr(first, space)}; all environments of a run must have the same"
                        )
        except BaseException as error:
            self.close()
            if isinstance(error, (UsageError, EnvironmentFailed)) or not isinstance(error, FAILURES):
                raise
            given = f" with environment.kwargs = {format_value(config.kwargs)}" if config.kwargs else ""
            remedy = f"; {_OTHER_KWARGS}" if given and isinstance(error, TypeError) else ""
            raise EnvironmentFailed(f"{self._name} cannot be built{given}: {first_line(error)}{remedy}") from error
        self.spec = EnvSpec(self._name, self._observations.spec, self._actions.spec)
        self.observation_bounds = self._observations.bounds
        self.notice = self._observations.notice
        self._newest: list[Any] = [None] * num_envs  # each environment's observation
        self._rewards = np.zeros(num_envs, np.float64)
        self._terminated = np.zeros(num_envs, np.bool_)
        self._truncated = np.zeros(num_envs, np.bool_)

    def _make(self, config: GymnasiumConfig, *, render: bool) -> gymnasium.Env[Any, Any]:
        # Passed only if needed: an environment without rendering need not accept the argument.
        drawing: dict[str, Any] = {"render_mode": "rgb_array"} if render else {}
        no_pictures = UsageError(
            f"{self._name} cannot render: its entry point must take render_mode, and its "
            'metadata["render_modes"] must hold "rgb_array"'
        )
        parameters = _parameters(config.id) if render else None
        if parameters is not None and "render_mode" not in parameters:
            raise no_pictures
        if render and is_mujoco(config.id) and not {"camera_id", "camera_name"} & config.kwargs.keys():
            drawing["camera_name"] = "track"  # the default camera does not follow
        env = gymnasium.make(
            config.id,
            max_episode_steps=config.max_episode_steps or None,
            disable_env_checker=True,  # every step is checked here
            **drawing,
            **config.kwargs,
        )
        if render and "rgb_array" not in env.metadata.get("render_modes", ()):
            env.close()
            raise no_pictures
        return env

    @property
    def plain_spaces(self) -> PlainSpaces:
        """Reads observations and writes actions as the instances have them."""
        return PlainSpaces(self.spec, self._observations, self._actions)

    def reset(self, seed: int, out: Rows) -> None:
        """Seed environment i with (seed + i) mod 2³¹, start new episodes, write their first records.

        Raises:
            EnvironmentFailed: as for `step`.
        """
        for index, env in enumerate(self.envs):
            try:
                self._newest[index], _ = env.reset(seed=(seed + index) % SEEDS)
            except FAILURES as error:
                raise self._failure(index, "reset", error) from error
        self._terminated[:] = self._truncated[:] = False
        self._rewards[:] = 0
        self._write(out)

    def step(self, actions: npt.NDArray[Any], out: Rows) -> None:
        """Take actions [E, *spec.action.array.shape] and write the next records into `out`.

        Raises:
            EnvironmentFailed: the environment's own code failed, an action is out of range or non-finite, or an
                observation is non-finite or does not match its space. A non-finite reward is passed on: the learner
                drops the unroll that holds it.
        """
        native = self._actions.read(actions, self.num_envs)
        newest, rewards, terminated, truncated = self._newest, self._rewards, self._terminated, self._truncated
        final = (terminated | truncated).tolist()
        # gymnasium.vector.SyncVectorEnv also gathers every environment's info, which is not used here: with MuJoCo
        # that takes 5 % of the time.
        for index, env in enumerate(self.envs):
            try:
                if final[index]:
                    newest[index], _ = env.reset()
                    rewards[index], terminated[index], truncated[index] = 0.0, False, False
                else:
                    newest[index], rewards[index], terminated[index], truncated[index], _ = env.step(native[index])
            except FAILURES as error:
                raise self._failure(index, "reset" if final[index] else "step", error) from error
        self._write(out)

    def _write(self, out: Rows) -> None:
        self._observations.write(self._newest, out.observation)
        with np.errstate(over="ignore"):  # values beyond float32 become infinite, which the learner reports
            out.reward[...] = self._rewards
        out.terminated[...] = self._terminated
        out.truncated[...] = self._truncated

    def _failure(self, index: int, where: str, error: BaseException) -> EnvironmentFailed:
        return EnvironmentFailed(
            f"environment {index} of {self._name} failed in {where}: {first_line(error)}{place_of(error)}"
        )

    def render(self) -> npt.NDArray[np.uint8]:
        """The first environment as an RGB picture [height, width, 3] uint8.

        Raises:
            EnvironmentFailed: it was not built with `render`, or does not give such a picture.
        """
        if not self._rendering:
            raise EnvironmentFailed(f"{self._name} was built without rendering; build it with render=True")
        try:
            picture: Any = self.envs[0].render()
        except FAILURES as error:
            raise EnvironmentFailed(f"{self._name} failed in render: {first_line(error)}") from error
        if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.shape[2] != 3:
            given = type(picture).__name__
            raise EnvironmentFailed(f"{self._name} rendered {given} where [height, width, 3] is expected")
        return picture.astype(np.uint8, copy=False)

    def close(self) -> None:
        """Close every environment; safe to call twice."""
        while self.envs:
            self.envs.pop().close()
