"""The SAC agent: its policy, target critics, refused settings, and the training of its parts."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import tensorflow as tf

from seedcli.agents.base import UnrollBatch
from seedcli.agents.registry import create_agent
from seedcli.agents.sac import SACAgent
from seedcli.config.sources import load_config
from seedcli.errors import UsageError
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec
from seedcli.training.batches import TrainingBatch
from seedcli.training.trainer import Trainer
from tests.agents.helpers import (
    CONTINUOUS,
    MIXED,
    MULTI_DISCRETE,
    VECTOR,
    Records,
    act_inputs,
    agent_config,
    random_records,
    training_config,
    unroll_batch,
)

B = 40
D = CONTINUOUS.action.size
TRAINING = training_config(unroll_length=6, batch_size=B, learning_rate=0.01, learning_rate_schedule="constant")


def make(spec: EnvSpec = CONTINUOUS, **values: Any) -> SACAgent:
    return cast(SACAgent, create_agent(agent_config(algorithm="sac", **values), TRAINING, spec, seed=7))


def transitions(spec: EnvSpec = CONTINUOUS, seed: int = 11) -> Records:
    """Single transitions, some of which begin or end on a final record, with actions inside the bounds."""
    records = random_records(spec, 2, B, seed=seed)
    return {**records, "action": np.tanh(records["action"])}


def batch(agent: SACAgent, records: Records) -> UnrollBatch:
    return unroll_batch(records, agent.initial_state(B), ())


def training_batch(agent: SACAgent, records: Records) -> TrainingBatch:
    unrolls = tf.nest.map_structure(lambda x: x.numpy(), batch(agent, records))
    return TrainingBatch.of(unrolls, np.zeros((2, B), np.int64))


def train(agent: SACAgent, trainer: Trainer, updates: int, first: int = 0) -> None:
    for number in range(first, first + updates):
        assert trainer.update(training_batch(agent, transitions(seed=number)), env_steps=0).applied


def copies(agent: SACAgent) -> dict[str, Any]:
    return {name: variable.numpy() for name, variable in agent.variables().items()}


def test_algorithm_spec() -> None:
    agent = make()
    algorithm = agent.algorithm
    assert (algorithm.name, algorithm.burn_in, algorithm.source, algorithm.records) == ("sac", 0, "replay", 7)
    assert algorithm.sample_length == 1 and algorithm.batch_records == 2 and algorithm.roles == ("training",)
    assert not algorithm.recorded and agent.initial_state(3) == {} and algorithm.samples_actions
    assert agent.exploration("training", np.arange(3), 3).tolist() == [0.0] * 3
    groups = agent.parameter_groups()
    assert {name: group.learning_rate for name, group in groups.items()} == {
        "actor": 1.0, "critics": 1.0, "temperature": 1.0,
    }  # fmt: skip
    other = make(critic_rate=0.5, temperature_rate=2.0).parameter_groups()
    assert [group.learning_rate for group in other.values()] == [1.0, 0.5, 2.0]
    assert list(make(temperature=0.2).parameter_groups()) == ["actor", "critics"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (VECTOR, "'sac' needs actions that are real numbers.*test/vector is one of 3 categories: choose .*vtrace"),
        (MULTI_DISCRETE, "one of 3 and one of 2 and one of 4 categories: choose agent.algorithm vtrace"),
        (
            EnvSpec("test/open", ArraySpec((5,), "float32"), ActionSpec(size=3, unbounded=(0, 2))),
            r"two bounds.*test/open lacks a bound for its numbers \[0, 2\]: choose agent.algorithm vtrace, or",
        ),
    ],
)
def test_other_actions_are_refused(spec: EnvSpec, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(spec)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("agent.network.lstm=8", "agent.network.lstm = 8 must be 0 with agent.algorithm sac: .* cannot have a memory"),
        ("agent.network.frame_stack=4", "agent.network.frame_stack = 4 must be 1 with agent.algorithm sac"),
        ("agent.network.previous_action_reward=true", "previous_action_reward = true must be false"),
        ("training.burn_in=5", "training.burn_in = 5 must be 0 with agent.algorithm sac"),
        ("training.epochs=2", "training.epochs = 2 must be 1 with agent.algorithm sac"),
        ("agent.temperature=0", "agent.temperature"),
        ("agent.tau=0", "agent.tau"),
    ],
)
def test_contradictions_are_refused(value: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_config("gymnasium_sac", environ={}, sets=(value,))


@pytest.mark.parametrize(("key", "value"), [("target_entropy", "-3.0"), ("temperature_rate", "0.5")])
def test_a_fixed_temperature_takes_no_settings_of_a_learned_one(key: str, value: str) -> None:
    sets = ("agent.temperature=0.2", f"agent.{key}={value}")
    with pytest.raises(UsageError, match=f'agent.{key} = .* needs agent.temperature = "auto": a fixed .* 0.2 is not'):
        load_config("gymnasium_sac", environ={}, sets=sets)
    assert load_config("gymnasium_sac", environ={}, sets=sets[:1]).config.agent.temperature == 0.2  # type: ignore[attr-defined]


def test_initial_actions_are_nearly_uniform() -> None:
    agent = make(hidden=(32, 32))
    rows = 20_000
    outputs, state = agent.act(agent.network, act_inputs(CONTINUOUS, rows), agent.initial_state(rows))
    action = outputs.action.numpy()
    assert state == {} and action.shape == (rows, D) and action.dtype == np.float32
    np.testing.assert_allclose(action.mean(0), 0.0, atol=0.03)
    np.testing.assert_allclose(action.std(0), 0.63, atol=0.02)
    shares = np.histogram(action, 5, (-1.0, 1.0))[0] / action.size
    assert shares.min() > 0.13 and shares.max() < 0.28


def test_greedy_actions_and_details_are_those_of_the_policy() -> None:
    agent = make()
    outputs, _ = agent.act(agent.network, act_inputs(CONTINUOUS, 9), {})
    again, _ = agent.act(agent.network, act_inputs(CONTINUOUS, 9), {})
    other, _ = agent.act(agent.network, act_inputs(CONTINUOUS, 9, seed=(3, 4)), {})
    np.testing.assert_array_equal(outputs.action, again.action)
    assert (outputs.action.numpy() != other.action.numpy()).all()
    np.testing.assert_array_equal(outputs.greedy_action, other.greedy_action)
    np.testing.assert_allclose(outputs.greedy_action, np.tanh(outputs.details["mean"]), rtol=1e-6)
    assert outputs.details["std"].shape == (9, D)
    z = (np.arctanh(outputs.action.numpy()) - outputs.details["mean"]) / outputs.details["std"]
    np.testing.assert_allclose(z, tf.random.stateless_normal([9, D], [1, 2]), atol=1e-4)


@pytest.mark.parametrize("kind", ["vector", "mixed", "image"])
def test_every_input_of_the_critics_matters(kind: str) -> None:
    image = EnvSpec("test/image", ArraySpec((36, 37, 3), "uint8"), CONTINUOUS.action)
    spec = {"vector": CONTINUOUS, "mixed": MIXED, "image": image}[kind]
    torso = "mlp" if kind == "vector" else "nature"
    agent = make(spec, torso=torso, normalize_observations=True)
    records = transitions(spec)
    observation = tf.nest.map_structure(lambda x: tf.constant(x[0]), records["observation"])
    inputs, action = agent.network.encoder.inputs(observation), tf.constant(records["action"][0])
    with tf.GradientTape() as tape:
        tape.watch((inputs, action))
        q = agent.critics(inputs, action)
        mixed = tf.reduce_sum(q[0] * tf.sin(tf.range(B, dtype=tf.float32)))
    assert q.shape == (2, B) and np.abs(q[0] - q[1]).min() > 1e-6
    gradients = tape.gradient(mixed, (inputs, action))
    assert all(np.abs(g).max() > 0.0 for g in tf.nest.flatten(gradients))
    # Q is not the sum of a function of the observation and a function of the action.
    swapped = agent.critics(inputs, tf.reverse(action, [0]))[0] - q[0]
    fixed = tf.nest.map_structure(lambda x: tf.repeat(x[:1], B, axis=0), inputs)
    alone = agent.critics(fixed, tf.reverse(action, [0]))[0] - agent.critics(fixed, action)[0]
    assert np.abs(swapped - alone).max() > 1e-3
    assert float(sum(agent.loss(batch(agent, records)).loss.values())) != 0.0  # type: ignore[union-attr]


def test_target_critics_follow_the_critics() -> None:
    tau = 0.1
    agent = make(tau=tau)
    trainer = Trainer(agent, TRAINING, 1000)
    names = [name for name in agent.variables() if name.startswith("critics/")]
    expected = {name: copies(agent)[name].astype(np.float64) for name in names}
    for number in range(5):
        train(agent, trainer, 1, number)
        now = copies(agent)
        for name in names:
            expected[name] = (1.0 - tau) * expected[name] + tau * now[name]
            np.testing.assert_allclose(now[f"target_{name}"], expected[name], rtol=1e-5, atol=1e-6)
    assert any(np.abs(now[f"target_{name}"] - now[name]).max() > 0.01 for name in names)
    assert int(now["updates"]) == 5


def test_each_group_is_trained_at_its_own_rate() -> None:
    still = 1e-30
    for frozen in ("critics", "temperature"):
        agent = make(**{"critic_rate" if frozen == "critics" else "temperature_rate": still})
        before = copies(agent)
        train(agent, Trainer(agent, TRAINING, 1000), 3)
        after = copies(agent)
        for name in before:
            group = name.split("/")[0].removeprefix("target_")
            if group == frozen:
                np.testing.assert_allclose(after[name], before[name], rtol=1e-6, atol=1e-20)
            else:
                assert not np.array_equal(before[name], after[name]), name


def test_a_resumed_run_continues_targets_temperature_and_random_numbers() -> None:
    def new() -> tuple[SACAgent, Trainer]:
        agent = make(normalize_observations=True)
        return agent, Trainer(agent, TRAINING, 1000)

    whole, trainer = new()
    train(whole, trainer, 3)
    saved = copies(whole), {name: v.numpy() for name, v in trainer.variables().items()}
    train(whole, trainer, 3, first=3)
    resumed, other = new()
    for variables, values in zip((resumed.variables(), other.variables()), saved, strict=True):
        assert variables.keys() == values.keys()
        for name, value in values.items():
            variables[name].assign(value)
    other.updates = 3  # a counter of the checkpoint
    train(resumed, other, 3, first=3)
    for name, value in copies(whole).items():
        np.testing.assert_array_equal(copies(resumed)[name], value)
    assert not np.array_equal(copies(whole)["temperature/log"], saved[0]["temperature/log"])


def test_observations_are_normalized_for_policy_and_critics() -> None:
    agent = make(normalize_observations=True)
    names = [name for name in agent.variables() if "normalizer" in name]
    assert names and all(name.startswith("network/") for name in names)
    records = transitions()
    records["observation"] = (100.0 + 10.0 * records["observation"]).astype(np.float32)
    agent.observe(batch(agent, records))
    inputs = agent.network.encoder.inputs(tf.constant(records["observation"][0])).numpy()
    np.testing.assert_allclose(inputs.mean(0), 0.0, atol=1e-3)
    np.testing.assert_allclose(inputs.std(0), 1.0, atol=1e-3)


def test_noise_is_that_of_each_column_and_differs_between_updates() -> None:
    agent = make()
    noise = agent._noise(tf.constant(B)).numpy()
    assert noise.shape == (2, B, D) and abs(np.corrcoef(noise[0].ravel(), noise[1].ravel())[0, 1]) < 0.4
    np.testing.assert_array_equal(agent._noise(tf.constant(B)), noise)
    agent.after_update(tf.constant(1, tf.int64))
    assert (agent._noise(tf.constant(B)).numpy() != noise).all()
