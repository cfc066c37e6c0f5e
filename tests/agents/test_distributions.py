"""Distributions of policies, against float64 and against samples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from seedcli.agents.distributions import (
    Categorical,
    DiagonalGaussian,
    Distribution,
    MultiCategorical,
    SquashedGaussian,
    make_distribution,
)
from seedcli.specs import ActionSpec
from tests.agents.helpers import BOX, PARTS

SPECS = [ActionSpec((5,)), ActionSpec((3,), vector=True), PARTS, BOX]


def drawn(distribution: Distribution, params: Any, rows: int, seed: tuple[int, int] = (1, 2)) -> Any:
    """Samples [rows, ...] of one distribution with parameters [P]."""
    return distribution.sample(tf.repeat(tf.constant(params)[tf.newaxis], rows, axis=0), tf.constant(seed)).numpy()


def random_params(distribution: Distribution, *lead: int) -> Any:
    return np.random.default_rng(3).normal(size=(*lead, distribution.size)).astype(np.float32)


def probabilities(logits: Any) -> Any:
    exponential = np.exp(logits.astype(np.float64))
    return exponential / exponential.sum(-1, keepdims=True)


def test_the_action_decides_the_distribution() -> None:
    kinds = [type(make_distribution(spec)) for spec in SPECS]
    assert kinds == [Categorical, MultiCategorical, MultiCategorical, DiagonalGaussian]
    found = [(make_distribution(spec).name, make_distribution(spec).size) for spec in SPECS]
    assert found == [("logits", 5), ("logits", 3), ("logits", 9), ("mean_log_std", 4)]


@pytest.mark.parametrize("spec", SPECS)
def test_shapes_and_seeds(spec: ActionSpec) -> None:
    distribution = make_distribution(spec)
    params = random_params(distribution, 50)
    array = spec.array
    for actions in (distribution.sample(params, tf.constant([1, 2])), distribution.mode(params)):
        assert actions.shape == (50, *array.shape) and actions.dtype.name == array.dtype
    first, again, other = (distribution.sample(params, tf.constant([1, i])).numpy() for i in (2, 2, 3))
    np.testing.assert_array_equal(first, again)
    assert (first != other).mean() > 0.2
    # The extra axis of unrolls changes nothing.
    folded = np.reshape(params, (10, 5, -1)), np.reshape(first, (10, 5, *array.shape))
    np.testing.assert_array_equal(
        tf.reshape(distribution.log_prob(*folded), [-1]), distribution.log_prob(params, first)
    )
    np.testing.assert_array_equal(tf.reshape(distribution.entropy(folded[0]), [-1]), distribution.entropy(params))
    best = distribution.log_prob(params, distribution.mode(params)).numpy()
    assert (best >= distribution.log_prob(params, first).numpy() - 1e-6).all()


def test_one_category_is_drawn_as_the_logits_say() -> None:
    distribution = Categorical(5)
    params = random_params(distribution, 100)
    expected = tf.random.stateless_categorical(params, 1, [4, 5], dtype=tf.int32)[:, 0]
    np.testing.assert_array_equal(distribution.sample(params, tf.constant([4, 5])), expected)


def test_categories_agree_with_float64_and_are_drawn_so() -> None:
    distribution = MultiCategorical((3, 2, 4))
    params = random_params(distribution)
    parts = [probabilities(logits) for logits in np.split(params, [3, 5])]
    actions = drawn(distribution, params, 40_000)
    joint = np.zeros((3, 2, 4))
    np.add.at(joint, tuple(actions.T), 1 / len(actions))
    expected = np.einsum("i,j,k->ijk", *parts)
    np.testing.assert_allclose(joint, expected, atol=5 * math.sqrt(0.25 / len(actions)))
    every = np.stack(np.meshgrid(*map(np.arange, (3, 2, 4)), indexing="ij"), -1).astype(np.int32)
    log_prob = distribution.log_prob(np.broadcast_to(params, (3, 2, 4, 9)), every)
    np.testing.assert_allclose(log_prob, np.log(expected), rtol=1e-5)
    np.testing.assert_allclose(distribution.entropy(params), -(expected * np.log(expected)).sum(), rtol=1e-5)


def test_a_gaussian_agrees_with_float64_and_is_drawn_so() -> None:
    distribution = DiagonalGaussian(2)
    params = np.array([0.5, -3.0, math.log(0.2), math.log(4.0)], np.float32)
    mean, std = params[:2].astype(np.float64), np.exp(params[2:].astype(np.float64))
    actions = drawn(distribution, params, 40_000)
    np.testing.assert_allclose(actions.mean(0), mean, atol=5 * 4.0 / 200)
    np.testing.assert_allclose(actions.std(0), std, rtol=0.03)
    assert abs(np.corrcoef(actions.T)[0, 1]) < 0.03
    assert (np.abs(actions[:, 1]) > 1.0).mean() > 0.5  # nothing clips them here
    density = np.exp(-0.5 * ((actions - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))
    log_prob = distribution.log_prob(np.broadcast_to(params, (len(actions), 4)), actions).numpy()
    np.testing.assert_allclose(log_prob, np.log(density).sum(-1), rtol=1e-4, atol=1e-4)
    # The entropy is the mean of −log p, and log std adds to it one for one.
    assert float(distribution.entropy(params)) == pytest.approx(-log_prob.mean(), abs=0.03)
    np.testing.assert_array_equal(distribution.mode(params), params[:2])


def test_parameters_are_described_in_a_users_terms() -> None:
    params = random_params(MultiCategorical((3, 2)), 4)
    described = MultiCategorical((3, 2)).describe(params)
    np.testing.assert_array_equal(described["logits"], params)
    expected = np.concatenate([probabilities(part) for part in np.split(params, [3], axis=-1)], -1)
    np.testing.assert_allclose(described["probabilities"], expected, rtol=1e-5)
    np.testing.assert_allclose(Categorical(5).describe(params)["probabilities"], probabilities(params), rtol=1e-5)
    normal = DiagonalGaussian(2).describe(params[:, :4])
    np.testing.assert_array_equal(normal["mean"], params[:, :2])
    np.testing.assert_allclose(normal["std"], np.exp(params[:, 2:4].astype(np.float64)), rtol=1e-5)


@pytest.mark.parametrize("far", [0.0, 30.0])
def test_a_squashed_gaussian_and_its_gradient_agree_with_float64(far: float) -> None:
    rng = np.random.default_rng(2)
    mean = rng.normal(size=(50, 3)) + far * rng.choice([-1.0, 1.0], (50, 3))
    log_std, noise = rng.normal(size=(50, 3)), rng.normal(size=(50, 3))
    params = tf.constant(np.concatenate([mean, log_std], -1), tf.float32)

    def log_density(mean: Any, log_std: Any) -> Any:
        # Of u, and log(1 - tanh² u) = -2·log cosh u.
        u = mean + np.exp(log_std) * noise
        log_cosh = np.abs(u) + np.log1p(np.exp(-2.0 * np.abs(u))) - math.log(2.0)
        log_normal = -0.5 * ((u - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * math.log(2.0 * math.pi)
        return (log_normal + 2.0 * log_cosh).sum(-1)

    weights = rng.normal(size=50)
    with tf.GradientTape() as tape:
        tape.watch(params)
        action, log_prob = SquashedGaussian(3).sample(params, tf.constant(noise, tf.float32))
        total = tf.reduce_sum(log_prob * tf.constant(weights, tf.float32))
    np.testing.assert_allclose(action, np.tanh(mean + np.exp(log_std) * noise), atol=2e-6)
    np.testing.assert_allclose(log_prob, log_density(mean, log_std), rtol=1e-5, atol=1e-4)
    gradient = tape.gradient(total, params).numpy()
    # d/dmean = 2·tanh u; d/dlog_std = -1 + 2·tanh(u)·std·noise.
    slope = 2.0 * np.tanh(mean + np.exp(log_std) * noise)
    expected = np.concatenate([slope, slope * np.exp(log_std) * noise - 1.0], -1) * weights[:, None]
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4)
    assert np.isfinite(gradient).all()


def test_a_squashed_gaussian_is_a_density_on_its_actions() -> None:
    distribution = SquashedGaussian(1)
    params = tf.constant([[0.4, -0.3]])
    # Noise at equal steps gives actions whose densities, times the distances of the actions, add up to 1.
    noise = tf.linspace(-8.0, 8.0, 20_001)[:, tf.newaxis]
    action, log_prob = distribution.sample(tf.repeat(params, 20_001, axis=0), noise)
    a, density = action.numpy()[:, 0].astype(np.float64), np.exp(log_prob.numpy().astype(np.float64))
    assert np.trapezoid(density, a) == pytest.approx(1.0, abs=1e-3)
    assert float(distribution.median(params)[0, 0]) == pytest.approx(math.tanh(0.4))
    described = distribution.describe(params)
    assert float(described["mean"][0, 0]) == pytest.approx(0.4)
    assert float(described["std"][0, 0]) == pytest.approx(math.exp(-0.3))


def test_correlated_normal_actions_have_the_mean_and_deviation_given_the_noise_before() -> None:
    normal = DiagonalGaussian(2)
    params = tf.constant([[1.0, -3.0, math.log(2.0), math.log(0.5)]])
    np.testing.assert_allclose(normal.standardized(params, tf.constant([[2.0, -3.0]])), [[0.5, 0.0]], atol=1e-6)
    given = normal.correlated(params, tf.constant([[0.5, -1.0]]), 0.6)
    expected = [[1.0 + 0.6 * 0.5 * 2.0, -3.0 - 0.6 * 0.5, math.log(0.8 * 2.0), math.log(0.8 * 0.5)]]
    np.testing.assert_allclose(given, expected, rtol=1e-6)
    np.testing.assert_allclose(normal.correlated(params, tf.constant([[0.5, -1.0]]), 0.0), params, rtol=1e-6)
