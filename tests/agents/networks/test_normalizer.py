"""Running statistics of observations: their values, what they exclude, and where they are kept."""

from __future__ import annotations

import itertools
from typing import Any, cast

import numpy as np
import pytest
import tensorflow as tf

from seedcli.agents.base import Agent, TargetsAgent, UnrollBatch
from seedcli.agents.networks import frame_stack
from seedcli.agents.networks.models import PolicyValueNetwork, evaluate, observe
from seedcli.agents.networks.normalizer import Normalizer
from seedcli.agents.r2d2 import R2D2Agent
from seedcli.agents.registry import create_agent
from seedcli.config.sources import load_config
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec
from seedcli.training.optimizer import make_optimizer
from tests.agents.helpers import (
    DISCRETE,
    IMAGE,
    MIXED,
    VECTOR,
    Records,
    agent_config,
    apply_gradients,
    check_record_states,
    part,
    play,
    random_records,
    training_config,
    unroll_batch,
)

T, B = 6, 4


def make(spec: EnvSpec = VECTOR, burn_in: int = 0, **values: Any) -> Agent:
    config = agent_config(normalize_observations=True, **{"dueling_hidden": 8, **values})
    return create_agent(config, training_config(unroll_length=T, batch_size=B, burn_in=burn_in), spec, seed=7)


def batch(agent: Agent, records: Records) -> UnrollBatch:
    recorded = () if agent.algorithm.name == "r2d2" else tuple(agent.algorithm.recorded)
    return unroll_batch(records, agent.initial_state(records["reward"].shape[1]), recorded)


def everyone(columns: int) -> tf.Tensor:
    return tf.ones([columns], tf.bool)


def statistics(normalizer: Normalizer) -> list[Any]:
    return [v.numpy() for v in (normalizer.count, normalizer.mean, normalizer.squares)]


