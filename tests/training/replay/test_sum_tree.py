"""The sum tree, compared with plain float64 arrays."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seedcli.training.replay.sum_tree import SumTree

VALUES = st.floats(0, 1e6, allow_subnormal=True)


@settings(max_examples=100)
@given(
    size=st.integers(1, 70),
    writes=st.lists(st.lists(st.tuples(st.integers(0, 10**6), VALUES), max_size=20), max_size=10),
)
def test_leaves_equal_those_of_a_plain_array(size, writes):
    tree = SumTree(size)
    assert tree.size >= size and tree.size & (tree.size - 1) == 0
    plain = np.zeros(tree.size)
    for write in writes:
        indices = np.array([i % size for i, _ in write], np.int64)
        values = np.array([v for _, v in write], np.float64)
        tree.set(indices, values)
        for i, v in zip(indices, values, strict=True):  # the last of duplicates counts
            plain[i] = v
    np.testing.assert_array_equal(tree.get(np.arange(tree.size)), plain)
    np.testing.assert_allclose(tree.total, plain.sum(), rtol=1e-14)


def test_no_drift_after_a_hundred_thousand_updates():
    rng = np.random.default_rng(5)
    tree = SumTree(1000)
    plain = np.zeros(tree.size)
    for _ in range(1000):
        indices = rng.integers(0, 1000, 100)
        values = rng.random(100) * 10.0 ** rng.integers(-12, 12, 100)  # sums of differences would drift here
        tree.set(indices, values)
        plain[indices] = values
    np.testing.assert_array_equal(tree.get(np.arange(tree.size)), plain)
    pairwise = plain
    while len(pairwise) > 1:
        pairwise = pairwise[0::2] + pairwise[1::2]
    assert tree.total == pairwise[0]
    tree.set(np.arange(1000), np.zeros(1000))
    assert tree.total == 0


def test_strata_agree_with_the_cumulative_sum():
    values = np.array([1, 0, 3, 4, 0, 0, 2, 6], np.float64)
    tree = SumTree(8)
    tree.set(np.arange(8), values)
    n = 4001
    drawn = tree.sample(np.random.default_rng(3), n)
    points = (np.arange(n) + np.random.default_rng(3).random(n)) * (values.sum() / n)
    np.testing.assert_array_equal(drawn, np.searchsorted(np.cumsum(values), points, side="right"))


@settings(max_examples=200)
@given(
    values=st.lists(st.one_of(st.just(0.0), st.floats(5e-324, 1e280)), min_size=1, max_size=33),
    seed=st.integers(0, 100),
)
def test_a_leaf_of_zero_is_never_drawn(values, seed):
    tree = SumTree(len(values))
    tree.set(np.arange(len(values)), np.array(values))
    if tree.total == 0:
        with pytest.raises(ValueError, match="every leaf"):
            tree.sample(np.random.default_rng(seed), 3)
        return
    drawn = tree.sample(np.random.default_rng(seed), 64)
    assert drawn.min() >= 0 and drawn.max() < len(values)
    assert (tree.get(drawn) > 0).all()
    assert (np.diff(drawn) >= 0).all()


class _AlmostOne:
    """A generator that always draws the largest double below 1."""

    def random(self, n):
        return np.full(n, np.nextafter(1.0, 0.0))


def test_rounding_at_the_end_of_the_total_does_not_reach_empty_leaves():
    tree = SumTree(16)
    tree.set(np.arange(7), np.full(7, 0.1))
    for n in (1, 3, 10, 49):  # the last point rounds to the total itself, or beyond it
        assert tree.sample(_AlmostOne(), n).max() <= 6  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-1e-9, float("nan"), float("inf")])
def test_invalid_values_are_refused_and_change_nothing(value):
    tree = SumTree(4)
    tree.set(np.arange(4), np.ones(4))
    with pytest.raises(ValueError, match="finite"):
        tree.set(np.array([0, 1]), np.array([2.0, value]))
    with pytest.raises(ValueError, match="leaves must be"):
        tree.set(np.array([4]), np.array([1.0]))
    assert tree.total == 4


def test_a_million_leaves_are_fast():
    rng = np.random.default_rng(0)
    tree = SumTree(10**6)
    tree.set(np.arange(10**6), rng.random(10**6))
    batches = [(rng.integers(0, 10**6, 64), rng.random(64)) for _ in range(100)]
    begun = time.perf_counter()
    for indices, values in batches:
        tree.set(indices, values)
        tree.sample(rng, 64)
    each = (time.perf_counter() - begun) / 100
    assert each < 0.02, f"{each * 1e3:.2f} ms for 64 updates and 64 draws"  # about 0.3 ms on an idle core
