"""The football family on envpool's real engine."""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from seedcli.envs.football.engines import EnvpoolEngine
from seedcli.envs.football.env import SCENARIOS
from seedcli.errors import EnvironmentFailed
from seedcli.specs import Rows
from tests.envs.football.test_double import EMPTY_GOAL, RIGHT, football_config
from tests.envs.helpers import Played, assert_same, play, stack

envpool = pytest.importorskip("envpool", reason="envpool, which carries the football engine, is not installed")

IDLE, SHOT = 0, 12
RUN_TO_SCORE = "academy_run_to_score"


def native(scenario: str = EMPTY_GOAL, num_envs: int = 1, **fields: Any) -> Any:
    return envpool.make(f"gfootball/{scenario}-v1", env_type="gymnasium", num_envs=num_envs, **fields)


def column(observation: np.ndarray, plane: int = 2) -> np.ndarray:
    """Columns [E] of the only cell that a plane marks: by default the ball's."""
    return observation[..., plane].reshape(len(observation), 72, 96).any(axis=1).argmax(axis=1)


def run_and_shoot(observation: np.ndarray) -> np.ndarray:
    """Actions that run right with the ball and shoot near the goal."""
    return np.where(column(observation) < 90, RIGHT, SHOT).astype(np.int32)


def score_goals(played: Played, seed: int, steps: int) -> Rows:
    records = [played.reset(seed)]
    for _ in range(steps):
        records.append(played.step(run_and_shoot(records[-1].observation)))
    return stack(records)


def test_scenarios_are_those_of_envpool() -> None:
    names = {task.removeprefix("gfootball/").removesuffix("-v1") for task in envpool.list_all_envs() if "gfoot" in task}
    assert names == set(SCENARIOS)


def test_spec() -> None:
    with Played(football_config(), 2) as played:
        spec = played.env.spec
    (planes,) = spec.arrays.values()
    assert (spec.name, spec.frames_per_step) == (f"football/{EMPTY_GOAL}", 1)
    assert (planes.shape, planes.dtype, planes.binary) == ((72, 96, 4), "uint8", (0, 255))
    assert spec.action.categories == (19,) and spec.action.array.shape == ()
    own = envpool.make_spec(f"gfootball/{EMPTY_GOAL}-v1")
    assert own.observation_space.shape == planes.shape and own.action_space.n == 19
    assert own.config.physics_steps_per_frame == 10


def test_planes_at_kick_off() -> None:
    """Left team, right team, ball, active player: the goalkeeper in front of our goal, one attacker near theirs."""
    run = play(football_config(), 3, seed=1, steps=30)
    assert set(np.unique(run.observation)) == {0, 255}
    first = run.observation[0] != 0
    assert (first.sum(axis=(1, 2)) == [2, 1, 1, 1]).all()
    assert (column(first[..., :1], 0) == 0).all() and (column(first) == 84).all()
    assert not first[:, :, :80, 2].any(), "the ball starts at 0.77 of the way to the right"
    assert (run.observation[1:] != run.observation[:-1]).any(axis=(2, 3, 4)).mean() > 0.5


def test_the_right_goal_is_the_opponents() -> None:
    """Running right brings the ball to the last column and the score to us; the goal ends the episode."""
    with Played(football_config(), 2) as played:
        run = score_goals(played, 3, 60)
    ends = np.argwhere(run.terminated)
    assert len(ends) >= 4 and not run.truncated.any()
    for step, env in ends:
        assert run.reward[step, env] == 1 and column(run.observation[step - 1])[env] > 92
        assert column(run.observation[step])[env] == 48, "the record with the reward of the goal shows the kick-off"
        assert run.reward[step + 1, env] == 0 and not run.terminated[step + 1, env]
    assert run.reward.sum() == len(ends)


def test_checkpoints_in_a_real_episode() -> None:
    """The attacker starts within nine zones; the tenth and the goal bring the sum to 2."""
    with Played(football_config(rewards="scoring,checkpoints"), 2) as played:
        run = score_goals(played, 3, 60)
    end = int(np.flatnonzero(run.terminated[:, 0])[0])
    paid = run.reward[: end + 1, 0].round(5)
    # Cell 84.5 of 96 is x = 0.76: nine of the distances are at least 0.24.
    assert paid[0] == 0 and paid[paid > 0][0] == pytest.approx(0.9)
    assert paid.sum() == pytest.approx(2) and paid[-1] >= 1
    assert run.reward[end + 1, 0] == 0 and run.reward[end + 2 :, 0].max() >= 0.9, "zones pay once an episode"


def test_no_possession_no_checkpoints() -> None:
    """A player that stands still never touches the ball."""
    with Played(football_config(rewards="scoring,checkpoints"), 1) as played:
        played.reset(3)
        assert not any(played.step(IDLE).reward.any() for _ in range(100))


def test_the_reward_of_goals_is_that_of_envpool() -> None:
    with Played(football_config("academy_3_vs_1_with_keeper"), 4) as played:
        played.reset(2)
        pool, random = played.env._engine._pool, np.random.default_rng(0)
        inner, native_records = pool.step, []
        pool.step = lambda actions: native_records.append(result := inner(actions)) or result
        for _ in range(150):
            ours = played.step(random.choice([RIGHT, 12, 11, 4], 4))
            observation, reward, terminated, truncated, _ = native_records[-1]
            np.testing.assert_array_equal(ours.reward, reward)
            np.testing.assert_array_equal(ours.terminated | ours.truncated, terminated | truncated)
            np.testing.assert_array_equal(ours.observation, observation)


