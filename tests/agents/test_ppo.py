"""PPO: loss and gradients against float64, clipping, early stopping, and the targets that all updates share."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from seedcli.agents.base import Agent, TargetsAgent, UnrollBatch
from seedcli.agents.networks.models import PolicyValue, evaluate
from seedcli.agents.ppo import PPOAgent
from seedcli.agents.registry import create_agent
from seedcli.config.known_keys import all_keys
from seedcli.config.sections import TrainingConfig
from seedcli.errors import UsageError
from seedcli.specs import EnvSpec
from seedcli.training.batch_update import column_orders
from seedcli.training.batches import TrainingBatch
from seedcli.training.optimizer import clip_gradients, make_optimizer
from seedcli.training.trainer import Trainer
from tests.agents.helpers import (
    CONTINUOUS,
    MIXED,
    MULTI_DISCRETE,
    ONE_PART,
    VECTOR,
    Records,
    agent_config,
    random_records,
    reset,
    training_config,
    unroll_batch,
)
from tests.agents.test_targets import reference_gae

T, B = 10, 6
RECURRENT = {"lstm": 5, "frame_stack": 2, "previous_action_reward": True}


def make(spec: EnvSpec = VECTOR, training: TrainingConfig | None = None, **values: Any) -> PPOAgent:
    training = training or training_config(unroll_length=T, batch_size=B)
    made = create_agent(agent_config(algorithm="ppo", **values), training, spec, seed=7)
    assert isinstance(made, PPOAgent) and isinstance(made, TargetsAgent)
    return made


def loss_and_gradients(agent: Agent, unrolls: UnrollBatch, variables: Any = None) -> tuple[Any, list[Any]]:
    variables = agent.network.trainable_variables if variables is None else variables
    with tf.GradientTape() as tape:
        outputs = agent.loss(unrolls)
    gradients = tape.gradient(outputs.loss, variables)
    assert all(g is not None for g in gradients)
    return outputs, [g.numpy() for g in gradients]


def with_targets(agent: PPOAgent, unrolls: UnrollBatch) -> UnrollBatch:
    return unrolls._replace(targets=agent.targets(unrolls))


def near_policy(agent: PPOAgent, records: Records, width: float) -> Records:
    """The records, played by policies that differ from the agent's by noise of the given width."""
    unrolls = unroll_batch(records, agent.initial_state(B))
    noise = width * np.random.default_rng(8).normal(size=records["logits"].shape)
    return {**records, "logits": (evaluate(agent.network, unrolls, 0).policy + noise).numpy().astype(np.float32)}


