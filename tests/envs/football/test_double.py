"""The football family on scripted engines; envpool is not needed."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from seedcli.config.sections import EnvironmentConfig
from seedcli.envs.football.engines import Snapshot
from seedcli.envs.football.env import SCENARIOS, FootballVectorEnv, check_scenario
from seedcli.envs.football.pitch import draw_pitch
from seedcli.envs.registry import check_environment, create_env
from seedcli.errors import EnvironmentFailed, UsageError
from seedcli.specs import RowLayout, Rows, aligned_empty
from tests.configs import env_config
from tests.envs.football.double import STEPS, DoubleEnv, install
from tests.envs.helpers import Played, assert_same

EMPTY_GOAL = "academy_empty_goal_close"
RIGHT = 5


def football_config(scenario: str = EMPTY_GOAL, **fields: Any) -> EnvironmentConfig:
    return env_config(family="football", id=scenario, **fields)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[DoubleEnv]:
    return install(monkeypatch)


class Scripted:
    """An engine that returns prepared snapshots."""

    def __init__(self, *snapshots: Snapshot) -> None:
        self.snapshots = list(snapshots)

    def reset(self, seed: int) -> Snapshot:
        return self.snapshots.pop(0)

    def step(self, actions: np.ndarray) -> Snapshot:
        return self.snapshots.pop(0)

    def close(self) -> None:
        pass


def snapshot(score: list[list[int]], left: list[int], final: list[bool], planes: Any = None) -> Snapshot:
    planes = np.zeros((len(left), 72, 96, 4), np.uint8) if planes is None else planes
    return Snapshot(planes, np.array(score), np.full(len(left), -1), np.array(left), np.array(final))


def scripted(
    built: list[DoubleEnv], scenario: str, num_envs: int, *snapshots: Snapshot
) -> tuple[FootballVectorEnv, Rows]:
    env = FootballVectorEnv(football_config(scenario, engine="gfootball"), num_envs)
    env._engine = Scripted(*snapshots)
    layout = RowLayout(env.spec, num_envs)
    out = layout.views(aligned_empty(layout.nbytes))
    env.reset(0, out)
    return env, out


@pytest.mark.parametrize(
    ("scenario", "terminated", "truncated"),
    [(EMPTY_GOAL, [1, 1, 1, 0], [0, 0, 0, 1]), ("11_vs_11_stochastic", [1, 1, 0, 0], [0, 0, 1, 1])],
)
def test_only_the_clock_truncates(
    built: list[DoubleEnv], scenario: str, terminated: list[int], truncated: list[int]
) -> None:
    """In order: out of play early; a goal with a step to go; a goal with the last step; the clock alone.

    A goal on the last step terminates an academy scenario, but in eleven against eleven the clock truncates.
    """
    env, out = scripted(
        built,
        scenario,
        4,
        snapshot([[0, 0]] * 4, [2, 2, 1, 1], [False] * 4),
        snapshot([[0, 0], [1, 0], [1, 0], [0, 0]], [9, 1, 0, 0], [True] * 4),
    )
    env.step(np.zeros(4, np.int32), out)
    assert out.terminated.tolist() == terminated
    assert out.truncated.tolist() == truncated
    assert out.reward.tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("value", [1, 128, 254])
def test_values_other_than_0_and_255_are_named(built: list[DoubleEnv], value: int) -> None:
    planes = np.zeros((2, 72, 96, 4), np.uint8)
    planes[0, 3, 4, 0] = 255
    planes[1, 7, 90, 2] = value
    nil = [[0, 0]] * 2
    env, out = scripted(
        built, EMPTY_GOAL, 2, snapshot(nil, [9, 9], [False] * 2), snapshot(nil, [8, 8], [False] * 2, planes)
    )
    message = rf"^environment 1 of football/{EMPTY_GOAL} returned the value {value} at \[7, 90, 2\], which is neither 0"
    with pytest.raises(EnvironmentFailed, match=message):
        env.step(np.zeros(2, np.int32), out)


@pytest.mark.parametrize("planes", [np.zeros((1, 72, 96, 3), np.uint8), np.zeros((1, 72, 96, 4), np.float32)])
def test_other_shapes_and_types_are_named(built: list[DoubleEnv], planes: np.ndarray) -> None:
    first = snapshot([[0, 0]], [9], [False])
    env, out = scripted(built, EMPTY_GOAL, 1, first, snapshot([[0, 0]], [8], [False], planes))
    with pytest.raises(EnvironmentFailed, match=r"where uint8 \[1, 72, 96, 4\] is expected"):
        env.step(np.zeros(1, np.int32), out)


def test_unknown_scenarios_are_refused_without_a_simulator() -> None:
    with pytest.raises(UsageError, match="did you mean academy_empty_goal_close"):
        check_scenario("academy_empty_goal_closee")
    with pytest.raises(UsageError, match="there are 11_vs_11_competition, .*lazy$"):
        check_scenario("zzz")
    with pytest.raises(UsageError, match="11_vs_11_stochastic"):
        check_environment(football_config("11_VS_11_stochastic"))
    assert len(set(SCENARIOS)) == 18


def test_a_missing_envpool_is_reported_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    message = r"^environment.family football cannot be used on this machine \(.*envpool.*\); pip install 'seedcli"
    with pytest.raises(EnvironmentFailed, match=message):
        create_env(football_config(), 1)


def test_a_missing_gfootball_is_reported_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gfootball", None)
    message = r"^environment.engine gfootball cannot be used on this machine \(.*\); build the package gfootball"
    with pytest.raises(EnvironmentFailed, match=message):
        create_env(football_config(engine="gfootball"), 1)


def test_a_step_before_the_first_reset_is_refused(built: list[DoubleEnv]) -> None:
    with Played(football_config(engine="gfootball"), 1) as played, pytest.raises(EnvironmentFailed, match="reset it"):
        played.step(0)


def test_gfootball_is_built_for_unstacked_planes(built: list[DoubleEnv]) -> None:
    with Played(football_config(engine="gfootball"), 2):
        assert [env.arguments for env in built] == [
            {
                "env_name": EMPTY_GOAL,
                "stacked": False,
                "representation": "extracted",
                "rewards": "scoring",
                "render": False,
                "other_config_options": {"physics_steps_per_frame": 10},
            }
        ] * 2
    assert [env.closed for env in built] == [1, 1]


def test_gfootball_continues_after_a_final_record(built: list[DoubleEnv]) -> None:
    with Played(football_config(engine="gfootball", rewards="scoring,checkpoints"), 2) as played:
        played.reset(3)
        rewards, flags = [], []
        for _ in range(60):
            record = played.step([RIGHT, 0])  # the second player never has the ball
            rewards.append(record.reward)
            flags.append((record.terminated, record.truncated))
        terminated, truncated = (np.array(flag) for flag in zip(*flags, strict=True))
    ended = int(np.flatnonzero(terminated[:, 0])[0])
    assert not truncated[:, 0].any() and ended + 1 == 95 - (60 + built[0].seeds[0] % 30)
    assert sum(reward[0] for reward in rewards[: ended + 1]) == pytest.approx(2)
    assert rewards[ended + 1][0] == 0 and len(built[0].seeds) >= 2
    assert np.flatnonzero(truncated[:, 1]).tolist() == [STEPS] and not terminated[:, 1].any()
    assert not any(reward[1] for reward in rewards)


def test_gfootball_seeds(built: list[DoubleEnv]) -> None:
    with Played(football_config(engine="gfootball"), 2) as played:
        one = played.run(5, 90)
        first = [list(env.seeds) for env in built]
        other = played.run(6, 90)
        again = played.run(5, 90)
    assert_same(one, again)
    assert (one.observation != other.observation).any()
    assert min(len(seeds) for seeds in first) >= 2 and len({*first[0], *first[1]}) == len(first[0]) + len(first[1])
    assert built[0].seeds[len(first[0])] == first[1][0], "seed 6 of environment 0 is seed 5 of environment 1"


def test_an_error_of_gfootball_is_named(built: list[DoubleEnv]) -> None:
    with Played(football_config(engine="gfootball"), 1) as played:
        played.reset(1)
        built[0].over = True
        with pytest.raises(EnvironmentFailed, match=f"^football/{EMPTY_GOAL} failed in step: AssertionError"):
            played.step(0)


def test_drawing_a_pitch() -> None:
    planes = np.zeros((72, 96, 4), np.uint8)
    empty = draw_pitch(planes, (0, 0))
    assert (empty.shape, empty.dtype) == ((464, 640, 3), np.uint8)
    planes[36, 24, 0] = planes[36, 72, 1] = planes[10, 48, 2] = planes[36, 24, 3] = 255
    picture = draw_pitch(planes, (0, 0)).astype(int)
    changed = np.abs(picture - empty).sum(axis=2) > 60
    rows, columns = np.nonzero(changed)
    assert 160 < columns.min() < 185 and 455 < columns.max() < 480 and not changed[:, 200:300].any()
    left, right = picture[256:262, 172:184].mean(axis=(0, 1)), picture[256:262, 458:470].mean(axis=(0, 1))
    assert left[0] > left[2] and right[2] > right[0], "red is the left team, blue the right"
    assert rows.min() < 140 < 250 < rows.max(), "the ball is near the top, the players in the middle"
    assert (draw_pitch(planes, (1, 0)) != draw_pitch(planes, (0, 1))).any()
    assert (draw_pitch(planes, (0, 0), steps_left=3, title="x")[:46] != picture[:46]).any()
    with pytest.raises(ValueError, match=r"\[72, 96, 4\]"):
        draw_pitch(planes[:, :, :3], (0, 0))
