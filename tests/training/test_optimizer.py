"""The learning-rate schedule, clipping, and non-finite updates."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from seedcli.training.optimizer import learning_rate, make_optimizer
from tests.agents.helpers import apply_gradients, training_config

# With an ε this large, RMSprop steps by learning_rate/√ε = 1 times the gradient.
PLAIN_STEPS = {"optimizer": "rmsprop", "learning_rate": 1e6, "epsilon": 1e12}


def test_learning_rate_schedules() -> None:
    linear = training_config(learning_rate=1.0, learning_rate_end=0.2)
    for steps, expected in ((0, 1.0), (25, 0.8), (50, 0.6), (100, 0.2), (150, 0.2)):
        assert learning_rate(linear, steps, 100) == pytest.approx(expected)
    constant = training_config(learning_rate=0.3, learning_rate_schedule="constant")
    assert learning_rate(constant, 0, 100) == learning_rate(constant, 100, 100) == 0.3


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize(("clip_norm", "scale"), [(0.0, 1.0), (13.0, 1.0), (2.6, 0.2)])
def test_gradients_are_clipped_together(clip_norm: float, scale: float, in_function: bool) -> None:
    variables = [keras.Variable([0.0, 0.0]), keras.Variable([0.0])]
    optimizer = make_optimizer(training_config(**PLAIN_STEPS))

    def apply() -> tf.Tensor:
        return apply_gradients(optimizer, [tf.constant([3.0, 4.0]), tf.constant([12.0])], variables, clip_norm)

    norm = tf.function(apply)() if in_function else apply()
    assert float(norm) == 13.0
    np.testing.assert_allclose(variables[0].numpy(), [-3.0 * scale, -4.0 * scale], rtol=1e-6)
    np.testing.assert_allclose(variables[1].numpy(), [-12.0 * scale], rtol=1e-6)


@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_gradients_change_nothing(bad: float, clip_norm: float) -> None:
    variable = keras.Variable([1.0, 2.0])
    optimizer = make_optimizer(training_config())

    def step(gradient: tf.Tensor) -> tf.Tensor:
        return apply_gradients(optimizer, [gradient], [variable], clip_norm)

    apply = tf.function(step)
    assert float(apply(tf.constant([3.0, 4.0]))) == 5.0
    before = [variable.numpy(), *(v.numpy() for v in optimizer.variables)]
    assert not np.isfinite(apply(tf.constant([bad, 0.0])))
    after = [variable.numpy(), *(v.numpy() for v in optimizer.variables)]
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)
    assert int(optimizer.iterations) == 1


def test_the_learning_rate_can_be_assigned_between_updates() -> None:
    variable = keras.Variable([0.0])
    optimizer = make_optimizer(training_config(**PLAIN_STEPS))

    def step() -> tf.Tensor:
        return apply_gradients(optimizer, [tf.constant([1.0])], [variable], 0.0)

    apply = tf.function(step)
    apply()
    optimizer.learning_rate.assign(0.25e6)
    apply()
    assert variable.numpy()[0] == pytest.approx(-1.25)


def test_configured_values_reach_the_optimizer() -> None:
    adam = make_optimizer(training_config(learning_rate=0.1, adam_beta1=0.0, adam_beta2=0.5, epsilon=0.01))
    assert (adam.beta_1, adam.beta_2, adam.epsilon) == (0.0, 0.5, 0.01)
    rmsprop = make_optimizer(training_config(optimizer="rmsprop", rmsprop_decay=0.7, rmsprop_momentum=0.2, epsilon=0.1))
    assert (rmsprop.rho, rmsprop.momentum, rmsprop.epsilon) == (0.7, 0.2, 0.1)


def test_adam_is_that_of_kingma_and_ba() -> None:
    rng = np.random.default_rng(0)
    beta1, beta2, epsilon, rate = 0.8, 0.95, 1e-2, 0.1
    variables = [keras.Variable(rng.normal(size=shape).astype(np.float32)) for shape in ((3, 2), (1,))]
    optimizer = make_optimizer(training_config(learning_rate=rate, adam_beta1=beta1, adam_beta2=beta2, epsilon=epsilon))
    apply = tf.function(lambda *gradients: apply_gradients(optimizer, list(gradients), variables, 0.0))
    expected = [variable.numpy().astype(np.float64) for variable in variables]
    moments = [[np.zeros_like(x), np.zeros_like(x)] for x in expected]
    for step in range(1, 5):
        gradients = [rng.normal(size=x.shape) for x in expected]
        apply(*(tf.constant(g, tf.float32) for g in gradients))
        for x, m, g in zip(expected, moments, gradients, strict=True):
            m[0] = beta1 * m[0] + (1 - beta1) * g
            m[1] = beta2 * m[1] + (1 - beta2) * g**2
            # The form of the paper's section 2, in which ε is not scaled by the bias correction.
            x -= rate * np.sqrt(1 - beta2**step) / (1 - beta1**step) * m[0] / (np.sqrt(m[1]) + epsilon)
        for variable, x in zip(variables, expected, strict=True):
            np.testing.assert_allclose(variable.numpy(), x, rtol=1e-5)