def log_softmax(x: Any) -> Any:
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@pytest.mark.parametrize("normalize_advantages", [False, True])
@pytest.mark.parametrize("value_clip", [0.0, 0.3])
@pytest.mark.parametrize("kl_cost", [0.0, 0.6])
def test_the_loss_and_its_gradients_agree_with_float64(
    monkeypatch: pytest.MonkeyPatch, kl_cost: float, value_clip: float, normalize_advantages: bool
) -> None:
    agent = make(
        policy_clip=0.25, value_clip=value_clip, normalize_advantages=normalize_advantages, baseline_cost=0.4,
        entropy_cost=0.03, kl_cost=kl_cost, discount=0.95, reward_clip=0.7, **{"lambda": 0.9},
    )  # fmt: skip
    records = near_policy(agent, random_records(VECTOR, T + 1, B, seed=11), width=0.5)
    weights = np.linspace(0.5, 1.5, B).astype(np.float32)
    unrolls = with_targets(agent, unroll_batch(records, {})._replace(weights=tf.constant(weights)))

    # The trained network moves away from the one that made the targets: its outputs become variables.
    before = evaluate(agent.network, unrolls, 0)
    rng = np.random.default_rng(3)
    logits, value = (
        tf.Variable(x + scale * rng.normal(size=x.shape).astype(np.float32))
        for x, scale in ((before.policy, 0.3), (before.value, 0.5))
    )

    def unroll(observation: Any, reward: tf.Tensor, *_: Any) -> tuple[PolicyValue, Any]:
        assert len(reward) == T  # the last records are not evaluated: targets are known
        return PolicyValue(logits[:T], value[:T], before.features[:T]), {}

    monkeypatch.setattr(agent.network, "unroll", unroll)
    outputs, (of_logits, of_value) = loss_and_gradients(agent, unrolls, [logits, value])

    clipped = {**records, "reward": np.clip(records["reward"], -0.7, 0.7)}
    advantage, returns = reference_gae(clipped, before.value.numpy(), 0.95, 0.9)
    valid = ~(records["terminated"] | records["truncated"])[:-1]
    raw = advantage
    if normalize_advantages:
        advantage = valid * (advantage - advantage[valid].mean()) / advantage[valid].std()
    log_p, log_mu = log_softmax(logits.numpy().astype(np.float64)[:-1]), log_softmax(records["logits"][:-1])
    taken = np.eye(3)[records["action"][:-1]]
    ratio = np.exp(((log_p - log_mu) * taken).sum(-1))
    inside = np.where(advantage > 0, ratio < 1.25, ratio > 0.75)
    for side in (ratio > 1.25, ratio < 0.75):  # both sides, with advantages of both signs
        assert (valid & side & inside).any() and (valid & side & ~inside).any()
    objective = np.where(inside, ratio, np.where(advantage > 0, 1.25, 0.75)) * advantage
    divergence = ratio - 1.0 - np.log(ratio)
    v = value.numpy().astype(np.float64)[:-1]
    old = before.value.numpy()[:-1]
    error, of_error = (returns - v) ** 2, 2 * (v - returns)
    if value_clip:
        near = old + np.clip(v - old, -value_clip, value_clip)
        assert (valid & ((returns - near) ** 2 > error)).any()
        of_error = np.where((returns - near) ** 2 > error, 0.0, of_error)
        error = np.maximum(error, (returns - near) ** 2)
    entropy = -(np.exp(log_p) * log_p).sum(-1)
    each = valid * (0.4 * 0.5 * error - 0.03 * entropy + kl_cost * divergence - objective)
    assert float(outputs.loss) == pytest.approx((each * weights).sum() / (T * B), rel=1e-5, abs=1e-6)
    assert outputs.priorities is None and outputs.stop is None

    scale = weights / (T * B)
    expected = np.zeros((T + 1, B))
    expected[:-1] = valid * 0.4 * 0.5 * of_error * scale
    np.testing.assert_allclose(of_value, expected, rtol=1e-4, atol=1e-7)
    p = np.exp(log_p)
    of_objective = (inside * ratio * advantage - kl_cost * (ratio - 1.0))[..., None] * (taken - p)
    of_entropy = -p * (log_p + entropy[..., None])
    expected = np.zeros((T + 1, B, 3))
    expected[:-1] = (valid * scale)[..., None] * (-of_objective - 0.03 * of_entropy)
    np.testing.assert_allclose(of_logits, expected, rtol=1e-4, atol=1e-6)

    metrics = {name: float(metric) for name, metric in outputs.metrics.items()}
    assert metrics["entropy"] == pytest.approx(entropy[valid].mean(), rel=1e-5)
    assert metrics["approx_kl"] == pytest.approx(divergence[valid].mean(), rel=1e-4)
    assert metrics["clip_fraction"] == pytest.approx((np.abs(ratio - 1) > 0.25)[valid].mean(), abs=1e-6)
    assert metrics["policy_loss"] == pytest.approx(-objective[valid].mean(), rel=1e-4, abs=1e-6)
    assert metrics["value_loss"] == pytest.approx(0.5 * error[valid].mean(), rel=1e-4)
    assert metrics["advantage"] == pytest.approx(raw[valid].mean(), rel=1e-4)
    assert metrics["advantage_scale"] == pytest.approx(raw[valid].std() if normalize_advantages else 1.0, rel=1e-4)
    explained = 1 - np.var((returns - v)[valid]) / np.var(returns[valid])
    assert metrics["explained_variance"] == pytest.approx(explained, rel=1e-4)


