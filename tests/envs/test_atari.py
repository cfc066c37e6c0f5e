"""Every option that changes the task, checked by its effect on the real emulator."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import ale_py
import numpy as np
import pytest
from ale_py import roms, vector_env

from seedcli.envs.atari.env import AtariVectorEnv, games
from seedcli.envs.scores import load_suite
from seedcli.specs import ActionSpec
from tests.envs.helpers import FIELDS, Played, atari_config, play

ATARI_57 = [task.name for task in load_suite("atari57").tasks]


def info_of(played: Played, actions: Any = 0) -> dict[str, np.ndarray]:
    """Step ale-py's own environment and return its infos."""
    return played.env._vector.step(np.full(played.env.num_envs, actions, np.int32))[4]


def frames_after_reset(resets: int, **fields: Any) -> set[int]:
    """Numbers of emulator frames before the first record, over `resets` episodes."""
    with Played(atari_config("breakout", **fields), 2) as played:
        native = played.env._vector
        infos = [native.reset(seed=0)[1]] + [native.reset()[1] for _ in range(resets // 2 - 1)]
    return {int(n) for info in infos for n in info["episode_frame_number"]}


def test_the_57_games() -> None:
    assert len(set(ATARI_57)) == 57
    assert set(ATARI_57) < set(games())
    assert not {"combat", "joust", "maze_craze", "warlords"} & set(games()), "loading one of these kills the process"


def test_each_of_the_57_games_changes_its_frames() -> None:
    """With the settings of the presets; some games show a still picture at first."""
    for game in ATARI_57:
        with Played(atari_config(game), 1) as played:
            spec = played.env.spec
            assert (spec.name, spec.frames_per_step) == (f"atari/{game}", 4)
            assert (spec.observation.shape, spec.observation.dtype) == ((84, 84, 1), "uint8")
            assert spec.action.categories == (
                (9,) if game == "skiing" else (18,)
            )  # the joystick's button resets Skiing
            first = played.reset(1).observation
            assert first.std() > 0, game
            random = np.random.default_rng(0)
            changed = 0
            for step in range(300):
                record = played.step(random.integers(spec.action.categories[0]))
                changed += bool((record.observation != first).any())
                if step >= 30 and changed:
                    break
            assert changed, f"{game} shows the same frame {step + 1} times"


@pytest.mark.parametrize("game", ["pong", "breakout", "beam_rider", "seaquest", "qbert"])
def test_consecutive_frames_differ(game: str) -> None:
    """Each step sends one frame, the newest."""
    observation = play(atari_config(game), 1, seed=1, steps=100).observation
    still = (observation[1:] == observation[:-1]).reshape(100, -1).all(axis=1)
    assert still.mean() < 0.1


@pytest.mark.parametrize(("limit", "skip", "steps"), [(400, 4, 100), (400, 1, 400), (402, 4, 101)])
@pytest.mark.parametrize("noop_max", [0, 30])
def test_max_frames_counts_frames_and_truncates(limit: int, skip: int, steps: int, noop_max: int) -> None:
    """Counted after the no-ops; a game of Pong is much longer than 400 frames."""
    config = atari_config("pong", max_frames=limit, frame_skip=skip, noop_max=noop_max)
    run = play(config, 3, seed=1, steps=steps + 1)
    assert not run.terminated.any()
    assert (np.argwhere(run.truncated)[:, 0] == steps).all() and run.truncated.sum() == 3


def test_a_lost_game_terminates() -> None:
    """Breakout's five balls are lost long before the default limit."""
    run = play(atari_config("breakout"), 2, seed=1, steps=600)
    assert run.terminated.any() and not run.truncated.any()


@pytest.mark.parametrize("skip", [1, 3, 4])
def test_frame_skip(skip: int) -> None:
    with Played(atari_config("pong", frame_skip=skip), 2) as played:
        assert played.env.spec.frames_per_step == skip
        played.reset(1)
        numbers = [info_of(played)["frame_number"] for _ in range(5)]
    np.testing.assert_array_equal(np.diff(numbers, axis=0), skip)


def test_no_ops_at_reset_are_0_to_noop_max() -> None:
    assert frames_after_reset(30, noop_max=3) == {0, 1, 2, 3}
    assert frames_after_reset(8, noop_max=0) == {0}
    assert {0, 30} < frames_after_reset(200, noop_max=30) <= set(range(31))


def test_fire_is_pressed_at_reset_only_with_fire_reset() -> None:
    def ball_moves(**fields: Any) -> bool:
        with Played(atari_config("breakout", noop_max=0, **fields), 1) as played:
            played.reset(1)
            frames = [played.step(0).observation for _ in range(30)]
        return any((one != frames[0]).any() for one in frames[15:])

    assert ball_moves(fire_reset=True)
    assert not ball_moves()


def test_full_action_set() -> None:
    for full, actions in ((True, 18), (False, 6)):
        with Played(atari_config("pong", full_action_set=full), 1) as played:
            assert played.env.spec.action == ActionSpec((actions,))


def test_rewards_are_not_clipped() -> None:
    """A dot in Alien gives 10 points."""
    rewards = play(atari_config("alien"), 2, seed=1, steps=60).reward
    assert set(np.unique(rewards)) >= {0.0, 10.0}


def test_episodic_life() -> None:
    def first_end(**fields: Any) -> tuple[int, int]:
        with Played(atari_config("breakout", **fields), 1) as played:
            played.reset(1)
            for step in range(400):
                _, _, terminated, truncated, info = played.env._vector.step(np.array([step % 18], np.int32))
                if terminated[0] or truncated[0]:
                    return step, int(info["lives"][0])
        pytest.fail("no episode ended")

    life, game = first_end(episodic_life=True), first_end()
    assert life[1] == 4 and game[1] == 0 and life[0] < game[0]


def test_sticky_actions() -> None:
    plain, sticky = (
        play(atari_config("pong", repeat_action_probability=p), 1, seed=1, steps=60).observation for p in (0.0, 0.5)
    )
    assert (plain != sticky).any()
    always = [
        Played(atari_config("pong", repeat_action_probability=1.0, noop_max=0), 1).run(1, 60, action_seed=s).observation
        for s in (1, 2)
    ]
    np.testing.assert_array_equal(*always)


def test_maximum_of_the_last_two_frames_in_grey() -> None:
    """Compared with a bare emulator at native size, where no scaling hides differences."""
    with Played(atari_config("space_invaders", noop_max=0, height=210, width=160), 1) as played:
        played.reset(1)
        ale = ale_py.ALEInterface()
        ale.setFloat("repeat_action_probability", 0.0)
        ale.setInt("random_seed", 1)
        ale.loadROM(Path(roms.__file__).parent / "space_invaders.bin")
        ale.reset_game()
        flicker = 0
        for step in range(120):
            action = step % 18
            screens, reward = [], 0
            for _ in range(4):
                reward += ale.act(ale.getLegalActionSet()[action])
                screens.append(ale.getScreenGrayscale())
            record = played.step(action)
            np.testing.assert_array_equal(record.observation[0, :, :, 0], np.maximum(screens[2], screens[3]))
            assert record.reward[0] == reward
            flicker += bool((screens[2] != screens[3]).any())
        assert flicker > 10, "without different frames this test proves nothing"


@pytest.mark.parametrize(("height", "width"), [(96, 84), (210, 160), (64, 160)])
def test_observation_size(height: int, width: int) -> None:
    with Played(atari_config("pong", height=height, width=width), 2) as played:
        assert played.env.spec.observation.shape == (height, width, 1)
        played.reset(1)
        assert played.step(0).observation.std() > 10


def test_every_option_of_the_library_is_set() -> None:
    """A new option of ale-py must not change the task by its default."""
    options = set(inspect.signature(vector_env.AtariVectorEnv).parameters) - {"game", "num_envs"}
    options -= {"continuous_action_threshold"}  # no effect without continuous actions
    source = inspect.getsource(AtariVectorEnv._build)
    assert not [option for option in options if f"{option}=" not in source]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_do_not_depend_on_the_number_of_threads(threads: int) -> None:
    config = atari_config("breakout", repeat_action_probability=0.25)
    expected, run = (play(config, 3, seed=2, steps=40, threads=n) for n in (0, threads))
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(run, name), getattr(expected, name))


@pytest.mark.parametrize(
    "fields",
    [{}, {"repeat_action_probability": 0.25}, {"episodic_life": True, "fire_reset": True}, {"max_frames": 120}],
    ids=["plain", "sticky", "lives", "limit"],
)
def test_the_rendered_picture_follows_the_game(fields: dict[str, Any]) -> None:
    """The emulator that renders has the same frames, lives and rewards as the agent's, over several episodes."""
    config = atari_config("breakout", **fields)
    with Played(config, 2, render=True) as played:
        logs: dict[str, list[Any]] = {"vector": [], "mirror": []}
        for name in logs:
            native = getattr(played.env, f"_{name}")

            def step(actions: Any, inner: Any = native.step, log: list[Any] = logs[name]) -> Any:
                result = inner(actions)
                log.append([*(part[0] for part in result[1:4]), *(result[4][k][0] for k in ("lives", "frame_number"))])
                return result

            native.step = step
        run = played.run(9, 500)
        assert (run.terminated | run.truncated)[:, 0].sum() >= 2
        assert logs["vector"] == logs["mirror"]
        picture = played.env.render()
    assert picture.shape == (210, 160, 3) and (picture[..., 0] != picture[..., 2]).any(), "in colour"


def test_custom_roms_do_not_write_to_stdout() -> None:
    code = (
        "from seedcli.envs.registry import create_env\n"
        "from seedcli.config.schema import make_environment_config\n"
        "create_env(make_environment_config({'family': 'atari', 'id': 'pong'}), 1)\n"
    )
    folder = str(Path(roms.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", code], env={"ALE_ROMS_DIR": folder}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
