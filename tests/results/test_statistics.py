"""Statistics against rliable's figures and independent readings; curves against NumPy on their lines."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from seedcli.results.curves import curve_of, mean_of, reached_at, smoothing
from seedcli.results.runs import read_run
from seedcli.results.statistics import estimate, mean, mean_curve, median_reached
from tests.results.helpers import line, make_run

# [runs, tasks], and results of rliable 1.2.0 (aggregate_iqm, aggregate_mean and their 95 % intervals of 50,000
# resamples). It is not a dependency of the tests: it needs 500 MB, and pandas below 3.
RLIABLE = [
    (
        [[19.47], [18.99], [19.99], [20.4], [12.5]],
        (19.48333333333333, 14.663333333333332, 20.263333333333332),
        (18.27, 15.296, 20.05),
    ),
    (
        [[0.47, 1.2, -0.1], [0.51, 0.9, 0.35], [0.75, 1.31, 0.0], [0.2, 1.1, 0.62], [0.66, 0.95, 0.41]],
        (0.6244444444444445, 0.4977777777777778, 0.72),
        (0.622, 0.516, 0.7253333333333334),
    ),
    (
        [[0.1 * i + 0.07 * j * j for j in range(4)] for i in range(8)],
        (0.581875, 0.480625, 0.675625),
        (0.595, 0.516875, 0.673125),
    ),
    (  # final returns in thousands of recorded runs of mujoco_vtrace: three seeds of five tasks
        [
            [6.621, 1.789, 9.356, 3.336, -0.267],
            [1.851, 1.659, 9.356, 2.815, -0.768],
            [1.879, 2.139, 9.356, 2.693, -0.889],
        ],
        (2.7535555555555558, 2.134555555555556, 3.771555555555556),
        (3.395066666666667, 3.0089333333333332, 4.003135),
    ),
]


@pytest.mark.parametrize(
    ("scores", "iqm", "average"), RLIABLE, ids=["one task", "three tasks", "four tasks", "recorded"]
)
def test_estimates_are_those_of_rliable(
    scores: list[list[float]], iqm: tuple[float, ...], average: tuple[float, ...]
) -> None:
    tasks = list(np.array(scores).T)
    spread = max(iqm[2] - iqm[1], average[2] - average[1])
    for found, expected in ((estimate(tasks), iqm), (estimate(tasks, mean), average)):
        assert found.value == pytest.approx(expected[0], rel=1e-12)
        # Both intervals come from random resamples.
        assert found.low == pytest.approx(expected[1], abs=0.03 * spread)
        assert found.high == pytest.approx(expected[2], abs=0.03 * spread)


def test_resampling_stays_within_tasks() -> None:
    """Tasks whose runs agree add no variance, however far apart they are; runs that differ within a task do."""
    apart = [np.array([0.0, 0.0]), np.array([100.0, 100.0]), np.array([200.0, 200.0, 200.0])]
    assert estimate(apart, mean)[1:] == pytest.approx([800 / 7, 800 / 7])
    found = estimate([*apart[:2], np.array([0.0, 400.0])], mean)
    assert found == pytest.approx((100.0, 200 / 6, 1000 / 6))
    single = estimate([np.array([3.0])])
    assert single.value == 3.0 and math.isnan(single.low) and math.isnan(single.high)


def test_a_mean_curve_has_the_bootstrap_interval_of_each_point() -> None:
    curves = np.random.default_rng(5).normal(size=(6, 3)).cumsum(axis=1)
    middle, low, high = mean_curve(curves)
    np.testing.assert_allclose(middle, curves.sum(axis=0) / 6)
    draws = np.random.default_rng(6).integers(6, size=(20_000, 6))
    expected = np.percentile(curves[draws].mean(axis=1), [2.5, 97.5], axis=0)
    spread = (expected[1] - expected[0]).max()
    np.testing.assert_allclose([low, high], expected, atol=0.05 * spread)
    assert np.isnan(mean_curve(curves[:1])[1]).all()


def test_the_median_counts_seeds_that_never_reached_it() -> None:
    assert median_reached(np.array([3.0, 1.0, np.inf])) == 3.0
    assert median_reached(np.array([1.0, 3.0])) == 2.0
    assert median_reached(np.array([1.0, np.inf])) == np.inf
    assert median_reached(np.array([np.inf, np.inf])) == np.inf


def test_smoothing_is_a_mean_over_the_last_episodes(tmp_path: Path) -> None:
    """Lines of 2, 0, 3 and 5 episodes; a window of 4 ends with 4 of the last line's, or 3 and 1 of the first line's."""
    values = [(2, 10.0), (2, None), (5, 20.0), (10, 1.0)]
    lines = [line(10 * n, value, episodes=n, episode_return_100=-1.0) for n, value in values]
    run = read_run(make_run(tmp_path / "a", lines))
    curve = curve_of(run, smooth=4)
    np.testing.assert_allclose(curve.returns, [10, 10, (3 * 20 + 10) / 4, 1])
    np.testing.assert_allclose(curve_of(run, smooth=7).returns[-1], (5 * 1 + 2 * 20) / 7)
    np.testing.assert_allclose(curve_of(run, smooth=100).returns[-1], (2 * 10 + 3 * 20 + 5 * 1) / 10)
    assert curve_of(run).returns.tolist() == [-1.0] * 4  # the run's own mean of 100
    assert smoothing("training", None) == "mean of the last 100 training episodes"
    assert smoothing("evaluation", 5) == "mean of the last 5 evaluation episodes"
    assert len(curve_of(run, "evaluation").returns) == 0


def test_a_threshold_is_reached_by_a_full_window(tmp_path: Path) -> None:
    returns = {500: 99.0, 900: 30.0, 1000: 40.0, 2000: 50.0, 3000: 20.0}
    run = read_run(make_run(tmp_path / "a", [line(steps, value) for steps, value in returns.items()]))
    curve = curve_of(run)
    assert reached_at(curve, 40.0) == 1000  # 100 episodes; at 500 steps there were 50
    assert reached_at(curve, 40.5) == 2000
    assert reached_at(curve, 50.1) == np.inf
    assert reached_at(curve, 50.0, "minutes") == pytest.approx(15 / 60)


def test_the_mean_of_seeds_covers_what_all_of_them_have(tmp_path: Path) -> None:
    rising = [line(steps, steps / 100) for steps in (100, 400, 1000)]
    flat = [line(steps, 4.0) for steps in (200, 600)]
    curves = [curve_of(read_run(make_run(tmp_path / str(i), lines))) for i, lines in enumerate((rising, flat))]
    both = mean_of(curves)
    assert (both.x[0], both.x[-1]) == (200, 600)
    np.testing.assert_allclose(both.mean, (both.x / 100 + 4) / 2)
    np.testing.assert_allclose(both.low, np.minimum(both.x / 100, 4), atol=1e-9)
    np.testing.assert_allclose(both.high, np.maximum(both.x / 100, 4), atol=1e-9)
    one = mean_of(curves[:1])
    assert one.x.tolist() == [100, 400, 1000] and np.isnan(one.low).all()
    later = [line(steps, 1.0) for steps in (2000, 3000)]
    apart = mean_of([curves[0], curve_of(read_run(make_run(tmp_path / "later", later)))])
    assert len(apart.x) == 0