def test_advantages_of_a_batch_are_normalised_without_invalid_columns_and_final_records() -> None:
    agent = make(**RECURRENT)
    records = random_records(VECTOR, T + 1, B, seed=4)
    records["reward"][:, 2] = 1e6
    weights = np.ones(B, np.float32)
    weights[2] = 0.0
    found = agent.targets(unroll_batch(records, agent.initial_state(B))._replace(weights=tf.constant(weights)))
    advantage = found["advantage"].numpy()
    valid = ~(records["terminated"] | records["truncated"])[:-1]
    assert not advantage[~valid].any()
    valid[:, 2] = False
    assert advantage[valid].mean() == pytest.approx(0.0, abs=1e-5)
    assert advantage[valid].std() == pytest.approx(1.0, rel=1e-5)
    assert found["advantage_scale"].shape == (T, B)


def test_advantages_count_as_a_hundredth_of_the_variance_of_the_returns_at_least() -> None:
    """Values that explain more mean a solved task: the remaining advantages are errors of the values."""
    rng = np.random.default_rng(0)
    returns, noise = 50.0 + 2.0 * rng.normal(size=(T, B)), rng.normal(size=(T, B))
    mask = (rng.random((T, B)) < 0.7).astype(np.float32)
    valid = mask > 0
    noise, returns[~valid] = noise / noise[valid].std(), np.nan
    for error, expected in ((1e-3, 0.1 * returns[valid].std()), (1.5, 1.5)):
        arrays = (tf.constant(x, tf.float32) for x in (error * noise + 7.0, returns, mask, mask))
        mean, deviation = map(float, make()._moments(*arrays))
        assert mean == pytest.approx((error * noise + 7.0)[valid].mean(), rel=1e-5)
        assert deviation == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("normalize_values", "before", "now", "expected"),
    [(True, 1.0, 0.0, 0.2), (True, 1.0, 1.0, 1e-3), (True, 0.0, 0.0, 1e-3), (False, 1.0, 0.0, 1e-3)],
)
def test_advantages_without_rewards_are_not_magnified_once_the_scale_of_values_is_known(
    normalize_values: bool, before: float, now: float, expected: float
) -> None:
    """In a batch without rewards, advantages are only differences between values, however small."""
    agent, ones = make(normalize_values=normalize_values), tf.ones((T, B))
    if agent.network.value_scale is not None:
        returns = tf.constant(np.where(np.arange(T * B).reshape(T, B) % 2, 8.0, 12.0), tf.float32)
        agent.network.value_scale.update(returns, ones, before * ones, ones, agent.network.value)
    noise = np.random.default_rng(0).normal(size=(T, B))
    noise = tf.constant(1e-3 * (noise - noise.mean()) / noise.std(), tf.float32)
    reward = tf.scatter_nd([[0, 0]], [now], (T, B))
    assert float(agent._moments(noise, noise, reward, ones)[1]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("normalize_advantages", [False, True])
def test_normalised_values_make_the_loss_independent_of_the_unit_of_rewards(normalize_advantages: bool) -> None:
    losses = []
    for unit in (1.0, 1000.0):
        agent = make(normalize_values=True, value_clip=0.2, normalize_advantages=normalize_advantages)
        records = random_records(VECTOR, T + 1, B, seed=4)
        records["reward"] *= np.float32(unit)
        records["value"] = np.zeros((T + 1, B), np.float32)
        unrolls = unroll_batch(records, {}, ("logits", "value"))
        agent.observe(unrolls)
        unrolls = with_targets(agent, unrolls)
        agent.network.value.bias.assign([0.4])  # values now differ from the targets' by more than value_clip
        losses.append(
            [float(agent.loss(unrolls).loss), *(float(g.sum()) for g in loss_and_gradients(agent, unrolls)[1])]
        )
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-3, atol=1e-5)


