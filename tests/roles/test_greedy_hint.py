"""When `seed eval` hints that greedy play falls short of training."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from seedcli.roles.greedy_hint import greedy_hint, training_returns

HALF = [0.0, 1.0] * 50  # mean 0.5, standard deviation 0.5


@pytest.mark.parametrize(
    ("trained", "played", "hinted"),
    [
        ([0.7] * 100, [0.0] * 20, True),
        ([0.7] * 100, [0.7] * 20, False),
        ([0.7] * 100, [0.9] * 20, False),
        ([0.7] * 100, [0.66] * 20, True),  # 0.04 is more than a twentieth of 0.7, without variance
        ([0.7] * 100, [0.67] * 20, False),
        ([-100.0] * 100, [-500.0] * 20, True),
        ([-100.0] * 100, [-104.0] * 20, False),
        (HALF, [0.0] * 20, True),
        (HALF, [0.0, 1.0] * 4 + [0.0] * 12, False),  # mean 0.2, not 0.5: three standard errors are 0.37
        (HALF, [0.0] * 4, False),  # four failures in a row can be chance
        (HALF, [0.3] * 1000, False),  # significant, but less than half a standard deviation
        ([1.0] * 19, [0.0] * 20, False),
        ([1.0] * 20, [0.0] * 20, True),
        ([], [0.0] * 20, False),
    ],
)
def test_hint_when_greedy_play_falls_clearly_short(
    trained: Sequence[float], played: Sequence[float], hinted: bool
) -> None:
    counters = {"env_steps": 5, **training_returns(trained)}
    assert bool(greedy_hint(counters, played)) == hinted


def test_the_hint_names_both_returns() -> None:
    counters = training_returns([0.7] * 100)
    assert counters["episode_return_100"] == pytest.approx(0.7) and len(counters["recent_returns"]) == 100
    assert greedy_hint(counters, [0.0] * 20) == (
        "greedy actions reach 0.00 where training reached 0.70 with sampled ones: try --sample"
    )


def test_checkpoints_of_earlier_versions_have_no_training_return() -> None:
    assert greedy_hint({"env_steps": 5}, [0.0] * 20) == "" and training_returns([]) == {}
