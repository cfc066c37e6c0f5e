"""The R2D2 agent: exploration, unrolls that reproduce acting, the target network, and learning."""

from __future__ import annotations

import itertools
from typing import Any, cast

import numpy as np
import pytest
import tensorflow as tf

from seedcli.agents.base import InitialPriorities, UnrollBatch
from seedcli.agents.networks.models import DuelingQNetwork, evaluate
from seedcli.agents.r2d2 import R2D2Agent
from seedcli.agents.registry import create_agent
from seedcli.errors import UsageError
from seedcli.specs import ArraySpec, EnvSpec
from seedcli.training.optimizer import make_optimizer
from tests.agents.helpers import (
    DISCRETE,
    IMAGE,
    MIXED,
    MULTI_DISCRETE,
    ONE_PART,
    VECTOR,
    Records,
    act_inputs,
    agent_config,
    apply_gradients,
    part,
    random_records,
    reset,
    training_config,
    unroll_batch,
)
from tests.agents.test_q_targets import reference_rescale

T, B = 10, 6
FIELDS = ("q_taken", "q_max")
MEMORIES = list(itertools.product((0, 6), (1, 4), (False, True)))


def make(spec: EnvSpec = VECTOR, burn_in: int = 0, **values: Any) -> R2D2Agent:
    config = agent_config(algorithm="r2d2", **{"dueling_hidden": 8, **values})
    training = training_config(unroll_length=T, batch_size=B, burn_in=burn_in)
    return cast(R2D2Agent, create_agent(config, training, spec, seed=7))


def batch(agent: R2D2Agent, records: Records, state: Any = None) -> UnrollBatch:
    columns = records["reward"].shape[1]
    return unroll_batch(records, agent.initial_state(columns) if state is None else state, ())


def played(agent: R2D2Agent, records: Records, exploration: float) -> tuple[Records, list[Any]]:
    """The records with the agent's own actions and recorded fields, and the state before each record."""
    length, columns = records["reward"].shape
    state = agent.initial_state(columns)
    rows: dict[str, list[Any]] = {name: [] for name in ("action", *FIELDS)}
    states = []
    for t in range(length):
        state = reset(agent.network, state, records["first"][t])
        states.append(state)
        inputs = act_inputs(VECTOR, columns)._replace(
            observation=tf.constant(records["observation"][t]),
            reward=tf.constant(records["reward"][t]),
            first=tf.constant(records["first"][t]),
            exploration=tf.fill([columns], exploration),
            seed=tf.constant([5, t]),
        )
        outputs, state = agent.act(agent.network, inputs, state)
        rows["action"].append(outputs.action)
        for name in FIELDS:
            rows[name].append(outputs.recorded[name])
    return {**records, **{name: np.stack(values) for name, values in rows.items()}}, states


def test_algorithm_spec() -> None:
    agent = make(burn_in=4)
    algorithm = agent.algorithm
    assert (algorithm.name, algorithm.burn_in, algorithm.records, algorithm.source) == ("r2d2", 4, T + 5, "replay")
    assert algorithm.roles == ("training", "evaluation") and not algorithm.samples_actions
    assert dict(algorithm.recorded) == {name: ArraySpec((), "float32") for name in FIELDS}
    assert isinstance(agent, InitialPriorities)
    vtrace = create_agent(agent_config(), training_config(), VECTOR, 0)
    assert not isinstance(vtrace, InitialPriorities)
    assert vtrace.exploration("training", np.arange(3), 3).tolist() == [0.0] * 3


@pytest.mark.parametrize(
    ("spec", "found"), [(MULTI_DISCRETE, "3 categories"), (ONE_PART, "1 categor"), (MIXED, "2 numbers")]
)
def test_only_single_actions_are_chosen_from(spec: EnvSpec, found: str) -> None:
    with pytest.raises(UsageError, match=f"r2d2.*{spec.name}.*{found}.*choose agent.algorithm vtrace"):
        make(spec)


@pytest.mark.parametrize("hidden", [0, 8])
def test_heads_are_dueling(hidden: int) -> None:
    network = make(dueling_hidden=hidden).network
    assert len(network.trainable_variables) == 2 + (8 if hidden else 4)
    features = tf.random.stateless_normal([20, 16], [1, 2])
    q = network.heads(features).numpy()
    value = features
    for layer in network.value_head:
        value = layer(value)
    np.testing.assert_allclose(q.mean(axis=1), value[:, 0], atol=1e-6)
    assert q.std(axis=1).min() > 0.0
    network.advantage_head[-1].bias.assign_add(tf.fill([3], 5.0))
    np.testing.assert_allclose(network.heads(features), q, atol=2e-6)
    network.value_head[-1].bias.assign_add([5.0])
    np.testing.assert_allclose(network.heads(features), q + 5.0, atol=2e-6)