def test_the_policy_moves_before_the_first_reward_although_values_are_near_zero() -> None:
    agent = make(normalize_values=True, normalize_advantages=True, entropy_cost=0.0)
    records = random_records(VECTOR, T + 1, B, seed=4)
    records["reward"][:] = 0.0
    unrolls = unroll_batch(records, agent.initial_state(B))
    assert np.abs(evaluate(agent.network, unrolls, 0).value).max() < 1e-3
    records["value"] = evaluate(agent.network, unrolls, 0).value.numpy()
    unrolls = with_targets(agent, unroll_batch(records, agent.initial_state(B), ("logits", "value")))
    _, gradients = loss_and_gradients(agent, unrolls, agent.network.policy.trainable_variables)
    assert all(np.abs(gradient).max() > 1e-3 for gradient in gradients)


@pytest.mark.parametrize("spec", [VECTOR, CONTINUOUS])
def test_actions_on_final_records_are_masked(spec: EnvSpec) -> None:
    agent = make(spec)
    (name,) = agent.algorithm.recorded
    records = random_records(spec, T + 1, B, seed=2)
    final = records["terminated"] | records["truncated"]
    assert final[:-1].any(axis=1).sum() > 3

    def result(records: Records) -> Any:
        outputs, gradients = loss_and_gradients(agent, with_targets(agent, unroll_batch(records, {}, (name,))))
        return float(outputs.loss), gradients

    before, gradients = result(records)
    changed = {**records}
    far = np.float32(1e6) * final[..., None]  # ratios that overflow
    if spec is VECTOR:
        changed["action"] = np.where(final, (records["action"] + 1) % 3, records["action"])
        changed[name] = records[name] + far * np.array([0.0, 1.0, -1.0], np.float32)
    else:
        changed["action"] = records["action"] + 30.0 * final[..., None].astype(np.float32)
    changed["reward"] = records["reward"] + 100.0 * records["first"].astype(np.float32)
    changed["observation"] = records["observation"] + 3.0 * records["terminated"][..., None].astype(np.float32)
    after, new_gradients = result(changed)
    assert after == before and np.isfinite(after)
    for old, new in zip(gradients, new_gradients, strict=True):
        np.testing.assert_array_equal(old, new)
    # The last observation of a truncated episode affects the loss.
    cut = {**records}
    cut["observation"] = records["observation"] + 3.0 * records["truncated"][..., None].astype(np.float32)
    assert result(cut)[0] != before


@pytest.mark.parametrize("kl_cost", [0.0, 0.6])
def test_infinite_ratios_give_finite_gradients(kl_cost: float) -> None:
    agent = make(kl_cost=kl_cost)
    records = random_records(VECTOR, T + 1, B, seed=5)
    records["logits"] = 200.0 * (1.0 - 2.0 * np.eye(3, dtype=np.float32))[records["action"]]
    outputs, gradients = loss_and_gradients(agent, with_targets(agent, unroll_batch(records, {})))
    assert np.isfinite(outputs.loss) and all(np.isfinite(g).all() for g in gradients)


@pytest.mark.parametrize("spec", [MULTI_DISCRETE, ONE_PART, CONTINUOUS, MIXED])
def test_gradients_reach_every_variable_and_losses_of_halves_add_up(spec: EnvSpec) -> None:
    network = "impala_shallow" if spec is MIXED else "mlp"
    agent = make(spec, torso=network, separate_value=True, **RECURRENT)
    (name,) = agent.algorithm.recorded
    unrolls = unroll_batch(random_records(spec, T + 1, B, seed=3), agent.initial_state(B), (name,))
    unrolls = with_targets(agent, unrolls)
    outputs, gradients = loss_and_gradients(agent, unrolls)
    assert len(gradients) > 8 and all(g.any() for g in gradients)
    halves = [
        loss_and_gradients(agent, unrolls.map_columns(lambda x, axis, c=c: tf.gather(x, c, axis=axis)))
        for c in np.split(np.arange(B), 2)
    ]
    assert sum(float(half[0].loss) for half in halves) == pytest.approx(float(outputs.loss), rel=1e-4, abs=1e-6)
    for whole, *parts in zip(gradients, *(half[1] for half in halves), strict=True):
        np.testing.assert_allclose(sum(parts), whole, rtol=1e-3, atol=1e-5)