def test_statistics_are_those_of_all_frames_at_once() -> None:
    # An offset that leaves float32 only two or three digits of the differences.
    rng = np.random.default_rng(0)
    frames = (rng.normal(size=(50, 7, 3)) * [1.0, 100.0, 1e-3] + [1e4, 0.0, 1.0]).astype(np.float32)
    normalizer = Normalizer((3,))
    update = tf.function(normalizer.update)
    for start in range(0, 50, 5):
        update(tf.constant(frames[start : start + 5]), everyone(7))
    everything = frames.astype(np.float64).reshape(-1, 3)
    count, mean, squares = statistics(normalizer)
    assert count == 350
    np.testing.assert_allclose(mean, everything.mean(0), rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(squares / count, everything.var(0), rtol=1e-9)
    seen = normalizer(tf.constant(frames[0]))
    assert seen.dtype == tf.float32
    exact = (frames[0] - everything.mean(0)) / np.sqrt(everything.var(0) + 1e-8)
    np.testing.assert_allclose(seen, exact, atol=2e-3)
    np.testing.assert_array_equal(normalizer(tf.constant([[-1e6, 1e6, 1.0]]))[0, :2], [-10.0, 10.0])


def test_pixels_of_images_have_their_own_means_and_one_variance() -> None:
    # A bright background that never moves, and one pixel that does.
    frames = np.full((40, 1, 3, 2, 1), 200, np.uint8)
    frames[:, 0, 1, 0, 0] = np.arange(40)
    normalizer = Normalizer((3, 2, 1), image=True, unit=1 / 255)
    np.testing.assert_allclose(normalizer(tf.constant(frames[0])), frames[0] / 255, rtol=1e-6)
    normalizer.update(tf.constant(frames), everyone(1))
    seen = normalizer(tf.constant(frames[:, 0])).numpy()
    deviation = np.sqrt(np.arange(40).var() / 6)
    np.testing.assert_allclose(seen[:, 1, 0, 0], (np.arange(40) - 19.5) / deviation, rtol=1e-5)
    seen[:, 1, 0] = 0.0
    np.testing.assert_array_equal(seen, 0.0)


def test_nothing_is_changed_before_the_first_update() -> None:
    x = np.array([[0.5, -9.75, 1e-20]], np.float32)
    np.testing.assert_array_equal(Normalizer((3,))(tf.constant(x)), x)


def test_a_number_that_never_changes_becomes_zero() -> None:
    normalizer = Normalizer((2,))
    x = tf.constant(np.full((3, 5, 2), 0.1, np.float32))
    normalizer.update(x, everyone(5))
    np.testing.assert_array_equal(normalizer(x[0]), np.zeros((5, 2)))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_batches_are_ignored(bad: float) -> None:
    normalizer = Normalizer((2,))
    x = np.random.default_rng(0).normal(size=(3, 5, 2)).astype(np.float32)
    normalizer.update(tf.constant(x), everyone(5))
    before = statistics(normalizer)
    x[1, 2, 0] = bad
    normalizer.update(tf.constant(x), everyone(5))
    for old, new in zip(before, statistics(normalizer), strict=True):
        np.testing.assert_array_equal(old, new)
    # A NaN in a column of weight 0 is ignored.
    normalizer.update(tf.constant(x), tf.constant([True, True, False, True, True]))
    count, mean, _ = statistics(normalizer)
    assert count == 15 + 12 and np.isfinite(mean).all()
    normalizer.update(tf.constant(x), tf.zeros([5], tf.bool))
    assert statistics(normalizer)[0] == 27


@pytest.mark.parametrize("algorithm", ["vtrace", "ppo"])
def test_nothing_is_trained_on_images_until_their_statistics_are_settled(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_stack, "_SETTLED", 12 * B)  # an unroll counts as two images of each column, 8 records
    for spec, torso, waits in [
        (IMAGE, "impala_shallow", True),
        (MIXED, "impala_shallow", True),
        (VECTOR, "mlp", False),
    ]:
        agent = make(spec, torso=torso, algorithm=algorithm)
        unrolls = batch(agent, random_records(spec, T + 1, B))
        if isinstance(agent, TargetsAgent):
            unrolls = unrolls._replace(targets=agent.targets(unrolls))
        losses = []
        for _ in range(2):
            agent.observe(unrolls)
            losses.append(float(agent.loss(unrolls).loss))
        assert (losses[0] == 0.0) is waits and losses[1] != 0.0, (spec, losses)


def test_each_record_counts_once_and_only_where_it_is_trained_on() -> None:
    agent = make(algorithm="r2d2", burn_in=2, lstm=4)
    records = random_records(VECTOR, 2 + T + 1, B)
    weights = np.array([1.0, 0.0, 0.3, 2.0], np.float32)
    agent.observe(batch(agent, records)._replace(weights=tf.constant(weights)))
    (normalizer,) = agent.network.encoder.normalizers
    trained = records["observation"][2:-1, weights > 0].reshape(-1, 5)
    assert normalizer.count.numpy() == len(trained) == 3 * T
    np.testing.assert_allclose(normalizer.mean.numpy(), trained.mean(0), rtol=1e-5)


@pytest.mark.parametrize(
    ("spec", "network", "lstm", "frame_stack", "previous"),
    [
        *itertools.product((VECTOR,), ("mlp",), (0, 6), (1, 2, 4), (False, True)),
        (MIXED, "mlp", 0, 4, True),
        (MIXED, "impala_shallow", 6, 1, False),
        (MIXED, "impala_shallow", 6, 3, True),
        (IMAGE, "impala_shallow", 0, 4, False),
    ],
)
def test_an_unroll_reproduces_acting(spec: EnvSpec, network: str, lstm: int, frame_stack: int, previous: bool) -> None:
    memory = {"lstm": lstm, "frame_stack": frame_stack, "previous_action_reward": previous}
    net = PolicyValueNetwork(agent_config(torso=network, normalize_observations=True, **memory), spec, seed=3)
    records = random_records(spec, 11, 2, seed=4)
    for name, array in spec.arrays.items():
        if array.dtype == "float32":
            x = records["observation"] if name == "observation" else records["observation"][name]
            x *= 3.0
            x += 5.0  # so that an empty place differs from a normalised frame of zeros
    observe(net, unroll_batch(random_records(spec, 5, 2, seed=1), {}, ()), 0)
    outputs, states, last = play(net, records)
    for start in (0, 2, 5):
        unrolls = unroll_batch(part(records, start, start + 6), states[start], ())
        evaluated = evaluate(net, unrolls, burn_in=0)
        np.testing.assert_allclose(evaluated.value, outputs.value[start : start + 6], atol=1e-5)
        after_burn_in = evaluate(net, unrolls, burn_in=3)
        np.testing.assert_allclose(after_burn_in.value, outputs.value[start + 3 : start + 6], atol=1e-5)
        if not net.encoder.lstms:
            check_record_states(net, unrolls, states[start:])
    arguments = [
        tf.nest.map_structure(tf.constant, records[name]) for name in ("observation", "reward", "action", "first")
    ]
    _, after = net.unroll(*arguments, states[0])
    tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), after, last)


def test_missing_frames_stay_zero() -> None:
    net = PolicyValueNetwork(agent_config(normalize_observations=True, frame_stack=3), VECTOR, seed=3)
    (normalizer,) = net.encoder.normalizers
    normalizer.update(tf.fill([1, 1, 5], 2.0) + tf.random.stateless_normal([40, 1, 5], [1, 2]), everyone(1))
    x = tf.zeros([1, 5])
    zero = normalizer(x).numpy()
    assert (zero < -1.0).all()
    state = net.initial_state(1)
    for frames in (1, 2, 3, 3):
        stacked, state = net.encoder._stack.step(x, state)
        expected = np.concatenate([np.zeros((1, 5 * (3 - frames)))] + [zero] * frames, axis=-1)
        np.testing.assert_array_equal(stacked, expected)
    np.testing.assert_array_equal(state["frame_count"], [2])


