"""The V-trace agent: sampling, the loss, and inputs that must not affect the loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from seedcli.agents import q_targets, targets
from seedcli.agents.actor_critic import Evaluation
from seedcli.agents.base import ActInputs, Agent, TargetsAgent, UnrollBatch, transitions_of
from seedcli.agents.networks import frame_stack
from seedcli.agents.networks.models import evaluate
from seedcli.agents.registry import create_agent
from seedcli.agents.variables import named_variables
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec
from seedcli.training.optimizer import make_optimizer
from tests.agents.helpers import (
    CONTINUOUS,
    DISCRETE,
    IMAGE,
    MIXED,
    MULTI_DISCRETE,
    ONE_PART,
    VECTOR,
    act_inputs,
    agent_config,
    apply_gradients,
    random_records,
    reset,
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


def test_the_divergence_of_almost_equal_policies_is_not_lost_in_rounding() -> None:
    exact = np.array([[1e-4, -2e-3, 0.0, 0.5, 50.0, 3.0]])
    zeros = tf.zeros([1, 6])
    valid = tf.constant([[1.0, 1.0, 1.0, 1.0, 1.0, 0.0]])
    batch = Evaluation(zeros, tf.constant(exact, tf.float32), zeros, zeros, zeros, zeros, zeros, valid)
    expected = np.expm1(np.minimum(exact, 20.0)) - np.minimum(exact, 20.0)
    expected[0, 5] = 0.0  # masked
    np.testing.assert_allclose(batch.divergence.numpy(), expected, rtol=5e-3)


def test_algorithm_spec() -> None:
    algorithm = make().algorithm
    assert (algorithm.name, algorithm.burn_in, algorithm.records, algorithm.source) == ("vtrace", 0, T + 1, "queue")
    assert algorithm.recorded == {"logits": ArraySpec((3,), "float32")}
    assert make(MULTI_DISCRETE).algorithm.recorded == {"logits": ArraySpec((9,), "float32")}
    assert make(CONTINUOUS).algorithm.recorded == {"mean_log_std": ArraySpec((4,), "float32")}
    assert algorithm.roles == ("training",)


@pytest.mark.parametrize("lstm", [0, 5])
def test_noise_of_successive_actions_is_correlated_as_configured(lstm: int) -> None:
    rows, steps = 500, 6
    agent = make(CONTINUOUS, noise_correlation=0.8, lstm=lstm)
    state, drawn = agent.initial_state(rows), []
    assert np.all(state["action_noise"] == 0.0)
    for step in range(steps):
        before = state["action_noise"]
        outputs, state = agent.act(agent.network, act_inputs(CONTINUOUS, rows, (1, step)), state)
        np.testing.assert_array_equal(outputs.recorded["action_noise"], before)
        mean, log_std = np.split(outputs.recorded["mean_log_std"].numpy(), 2, axis=-1)
        drawn.append((outputs.action.numpy() - mean) / np.exp(log_std))
        np.testing.assert_allclose(state["action_noise"], drawn[-1], atol=1e-5)
    fresh = [(new - 0.8 * old) / 0.6 for old, new in zip([np.zeros_like(drawn[0]), *drawn], drawn, strict=False)]
    assert np.mean(fresh) == pytest.approx(0.0, abs=0.05)
    assert np.std(fresh) == pytest.approx(1.0, abs=0.05)
    assert abs(np.corrcoef(fresh[2].ravel(), fresh[3].ravel())[0, 1]) < 0.15
    assert np.corrcoef(drawn[-2].ravel(), drawn[-1].ravel())[0, 1] == pytest.approx(0.8, abs=0.05)
    greedy, kept = agent.act(agent.network, act_inputs(CONTINUOUS, rows)._replace(greedy=True), state)
    np.testing.assert_array_equal(greedy.action, greedy.greedy_action)
    np.testing.assert_array_equal(kept["action_noise"], tf.zeros([rows, 2]))


def test_only_numbers_have_correlated_noise() -> None:
    assert make(VECTOR, noise_correlation=0.8).initial_state(2) == {}
    assert make(CONTINUOUS).initial_state(2) == {}
    assert "action_noise" not in make(VECTOR, noise_correlation=0.8).algorithm.recorded
    assert "action_noise" not in make(CONTINUOUS).algorithm.recorded


def test_probabilities_of_actions_are_those_given_the_noise_before() -> None:
    agent, records = make(CONTINUOUS, noise_correlation=0.8), random_records(CONTINUOUS, T + 1, B)
    before = np.random.default_rng(3).normal(size=(T + 1, B, 2)).astype(np.float32)
    records["action_noise"] = before

    def evaluate(state_noise: float) -> Evaluation:
        state = tf.nest.map_structure(lambda x: x + state_noise, agent.initial_state(B))
        return agent.evaluate(unroll_batch(records, state, tuple(agent.algorithm.recorded)))

    def log_prob(params: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        mean, log_std = np.split(params.astype(np.float64), 2, axis=-1)
        mean, std = mean + 0.8 * np.exp(log_std) * before[:-1], 0.6 * np.exp(log_std)
        z = (records["action"][:-1] - mean) / std
        return np.sum(-0.5 * z**2 - np.log(std) - 0.5 * np.log(2.0 * np.pi), axis=-1)

    batch = evaluate(0.0)
    np.testing.assert_allclose(batch.log_pi, log_prob(batch.policy.numpy()), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(batch.log_mu, log_prob(records["mean_log_std"][:-1]), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(evaluate(3.0).log_pi, batch.log_pi)  # the noise is from the records, not the state


@pytest.mark.parametrize("memory", [{}, {"lstm": 5, "frame_stack": 3, "previous_action_reward": True}])
@pytest.mark.parametrize("spec", [VECTOR, DISCRETE, MULTI_DISCRETE, ONE_PART, CONTINUOUS, MIXED])
def test_act_is_one_function_for_every_batch_size(spec: EnvSpec, memory: dict[str, Any]) -> None:
    agent = make(spec, **memory)
    network = agent.make_network()
    traced = []

    def act(inputs: Any, state: Any) -> Any:
        traced.append(1)
        return agent.act(network, ActInputs(*inputs), state)

    def open_batch(x: tf.Tensor) -> tf.TensorSpec:
        return tf.TensorSpec([None, *x.shape[1:]], x.dtype)

    def tensors(rows: int) -> tuple[Any, ...]:
        return tuple(act_inputs(spec, rows))[:-1]  # without `greedy`, which is not a tensor

    *inputs, seed = tensors(2)
    state_spec = tf.nest.map_structure(open_batch, agent.initial_state(2))
    signature = ((*tf.nest.map_structure(open_batch, inputs), tf.TensorSpec([2], tf.int32)), state_spec)
    function = tf.function(act, input_signature=signature)
    for rows in (1, 5, 8):
        outputs, state = function(tensors(rows), agent.initial_state(rows))
        for action in (outputs.action, outputs.greedy_action):
            assert action.shape == (rows, *spec.action.array.shape) and action.dtype == spec.action.array.dtype
        for name, array in agent.algorithm.recorded.items():
            assert outputs.recorded[name].shape == (rows, *array.shape)
            assert outputs.recorded[name].dtype == array.dtype
        tf.nest.assert_same_structure(state, agent.initial_state(rows))
        for new, old in zip(tf.nest.flatten(state), tf.nest.flatten(agent.initial_state(rows)), strict=True):
            assert (new.shape, new.dtype) == (old.shape, old.dtype)
        if memory:
            expected = np.clip(outputs.action, -1.0, 1.0) if spec.action.size else outputs.action + 1
            np.testing.assert_array_equal(state["previous_action"], expected)
    assert len(traced) == 1


def test_actions_follow_the_policy_and_the_seed() -> None:
    agent = make(torso="mlp")
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


@pytest.mark.parametrize("kl_cost", [0.0, 0.6])
def test_the_loss_agrees_with_float64(kl_cost: float) -> None:
    values: dict[str, Any] = {"discount": 0.95, "reward_clip": 0.7, "lambda": 0.9, "rho_clip": 1.4, "c_clip": 1.1}
    agent = make(baseline_cost=0.4, entropy_cost=0.03, kl_cost=kl_cost, **values)
    records = random_records(VECTOR, T + 1, B, seed=11)
    unrolls = unroll_batch(records, agent.initial_state(B))
    weights = np.linspace(0.5, 1.5, B).astype(np.float32)
    result = agent.loss(unrolls._replace(weights=tf.constant(weights)))

    logits, value = (x.numpy().astype(np.float64) for x in evaluate(agent.network, unrolls, 0)[:2])

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
    divergence = np.exp(log_rho) - 1.0 - log_rho
    of_state = 0.4 * 0.5 * (vs - value[:-1]) ** 2 - 0.03 * entropy + kl_cost * divergence
    each = -log_pi_taken * advantages + valid * of_state
    assert float(result.loss) == pytest.approx((each * weights).sum() / (T * B), rel=1e-5, abs=1e-6)
    assert result.priorities is None
    assert float(result.metrics["entropy"]) == pytest.approx(entropy[valid].mean(), rel=1e-5)
    assert float(result.metrics["approx_kl"]) == pytest.approx(divergence[valid].mean(), rel=1e-4)
    assert float(result.metrics["value"]) == pytest.approx(value[:-1][valid].mean(), rel=1e-4)
    explained = 1 - np.var((vs - value[:-1])[valid]) / np.var(vs[valid])
    assert float(result.metrics["explained_variance"]) == pytest.approx(explained, rel=1e-4)
    assert all(x.shape == () and np.isfinite(x) for x in result.metrics.values())


def of_actions(logits: Any, action: Any) -> Any:
    """Log-probabilities of the actions taken, float64."""
    logits = np.asarray(logits, np.float64)
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return np.take_along_axis(log_probabilities, action[..., None], -1)[..., 0]


@pytest.mark.parametrize("memory", [{}, {"frame_stack": 2}, {"lstm": 5}])
def test_fixed_targets_are_those_of_the_network_before_with_advantages_of_mean_0(memory: dict[str, int]) -> None:
    values: dict[str, Any] = {"discount": 0.95, "reward_clip": 0.7, "lambda": 0.9, "rho_clip": 1.4, "c_clip": 1.1}
    agent = make(fixed_targets=True, baseline_cost=0.4, entropy_cost=0.0, **memory, **values)
    records = random_records(VECTOR, T + 1, B, seed=11)
    weights = np.linspace(0.0, 1.5, B).astype(np.float32)  # the first column does not count
    unrolls = unroll_batch(records, agent.initial_state(B))._replace(weights=tf.constant(weights))
    assert isinstance(agent, TargetsAgent)
    unrolls = unrolls._replace(targets=agent.targets(unrolls))

    def outputs() -> tuple[Any, Any, Any]:
        logits, value = (x.numpy() for x in evaluate(agent.network, unrolls, 0)[:2])
        log_pi = of_actions(logits[:-1], records["action"][:-1])
        return log_pi, log_pi - of_actions(records["logits"][:-1], records["action"][:-1]), value

    _, log_rho, value = outputs()
    clipped = {**records, "reward": np.clip(records["reward"], -0.7, 0.7)}
    vs, advantages = reference_vtrace(clipped, value, log_rho, 0.95, 1.4, 1.1, 0.9)
    rho = np.minimum(np.exp(log_rho), 1.4)
    valid = ~(records["terminated"] | records["truncated"])[:-1]
    counted = valid * (weights > 0)
    mean = (advantages * counted).sum() / (rho * counted).sum()
    assert abs(mean) > 0.05

    for variable in agent.network.trainable_variables:
        variable.assign(variable + 0.1 * tf.random.stateless_normal(variable.shape, [1, 2]))
    log_pi, log_rho, now = outputs()
    assert np.abs(now - value).max() > 0.1
    policy_loss = -log_pi * np.minimum(np.exp(log_rho), 1.4) * (advantages / rho - mean)
    each = valid * (policy_loss + 0.4 * 0.5 * (vs - now[:-1]) ** 2)
    loss = float(agent.loss(unrolls).loss)
    assert loss == pytest.approx((each * weights).sum() / (T * B), rel=1e-5, abs=1e-6)
    assert agent.algorithm.shuffles == ("lstm" not in memory)
    if agent.algorithm.shuffles:
        order = tf.random.experimental.stateless_shuffle(tf.range(T * B), [3, 4])
        parts = [float(agent.loss(transitions_of(agent, unrolls, index)).loss) for index in tf.split(order, 3)]
        assert sum(parts) == pytest.approx(loss, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("algorithm", ["vtrace", "ppo"])
def test_shuffled_transitions_keep_the_noise_before_their_actions(algorithm: str) -> None:
    values = {"fixed_targets": True} if algorithm == "vtrace" else {}
    agent = make(CONTINUOUS, algorithm=algorithm, noise_correlation=0.8, **values)
    records = random_records(CONTINUOUS, T + 1, B, seed=11)
    records["action_noise"] = np.random.default_rng(3).normal(size=(T + 1, B, 2)).astype(np.float32)

    def unrolls_with(noise: npt.NDArray[np.float32]) -> UnrollBatch:
        changed = {**records, "action_noise": noise}
        unrolls = unroll_batch(changed, agent.initial_state(B), tuple(agent.algorithm.recorded))
        return unrolls._replace(targets=agent.targets(unrolls))

    assert isinstance(agent, TargetsAgent) and agent.algorithm.shuffles
    unrolls = unrolls_with(records["action_noise"])
    loss = float(agent.loss(unrolls).loss)
    order = tf.random.experimental.stateless_shuffle(tf.range(T * B), [3, 4])
    parts = [float(agent.loss(transitions_of(agent, unrolls, index)).loss) for index in tf.split(order, 3)]
    assert sum(parts) == pytest.approx(loss, rel=1e-4, abs=1e-6)
    assert float(agent.loss(unrolls_with(records["action_noise"][:, ::-1])).loss) != pytest.approx(loss, rel=1e-3)


def test_targets_that_are_not_fixed_follow_the_network_on_whole_unrolls() -> None:
    agent = make()
    unrolls = unroll_batch(random_records(VECTOR, T + 1, B), agent.initial_state(B))
    assert isinstance(agent, TargetsAgent) and agent.targets(unrolls) == {}
    assert not agent.algorithm.shuffles


@pytest.mark.parametrize("memory", [{}, {"lstm": 5, "frame_stack": 2, "previous_action_reward": True}])
def test_actions_on_final_records_are_masked(memory: dict[str, Any]) -> None:
    agent = make(**memory)
    records = random_records(VECTOR, T + 1, B, seed=2)
    final = records["terminated"] | records["truncated"]
    assert final[:-1].any(axis=1).sum() > 3
    before, gradients = loss_and_gradients(agent, unroll_batch(records, agent.initial_state(B)))

    changed = {**records}
    changed["action"] = np.where(final, (records["action"] + 1) % 3, records["action"])
    changed["logits"] = records["logits"] + final[..., None] * np.array([0.0, 5.0, -9.0], np.float32)
    if not memory:  # with memory, the reward of a first record, 0, is an input of the network
        changed["reward"] = records["reward"] + 100.0 * records["first"].astype(np.float32)
        # The value after a termination is 0.
        changed["observation"] = records["observation"] + 3.0 * records["terminated"][..., None].astype(np.float32)
    after, new_gradients = loss_and_gradients(agent, unroll_batch(changed, agent.initial_state(B)))
    assert after == before
    for old, new in zip(gradients, new_gradients, strict=True):
        np.testing.assert_array_equal(old, new)

    # The same changes elsewhere affect the loss, and so does the last observation of a truncated episode.
    other = {**records, "action": np.where(final, records["action"], (records["action"] + 1) % 3)}
    assert loss_and_gradients(agent, unroll_batch(other, agent.initial_state(B)))[0] != before
    cut = {**records}
    cut["observation"] = records["observation"] + 3.0 * records["truncated"][..., None].astype(np.float32)
    assert loss_and_gradients(agent, unroll_batch(cut, agent.initial_state(B)))[0] != before


@pytest.mark.parametrize("spec", [VECTOR, MULTI_DISCRETE, MIXED])
def test_losses_of_half_batches_add_up(spec: EnvSpec) -> None:
    agent = make(spec, lstm=5)
    recorded = tuple(agent.algorithm.recorded)
    records = random_records(spec, T + 1, B, seed=3)
    loss, gradients = loss_and_gradients(agent, unroll_batch(records, agent.initial_state(B), recorded))
    halves = []
    for columns in (slice(0, B // 2), slice(B // 2, B)):
        half = tf.nest.map_structure(lambda x, columns=columns: x[:, columns], records)
        halves.append(loss_and_gradients(agent, unroll_batch(half, agent.initial_state(B // 2), recorded)))
    assert sum(half[0] for half in halves) == pytest.approx(loss, rel=1e-5)
    for whole, *parts in zip(gradients, *(half[1] for half in halves), strict=True):
        np.testing.assert_allclose(sum(parts), whole, rtol=1e-4, atol=1e-6)


def test_an_unroll_of_another_length_is_refused() -> None:
    agent = make()
    with pytest.raises(tf.errors.InvalidArgumentError):
        agent.loss(unroll_batch(random_records(VECTOR, T, B), agent.initial_state(B)))


def test_same_seed_gives_the_same_agent() -> None:
    one, same = make(IMAGE, torso="impala_shallow"), make(IMAGE, torso="impala_shallow")
    inference = one.make_network()
    named = [one.variables(), same.variables(), named_variables(network=inference)]
    assert list(named[0]) == list(named[1]) == list(named[2])
    for a, b, c in zip(*(variables.values() for variables in named), strict=True):
        assert isinstance(a, tf.Variable) and a is not c
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)
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


def played(agent: Agent, spec: EnvSpec, seed: int = 5) -> UnrollBatch:
    """Records with actions and recorded fields of the agent itself."""
    records = random_records(spec, T + 1, B, seed=seed)
    state, rows = agent.initial_state(B), []
    for t in range(T + 1):
        state = reset(agent.network, state, records["first"][t])
        now = tf.nest.map_structure(lambda x, t=t: tf.constant(x[t]), records)
        inputs = ActInputs(now["observation"], now["reward"], now["first"], tf.zeros([B]), tf.constant([seed, t]))
        outputs, state = agent.act(agent.network, inputs, state)
        rows.append({"action": outputs.action, **outputs.recorded})
    chosen = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return unroll_batch({**records, **chosen}, agent.initial_state(B), tuple(agent.algorithm.recorded))


@pytest.mark.parametrize("algorithm", ["vtrace", "r2d2"])
def test_greedy_acting_remembers_the_greedy_action(algorithm: str) -> None:
    config = agent_config(algorithm=algorithm, previous_action_reward=True)
    agent = create_agent(config, training_config(unroll_length=T, batch_size=B), VECTOR, 1)
    records = tf.nest.map_structure(lambda x: tf.constant(x[0]), random_records(VECTOR, 1, B))
    explored = []
    for greedy in (False, True):
        inputs = ActInputs(
            records["observation"], records["reward"], records["first"], tf.ones([B]), tf.constant([3, 1]), greedy
        )
        outputs, state = agent.act(agent.network, inputs, agent.initial_state(B))
        np.testing.assert_array_equal(state["previous_action"], outputs.action + 1)
        explored.append(bool(tf.reduce_any(outputs.action != outputs.greedy_action)))
    assert explored == [True, False]


@pytest.mark.parametrize("spec", [VECTOR, MULTI_DISCRETE, ONE_PART, CONTINUOUS, MIXED])
def test_on_its_own_data_the_targets_are_n_step_returns(spec: EnvSpec) -> None:
    agent = make(spec, lstm=5, frame_stack=2, previous_action_reward=True, discount=0.9)
    unrolls = played(agent, spec)
    result = agent.loss(unrolls)
    assert float(result.metrics["rho"]) == pytest.approx(1.0, abs=1e-4)
    values = evaluate(agent.network, unrolls, 0).value
    r_t, discount_t, mask_tm1 = targets.transitions(unrolls.reward, unrolls.terminated, unrolls.truncated, 0.9)
    returns = q_targets.n_step_returns(r_t=r_t, discount_t=discount_t, mask_tm1=mask_tm1, values=values, n=T)
    expected = 0.5 * tf.reduce_sum(tf.square(returns - values[:-1]) * mask_tm1) / tf.reduce_sum(mask_tm1)
    assert float(result.metrics["value_loss"]) == pytest.approx(float(expected), rel=1e-3)


@pytest.mark.parametrize(
    ("spec", "normalize"),
    [(MULTI_DISCRETE, False), (ONE_PART, False), (CONTINUOUS, False), (CONTINUOUS, True), (MIXED, True)],
)
def test_gradients_reach_every_variable(spec: EnvSpec, normalize: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_stack, "_SETTLED", 0)
    network = "impala_shallow" if spec is MIXED else "mlp"
    memory = {"lstm": 5, "frame_stack": 2, "previous_action_reward": True}
    agent = make(spec, torso=network, normalize_observations=normalize, **memory)
    unrolls = played(agent, spec)
    agent.observe(unrolls)
    _, gradients = loss_and_gradients(agent, unrolls)
    assert len(gradients) > 8 and all(g.any() for g in gradients)


def test_box_actions_on_final_records_are_masked() -> None:
    agent, recorded = make(CONTINUOUS, noise_correlation=0.8), ("mean_log_std", "action_noise")
    records = random_records(CONTINUOUS, T + 1, B, seed=2)
    records["action_noise"] = np.random.default_rng(3).normal(size=(T + 1, B, 2)).astype(np.float32)
    final = (records["terminated"] | records["truncated"])[..., None]
    before, gradients = loss_and_gradients(agent, unroll_batch(records, {}, recorded))
    changed = {name: records[name] + 3.0 * final.astype(np.float32) for name in ("action", *recorded)}
    after, new_gradients = loss_and_gradients(agent, unroll_batch({**records, **changed}, {}, recorded))
    assert after == before
    for old, new in zip(gradients, new_gradients, strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("algorithm", ["vtrace", "r2d2"])
def test_rewards_are_scaled_before_they_are_clipped(algorithm: str) -> None:
    records = random_records(VECTOR, T + 1, B, seed=2)
    shaped = {**records, "reward": np.clip(0.5 * records["reward"], -0.6, 0.6)}

    def loss(values: dict[str, float], data: Any) -> float:
        agent = make(algorithm=algorithm, **values)
        return float(agent.loss(unroll_batch(data, {}, ("logits",) if algorithm == "vtrace" else ())).loss)

    assert loss({"reward_scale": 0.5, "reward_clip": 0.6}, records) == loss({}, shaped) != loss({}, records)


def test_a_gaussian_policy_finds_the_best_action() -> None:
    # The reward falls with the square of the distance from (0.4, -0.3), for actions clipped as environments clip them.
    best = tf.constant([0.4, -0.3])
    config = training_config(unroll_length=T, batch_size=32, learning_rate=0.02)
    values = {"discount": 0.0, "entropy_cost": 0.0, "initial_std": 0.6}
    agent = create_agent(agent_config(**values), config, CONTINUOUS, seed=1)
    head = agent.network.policy
    np.testing.assert_allclose(head.log_std.numpy(), np.log([0.6, 0.6]), rtol=1e-6)
    optimizer = make_optimizer(config)
    rows = (T + 1) * 32
    observation = tf.ones([rows, 5])
    nothing = tf.zeros([T + 1, 32], tf.bool)

    @tf.function
    def update(seed: tf.Tensor) -> tf.Tensor:
        inputs = ActInputs(observation, tf.zeros([rows]), tf.zeros([rows], tf.bool), tf.zeros([rows]), seed)
        outputs, _ = agent.act(agent.network, inputs, {})
        reward = -tf.reduce_sum(tf.square(tf.clip_by_value(outputs.action, -1.0, 1.0) - best), axis=-1)
        reward = tf.pad(tf.reshape(reward, [T + 1, 32])[:-1], [[1, 0], [0, 0]])
        action = tf.reshape(outputs.action, [T + 1, 32, 2])
        recorded = {"mean_log_std": tf.reshape(outputs.recorded["mean_log_std"], [T + 1, 32, 4])}
        unrolls = UnrollBatch(
            tf.reshape(observation, [T + 1, 32, 5]), reward, nothing, nothing, action, recorded, {}, tf.ones([32])
        )
        variables = agent.network.trainable_variables
        with tf.GradientTape() as tape:
            loss = agent.loss(unrolls).loss
        apply_gradients(optimizer, tape.gradient(loss, variables), variables, clip_norm=1.0)
        return outputs.greedy_action[0]

    for i in range(200):
        found = update(tf.constant([1, i]))
    np.testing.assert_allclose(found, best, atol=0.1)
    assert (head.log_std.numpy() < np.log(0.3)).all(), "what is known need not be explored"


def test_means_beyond_bounds_cost_the_square_of_their_excess() -> None:
    spec = EnvSpec("test/half", ArraySpec((5,), "float32"), ActionSpec(size=3, unbounded=(1,)))
    losses, excess = [], None
    for bound_cost in (0.0, 2.0):
        agent = make(spec, bound_cost=bound_cost, entropy_cost=0.0)
        mean = agent.network.policy.mean
        mean.bias.assign([1.5, 7.0, -3.0])
        records = random_records(spec, T + 1, B, seed=5)
        unrolls = unroll_batch(records, agent.initial_state(B), ("mean_log_std",))
        result = agent.loss(unrolls)
        losses.append(float(result.loss))
        means = evaluate(agent.network, unrolls, 0).policy.numpy()[:-1, :, [0, 2]]
        acts = ~(records["terminated"] | records["truncated"])[:-1]
        excess = (np.maximum(np.abs(means) - 1.0, 0.0) ** 2).sum(-1)[acts].sum()
        outside = (np.abs(means) > 1.5).mean(-1)[acts].mean()
        assert float(result.metrics["means_outside"]) == pytest.approx(outside, abs=1e-6)
    assert losses[1] - losses[0] == pytest.approx(2.0 * excess / (T * B), rel=1e-4)


def test_a_policy_beyond_its_trust_region_gets_no_gradient() -> None:
    gradients = []
    for clip in (0.0, 0.2):
        agent = make(policy_clip=clip, entropy_cost=0.0, baseline_cost=0.0)
        records = random_records(VECTOR, T + 1, B, seed=5)
        # The actions taken were almost impossible under the behaviour policy: every ratio is far above 1.
        records["logits"] = 20.0 * (1.0 - np.eye(3, dtype=np.float32))[records["action"]]
        unrolls = unroll_batch(records, agent.initial_state(B))
        with tf.GradientTape() as tape:
            loss = agent.loss(unrolls).loss
        outputs = evaluate(agent.network, unrolls, 0)
        assert outputs.policy.shape[-1] == 3
        gradients.append(tape.gradient(loss, agent.network.policy.bias).numpy())
    # With the clip, only actions with negative advantages still have a gradient.
    assert np.abs(gradients[0] - gradients[1]).max() > 1e-4