def training_batches(agent: PPOAgent, count: int) -> Iterator[TrainingBatch]:
    length = agent.algorithm.records
    for number in range(count):
        records = random_records(VECTOR, length, B, seed=number)
        state = tf.nest.map_structure(lambda x: tf.ones_like(x) * tf.cast(0.3, x.dtype), agent.initial_state(B))
        records = near_policy(agent, records, 0.1)
        records["value"] = evaluate(agent.network, unroll_batch(records, state), 0).value.numpy()
        recorded = list(agent.algorithm.recorded)
        unrolls = tf.nest.map_structure(np.asarray, unroll_batch(records, state, recorded))
        yield TrainingBatch.of(unrolls, np.zeros((length, B), np.int64))


def test_updates_on_minibatches_of_recurrent_columns_share_the_targets_of_the_batch() -> None:
    """The trainer against a plain loop of optimizer steps."""
    config = training_config(unroll_length=3, batch_size=B, learning_rate=0.01, clip_norm=0.1, epochs=3, minibatches=2)
    agent, plain = (make(training=config, lstm=4, value_clip=0.1) for _ in range(2))
    trainer, optimizer = Trainer(agent, config, 10**9, seed=5), make_optimizer(config)
    variables = plain.network.trainable_variables
    optimizer.build(variables)

    @tf.function(autograph=False)
    def step(unrolls: UnrollBatch) -> None:
        with tf.GradientTape() as tape:
            loss = plain.loss(unrolls).loss
        optimizer.apply(clip_gradients(tape.gradient(loss, variables), config.clip_norm)[0], variables)

    for number, batch in enumerate(training_batches(agent, 3)):
        result = trainer.update(batch, env_steps=0)
        assert result.applied and result.fault is None
        unrolls = with_targets(plain, tf.nest.map_structure(tf.constant, batch.unrolls))
        for epoch in range(3):
            order = column_orders(5, tf.constant(number * 6, tf.int64), 3, 0, B)[epoch].numpy()
            for columns in np.split(order, 2):
                step(unrolls.map_columns(lambda x, axis, c=columns: tf.gather(x, c, axis=axis)))
    assert trainer.updates == 3 * 3 * 2
    for mine, theirs in zip(agent.network.variables, plain.network.variables, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("synchronous", "memory"), [(False, {}), (True, {}), (True, {"frame_stack": 3, "previous_action_reward": True})]
)
def test_without_an_lstm_minibatches_are_transitions_in_random_order(synchronous: bool, memory: dict[str, Any]) -> None:
    """The trainer against a plain loop of optimizer steps on single transitions."""
    config = training_config(
        unroll_length=3, batch_size=B, learning_rate=0.01, clip_norm=0.1, epochs=2, minibatches=3,
        synchronous=synchronous,
    )  # fmt: skip
    agent, plain = (make(training=config, value_clip=0.1, **memory) for _ in range(2))
    assert agent.algorithm.shuffles and config.parts_of_update == (2 if synchronous else 1)
    trainer, optimizer = Trainer(agent, config, 10**9, seed=5), make_optimizer(config)
    variables = plain.network.trainable_variables
    optimizer.build(variables)
    (batch,) = training_batches(agent, 1)
    weights = np.linspace(0.5, 1.5, B).astype(np.float32)
    batch = TrainingBatch.of(batch.unrolls._replace(weights=weights), np.zeros((4, B), np.int64))
    assert trainer.update(batch, env_steps=0).applied and trainer.updates == 6

    unrolls = with_targets(plain, tf.nest.map_structure(tf.constant, batch.unrolls))
    for epoch in range(2):
        order = column_orders(5, tf.constant(0, tf.int64), 2, 0, 3 * B)[epoch].numpy()
        assert sorted(order) == list(range(3 * B))
        for index in np.split(order, 3):
            pairs = [_transition(plain, unrolls, t, b) for t, b in zip(*divmod(index, B), strict=True)]
            with tf.GradientTape() as tape:
                loss = tf.add_n([plain.loss(pair).loss for pair in pairs])
            optimizer.apply(clip_gradients(tape.gradient(loss, variables), config.clip_norm)[0], variables)
    for mine, theirs in zip(agent.network.variables, plain.network.variables, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def _transition(agent: PPOAgent, unrolls: UnrollBatch, t: int, b: int) -> UnrollBatch:
    """One transition as a separate batch, by slicing, with the state after the records before it."""
    alone = unrolls.map_columns(lambda x, axis: x[:, b : b + 1] if axis else x[b : b + 1])
    state = alone.state
    final = tf.logical_or(alone.terminated, alone.truncated)
    for i in range(t):
        _, state = agent.network.step(alone.observation[i], alone.reward[i], state)
        state = agent.network.remember(state, alone.action[i])
        state = reset(agent.network, state, final[i].numpy())
    pair = alone.map_columns(lambda x, axis: x[t : t + 2] if axis else x)
    targets = {name: x[t : t + 1, b : b + 1] for name, x in unrolls.targets.items()}
    return pair._replace(state=state, targets=targets)


def test_an_lstm_trains_on_whole_unrolls() -> None:
    config = training_config(unroll_length=3, batch_size=B, minibatches=2)
    agent = make(training=config, lstm=5, frame_stack=2)
    assert not agent.algorithm.shuffles
    (batch,) = training_batches(agent, 1)
    agent.algorithm = dataclasses.replace(agent.algorithm, shuffles=True)
    with pytest.raises(UsageError, match=r"its state holds lstm_cell, lstm_hidden, which cannot be computed from"):
        Trainer(agent, config, 10**9).update(batch, env_steps=0)


def test_a_state_of_the_users_own_trains_on_whole_unrolls() -> None:
    class Counting(PPOAgent):
        def initial_state(self, batch_size: int) -> Any:
            return {**super().initial_state(batch_size), "steps": tf.zeros([batch_size])}

    class Tuple(PPOAgent):
        def initial_state(self, batch_size: int) -> Any:
            return (tf.zeros([batch_size]),)

    config = training_config(unroll_length=T, batch_size=B)
    for kind in (Counting, Tuple):
        assert not kind(agent_config(algorithm="ppo", frame_stack=2), config, VECTOR, 7).algorithm.shuffles


def test_synchronous_training_gives_the_same_weights_from_recorded_values_and_halves_of_minibatches() -> None:
    """One batch. Other recorded values give other targets, except that of the first record."""
    values = {"unroll_length": T, "batch_size": B, "epochs": 2, "minibatches": 3, "clip_norm": 0.1}
    plain, waiting = training_config(**values), training_config(**values, synchronous=True)
    assert (plain.parts_of_update, waiting.parts_of_update) == (1, 2)

    def trained(
        config: TrainingConfig, offset: float, records_changed: slice = slice(None)
    ) -> tuple[dict[str, float], list[Any]]:
        agent = make(training=config, value_clip=0.1, **RECURRENT)
        assert agent.algorithm.recorded.keys() == ({"logits", "value"} if config.synchronous else {"logits"})
        records = near_policy(agent, random_records(VECTOR, T + 1, B, seed=3), 0.1)
        unrolls = unroll_batch(records, agent.initial_state(B))
        records["value"] = evaluate(agent.network, unrolls, 0).value.numpy()
        records["value"][records_changed] += offset
        recorded = agent.algorithm.recorded.keys()
        unrolls = tf.nest.map_structure(np.asarray, unroll_batch(records, agent.initial_state(B), list(recorded)))
        batch = TrainingBatch.of(unrolls, np.zeros((T + 1, B), np.int64))
        result = Trainer(agent, config, 10**9, seed=5).update(batch, env_steps=0)
        return {"loss": result.loss, "norm": result.grad_norm, **result.metrics}, agent.network.trainable_variables

    metrics, weights = trained(plain, 0.0)
    same_metrics, same_weights = trained(waiting, 0.0)
    for name in ("loss", "norm", "advantage_scale"):
        assert same_metrics[name] == pytest.approx(metrics[name], rel=1e-3), name
    for mine, theirs in zip(same_weights, weights, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    assert trained(waiting, 1.0)[0]["loss"] != pytest.approx(metrics["loss"], rel=0.1)
    assert trained(waiting, 1.0, slice(1))[0]["loss"] == pytest.approx(metrics["loss"], rel=1e-3)


@pytest.mark.parametrize(("target_kl", "stops"), [(0.0, False), (0.05, True)])
def test_updates_stop_once_the_policy_has_moved_too_far(target_kl: float, stops: bool) -> None:
    config = training_config(unroll_length=T, batch_size=B, learning_rate=0.05, epochs=10)
    agent = make(training=config, target_kl=target_kl, normalize_advantages=True)
    trainer = Trainer(agent, config, 10**9, seed=5)
    (batch,) = training_batches(agent, 1)
    result = trainer.update(batch, env_steps=0)
    assert (0 < trainer.updates < 10) is stops and trainer.updates > 0
    assert ("updates_used" in result.metrics) is bool(target_kl)
    # The stop keeps the policy close; the updates that it skips would move it further.
    unrolls = tf.nest.map_structure(tf.constant, batch.unrolls)
    kl = float(agent.loss(with_targets(agent, unrolls)).metrics["approx_kl"])
    assert kl > 0.05
    if stops:
        assert result.metrics["updates_used"] == pytest.approx(trainer.updates / 10)
        assert kl < 0.5


def test_a_run_without_rewards_says_so() -> None:
    """This symptom comes first: the others explain a policy that ignores observations although there are rewards."""
    records = random_records(VECTOR, T + 1, B, seed=11)
    for spec, setting in ((VECTOR, "agent.noise_persistence"), (CONTINUOUS, "agent.noise_correlation")):
        first, *others = make(spec, normalize_values=True).algorithm.symptoms
        assert (first.metric, first.settings, first.patience) == ("reward_found", (setting,), 0.05)
        assert [symptom.metric for symptom in others] == [symptom.metric for symptom in make(spec).algorithm.symptoms]
    agent = make(normalize_values=True)
    records["value"] = np.random.default_rng(3).normal(size=records["reward"].shape).astype(np.float32)

    def found(rewards: Any) -> float:
        given = {**records, "reward": rewards.astype(np.float32)}
        unrolls = with_targets(agent, unroll_batch(given, {}, ("logits", "value")))
        agent.observe(unrolls)
        return float(agent.loss(unrolls).metrics["reward_found"])

    first_symptom = agent.algorithm.symptoms[0]
    assert first_symptom.shows(found(np.zeros_like(records["reward"])))
    one = np.zeros_like(records["reward"])
    one[~records["first"] & (np.arange(T + 1) > 0)[:, np.newaxis]] = 0.5
    assert not first_symptom.shows(found(one))
    assert not first_symptom.shows(found(np.zeros_like(one)))  # one reward was enough


def test_symptoms_are_those_of_all_actor_critics_and_clipping() -> None:
    declared = {symptom.metric: symptom for symptom in make().algorithm.symptoms}
    assert {"saturated_units", "value_spread", "policy_spread"} < set(declared)
    assert {key for symptom in declared.values() for key in symptom.settings} <= all_keys()
    assert declared["clip_fraction"].shows(0.6) and not declared["clip_fraction"].shows(0.3)
    records = random_records(VECTOR, T + 1, B, seed=11)
    agent = make()
    metrics = agent.loss(with_targets(agent, unroll_batch(records, {}))).metrics
    assert set(declared) - {"means_outside"} <= set(metrics)
    box = make(CONTINUOUS)
    records = random_records(CONTINUOUS, T + 1, B, seed=11)
    assert set(declared) <= set(box.loss(with_targets(box, unroll_batch(records, {}, ("mean_log_std",)))).metrics)
