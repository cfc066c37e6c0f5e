from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from seedcli.config.sections import EnvironmentConfig
from seedcli.envs.gymnasium.env import _prepare_mujoco, frames_per_second
from seedcli.envs.registry import check_environment, create_env
from seedcli.errors import EnvironmentFailed, UsageError
from seedcli.specs import ActionSpec, ArraySpec, Rows
from tests.envs.helpers import COUNTER, FIELDS, Played, atari_config, gymnasium_config, play


class Scripted(gymnasium.Env[Any, Any]):
    """Returns the given observation and reward; `step` raises `error`, `exits_in` names the method that exits."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any] | None = None,
        observation: Any = None,
        reward: Any = 1.0,
        broken_observation: Any = None,
        error: BaseException | None = None,
        exits_in: str = "",
        render_mode: str | None = None,
    ) -> None:
        self.observation_space = observation_space
        self.action_space = action_space or spaces.Discrete(2)
        self.observation = observation
        self.reward = reward
        self.broken_observation = broken_observation
        self.error = error
        self.exits_in = exits_in
        self.render_mode = render_mode
        self._exit("construction")

    def _exit(self, where: str) -> None:
        if self.exits_in == where:
            sys.exit(3)

    def render(self) -> Any:
        self._exit("render")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._exit("reset")
        return self.observation, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._exit("step")
        if self.error:
            raise self.error
        self.received = action
        return (
            (self.observation if self.broken_observation is None else self.broken_observation),
            self.reward, False, False, {},
        )  # fmt: skip


gymnasium.register("SeedScripted-v0", entry_point=Scripted)


def scripted(**kwargs: Any) -> EnvironmentConfig:
    return gymnasium_config("SeedScripted-v0", kwargs=kwargs)


BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)
ZERO = np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("dtype", "sent"),
    [("float64", "float32"), ("float32", "float32"), ("float16", "float16"), ("uint8", "uint8"), ("int64", "int64"),
     ("bool", "bool"), ("uint16", "int32"), ("uint32", "int64")],
)  # fmt: skip
def test_box_dtypes(dtype: str, sent: str) -> None:
    space = spaces.Box(0, 1, (2, 3), np.dtype(dtype).type)
    value = np.array([[0, 1, 0], [1, 0, 1]], dtype)
    with Played(scripted(observation_space=space, observation=value), 2) as played:
        assert played.env.spec.observation == ArraySpec((2, 3), sent)
        np.testing.assert_array_equal(played.reset(0).observation, np.stack([value, value]))
        np.testing.assert_array_equal(played.step(0).observation, np.stack([value, value]))


def test_discrete_observations_and_actions_count_from_zero() -> None:
    config = scripted(
        observation_space=spaces.Discrete(5, start=-2), observation=2, action_space=spaces.Discrete(3, start=7)
    )
    with Played(config, 2) as played:
        spec = played.env.spec
        assert spec.observation == ArraySpec((), "int32", categories=(5,)) and spec.action == ActionSpec((3,))
        assert played.reset(0).observation.tolist() == [4, 4]
        played.step([0, 2])
        assert [env.unwrapped.received for env in played.env.envs] == [7, 9]


def test_reward_is_raw() -> None:
    with Played(scripted(observation_space=BOX, observation=ZERO, reward=-1234.5), 1) as played:
        played.reset(0)
        assert played.step(0).reward.tolist() == [-1234.5]


@pytest.mark.parametrize(("reward", "sent"), [(np.nan, np.nan), (-np.inf, -np.inf), (1e300, np.inf)])
@pytest.mark.parametrize("num_envs", [1, 2])
def test_non_finite_reward_is_passed_on(reward: float, sent: float, num_envs: int) -> None:
    """It does not end the actor: the learner drops the unrolls that hold it."""
    with Played(scripted(observation_space=BOX, observation=ZERO, reward=reward), num_envs) as played:
        played.reset(0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            np.testing.assert_array_equal(played.step(0).reward, np.full(num_envs, sent, np.float32))
            np.testing.assert_array_equal(played.step(1).reward, np.full(num_envs, sent, np.float32))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"broken_observation": np.array([0, np.nan])}, "returned the observation nan"),
        ({"broken_observation": np.zeros(3)}, r"observation of shape \(3,\) where its observation space says \(2,\)"),
        ({"broken_observation": np.float32(1)}, r"observation of shape \(\) where its observation space says \(2,\)"),
        ({"error": KeyError("key\nsecond line")}, r"failed in step: KeyError: 'key"),
    ],
)
@pytest.mark.parametrize("num_envs", [1, 2])
def test_a_step_outside_the_specification(kwargs: dict[str, Any], message: str, num_envs: int) -> None:
    with Played(scripted(observation_space=BOX, observation=ZERO, **kwargs), num_envs) as played:
        played.reset(0)
        with warnings.catch_warnings(), pytest.raises(EnvironmentFailed, match=message) as caught:
            warnings.simplefilter("error")
            played.step(0)
    assert "\n" not in str(caught.value)
    if "error" in kwargs:
        assert caught.value.__cause__ is kwargs["error"]


def test_a_first_observation_outside_the_specification() -> None:
    with (
        Played(scripted(observation_space=BOX, observation=np.zeros(7)), 2) as played,
        pytest.raises(EnvironmentFailed, match=r"shape \(7,\)"),
    ):
        played.reset(0)


def test_a_float64_outside_the_range_of_float32() -> None:
    space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    with Played(scripted(observation_space=space, observation=np.array([1e300])), 1) as played:
        with pytest.raises(EnvironmentFailed, match="returned the observation inf, which is not a finite float32"):
            played.reset(0)


def test_a_category_outside_the_space() -> None:
    config = scripted(observation_space=spaces.Discrete(3), observation=0, broken_observation=3)
    with Played(config, 2) as played:
        played.reset(0)
        with pytest.raises(
            EnvironmentFailed,
            match="environment 0 of .* returned the observation 3, which is not one of the categories 0 to 2",
        ):
            played.step(0)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"observation_space": spaces.Dict()}, "empty Dict"),
        ({"observation_space": spaces.Tuple((BOX,))}, "Tuple as space of its observation; supported are Box"),
        ({"observation_space": spaces.Text(3)}, "Text as space of its observation; .* put gymnasium.*TransformObs"),
        ({"observation_space": spaces.Dict(a=spaces.Text(3))}, "nothing but text \\('a'\\), .* put gymnasium.wrappers"),
        ({"observation_space": spaces.Dict({"a/b": BOX, "a": spaces.Dict(b=BOX)})}, "two parts .* called 'a/b'"),
        ({"observation_space": spaces.Box(0, 1, (0,))}, "not supported"),
        ({"observation_space": spaces.Box(0, 1, (2,), np.uint64)}, "not supported.*uint64"),
        ({"observation_space": BOX, "action_space": spaces.Box(0, 3, (2,), np.int32)}, "Box of int32 as action space"),
        ({"observation_space": BOX, "action_space": spaces.MultiBinary(2)}, "MultiBinary action space; supported are"),
        ({"max_episode_steps": 3, "observation_space": BOX}, "kwargs must not hold 'max_episode_steps'"),
        ({"render_mode": "human", "observation_space": BOX}, "kwargs must not hold 'render_mode'"),
    ],
)
def test_unsupported(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        create_env(scripted(**kwargs), 2)
    assert "\n" not in str(caught.value)


def test_a_constructor_that_fails() -> None:
    message = (
        r"cannot be built with environment.kwargs = { .gravitas. = 1 }: TypeError: .*'gravitas'.*; "
        r"give kwargs that it takes, or none with --set 'environment.kwargs={}'$"
    )
    with pytest.raises(EnvironmentFailed, match=message) as caught:
        create_env(gymnasium_config("CartPole-v1", kwargs={"gravitas": 1}), 1)
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(EnvironmentFailed, match=r"^gymnasium/SeedFussy-v0 cannot be built: ValueError: today$"):
        create_env(gymnasium_config("SeedFussy-v0"), 1)


def _fussy(**kwargs: Any) -> Any:
    raise ValueError("today")


gymnasium.register("SeedFussy-v0", entry_point=_fussy)


def test_keyword_arguments_that_an_environment_does_not_take_are_refused_by_name_and_source() -> None:
    config = gymnasium_config("CartPole-v1", kwargs={"delay": 10, "sutton_barto_reward": True})
    with pytest.raises(UsageError) as caught:
        check_environment(config, "file mine.toml")
    assert str(caught.value) == (
        'environment.kwargs = { "delay" = 10, "sutton_barto_reward" = true } (from file mine.toml) does not fit '
        "CartPole-v1, which takes no 'delay' (it takes sutton_barto_reward): give kwargs that it takes, or none "
        "with --set 'environment.kwargs={}'"
    )
    for taken in (
        gymnasium_config("CartPole-v1", kwargs={"sutton_barto_reward": True}),
        gymnasium_config("SeedFussy-v0", kwargs={"any": 1}),
        gymnasium_config("no_such_simulator.envs:Thing-v0", kwargs={"any": 1}),
        atari_config("pong"),
    ):
        check_environment(taken, "--set")


@pytest.mark.filterwarnings("ignore:.*render_mode")
def test_rendering_an_environment_that_cannot_render_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot render"):
        create_env(scripted(observation_space=BOX, observation=ZERO), 1, render=True)


def test_an_environment_that_takes_no_render_mode_is_refused_for_that() -> None:
    class Drawless(gymnasium.Env[Any, Any]):
        def __init__(self, wind: float = 0.0) -> None:
            raise AssertionError("it must not be built")

    gymnasium.register("SeedDrawless-v0", Drawless)
    with pytest.raises(UsageError, match="cannot render: its entry point must take render_mode"):
        create_env(gymnasium_config("SeedDrawless-v0", kwargs={"wind": 0.2}), 1, render=True)


def test_kwargs_reach_the_environment() -> None:
    config = gymnasium_config("FrozenLake-v1", kwargs={"map_name": "8x8", "is_slippery": False})
    with Played(config, 1) as played:
        assert played.env.spec.observation.categories == (64,)
        played.reset(0)
        assert [played.step(2).observation[0] for _ in range(3)] == [1, 2, 3]


def test_time_limit_truncates_and_falling_terminates() -> None:
    """CartPole falls after about ten steps of one action: a limit of 5 truncates first, one of 50 never does."""
    limited = play_left(max_episode_steps=5)
    assert np.flatnonzero(limited.truncated[:, 0]).tolist() == [5] and not limited.terminated.any()
    falling = play_left(max_episode_steps=50)
    assert falling.terminated.sum() == 1 and not falling.truncated.any()


def play_left(**fields: Any) -> Rows:
    """Records of CartPole until the first episode has ended."""
    with Played(gymnasium_config("CartPole-v1", **fields), 1) as played:
        records = [played.reset(1)]
        while len(records) < 50 and not (records[-1].terminated[0] or records[-1].truncated[0]):
            records.append(played.step(0))
    return Rows(*(np.stack([getattr(r, name) for r in records]) for name in FIELDS))


def test_registered_limit_holds_by_default() -> None:
    run = play(gymnasium_config("MountainCar-v0"), 1, seed=0, steps=200)
    assert np.flatnonzero(run.truncated[:, 0]).tolist() == [200]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (gymnasium_config("CartPole"), "did you mean CartPole-v"),
        (gymnasium_config("cartpole-v1"), "did you mean CartPole-v1"),
        (gymnasium_config("seedcli.envs.testing:Conter-v0"), "did you mean Counter-v0"),
        (gymnasium_config("qqqq"), "write my_module:qqqq"),
        (atari_config("Pong"), "did you mean pong"),
        (atari_config("mspacman"), "did you mean ms_pacman"),
        (atari_config("combat"), "not an Atari game ale-py can play"),
        (atari_config("qqqq"), "written like pong"),
    ],
)
def test_unknown_names(config: EnvironmentConfig, message: str) -> None:
    for refuse in (check_environment, lambda c: create_env(c, 1)):
        with pytest.raises(UsageError, match=message) as caught:
            refuse(config)
        assert repr(config.id) in str(caught.value)


def test_missing_module() -> None:
    config = gymnasium_config("no_such_simulator.envs:Thing-v0")
    check_environment(config)
    with pytest.raises(UsageError, match="cannot be imported.*no_such_simulator"):
        create_env(config, 1)


@pytest.mark.parametrize("config", [gymnasium_config("CartPole-v1"), atari_config("pong")], ids=["gymnasium", "atari"])
def test_a_missing_library(config: EnvironmentConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    module = f"{config.family}.env"
    monkeypatch.setitem(sys.modules, f"seedcli.envs.{module}", None)
    check_environment(config)
    with pytest.raises(EnvironmentFailed, match=f"family {config.family} cannot be used on this machine"):
        create_env(config, 1)


def test_a_family_imports_only_its_own_simulator() -> None:
    code = (
        "import sys, seedcli.envs.registry as e\n"
        "from seedcli.config.schema import make_environment_config\n"
        "assert not {'gymnasium', 'ale_py', 'tensorflow'} & set(sys.modules)\n"
        "e.create_env(make_environment_config({}), 1).close()\n"
        "assert not {'ale_py', 'tensorflow', 'pygame'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(("config", "rate"), [(gymnasium_config("CartPole-v1"), 50), (gymnasium_config(COUNTER), 30)])
def test_frames_per_second(config: EnvironmentConfig, rate: float) -> None:
    assert frames_per_second(config) == rate


class Drawn(Scripted):
    metadata = {"render_modes": ["rgb_array"]}


gymnasium.register("SeedDrawn-v0", entry_point=Drawn)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("construction", "gymnasium/SeedDrawn-v0 cannot be built with environment.kwargs = .*: SystemExit: 3"),
        (
            "reset",
            "environment 0 of gymnasium/SeedDrawn-v0 failed in reset: SystemExit: 3 \\(.+ \\d+\\)",
        ),
        (
            "step",
            "environment 0 of gymnasium/SeedDrawn-v0 failed in step: SystemExit: 3 \\(.+ \\d+\\)",
        ),
        ("render", "gymnasium/SeedDrawn-v0 failed in render: SystemExit: 3"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_environment_that_exits_has_failed(where: str, message: str) -> None:
    kwargs = {"observation_space": BOX, "observation": ZERO, "exits_in": where}
    with pytest.raises(EnvironmentFailed, match=f"^{message}$"):
        with Played(gymnasium_config("SeedDrawn-v0", kwargs=kwargs), 1, render=True) as played:
            played.reset(0)
            played.step(0)
            played.env.render()


def test_a_module_that_exits_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "seed_exiting_module.py").write_text("import sys\nsys.exit()\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EnvironmentFailed, match=r"^module seed_exiting_module of .* failed: SystemExit$"):
        check_environment(gymnasium_config("seed_exiting_module:Thing-v0"))


def test_a_failing_environment_is_named_by_its_number() -> None:
    with Played(scripted(observation_space=BOX, observation=ZERO), 3) as played:
        played.reset(0)
        played.env.envs[2].unwrapped.error = ValueError("fell over")
        with pytest.raises(
            EnvironmentFailed,
            match="^environment 2 of .* failed in step: ValueError: fell over \\(.+ \\d+\\)$",
        ):
            played.step(0)


class TestMujoco:
    """Gymnasium's MuJoCo environments."""

    config = gymnasium_config("HalfCheetah-v5")

    def test_actions_are_its_controls(self) -> None:
        with Played(self.config, 2) as played:
            spec = played.env.spec
            assert (spec.action, spec.observation) == (ActionSpec(size=6), ArraySpec((17,), "float32"))
            assert spec.frames_per_step == 1
            played.reset(1)
            played.step(np.array([[0.5] * 6, [-7] * 6], np.float32))
            controls = [env.unwrapped.data.ctrl.tolist() for env in played.env.envs]
        assert controls == [[0.5] * 6, [-1] * 6]

    def test_the_video_runs_at_its_own_speed(self) -> None:
        assert frames_per_second(self.config) == 20  # a step is five physics steps of 10 ms

    def test_a_missing_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "mujoco", None)
        with pytest.raises(EnvironmentFailed, match=r"needs MuJoCo, which is not installed .*'seedcli\[mujoco\]'$"):
            create_env(self.config, 1)

    def test_rendering_without_a_backend_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
        with pytest.raises(EnvironmentFailed, match="cannot be rendered on this machine.*apt-get install libegl1"):
            create_env(self.config, 1, render=True)

    @pytest.mark.parametrize(("found", "chosen"), [({"EGL", "OSMesa"}, "egl"), ({"OSMesa"}, "osmesa")])
    def test_backend_without_a_screen(self, monkeypatch: pytest.MonkeyPatch, found: set[str], chosen: str) -> None:
        for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
            monkeypatch.setenv(name, "")
        monkeypatch.setattr(ctypes.util, "find_library", lambda name: name if name in found else None)
        _prepare_mujoco("test", render=True)
        assert os.environ["MUJOCO_GL"] == chosen
        for name, value in (("MUJOCO_GL", "glfw"), ("DISPLAY", ":0")):
            monkeypatch.setenv("MUJOCO_GL", "")
            monkeypatch.setenv(name, value)
            before = os.environ["MUJOCO_GL"]
            _prepare_mujoco("test", render=True)
            assert os.environ["MUJOCO_GL"] == before, "the user's choice is kept"

    def test_mujoco_warnings_go_to_the_log(self, tmp_path: Path) -> None:
        code = (
            "from seedcli.envs.registry import create_env\n"
            "from seedcli.config.schema import make_environment_config\n"
            "create_env(make_environment_config({'id': 'HalfCheetah-v5'}), 2).close()\n"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert not list(tmp_path.iterdir())