def test_the_final_record_is_the_last_of_its_episode() -> None:
    """Clock and engine seed are still those of the episode; the next record is a reset, whatever the action."""
    pool = native(seed=3, num_threads=1)
    _, before = pool.reset()
    assert (before["elapsed_step"], before["steps_left"]) == (0, 401)
    for step in range(1, 402):
        observation, _, terminated, truncated, info = pool.step(np.array([IDLE], np.int32))
        assert info["elapsed_step"] == step and info["steps_left"] == 401 - step
        assert info["engine_seed"] == before["engine_seed"]
        if terminated or truncated:
            break
    assert terminated and not truncated and info["game_mode"] != 0, "an idle team lets the ball cross the goal line"
    assert column(observation) == 95, "not the first observation of the next episode"
    _, reward, terminated, truncated, after = pool.step(np.array([RIGHT], np.int32))
    assert not (reward or terminated or truncated)
    assert after["elapsed_step"] == 0 and after["engine_seed"] != info["engine_seed"]


def test_the_clock_truncates_after_401_steps() -> None:
    """The player runs up and down the wing, so that there is neither a goal nor a ball out of play."""
    with Played(football_config(RUN_TO_SCORE), 1) as played:
        played.reset(3)
        for step in range(1, 403):
            # First to the left, away from the others, then up and down.
            record = played.step(1 if step <= 30 else (3, 7)[(step - 1) // 8 % 2])
            if record.terminated or record.truncated:
                break
    assert (step, int(record.terminated[0]), int(record.truncated[0])) == (401, 0, 1)


@pytest.mark.parametrize(("clock", "terminated"), [(23, True), (24, True), (30, True), (22, False)])
def test_a_goal_terminates_even_on_the_last_steps(
    monkeypatch: pytest.MonkeyPatch, clock: int, terminated: bool
) -> None:
    """envpool reports any end with the clock at 1 or 0 as a truncation; this goal is scored on step 24."""
    monkeypatch.setattr(envpool, "make", functools.partial(envpool.make, max_episode_steps=clock))
    native_env = native(seed=3)
    observation, _ = native_env.reset()
    with Played(football_config(), 1) as played:
        record = played.reset(3)
        for _ in range(30):
            actions = run_and_shoot(record.observation)
            record, native_record = played.step(actions), native_env.step(actions)
            if record.terminated or record.truncated:
                break
    assert bool(record.terminated[0]) is terminated and bool(record.truncated[0]) is not terminated
    assert bool(record.reward[0]) is terminated
    assert bool(native_record[3][0]) is (clock <= 24), "envpool's own flag"


def test_environments_are_in_order_with_any_number_of_threads() -> None:
    """With three threads, each environment still gets its own actions."""
    expected, run = (play(football_config(), 3, seed=2, steps=60, threads=threads) for threads in (1, 3))
    assert_same(expected, run)


def test_environments_out_of_order_are_refused() -> None:
    engine = EnvpoolEngine(EMPTY_GOAL, 2, 1)
    engine.reset(0)
    inner = engine._pool.step

    def swapped(actions: np.ndarray) -> Any:
        *rest, info = inner(actions)
        return *rest, {**info, "env_id": info["env_id"][::-1]}

    engine._pool.step = swapped
    with pytest.raises(EnvironmentFailed, match=r"returned the environments \[1, 0\]"):
        engine.step(np.zeros(2, np.int32))


def test_seeds_differ_between_episodes_and_environments() -> None:
    """The same actions lead to other observations under another seed."""
    one, other = (play(football_config(), 2, seed=seed, steps=60).observation for seed in (5, 9))
    assert (one != other).any()
    assert (one[:, 0] != one[:, 1]).any()
    pool = native(num_envs=3, env_seed=[5, 6, 7])
    assert pool.reset()[1]["engine_seed"].tolist() == native(num_envs=3, seed=5).reset()[1]["engine_seed"].tolist()


def test_an_error_of_envpool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no data\nmore")

    monkeypatch.setattr(envpool, "make", broken)
    with Played(football_config(), 1) as played, pytest.raises(EnvironmentFailed, match="reset: RuntimeError: no data"):
        played.reset(0)


@pytest.mark.parametrize("rewards", ["scoring", "scoring,checkpoints"])
def test_eleven_against_eleven_can_be_played(rewards: str) -> None:
    """22 players, fewer marks where two share a cell; a kick-off does not end the episode."""
    run = play(football_config("11_vs_11_easy_stochastic", rewards=rewards), 2, seed=1, steps=60)
    marks = (run.observation != 0).sum(axis=(2, 3))
    assert (marks[..., :2] <= 11).all() and marks[..., :2].min() >= 8 and (marks[..., 2:] == 1).all()
    assert not run.terminated.any() and not run.truncated.any()


def test_the_picture_is_of_the_first_match() -> None:
    with Played(football_config(), 2, render=True) as played:
        with pytest.raises(EnvironmentFailed, match="render=True"):
            played.env.render()
        first = played.reset(3)
        before = played.env.render()
        for _ in range(15):
            first = played.step([RIGHT, IDLE])
        after = played.env.render()
    assert before.shape == (464, 640, 3) and (before != after).any()
    ball = int((column(first.observation)[0] + 0.5) / 96 * 577 + 31.5)  # 577 pixels from goal line to goal line
    assert after[250:262, ball - 3 : ball + 4].min(axis=2).max() > 240, "the ball is white"


def test_simulator_does_not_write_to_stdout() -> None:
    code = (
        "import numpy as np\n"
        "from tests.envs.football.test_env import football_config\n"
        "from tests.envs.helpers import play\n"
        "play(football_config(), 2, seed=1, steps=160)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