def test_exploration_is_spread_over_the_fleet() -> None:
    agent = make()
    total = 640
    epsilon = agent.exploration("training", np.arange(total), total)
    assert epsilon.dtype == np.float32 and epsilon.shape == (total,)
    expected = [0.4 ** (1 + 7 * i / (total - 1)) for i in range(total)]
    np.testing.assert_allclose(epsilon, expected, rtol=1e-6)
    assert epsilon[0] == pytest.approx(0.4) and epsilon[-1] == pytest.approx(0.4**8)
    np.testing.assert_array_equal(
        agent.exploration("training", np.array([5, total, total + 5]), total), epsilon[[5, 0, 5]]
    )
    np.testing.assert_allclose(agent.exploration("training", np.array([1, 0]), 2), [0.4**8, 0.4], rtol=1e-6)
    np.testing.assert_allclose(agent.exploration("training", np.array([0, 3]), 1), 0.4**4.5, rtol=1e-6)
    np.testing.assert_allclose(agent.exploration("evaluation", np.arange(4), 2), np.full(4, 1e-3), rtol=1e-6)
    other = make(epsilon_base=0.5, epsilon_exponent=2.0, evaluation_epsilon=0.0)
    np.testing.assert_allclose(other.exploration("training", np.arange(3), 3), [0.5, 0.25, 0.125])
    assert not other.exploration("evaluation", np.arange(3), 3).any()


