"""The football rewards on hand-made matches."""

from __future__ import annotations

import numpy as np
import pytest

from seedcli.envs.football.rewards import CHECKPOINT_DISTANCES, FootballRewards, cell_centres

OURS, NOBODY, THEIRS = 0, -1, 1


def planes(*balls: tuple[float, float]) -> np.ndarray:
    """Observations with the ball at pitch coordinates (x, y), far from all players."""
    result = np.zeros((len(balls), 72, 96, 4), np.uint8)
    for index, (x, y) in enumerate(balls):
        row, column = int((y * 2.25 + 1) / 2 * 72), int((x + 1) / 2 * 96)
        result[index, min(max(row, 0), 71), min(max(column, 0), 95), 2] = 255
    result[:, 5, 90, :2] = 255
    return result


def record(
    rewards: FootballRewards, balls: list[tuple[float, float]], owner: list[int], score: list[list[int]]
) -> list[float]:
    return rewards.rewards(rewards.goals(np.array(score)), planes(*balls), np.array(owner)).round(6).tolist()


def test_ten_distances() -> None:
    np.testing.assert_allclose(CHECKPOINT_DISTANCES, [0.99 - 0.8 / 9 * k for k in range(10)])


def test_cell_centres() -> None:
    y, x = cell_centres()
    assert (len(y), len(x)) == (72, 96)
    assert x[0] == pytest.approx(-1 + 1 / 96) and x[-1] == pytest.approx(1 - 1 / 96)
    assert y[0] == pytest.approx(-0.4383, abs=1e-4) and y[35] == pytest.approx(-y[36])


def test_scoring_is_the_difference_of_goals() -> None:
    rewards = FootballRewards(3, checkpoints=False)
    anywhere, owner = [(0.9, 0.0)] * 3, [OURS] * 3
    assert record(rewards, anywhere, owner, [[0, 0], [0, 0], [0, 0]]) == [0, 0, 0]
    assert record(rewards, anywhere, owner, [[1, 0], [0, 1], [0, 0]]) == [1, -1, 0]
    assert record(rewards, anywhere, owner, [[1, 0], [0, 1], [1, 1]]) == [0, 0, 0]
    assert record(rewards, anywhere, owner, [[1, 1], [1, 1], [1, 1]]) == [-1, 1, 0]


def test_zones_are_counted_per_environment() -> None:
    rewards = FootballRewards(4, checkpoints=True)
    nil = [[0, 0]] * 4
    balls = [(-0.5, 0.0), (0.05, 0.0), (0.5, 0.0), (0.9, 0.0)]
    # Distances 1.5, 0.95, 0.5 and 0.1 reach none of the zones, the first, six (0.99 … 0.546) and all.
    assert record(rewards, balls, [OURS] * 4, nil) == [0, 0.1, 0.6, 1.0]
    assert record(rewards, balls, [OURS] * 4, nil) == [0, 0, 0, 0], "zones pay once an episode"
    assert record(rewards, [(0.15, 0.0)] * 4, [OURS] * 4, nil) == [0.2, 0.1, 0, 0], "only new zones pay"
    assert rewards.collected.tolist() == [2, 2, 6, 10]


def test_every_zone_on_the_way_to_goal_pays_a_tenth() -> None:
    rewards = FootballRewards(1, checkpoints=True)
    paid = [record(rewards, [(x, 0.0)], [OURS], [[0, 0]])[0] for x in np.arange(-1, 1, 1 / 48)]
    assert paid.count(0.1) == 10 and sum(paid) == pytest.approx(1)


def test_distance_is_to_the_centre_of_the_goal_not_to_the_goal_line() -> None:
    rewards = FootballRewards(2, checkpoints=True)
    # At the corner flag the ball is 0.42 away: seven zones; in front of the goal all ten.
    assert record(rewards, [(0.999, 0.42), (0.999, 0.0)], [OURS] * 2, [[0, 0]] * 2) == [0.7, 1.0]


def test_only_our_own_possession_counts() -> None:
    rewards = FootballRewards(3, checkpoints=True)
    assert record(rewards, [(0.9, 0.0)] * 3, [THEIRS, NOBODY, OURS], [[0, 0]] * 3) == [0, 0, 1.0]
    assert rewards.collected.tolist() == [0, 0, 10]


def test_scoring_a_goal_pays_the_remaining_zones() -> None:
    rewards = FootballRewards(3, checkpoints=True)
    assert record(rewards, [(0.5, 0.0), (-0.5, 0.0), (0.9, 0.0)], [OURS] * 3, [[0, 0]] * 3) == [0.6, 0, 1.0]
    # The record with the reward of the goal shows the ball at the centre spot again.
    assert record(rewards, [(0.0, 0.0)] * 3, [NOBODY] * 3, [[1, 0]] * 3) == [1.4, 2.0, 1.0]
    assert record(rewards, [(0.9, 0.0)] * 3, [OURS] * 3, [[1, 0]] * 3) == [0, 0, 0], "all zones are paid"
    assert record(rewards, [(0.0, 0.0)] * 3, [NOBODY] * 3, [[2, 0]] * 3) == [1, 1, 1]


def test_conceding_a_goal_pays_no_zones() -> None:
    rewards = FootballRewards(1, checkpoints=True)
    assert record(rewards, [(0.0, 0.0)], [NOBODY], [[0, 1]]) == [-1]
    assert rewards.collected.tolist() == [0]


def test_a_new_episode_resets_the_zones_of_its_environment_only() -> None:
    rewards = FootballRewards(2, checkpoints=True)
    assert record(rewards, [(0.9, 0.0)] * 2, [OURS] * 2, [[2, 0], [0, 0]]) == [3.0, 1.0]
    rewards.start(np.array([True, False]))
    assert record(rewards, [(0.77, 0.0)] * 2, [NOBODY] * 2, [[0, 0]] * 2) == [0, 0]
    assert record(rewards, [(0.77, 0.0)] * 2, [OURS] * 2, [[0, 0]] * 2) == [0.9, 0]


def test_without_a_ball_nothing_is_paid() -> None:
    rewards = FootballRewards(1, checkpoints=True)
    paid = rewards.rewards(np.zeros(1, np.int64), np.zeros((1, 72, 96, 4), np.uint8), np.array([OURS]))
    assert paid.tolist() == [0]
