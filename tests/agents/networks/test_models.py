"""Evaluating an unroll reproduces acting, for every network and every kind of memory."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from seedcli.agents.networks.frame_stack import ObservationStack
from seedcli.agents.networks.models import PolicyValueNetwork, evaluate
from seedcli.errors import UsageError
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec, map_arrays
from tests.agents.helpers import (
    BINARY,
    COLOUR,
    CONTINUOUS,
    DISCRETE,
    FLAT_IMAGE,
    IMAGE,
    MIXED,
    MULTI_DISCRETE,
    ONE_PART,
    VECTOR,
    agent_config,
    check_record_states,
    part,
    play,
    random_records,
    unroll_batch,
)

MEMORIES = list(itertools.product((0, 6), (1, 4), (False, True)))
IMAGE_CASES = list(itertools.product(("mlp", "impala_shallow", "nature", "impala_deep"), (IMAGE,), MEMORIES))
OTHER_CASES = [
    *itertools.product(("mlp",), (VECTOR, DISCRETE), MEMORIES),
    *itertools.product(("mlp",), (MULTI_DISCRETE, CONTINUOUS, MIXED), MEMORIES),
    *itertools.product(("impala_shallow",), (MIXED,), ((0, 1, False), (0, 4, False), (6, 4, True))),
    ("mlp", ONE_PART, (0, 4, True)),
    ("impala_deep", BINARY, (6, 4, True)),
    ("nature", COLOUR, (6, 4, True)),
    ("impala_deep", FLAT_IMAGE, (0, 4, False)),
]


def whole(records: dict[str, Any]) -> dict[str, Any]:
    """The records as arguments of `unroll`."""
    names = ("observation", "reward", "action", "first")
    return {name: map_arrays(tf.constant, records[name]) for name in names}


@pytest.mark.parametrize(("network", "spec", "memory"), IMAGE_CASES + OTHER_CASES)
def test_an_unroll_reproduces_acting(network: str, spec: EnvSpec, memory: tuple[int, int, bool]) -> None:
    lstm, frame_stack, previous = memory
    check_an_unroll_reproduces_acting(
        spec, torso=network, lstm=lstm, frame_stack=frame_stack, previous_action_reward=previous
    )


@pytest.mark.parametrize("lstm", [0, 6])
@pytest.mark.parametrize("spec", [VECTOR, MIXED], ids=lambda spec: spec.name)
def test_an_unroll_reproduces_acting_with_a_separate_value(spec: EnvSpec, lstm: int) -> None:
    check_an_unroll_reproduces_acting(
        spec, separate_value=True, normalize_values=True, lstm=lstm, frame_stack=2, previous_action_reward=True
    )


def check_an_unroll_reproduces_acting(spec: EnvSpec, **values: Any) -> None:
    net = PolicyValueNetwork(agent_config(**values), spec, seed=3)
    kernel = net.policy.mean.kernel if spec.action.size else net.policy.kernel
    kernel.assign(kernel * 100.0)  # so that differences show
    records = random_records(spec, 11, 2, seed=4, ends=0.4)
    assert records["first"][1:6].any() and records["first"][6:].any()
    outputs, states, last = play(net, records)
    assert np.std(outputs.policy) > 0.02
    # Two unrolls of 5 transitions: the second one starts in the middle of an episode.
    for start in (0, 5):
        unrolls = unroll_batch(part(records, start, start + 6), states[start], ())
        evaluated = evaluate(net, unrolls, burn_in=0)
        np.testing.assert_allclose(evaluated.policy, outputs.policy[start : start + 6], atol=1e-5)
        np.testing.assert_allclose(evaluated.value, outputs.value[start : start + 6], atol=1e-5)
        if not net.encoder.lstms:
            check_record_states(net, unrolls, states[start:])
    _, after = net.unroll(**whole(records), state=states[0])
    tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), after, last)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("burn_in", [1, 4])
def test_burn_in_gives_the_state_and_takes_no_gradient(memory: tuple[int, int, bool], burn_in: int) -> None:
    lstm, frame_stack, previous = memory
    config = agent_config(lstm=lstm, frame_stack=frame_stack, previous_action_reward=previous)
    net = PolicyValueNetwork(config, VECTOR, seed=1)
    unrolls = unroll_batch(random_records(VECTOR, 9, 6, seed=burn_in), net.initial_state(6))
    full = evaluate(net, unrolls, 0)
    with tf.GradientTape() as tape:
        tape.watch(unrolls.observation)
        rest = evaluate(net, unrolls, burn_in)
        total = tf.reduce_sum(rest.value)
    np.testing.assert_allclose(rest.policy, full.policy[burn_in:], atol=1e-6)
    gradient = tape.gradient(total, unrolls.observation).numpy()
    assert not gradient[:burn_in].any() and gradient[burn_in:].all(axis=-1).all()


def test_frames_stack_oldest_first_and_start_from_zeros() -> None:
    spec = EnvSpec("test/tiny", ArraySpec((8, 8, 1), "uint8"), ActionSpec((2,)))
    stack = ObservationStack(agent_config(torso="impala_deep", frame_stack=3).network, spec)
    values = np.array([10, 20, 30, 40, 50, 60], np.uint8)
    observation = tf.constant(np.broadcast_to(values[:, None, None, None, None], (6, 1, 8, 8, 1)))
    first = tf.constant([[False], [False], [True], [False], [False], [False]])
    state = tf.constant(np.broadcast_to(np.array([1, 2], np.uint8)[None, :, None, None, None], (1, 2, 8, 8, 1)))
    stacked, after = stack.unroll(observation, first, {"frames": state})
    assert stacked.shape == (6, 8, 8, 3) and stacked.dtype == tf.float32
    expected = [[1, 2, 10], [2, 10, 20], [0, 0, 30], [0, 30, 40], [30, 40, 50], [40, 50, 60]]
    np.testing.assert_array_equal(np.rint(stacked[:, 3, 5] * 255.0), expected)
    np.testing.assert_array_equal(after["frames"][0, :, 0, 0, 0], [50, 60])
    # An episode that starts at the last record clears the older frames.
    first = tf.constant([[False]] * 5 + [[True]])
    _, after = stack.unroll(observation, first, {"frames": state})
    np.testing.assert_array_equal(after["frames"][0, :, 0, 0, 0], [0, 60])


def test_channels_of_one_frame_stay_together() -> None:
    spec = EnvSpec("test/colour", ArraySpec((8, 9, 2), "uint8"), ActionSpec((2,)))
    stack = ObservationStack(agent_config(torso="impala_deep", frame_stack=2).network, spec)
    rng = np.random.default_rng(0)
    before, now = rng.integers(0, 256, (2, 3, 8, 9, 2)).astype(np.uint8)
    stacked, after = stack.step(tf.constant(now), {"frames": tf.constant(before[:, None])})
    expected = np.concatenate([before, now], axis=-1).astype(np.float32) / 255.0
    np.testing.assert_allclose(stacked, expected, rtol=1e-6)
    np.testing.assert_array_equal(after["frames"][:, 0], now)


def test_initial_state_is_zero_and_has_the_configured_parts() -> None:
    assert PolicyValueNetwork(agent_config(), VECTOR, 0).initial_state(3) == {}
    config = agent_config(torso="nature", lstm=7, frame_stack=4, previous_action_reward=True)
    state = PolicyValueNetwork(config, IMAGE, 0).initial_state(3)
    shapes = {name: (tuple(x.shape), x.dtype.name) for name, x in state.items()}
    assert shapes == {
        "frames": ((3, 3, 36, 37, 1), "uint8"),
        "lstm_hidden": ((3, 7), "float32"),
        "lstm_cell": ((3, 7), "float32"),
        "previous_action": ((3,), "int32"),
    }
    assert not any(np.any(x) for x in state.values())


def value_of(net: PolicyValueNetwork, action: int | None, reward: float) -> float:
    """The value of one observation after an action (None: the first of an episode) and a reward."""
    state = net.initial_state(1)
    if action is not None:
        state = net.remember(state, tf.constant([action]))
    return float(net.step(tf.ones([1, 5]), tf.constant([reward]), state)[0].value[0])


def test_previous_action_and_reward_reach_the_heads() -> None:
    net = PolicyValueNetwork(agent_config(previous_action_reward=True), VECTOR, 0)
    assert len({value_of(net, action, 0.0) for action in (None, 0, 1, 2)}) == 4
    assert value_of(net, 1, 0.5) != value_of(net, 1, 0.0)
    assert value_of(net, 1, 3.0) == value_of(net, 1, 1.0)


@pytest.mark.parametrize(("clip", "seen"), [(1.0, (-1.0, 1.0)), (2.5, (-2.5, 2.5)), (0.0, (-40.0, 90.0))])
def test_rewards_as_inputs_are_clipped_as_asked_for(clip: float, seen: tuple[float, float]) -> None:
    config = {"previous_action_reward": True, "hidden": ()}
    net = PolicyValueNetwork(agent_config(reward_input_clip=clip, **config), VECTOR, 0)
    raw = PolicyValueNetwork(agent_config(reward_input_clip=0.0, **config), VECTOR, 0)
    for reward, clipped in zip((-40.0, 90.0), seen, strict=True):
        assert value_of(net, 1, reward) == value_of(raw, 1, clipped)
        records = random_records(VECTOR, 2, 1, ends=0.0)
        records["reward"][:] = reward
        unclipped = {**records, "reward": np.full_like(records["reward"], clipped)}
        outputs, _ = net.unroll(**whole(records), state=net.initial_state(1))
        expected, _ = raw.unroll(**whole(unclipped), state=raw.initial_state(1))
        np.testing.assert_array_equal(outputs.value, expected.value)


def test_the_lstm_agrees_with_keras() -> None:
    import keras

    net = PolicyValueNetwork(agent_config(hidden=(), lstm=6), VECTOR, seed=2)
    lstm = net.encoder.lstms[0]
    assert lstm is not None
    np.testing.assert_array_equal(lstm.bias.numpy(), np.repeat([0.0, 1.0, 0.0, 0.0], 6))
    records = random_records(VECTOR, 8, 3, ends=0.0)
    reference = keras.layers.LSTM(6, return_sequences=True)
    reference.build((3, 8, 5))
    reference.set_weights([lstm.kernel.numpy(), lstm.recurrent_kernel.numpy(), lstm.bias.numpy()])
    expected = reference(tf.constant(records["observation"].transpose(1, 0, 2)))
    (features,), _ = net.encoder.unroll(**whole(records), state=net.initial_state(3))
    np.testing.assert_allclose(tf.reshape(features, [8, 3, 6]), np.transpose(expected, (1, 0, 2)), atol=1e-6)


@pytest.mark.parametrize("network", ["mlp", "impala_shallow", "nature", "impala_deep"])
def test_initial_variables_depend_on_the_seed(network: str) -> None:
    config = agent_config(torso=network, lstm=4)
    one, same, other = (PolicyValueNetwork(config, IMAGE, seed) for seed in (1, 1, 2))
    assert len(one.variables) == len(one.trainable_variables)
    for a, b, c in zip(one.variables, same.variables, other.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
        assert "kernel" not in a.path or not np.array_equal(a.numpy(), c.numpy())
    probabilities = tf.nn.softmax(evaluate(one, unroll_batch(random_records(IMAGE, 3, 4), one.initial_state(4)), 0)[0])
    np.testing.assert_allclose(probabilities, 0.25, atol=0.02)


@pytest.mark.parametrize(
    ("network", "observation", "words"),
    [
        ("nature", ArraySpec((4,), "float32"), "36×36"),
        ("nature", ArraySpec((35, 84, 1), "uint8"), "(35, 84, 1)"),
        ("impala_shallow", ArraySpec((84, 19), "uint8"), "20×20"),
        ("impala_deep", ArraySpec((3, 84, 84), "uint8"), "(3, 84, 84)"),
        ("impala_deep", ArraySpec((), "int64", categories=(16,)), "16 categories"),
        ("impala_shallow", ArraySpec((2, 84, 84, 3), "uint8"), "images"),
    ],
)
def test_torso_refuses_unsupported_observations(network: str, observation: ArraySpec, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        PolicyValueNetwork(agent_config(torso=network), EnvSpec("test/odd", observation, ActionSpec((2,))), 0)
    message = str(caught.value)
    assert words in message and network in message and "test/odd" in message and "mlp" in message


@pytest.mark.parametrize(("network", "size"), [("impala_shallow", 20), ("nature", 36), ("impala_deep", 8)])
def test_smallest_supported_images(network: str, size: int) -> None:
    spec = EnvSpec("test/small", ArraySpec((size, size), "uint8"), ActionSpec((2,)))
    assert PolicyValueNetwork(agent_config(torso=network), spec, 0).variables


@pytest.mark.parametrize(
    ("network", "shape", "units"),
    [("impala_shallow", (84, 84, 1), 256), ("nature", (84, 84, 1), 512), ("impala_deep", (72, 96, 3), 256)],
)
def test_published_sizes(network: str, shape: tuple[int, ...], units: int) -> None:
    net = PolicyValueNetwork(
        agent_config(torso=network), EnvSpec("test/full", ArraySpec(shape, "uint8"), ActionSpec((18,))), 0
    )
    assert net.encoder.torsos[0].dense.kernel.shape[-1] == units
    inputs = {"impala_shallow": 9 * 9 * 32, "nature": 7 * 7 * 64, "impala_deep": 9 * 12 * 32}[network]
    assert net.encoder.torsos[0].dense.kernel.shape[0] == inputs
    convolutions = [v for v in net.encoder.torsos[0].variables if len(v.shape) == 4]
    assert len(convolutions) == {"impala_shallow": 2, "nature": 3, "impala_deep": 15}[network]