def test_actions_are_greedy_but_for_epsilon() -> None:
    agent = make()
    head = agent.network.advantage_head[-1]
    head.kernel.assign(tf.zeros_like(head.kernel))
    head.bias.assign([0.0, 3.0, -3.0])
    rows = 40_000
    epsilon = np.tile(np.array([0.0, 0.3, 1.0, 0.01], np.float32), rows // 4)
    inputs = act_inputs(VECTOR, rows)._replace(exploration=tf.constant(epsilon))
    outputs, _ = agent.act(agent.network, inputs, agent.initial_state(rows))
    assert (outputs.greedy_action.numpy() == 1).all()
    action = outputs.action.numpy()
    for e in (0.0, 0.3, 1.0, 0.01):
        frequencies = np.bincount(action[epsilon == np.float32(e)], minlength=3) / (rows // 4)
        # Five standard deviations of the share of one action among 10,000.
        tolerance = 5 * np.sqrt(e / 3 * (1 - e / 3) / (rows // 4)) * 1.5
        np.testing.assert_allclose(frequencies, [e / 3, 1 - e * 2 / 3, e / 3], atol=tolerance)
    q_taken, q_max = (outputs.recorded[name].numpy() for name in FIELDS)
    np.testing.assert_allclose(q_max - q_taken, np.array([3.0, 0.0, 6.0])[action], atol=1e-5)
    again, _ = agent.act(agent.network, inputs, agent.initial_state(rows))
    np.testing.assert_array_equal(again.action, action)
    other, _ = agent.act(agent.network, inputs._replace(seed=tf.constant([1, 3])), agent.initial_state(rows))
    explored = (epsilon == 1.0) & (other.action.numpy() != action)
    assert explored.sum() == pytest.approx(rows / 4 * 2 / 3, rel=0.05)


@pytest.mark.parametrize("spec", [VECTOR, DISCRETE, IMAGE, EnvSpec("test/dict", MIXED.observation, VECTOR.action)])
def test_acting_is_traced_for_any_batch_size(spec: EnvSpec) -> None:
    agent = make(spec, lstm=5, frame_stack=3, previous_action_reward=True)
    traced = []

    def act(inputs: Any, state: Any) -> Any:
        traced.append(1)
        return agent.act(agent.network, inputs, state)

    function = tf.function(act, reduce_retracing=True)
    for rows in (1, 3, 4):
        outputs, state = function(act_inputs(spec, rows), agent.initial_state(rows))
        assert outputs.action.shape == (rows,) and outputs.action.dtype == tf.int32
        for name in FIELDS:
            assert outputs.recorded[name].shape == (rows,) and outputs.recorded[name].dtype == tf.float32
        np.testing.assert_array_equal(state["previous_action"], outputs.action + 1)
    assert len(traced) <= 2


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("burn_in", [0, 4])
def test_a_stored_unroll_reproduces_acting(memory: tuple[int, int, bool], burn_in: int) -> None:
    lstm, frame_stack, previous = memory
    agent = make(burn_in=burn_in, lstm=lstm, frame_stack=frame_stack, previous_action_reward=previous)
    agent.network.advantage_head[-1].kernel.assign(agent.network.advantage_head[-1].kernel * 10.0)
    agent.after_update(agent.config.target_period)
    start, records = 3, random_records(VECTOR, 3 + burn_in + T + 1, B, seed=4, ends=0.15)
    records, states = played(agent, records, 0.5)
    assert records["first"][start + 1 :].any(axis=1).sum() > 3 and not records["first"][start].all()
    assert np.std(records["q_max"]) > 0.02
    assert (records["q_taken"] < records["q_max"]).mean() > 0.2
    kept = part(records, start, start + burn_in + T + 1)
    unrolls = unroll_batch(kept, states[start], FIELDS)
    q = evaluate(agent.network, unrolls, burn_in).numpy()
    assert q.shape == (T + 1, B, 3)
    taken = np.take_along_axis(q, kept["action"][burn_in:, :, None], -1)[..., 0]
    np.testing.assert_allclose(taken, kept["q_taken"][burn_in:], atol=1e-5)
    np.testing.assert_allclose(q.max(-1), kept["q_max"][burn_in:], atol=1e-5)

    # If both networks are the one that acted, the recorded fields give the priorities of the loss.
    initial = agent.initial_priorities(unrolls._replace(observation=None, action=None, state=None, weights=None))
    assert initial.shape == (B,) and initial.dtype == tf.float32 and (initial.numpy() > 0).all()
    priorities = agent.loss(unrolls).priorities
    assert priorities is not None
    np.testing.assert_allclose(priorities, initial, atol=3e-5)


def test_the_target_network_is_copied_and_never_trained() -> None:
    agent = make(lstm=5, target_period=3)
    optimizer = make_optimizer(training_config(learning_rate=0.01))
    online = [v.value for v in agent.network.variables]
    target = [v.value for v in agent.target_network.variables]
    assert {id(v) for v in agent.variables().values()} == {id(v) for v in (*online, *target)}
    assert not {id(v) for v in online} & {id(v) for v in target} and len(online) == len(target)
    for a, b in zip(online, target, strict=True):
        np.testing.assert_array_equal(a, b)
    trained = agent.network.trainable_variables
    assert len(trained) == len(online)
    start = [v.numpy() for v in target]
    for update in range(1, 6):
        unrolls = batch(agent, random_records(VECTOR, T + 1, B, seed=update))
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(target)
            loss = agent.loss(unrolls).loss
        assert tape.gradient(loss, target) == [None] * len(target)
        apply_gradients(optimizer, tape.gradient(loss, trained), trained, 0.0)
        agent.after_update(update)
        now = [v.numpy() for v in online]
        if update == 3:
            start = now
        else:
            assert any((a != b).any() for a, b in zip(now, start, strict=True))
        for variable, expected in zip(target, start, strict=True):
            np.testing.assert_array_equal(variable, expected)


def test_same_seed_gives_the_same_agent() -> None:
    one, same = make(IMAGE, torso="impala_shallow"), make(IMAGE, torso="impala_shallow")
    inference = one.make_network()
    assert isinstance(inference, DuelingQNetwork)
    for a, b in zip(one.variables().values(), same.variables().values(), strict=True):
        assert isinstance(a, tf.Variable)
        np.testing.assert_array_equal(a, b)
    for a, c in zip(one.network.variables, inference.variables, strict=True):
        assert a is not c
        np.testing.assert_array_equal(a.numpy(), c.numpy())


def test_updates_in_one_function_find_the_values() -> None:
    # Action 1 pays 3, the others nothing; γ = ½, so that Q* is h(6), and h(3) for the others.
    config = training_config(unroll_length=T, batch_size=B, learning_rate=0.02)
    agent = create_agent(
        agent_config(algorithm="r2d2", discount=0.5, n_step=1, dueling_hidden=8, target_period=5), config, VECTOR, 1
    )
    optimizer = make_optimizer(config)
    observation = tf.ones([T + 1, B, 5])
    nothing = tf.zeros([T + 1, B], tf.bool)

    def step(seed: tf.Tensor) -> tf.Tensor:
        action = tf.random.stateless_uniform([T + 1, B], seed, 0, 3, tf.int32)
        reward = 3.0 * tf.pad(tf.cast(action[:-1] == 1, tf.float32), [[1, 0], [0, 0]])
        unrolls = UnrollBatch(observation, reward, nothing, nothing, action, {}, {}, tf.ones([B]))
        variables = agent.network.trainable_variables
        with tf.GradientTape() as tape:
            loss = agent.loss(unrolls).loss
        apply_gradients(optimizer, tape.gradient(loss, variables), variables, clip_norm=10.0)
        return loss

    update = tf.function(step)
    for i in range(1, 201):
        update(tf.constant([1, i]))
        agent.after_update(i)
    q = agent.network.step(observation[0], tf.zeros([B]), {})[0][0].numpy()
    expected = reference_rescale(np.array([3.0, 6.0, 3.0]), 1e-3).astype(np.float64)
    np.testing.assert_allclose(q, expected, atol=0.02)
