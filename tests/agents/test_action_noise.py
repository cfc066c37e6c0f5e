"""Persistent noise of categories: actions have the policy's probabilities, but successive ones are correlated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from seedcli.agents import noise
from seedcli.agents.base import Agent
from seedcli.agents.distributions import Categorical, MultiCategorical
from seedcli.agents.registry import create_agent
from seedcli.specs import EnvSpec
from tests.agents.helpers import (
    CONTINUOUS,
    MULTI_DISCRETE,
    ONE_PART,
    VECTOR,
    act_inputs,
    agent_config,
    random_records,
    training_config,
    unroll_batch,
)

T, B, ROWS, STEPS = 10, 6, 2000, 8


def make(spec: EnvSpec, **values: Any) -> Agent:
    config = agent_config(**{"noise_persistence": 0.75, **values})
    return create_agent(config, training_config(unroll_length=T, batch_size=B), spec, seed=7)


def played(agent: Agent, spec: EnvSpec) -> tuple[list[Any], list[Any], list[Any]]:
    """Actions and logits on the same observations at each step, and the noise after it."""
    state, actions, logits, kept = agent.initial_state(ROWS), [], [], []
    assert np.all(state["action_noise"] == 0.0)
    for step in range(STEPS):
        outputs, state = agent.act(agent.network, act_inputs(spec, ROWS, (1, step)), state)
        actions.append(outputs.action.numpy())
        logits.append(outputs.recorded["logits"].numpy())
        kept.append(state["action_noise"].numpy())
    return actions, logits, kept


@pytest.mark.parametrize("algorithm", ["vtrace", "ppo"])
@pytest.mark.parametrize("lstm", [0, 5])
def test_numbers_are_kept_as_often_as_configured(algorithm: str, lstm: int) -> None:
    actions, _, kept = played(make(VECTOR, algorithm=algorithm, lstm=lstm), VECTOR)
    same = [(old == new).mean() for old, new in zip(kept, kept[1:], strict=False)]
    assert same == pytest.approx([0.75] * (STEPS - 1), abs=0.04)
    # A new number chooses the same one of three categories a third of the time; the policy is almost uniform.
    repeated = np.mean([(old == new).mean() for old, new in zip(actions, actions[1:], strict=False)])
    assert repeated == pytest.approx(0.75 + 0.25 / 3.0, abs=0.04)
    for numbers in (kept[0], kept[-1]):
        assert numbers.shape == (ROWS, 1) and np.all((numbers > 0.0) & (numbers < 1.0))
        assert np.histogram(numbers, 10, (0.0, 1.0))[0] == pytest.approx([ROWS / 10] * 10, abs=60)


@pytest.mark.parametrize("spec", [VECTOR, MULTI_DISCRETE, ONE_PART])
def test_every_action_has_the_probabilities_of_the_policy(spec: EnvSpec) -> None:
    agent = make(spec)
    parts = spec.action.categories
    weights = np.random.default_rng(4).normal(size=sum(parts)).astype(np.float32)
    policy = next(v for v in agent.network.trainable_variables if v.shape == (sum(parts),))
    policy.assign(2.0 * weights)
    actions, logits, kept = played(agent, spec)
    assert kept[0].shape == (ROWS, len(parts))
    for action, params in ((actions[0], logits[0]), (actions[-1], logits[-1])):
        columns = action.reshape(ROWS, len(parts)).T
        for column, part in zip(columns, np.split(params, np.cumsum(parts)[:-1], axis=-1), strict=True):
            expected = tf.nn.softmax(part).numpy().mean(axis=0)
            found = np.bincount(column, minlength=part.shape[-1]) / ROWS
            assert found == pytest.approx(expected, abs=0.04)
            assert np.ptp(expected) > 0.1


def test_greedy_actions_keep_nothing() -> None:
    agent = make(VECTOR)
    _, state = agent.act(agent.network, act_inputs(VECTOR, ROWS), agent.initial_state(ROWS))
    greedy, kept = agent.act(agent.network, act_inputs(VECTOR, ROWS)._replace(greedy=True), state)
    np.testing.assert_array_equal(greedy.action, greedy.greedy_action)
    np.testing.assert_array_equal(kept["action_noise"], tf.zeros([ROWS, 1]))


@pytest.mark.parametrize(("spec", "persistence"), [(VECTOR, 0.0), (CONTINUOUS, 0.75)])
def test_only_categories_have_it_and_only_if_configured(spec: EnvSpec, persistence: float) -> None:
    agent = make(spec, noise_persistence=persistence)
    assert "action_noise" not in agent.initial_state(2)
    assert not agent.algorithm.recorded.keys() - {"logits", "mean_log_std"}


@pytest.mark.parametrize("algorithm", ["vtrace", "ppo"])
def test_training_uses_the_probabilities_of_the_policy_alone(algorithm: str) -> None:
    """The loss is the same as without such noise, and transitions can still be shuffled."""
    values = {"fixed_targets": True} if algorithm == "vtrace" else {}
    one, other = (make(VECTOR, algorithm=algorithm, noise_persistence=p, **values) for p in (0.75, 0.0))
    assert "action_noise" not in one.algorithm.recorded and one.algorithm.shuffles and other.algorithm.shuffles
    records = random_records(VECTOR, T + 1, B)
    found = []
    for agent in (one, other):
        state = tf.nest.map_structure(lambda x: x + 0.3, agent.initial_state(B))
        unrolls = unroll_batch(records, state, tuple(agent.algorithm.recorded))
        found.append(float(agent.loss(unrolls._replace(targets=agent.targets(unrolls))).loss))
    assert found[0] == found[1] != 0.0


def test_quantiles_are_those_of_the_cumulative_probabilities() -> None:
    logits = np.log(np.array([[0.2, 0.5, 0.3]] * 6, np.float32))
    numbers = np.array([[1e-7], [0.19], [0.21], [0.69], [0.71], [1.0 - 2.0**-24]], np.float32)
    expected = [0, 0, 1, 1, 2, 2]
    np.testing.assert_array_equal(Categorical(3).quantile(logits, numbers), expected)
    np.testing.assert_array_equal(noise.categorical(noise.Noise(tf.constant(numbers)), tf.constant(logits)), expected)
    pairs = MultiCategorical((3, 2)).quantile(
        np.concatenate([logits, np.zeros((6, 2), np.float32)], axis=-1), np.concatenate([numbers, 1.0 - numbers], -1)
    )
    np.testing.assert_array_equal(pairs, np.stack([expected, [1, 1, 1, 0, 0, 0]], axis=-1))


def test_given_numbers_do_the_same() -> None:
    """As in exported policies: one column decides whether the number is kept, the next holds a new one."""
    agent = make(VECTOR)
    inputs = act_inputs(VECTOR, 3)
    state = {"action_noise": tf.constant([[0.4], [0.4], [0.0]])}
    given = noise.Noise(tf.constant([[0.7, 0.9], [0.8, 0.9], [0.7, 0.9]]))
    outputs, after = agent.act(agent.network, inputs._replace(seed=given), state)
    np.testing.assert_allclose(after["action_noise"], [[0.4], [0.9], [0.9]])
    expected = Categorical(3).quantile(outputs.recorded["logits"], after["action_noise"])
    np.testing.assert_array_equal(outputs.action, expected)
    assert given.used == 2


@pytest.mark.parametrize(("persistence", "reached"), [(0.0, 0.0), (0.9, 0.25)])
def test_a_policy_that_knows_nothing_gets_further(persistence: float, reached: float) -> None:
    """The share of 200-step random walks that get 59 steps away from a wall: 0 without persistence."""
    rows = 300
    agent = make(VECTOR, noise_persistence=persistence)
    state = agent.initial_state(rows)
    act = tf.function(lambda seed, state: agent.act(agent.network, act_inputs(VECTOR, rows)._replace(seed=seed), state))
    place, furthest = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    for step in range(200):
        outputs, state = act(tf.constant([3, step]), state)
        place = np.maximum(0, place + outputs.action.numpy() - 1)
        furthest = np.maximum(furthest, place)
    assert (furthest >= 59).mean() == pytest.approx(reached, abs=0.0 if persistence == 0.0 else 0.12)
