"""The V-trace agent: what it samples, what its loss is, and what its loss does not see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from seedcli.agents import create_agent
from seedcli.agents.base import Agent, UnrollBatch
from seedcli.agents.networks import evaluate
from seedcli.agents.optimizer import apply_gradients, make_optimizer
from seedcli.specs import ArraySpec, EnvSpec
from tests.agents.helpers import (
    DISCRETE,
    IMAGE,
    VECTOR,
    act_inputs,
    agent_config,
    random_records,
    training_config,
    unroll_batch,
)
from tests.agents.test_targets import reference_vtrace

T, B = 10, 6


def make(spec: EnvSpec = VECTOR, batch_size: int = B, **values: Any) -> Agent:
    return create_agent(agent_config(**values), training_config(unroll_length=T, batch_size=batch_size), spec, seed=7)


def loss_and_gradients(agent: Agent, unrolls: UnrollBatch) -> tuple[float, list[Any]]:
    with tf.GradientTape() as tape:
        loss = agent.loss(unrolls).loss
    gradients = tape.gradient(loss, agent.network.trainable_variables)
    assert all(g is not None for g in gradients)
    return float(loss), [g.numpy() for g in gradients]


def test_what_the_machinery_must_provide() -> None:
    algorithm = make().algorithm
    assert (algorithm.name, algorithm.burn_in, algorithm.records, algorithm.source) == ("vtrace", 0, T + 1, "queue")
    assert algorithm.recorded == {"logits": ArraySpec((3,), "float32")}
    assert algorithm.roles == ("training",)


@pytest.mark.parametrize("memory", [{}, {"lstm": 5, "frame_stack": 3, "previous_action_reward": True}])
@pytest.mark.parametrize("spec", [VECTOR, DISCRETE])
def test_act_is_one_function_for_every_batch_size(spec: EnvSpec, memory: dict[str, Any]) -> None:
    agent = make(spec, **memory)
    network = agent.make_network()
    traced = []

    def act(inputs: Any, state: Any) -> Any:
        traced.append(1)
        return agent.act(network, inputs, state)

    def open_batch(x: tf.Tensor) -> tf.TensorSpec:
        return tf.TensorSpec([None, *x.shape[1:]], x.dtype)

    inputs = act_inputs(spec, 2)
    signature = tf.nest.map_structure(open_batch, (inputs, agent.initial_state(2)))
    signature = (signature[0]._replace(seed=tf.TensorSpec([2], tf.int32)), signature[1])
    function = tf.function(act, input_signature=signature)
    for rows in (1, 5, 8):
        outputs, state = function(act_inputs(spec, rows), agent.initial_state(rows))
        assert outputs.action.shape == outputs.greedy_action.shape == (rows,)
        assert outputs.action.dtype == outputs.greedy_action.dtype == tf.int32
        assert outputs.recorded["logits"].shape == (rows, spec.num_actions)
        tf.nest.assert_same_structure(state, agent.initial_state(rows))
        for new, old in zip(tf.nest.flatten(state), tf.nest.flatten(agent.initial_state(rows)), strict=True):
            assert (new.shape, new.dtype) == (old.shape, old.dtype)
        if memory:
            np.testing.assert_array_equal(state["previous_action"], outputs.action + 1)
    assert len(traced) == 1


def test_actions_follow_the_policy_and_the_seed() -> None:
    agent = make(network="mlp")
    agent.network.policy.bias.assign(np.log([0.5, 0.3, 0.2]))
    agent.network.policy.kernel.assign(tf.zeros_like(agent.network.policy.kernel))
    rows = 20_000
    outputs, _ = agent.act(agent.network, act_inputs(VECTOR, rows, (3, 4)), agent.initial_state(rows))
    frequencies = np.bincount(outputs.action, minlength=3) / rows
    np.testing.assert_allclose(frequencies, [0.5, 0.3, 0.2], atol=0.02)
    assert not outputs.greedy_action.numpy().any()
    again, _ = agent.act(agent.network, act_inputs(VECTOR, rows, (3, 4)), agent.initial_state(rows))
    np.testing.assert_array_equal(again.action, outputs.action)
    other, _ = agent.act(agent.network, act_inputs(VECTOR, rows, (3, 5)), agent.initial_state(rows))
    assert (other.action.numpy() != outputs.action.numpy()).mean() > 0.3


def test_the_loss_agrees_with_float64() -> None:
    values: dict[str, Any] = {"discount": 0.95, "reward_clip": 0.7, "lambda": 0.9, "rho_clip": 1.4, "c_clip": 1.1}
    agent = make(baseline_cost=0.4, entropy_cost=0.03, **values)
    records = random_records(VECTOR, T + 1, B, seed=11)
    unrolls = unroll_batch(records, agent.initial_state(B))
    weights = np.linspace(0.5, 1.5, B).astype(np.float32)
    result = agent.loss(unrolls._replace(weights=tf.constant(weights)))

    logits, value = (x.numpy().astype(np.float64) for x in evaluate(agent.network, unrolls, 0))

    def log_softmax(x: Any) -> Any:
        return x - np.log(np.exp(x).sum(-1, keepdims=True))

    log_pi, log_mu = log_softmax(logits[:-1]), log_softmax(records["logits"][:-1].astype(np.float64))
    action = records["action"][:-1, :, None]
    log_pi_taken = np.take_along_axis(log_pi, action, -1)[..., 0]
    log_rho = log_pi_taken - np.take_along_axis(log_mu, action, -1)[..., 0]
    clipped = {**records, "reward": np.clip(records["reward"], -0.7, 0.7)}
    vs, advantages = reference_vtrace(clipped, value, log_rho, 0.95, 1.4, 1.1, 0.9)
    valid = ~(records["terminated"] | records["truncated"])[:-1]
    entropy = -(np.exp(log_pi) * log_pi).sum(-1)
    each = -log_pi_taken * advantages + valid * (0.4 * 0.5 * (vs - value[:-1]) ** 2 - 0.03 * entropy)
    assert float(result.loss) == pytest.approx((each * weights).sum() / (T * B), rel=1e-5)
    assert result.priorities is None
    assert float(result.metrics["entropy"]) == pytest.approx(entropy[valid].mean(), rel=1e-5)
    assert float(result.metrics["value"]) == pytest.approx(value[:-1][valid].mean(), rel=1e-4)
    explained = 1 - np.var((vs - value[:-1])[valid]) / np.var(vs[valid])
    assert float(result.metrics["explained_variance"]) == pytest.approx(explained, rel=1e-4)
    assert all(x.shape == () and np.isfinite(x) for x in result.metrics.values())


@pytest.mark.parametrize("memory", [{}, {"lstm": 5, "frame_stack": 2, "previous_action_reward": True}])
def test_what_happens_on_final_records_counts_nowhere(memory: dict[str, Any]) -> None:
    agent = make(**memory)
    records = random_records(VECTOR, T + 1, B, seed=2)
    final = records["terminated"] | records["truncated"]
    assert final[:-1].any(axis=1).sum() > 3
    before, gradients = loss_and_gradients(agent, unroll_batch(records, agent.initial_state(B)))

    changed = {**records}
    changed["action"] = np.where(final, (records["action"] + 1) % 3, records["action"])
    changed["logits"] = records["logits"] + final[..., None] * np.array([0.0, 5.0, -9.0], np.float32)
    if not memory:  # the reward of a first record is 0, and as such an input of a network that sees rewards
        changed["reward"] = records["reward"] + 100.0 * records["first"].astype(np.float32)
        # After a termination nothing follows, so that its observation is worth nothing either.
        changed["observation"] = records["observation"] + 3.0 * records["terminated"][..., None].astype(np.float32)
    after, new_gradients = loss_and_gradients(agent, unroll_batch(changed, agent.initial_state(B)))
    assert after == before
    for old, new in zip(gradients, new_gradients, strict=True):
        np.testing.assert_array_equal(old, new)

    # The same changes elsewhere are seen, and so is the observation that a truncated episode ended on.
    other = {**records, "action": np.where(final, records["action"], (records["action"] + 1) % 3)}
    assert loss_and_gradients(agent, unroll_batch(other, agent.initial_state(B)))[0] != before
    cut = {**records}
    cut["observation"] = records["observation"] + 3.0 * records["truncated"][..., None].astype(np.float32)
    assert loss_and_gradients(agent, unroll_batch(cut, agent.initial_state(B)))[0] != before


def test_losses_of_half_batches_add_up() -> None:
    agent = make(lstm=5)
    records = random_records(VECTOR, T + 1, B, seed=3)
    loss, gradients = loss_and_gradients(agent, unroll_batch(records, agent.initial_state(B)))
    halves = [
        loss_and_gradients(
            agent, unroll_batch({k: x[:, part] for k, x in records.items()}, agent.initial_state(B // 2))
        )
        for part in (slice(0, B // 2), slice(B // 2, B))
    ]
    assert sum(half[0] for half in halves) == pytest.approx(loss, rel=1e-5)
    for whole, *parts in zip(gradients, *(half[1] for half in halves), strict=True):
        np.testing.assert_allclose(sum(parts), whole, atol=1e-6)


def test_an_unroll_of_another_length_is_refused() -> None:
    agent = make()
    with pytest.raises(tf.errors.InvalidArgumentError):
        agent.loss(unroll_batch(random_records(VECTOR, T, B), agent.initial_state(B)))


def test_agents_of_one_seed_are_one() -> None:
    one, same = make(IMAGE, network="impala_shallow"), make(IMAGE, network="impala_shallow")
    inference = one.make_network()
    for a, b, c in zip(one.variables(), same.variables(), inference.variables, strict=True):
        assert isinstance(a, tf.Variable) and a is not c.value
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c.numpy())
    one.network.policy.bias.assign_add([1.0, 0.0, 0.0, 0.0])
    assert not inference.policy.bias.numpy().any()
    one.after_update(1)


def test_updates_in_one_function_find_the_better_action() -> None:
    # Action 1 pays 1, the others nothing; the unrolls come from the policy itself.
    config = training_config(unroll_length=T, batch_size=B, learning_rate=0.02)
    agent = create_agent(agent_config(discount=0.0), config, VECTOR, seed=1)
    optimizer = make_optimizer(config)
    observation = tf.ones([T + 1, B, 5])
    rows = (T + 1) * B
    inputs = act_inputs(VECTOR, rows)._replace(observation=tf.reshape(observation, [rows, 5]))
    nothing = tf.zeros([T + 1, B], tf.bool)

    def step(seed: tf.Tensor) -> tf.Tensor:
        outputs, _ = agent.act(agent.network, inputs._replace(seed=seed), agent.initial_state(rows))
        action = tf.reshape(outputs.action, [T + 1, B])
        reward = tf.pad(tf.cast(action[:-1] == 1, tf.float32), [[1, 0], [0, 0]])
        logits = tf.reshape(outputs.recorded["logits"], [T + 1, B, 3])
        unrolls = UnrollBatch(
            observation, reward, nothing, nothing, action, {"logits": logits}, agent.initial_state(B), tf.ones([B])
        )
        variables = agent.network.trainable_variables
        with tf.GradientTape() as tape:
            loss = agent.loss(unrolls).loss
        apply_gradients(optimizer, tape.gradient(loss, variables), variables, clip_norm=10.0)
        return tf.nn.softmax(logits[0, 0])[1]

    update = tf.function(step)
    probabilities = [float(update(tf.constant([1, i]))) for i in range(60)]
    assert probabilities[0] == pytest.approx(1 / 3, abs=0.05)
    assert probabilities[-1] > 0.9
