"""Running scales of values and advantages: their statistics, preserved values, and rewards of any unit."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from seedcli.agents.base import UnrollBatch
from seedcli.agents.networks.models import evaluate
from seedcli.agents.registry import create_agent
from seedcli.agents.value_scale import HORIZON, ValueScale
from seedcli.agents.vtrace import VTraceAgent
from seedcli.training.optimizer import make_optimizer
from tests.agents.helpers import VECTOR, agent_config, apply_gradients, random_records, training_config, unroll_batch

T, B = 6, 4
Array = npt.NDArray[Any]


def scale_and_head(seed: int = 0) -> tuple[ValueScale, Any]:
    head = keras.layers.Dense(1, kernel_initializer=keras.initializers.Orthogonal(seed=seed), bias_initializer="ones")
    head.build((None, 3))
    return ValueScale(), head


def update(scale: ValueScale, head: Any, target: Array, advantage: Array, reward: Array, mask: Array) -> None:
    scale.update(*(tf.constant(x, tf.float32) for x in (target, advantage, reward, mask)), head)


def test_scales_are_the_moments_of_the_transitions_that_count() -> None:
    rng = np.random.default_rng(0)
    scale, head = scale_and_head()
    target, advantage = rng.normal(300.0, 7.0, (T, B)), rng.normal(1.0, 2.0, (T, B))
    mask = rng.random((T, B)) < 0.7
    target[~mask] = advantage[~mask] = np.nan
    assert [float(x) for x in (*scale.moments(), scale.advantage_scale())] == [0.0, 1.0, 1.0]
    update(scale, head, target, advantage, np.ones((T, B)), mask)
    mean, deviation = scale.moments()
    assert float(mean) == pytest.approx(target[mask].mean(), rel=1e-6)
    assert float(deviation) == pytest.approx(target[mask].std(), rel=1e-4)
    assert float(scale.advantage_scale()) == pytest.approx(np.sqrt(np.mean(advantage[mask] ** 2)), rel=1e-5)


def test_the_scale_of_equal_targets_is_a_hundredth_of_them() -> None:
    scale, head = scale_and_head()
    values = np.full((T, B), -40.0)
    update(scale, head, values, values, values, np.ones((T, B)))
    assert [float(x) for x in scale.moments()] == pytest.approx([-40.0, 0.4])


@pytest.mark.parametrize(("rewarded", "expected"), [(True, 0.7), (False, 1e-3)])
def test_advantages_count_as_a_tenth_of_the_deviation_of_rewarded_targets(rewarded: bool, expected: float) -> None:
    scale, head = scale_and_head()
    target = np.where(np.arange(T * B).reshape(T, B) % 2, 93.0, 107.0)
    update(scale, head, target, np.full((T, B), 1e-3), np.full((T, B), float(rewarded)), np.ones((T, B)))
    assert float(scale.advantage_scale()) == pytest.approx(expected)
    update(scale, head, target, np.full((T, B), 20.0), np.ones((T, B)), np.ones((T, B)))
    second = (expected**2 + 20.0**2) / 2
    assert float(scale.advantage_scale()) == pytest.approx(np.sqrt(second), rel=1e-3)


def test_old_transitions_are_forgotten_at_the_horizon_whatever_the_batches() -> None:
    weights = []
    for batch in (100, 1000):
        scale, head = scale_and_head()
        for level, transitions in ((1.0, int(HORIZON)), (3.0, 1000)):
            values = np.full((1, batch), level)
            for _ in range(transitions // batch):
                update(scale, head, values, values, values, np.ones_like(values))
        mean, _ = scale.moments()
        weights.append((float(mean) - 1.0) / 2.0)
    # The weight of 1,000 new transitions, divided by that of all transitions.
    expected = (1 - np.exp(-1000 / HORIZON)) / (1 - np.exp(-(1000 + HORIZON) / HORIZON))
    np.testing.assert_allclose(weights, expected, rtol=1e-3)


def test_update_preserves_values() -> None:
    rng = np.random.default_rng(1)
    scale, head = scale_and_head()
    x = tf.constant(rng.normal(size=(50, 3)), tf.float32)
    for level, width in ((0.0, 1.0), (1e4, 1e3), (-5.0, 1e-2)):
        before = scale(head(x)[:, 0]).numpy()
        values = rng.normal(level, width, (T, B))
        update(scale, head, values, values, values, np.ones((T, B)))
        after = scale(head(x)[:, 0]).numpy()
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-3 * max(1.0, abs(level)))


def test_batches_without_information_are_ignored() -> None:
    scale, head = scale_and_head()
    ones = np.ones((T, B))
    update(scale, head, 5 * ones, ones, ones, ones)
    kept = [v.numpy() for v in (*scale.variables, *head.variables)]
    update(scale, head, 9 * ones, ones, ones, 0 * ones)  # nothing counts
    update(scale, head, np.inf * ones, ones, ones, ones)
    for before, now in zip(kept, (*scale.variables, *head.variables), strict=True):
        np.testing.assert_array_equal(before, now)


def test_a_batch_without_rewards_tells_the_scale_of_advantages_only() -> None:
    scale, head = scale_and_head()
    ones = np.ones((T, B))
    kept = [v.numpy() for v in head.variables]
    update(scale, head, 9 * ones, 1e-3 * ones, 0 * ones, ones)
    assert [float(x) for x in scale.moments()] == [0.0, 1.0]
    assert float(scale.advantage_scale()) == pytest.approx(1e-3)
    for before, now in zip(kept, head.variables, strict=True):
        np.testing.assert_array_equal(before, now.numpy())


def agent(**values: Any) -> VTraceAgent:
    config = agent_config(normalize_values=True, **{"lambda": 0.95, **values})
    made = create_agent(config, training_config(unroll_length=T, batch_size=B), VECTOR, seed=7)
    assert isinstance(made, VTraceAgent)
    return made


def batches(made: VTraceAgent, reward_scale: float, count: int = 8) -> list[UnrollBatch]:
    """Unrolls with the values that the agent would have recorded after its first batch."""
    found = []
    for i in range(count):
        records = random_records(VECTOR, T + 1, B, seed=i)
        records["reward"] = (records["reward"] * reward_scale).astype(np.float32)
        records["value"] = np.zeros((T + 1, B), np.float32)
        found.append(unroll_batch(records, made.initial_state(B), tuple(made.algorithm.recorded)))
    return found


def test_the_policy_moves_before_the_first_reward_although_values_are_near_zero() -> None:
    made = agent(entropy_cost=0.0)
    records = random_records(VECTOR, T + 1, B, seed=4)
    records["reward"][:] = 0.0
    records["value"] = evaluate(made.network, unroll_batch(records, made.initial_state(B)), 0).value.numpy()
    assert 0.0 < np.abs(records["value"]).max() < 1e-3
    unrolls = unroll_batch(records, made.initial_state(B), tuple(made.algorithm.recorded))
    made.observe(unrolls)
    with tf.GradientTape() as tape:
        loss = made.loss(unrolls).loss
    gradients = tape.gradient(loss, made.network.policy.trainable_variables)
    assert all(np.abs(gradient).max() > 1e-3 for gradient in gradients)


@pytest.mark.parametrize("separate", [False, True])
def test_rewards_of_any_unit_are_learned_alike(separate: bool) -> None:
    policies = []
    for reward_scale in (1.0, 1000.0, 0.001):
        made = agent(separate_value=separate)
        optimizer = make_optimizer(training_config(learning_rate=1e-2))
        for unrolls in batches(made, reward_scale):
            made.observe(unrolls)
            with tf.GradientTape() as tape:
                loss = made.loss(unrolls).loss
            variables = made.network.trainable_variables
            apply_gradients(optimizer, tape.gradient(loss, variables), variables, clip_norm=0.5)
        x = tf.constant(random_records(VECTOR, 1, 16, seed=99)["observation"][0])
        outputs, _ = made.network.step(x, tf.zeros([16]), made.initial_state(16))
        policies.append((outputs.policy.numpy(), outputs.value.numpy() / reward_scale))
    for policy, value in policies[1:]:
        np.testing.assert_allclose(policy, policies[0][0], atol=2e-3)
        np.testing.assert_allclose(value, policies[0][1], atol=2e-2)


def test_the_policy_shares_nothing_with_a_separate_value() -> None:
    for separate in (False, True):
        made = agent(separate_value=separate)
        made.network.value.kernel.assign(tf.ones_like(made.network.value.kernel))
        x = tf.constant(random_records(VECTOR, 1, 16)["observation"][0])
        with tf.GradientTape(persistent=True) as tape:
            outputs, _ = made.network.step(x, tf.zeros([16]), made.initial_state(16))
        variables = made.network.trainable_variables
        of_policy, of_value = (
            {i for i, g in enumerate(tape.gradient(y, variables)) if g is not None and np.any(g)}
            for y in (outputs.policy, outputs.value)
        )
        assert bool(of_policy & of_value) is not separate
        assert of_policy | of_value == set(range(len(variables)))