def test_statistics_are_published_kept_and_not_trained() -> None:
    agent = make()
    normalizer = agent.network.encoder.normalizers[0]
    own = [v.value for v in normalizer.variables]
    assert {id(v) for v in own} <= {id(v) for v in agent.variables().values()}
    assert not {id(v) for v in normalizer.variables} & {id(v) for v in agent.network.trainable_variables}
    assert [v.dtype for v in normalizer.variables] == ["float64"] * 3
    optimizer = make_optimizer(training_config())
    records = random_records(VECTOR, T + 1, B, seed=1)
    records["observation"] += np.float32(3.0)
    unrolls = batch(agent, records)

    @tf.function
    def update() -> tf.Tensor:
        variables = agent.network.trainable_variables
        agent.observe(unrolls)
        with tf.GradientTape() as tape:
            loss = agent.loss(unrolls).loss
        gradients = tape.gradient(loss, variables)
        assert all(g is not None for g in gradients)
        apply_gradients(optimizer, gradients, variables, 0.0)
        return loss

    update()
    assert normalizer.count.numpy() == T * B
    inference = agent.make_network()
    for mine, trained in zip(inference.variables, agent.network.variables, strict=True):
        mine.assign(trained)
    x = tf.constant(records["observation"][0])
    seen = inference.encoder.normalizers[0](x).numpy()
    assert np.abs(seen.mean()) < 1.0
    np.testing.assert_array_equal(seen, normalizer(x))
    np.testing.assert_array_equal(
        inference.step(x, tf.zeros([B]), {})[0].value, agent.network.step(x, tf.zeros([B]), {})[0].value
    )


def test_both_networks_of_r2d2_share_statistics() -> None:
    agent = cast(R2D2Agent, make(algorithm="r2d2", target_period=1000))
    records = random_records(VECTOR, T + 1, B, seed=1)
    records["observation"] += np.float32(3.0)
    agent.observe(batch(agent, records))
    x = tf.constant(records["observation"][0])
    values = [network.step(x, tf.zeros([B]), {})[0] for network in (agent.network, agent.target_network)]
    np.testing.assert_array_equal(*values)
    assert agent.target_network.encoder.normalizers[0].count.numpy() == T * B
    assert not agent.target_network.trainable_variables


BITS = EnvSpec("test/bits", ArraySpec((7,), "bool"), ActionSpec((3,)))


@pytest.mark.parametrize("algorithm", ["vtrace", "r2d2"])
@pytest.mark.parametrize("spec", [DISCRETE, BITS], ids=lambda spec: spec.name)
def test_warning_if_there_is_nothing_to_normalize(
    spec: EnvSpec, algorithm: str, caplog: pytest.LogCaptureFixture
) -> None:
    agent = make(spec, algorithm=algorithm, frame_stack=2)
    (record,) = caplog.records
    assert (
        record.levelname == "WARNING"
        and f"observations of {spec.name} contain no numeric arrays" in record.getMessage()
    )
    plain = create_agent(
        agent_config(algorithm=algorithm, frame_stack=2, dueling_hidden=8),
        training_config(unroll_length=T, batch_size=B, burn_in=0),
        spec,
        seed=7,
    )
    assert len(caplog.records) == 1
    agent.observe(batch(agent, random_records(spec, T + 1, B)))
    for mine, other in zip(agent.network.variables, plain.network.variables, strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize(("spec", "normalized"), [(IMAGE, 1), (DISCRETE, 0), (BITS, 0)], ids=lambda x: str(x))
def test_the_general_preset_takes_any_observation(spec: EnvSpec, normalized: int) -> None:
    config = load_config("gymnasium_vtrace", environ={}).config
    agent = create_agent(config.agent, config.training, spec, seed=1)
    assert len({id(normalizer) for normalizer in agent.network.encoder.normalizers}) == normalized


def test_pixels_without_a_torso_of_images_are_scaled_as_numbers() -> None:
    agent = make(IMAGE, torso="mlp")
    records = random_records(IMAGE, T + 1, B)
    agent.observe(batch(agent, records))
    (normalizer,) = agent.network.encoder.normalizers
    frames = records["observation"][:-1].reshape(T * B, -1).astype(np.float64)
    np.testing.assert_allclose(normalizer.mean, frames.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(normalizer.squares, frames.var(axis=0) * T * B, rtol=1e-9)


def test_categories_are_left_alone_and_images_are_sampled() -> None:
    agent = make(MIXED, torso="impala_shallow", frame_stack=2)
    # The angles of the arm, a thumbnail too small for the torso of images, and the camera.
    shapes = [(tuple(n.mean.shape), n.image) for n in agent.network.encoder.normalizers]
    assert sorted(shapes) == [((6,), False), ((16,), False), ((36, 38, 1), True)]
    agent.observe(batch(agent, random_records(MIXED, T + 1, B)))
    sampled = len(range(0, T, 4)) * B
    assert [n.count.numpy() for n in agent.network.encoder.normalizers if n.image] == [sampled]
    assert [n.count.numpy() for n in agent.network.encoder.normalizers if not n.image] == [T * B, T * B]
    plain = make()
    without = create_agent(agent_config(), training_config(unroll_length=T, batch_size=B), VECTOR, 7)
    without.observe(batch(without, random_records(VECTOR, T + 1, B)))
    assert len(plain.network.variables) == len(without.network.variables) + 3
