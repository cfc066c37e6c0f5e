"""Random numbers for acting: those of TensorFlow for a seed, those of a NumPy reference for given numbers."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from seedcli.agents import noise
from seedcli.errors import UsageError

SEED = tf.constant([3, 7], tf.int32)
RNG = np.random.default_rng(2)
GIVEN = RNG.random((4000, 6), np.float32)
ROWS = tf.constant(len(GIVEN))


def test_a_seed_gives_the_numbers_of_tensorflow() -> None:
    seeds = tf.random.split(SEED, 3)
    for ours, theirs in zip(noise.split(SEED, 3), seeds, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    logits = tf.constant(RNG.normal(size=(50, 4)), tf.float32)
    np.testing.assert_array_equal(
        noise.categorical(SEED, logits), tf.random.stateless_categorical(logits, 1, SEED, dtype=tf.int32)[:, 0]
    )
    np.testing.assert_array_equal(noise.normal(SEED, ROWS, 2), tf.random.stateless_normal([4000, 2], SEED))
    np.testing.assert_array_equal(noise.uniform(SEED, ROWS), tf.random.stateless_uniform([4000], SEED))
    np.testing.assert_array_equal(
        noise.integers(SEED, ROWS, 5), tf.random.stateless_uniform([4000], SEED, 0, 5, tf.int32)
    )


def test_given_numbers_are_used_column_by_column() -> None:
    source = noise.Noise(tf.constant(GIVEN))
    one, other = noise.split(source, 2)
    np.testing.assert_array_equal(noise.uniform(one, ROWS), GIVEN[:, 0])
    np.testing.assert_array_equal(noise.integers(other, ROWS, 7), np.floor(GIVEN[:, 1] * np.float32(7)))
    found = noise.normal(source, ROWS, 2).numpy().astype(np.float64)
    u, v = GIVEN[:, 2:4].astype(np.float64), GIVEN[:, 4:6].astype(np.float64)
    np.testing.assert_allclose(found, np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v), rtol=1e-4, atol=1e-5)
    assert source.used == 6
    # Standard normal: five standard errors of mean and variance of 4,000 numbers.
    assert (np.abs(found.mean(axis=0)) < 5 / 4000**0.5).all()
    assert (np.abs(found.var(axis=0) - 1) < 5 * (2 / 4000) ** 0.5).all()
    assert abs(np.corrcoef(found.T)[0, 1]) < 5 / 4000**0.5


def test_categories_have_their_probabilities() -> None:
    logits = np.array([0.3, -np.inf, 1.5, -1.0], np.float32)
    chosen = noise.categorical(noise.Noise(tf.constant(GIVEN)), tf.constant(np.tile(logits, (4000, 1)))).numpy()
    p = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_array_equal(chosen, np.searchsorted(np.cumsum(p.astype(np.float64)), GIVEN[:, 0], side="right"))
    shares = np.bincount(chosen, minlength=4) / 4000
    assert shares[1] == 0 and (np.abs(shares - p) < 5 * np.sqrt(p * (1 - p) / 4000) + 1e-12).all()


def test_the_ends_of_the_range_are_safe() -> None:
    ends = np.array([[0.0, 0.0], [1 - 2**-24, 1 - 2**-24]], np.float32)
    rows = tf.constant(2)
    assert np.isfinite(noise.normal(noise.Noise(tf.constant(ends)), rows, 1)).all()
    np.testing.assert_array_equal(noise.integers(noise.Noise(tf.constant(ends)), rows, 3), [0, 2])
    logits = tf.constant([[0.0, 1.0, 0.0]] * 2)
    np.testing.assert_array_equal(noise.categorical(noise.Noise(tf.constant(ends)), logits), [0, 2])


def test_given_numbers_are_no_seed() -> None:
    with pytest.raises(UsageError, match="draw with seedcli.agents.noise, or export greedy actions"):
        tf.random.stateless_uniform([3], noise.Noise(tf.constant(GIVEN)))
