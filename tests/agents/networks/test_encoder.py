"""Inputs of networks: Dict observations, categories, binary arrays, previous actions, and layouts of checkpoints."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from seedcli.agents.networks.frame_stack import ObservationStack, one_hot
from seedcli.agents.networks.models import PolicyValueNetwork
from seedcli.agents.registry import create_agent
from seedcli.agents.variables import named_variables
from seedcli.config.schema import make_config
from seedcli.errors import UsageError
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec, ObservationSpec
from tests.agents.helpers import (
    BINARY,
    BOX,
    CONTINUOUS,
    IMAGE,
    MIXED,
    MULTI_DISCRETE,
    PARTS,
    VECTOR,
    agent_config,
    random_records,
    training_config,
)


def environment(observation: ObservationSpec) -> EnvSpec:
    return EnvSpec("test/odd", observation, ActionSpec((2,)))


def test_categories_are_one_hot_part_by_part() -> None:
    array = ArraySpec((2, 2), "int32", categories=(3, 1, 5, 2))
    hot = one_hot(tf.constant([[[2, 0], [4, 1]], [[0, -1], [1, 0]]]), array)
    expected = [[0, 0, 1, 1, 0, 0, 0, 0, 1, 0, 1], [1, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0]]
    np.testing.assert_array_equal(hot, expected)
    assert hot.dtype == tf.float32
    same = one_hot(tf.constant([[[1, 2]]]), ArraySpec((2,), "int32", categories=(3, 3)), tf.uint8)
    np.testing.assert_array_equal(same, [[[0, 1, 0, 0, 0, 1]]])
    np.testing.assert_array_equal(one_hot(tf.constant([1]), ArraySpec((), "int32", categories=(2,))), [[0, 1]])


@pytest.mark.parametrize(
    ("array", "given", "seen"),
    [
        (ArraySpec((3,), "uint8"), [0, 51, 255], [0.0, 0.2, 1.0]),
        (ArraySpec((2,), "uint8", binary=(0, 255)), [0, 255], [0.0, 1.0]),
        (ArraySpec((2,), "uint8", binary=(0, 1)), [1, 0], [1.0, 0.0]),
        (ArraySpec((1,), "uint8", binary=(0, 0)), [0], [0.0]),
        (ArraySpec((2,), "bool"), [True, False], [1.0, 0.0]),
        (ArraySpec((2,), "float64"), [-7.5, 300.0], [-7.5, 300.0]),
        (ArraySpec((2,), "int16"), [-7, 300], [-7.0, 300.0]),
    ],
)
@pytest.mark.parametrize("size", [1, 2])
def test_inputs_of_the_torso(array: ArraySpec, given: list[Any], seen: list[float], size: int) -> None:
    stack = ObservationStack(agent_config(frame_stack=size).network, environment(array))
    x, _ = stack.step(np.array([given], array.dtype), stack.initial_state(1))
    assert x.dtype == tf.float32
    np.testing.assert_allclose(x, [[0.0] * len(seen) * (size - 1) + seen], rtol=1e-6)


def test_arrays_of_a_dict_have_stacks_and_torsos_of_their_own() -> None:
    config = agent_config(torso="impala_shallow", hidden=(8, 7), frame_stack=3, previous_action_reward=True)
    net = PolicyValueNetwork(config, MIXED, 0)
    shapes = {name: (tuple(x.shape), x.dtype.name) for name, x in net.initial_state(2)["frames"].items()}
    assert shapes == {
        "arm/angles": ((2, 2, 6), "float32"),
        "camera": ((2, 2, 36, 38, 1), "uint8"),
        "flags": ((2, 2, 3), "float32"),
        "map": ((2, 2, 37, 36, 2), "uint8"),
        "mode": ((2, 2, 4), "uint8"),
        "thumbnail": ((2, 2, 16), "uint8"),
        "tools": ((2, 2, 5), "uint8"),
    }
    assert net.initial_state(2)["previous_action"].shape == (2, 2)
    kernels = [v.shape for v in net.encoder.variables if "kernel" in v.path]
    vectors = 3 * (6 + 3 + 4 + 16 + 5)
    assert kernels == [(8, 8, 3, 16), (4, 4, 16, 32), (288, 256), (8, 8, 6, 16), (4, 4, 16, 32), (288, 256)] + [
        (vectors, 8),
        (8, 7),
    ]
    assert net.value.kernel.shape[0] == 256 + 256 + 7 + 2 + 1
    flat = PolicyValueNetwork(agent_config(hidden=(8,)), MIXED, 0)
    assert [v.shape for v in flat.encoder.variables] == [(6 + 36 * 38 + 3 + 37 * 36 * 2 + 4 + 16 + 5, 8), (8,)]
    only_images = {name: MIXED.arrays[name] for name in ("camera", "map")}
    assert PolicyValueNetwork(config, environment(only_images), 0).value.kernel.shape[0] == 512 + 2 + 1


@pytest.mark.parametrize("network", ["mlp", "impala_shallow"])
def test_every_array_of_a_dict_reaches_the_heads(network: str) -> None:
    net = PolicyValueNetwork(agent_config(torso=network, frame_stack=2), MIXED, 0)
    records = random_records(MIXED, 2, 1)
    one, other = ({name: x[t] for name, x in records["observation"].items()} for t in (0, 1))
    reward, state = tf.zeros([1]), net.initial_state(1)
    value = float(net.step(one, reward, state)[0].value[0])
    for name in MIXED.arrays:
        # With few categories, the second record may hold the same ones.
        changed = other[name] if (other[name] != one[name]).any() else (one[name] == 0).astype(one[name].dtype)
        assert float(net.step({**one, name: changed}, reward, state)[0].value[0]) != value, name


@pytest.mark.parametrize(
    ("observation", "words"),
    [
        ({"a": ArraySpec((4,), "float32"), "b": ArraySpec((), "int32", categories=(3,))}, "(4,), one of 3 categories"),
        ({"a": ArraySpec((19, 84), "uint8")}, "(19, 84)"),
        (ArraySpec((2,), "int32", categories=(3, 4)), "one of 3 and of 4 categories"),
    ],
)
def test_a_convolutional_network_needs_an_image(observation: ObservationSpec, words: str) -> None:
    with pytest.raises(UsageError, match="choose agent.network.torso mlp") as caught:
        PolicyValueNetwork(agent_config(torso="impala_shallow"), environment(observation), 0)
    assert words in str(caught.value)


def test_stages_of_the_deep_network() -> None:
    image = EnvSpec("test/minimap", ArraySpec((72, 96, 4), "uint8", binary=(0, 255)), ActionSpec((19,)))
    config = {"torso": "impala_deep", "hidden": ()}
    default = PolicyValueNetwork(agent_config(**config), image, 0)
    larger = PolicyValueNetwork(agent_config(**config, channels=(16, 32, 32, 32)), image, 0)
    filters = [[v.shape[-1] for v in net.encoder.torsos[0].variables if len(v.shape) == 4] for net in (default, larger)]
    assert filters == [[16, 32, 32, *[16] * 4, *[32] * 8], [16, 32, 32, 32, *[16] * 4, *[32] * 12]]
    assert larger.encoder.torsos[0].dense.kernel.shape == (5 * 6 * 32, 256)
    small = environment(ArraySpec((15, 16), "uint8"))
    assert PolicyValueNetwork(agent_config(**config), small, 0).variables
    with pytest.raises(UsageError, match="16×16"):
        PolicyValueNetwork(agent_config(**config, channels=(16, 32, 32, 32)), small, 0)


def inputs_of(spec: EnvSpec, action: Any) -> Any:
    """Inputs of the heads after the torso's one feature: the previous action, and a reward of 0.25."""
    net = PolicyValueNetwork(agent_config(hidden=(1,), previous_action_reward=True), spec, 0)
    state = net.initial_state(1)
    if action is not None:
        state = net.remember(state, tf.constant([action]))
    array = spec.arrays["observation"]
    (features,), _ = net.encoder.step(tf.zeros([1, *array.shape], array.dtype), tf.constant([0.25]), state)
    return features.numpy()[0, 1:].tolist()


def test_previous_actions_as_inputs() -> None:
    assert inputs_of(VECTOR, 2) == [0, 0, 1, 0.25] and inputs_of(VECTOR, None) == [0, 0, 0, 0.25]
    assert MULTI_DISCRETE.action == PARTS and CONTINUOUS.action == BOX
    assert inputs_of(MULTI_DISCRETE, [2, 0, 1]) == [0, 0, 1, 1, 0, 0, 1, 0, 0, 0.25]
    assert inputs_of(MULTI_DISCRETE, None) == [0.0] * 9 + [0.25]
    assert inputs_of(CONTINUOUS, [0.5, -3.0]) == [0.5, -1.0, 0.25]
    assert inputs_of(CONTINUOUS, None) == [0.0, 0.0, 0.25]


def linear(path: str, *shape: int) -> dict[str, tuple[int, ...]]:
    """A dense or convolutional layer."""
    return {f"network/{path}/kernel": shape, f"network/{path}/bias": shape[-1:]}


def torso(*shapes: tuple[int, ...], dense: bool = False) -> dict[str, tuple[int, ...]]:
    """The layers of a torso, in order; `dense`: the last is not a stage."""
    names = [f"stages/{i}" for i in range(len(shapes))]
    if dense:
        names[-1] = "dense"
    layers = [linear(f"encoder/torsos/0/{name}", *shape) for name, shape in zip(names, shapes, strict=True)]
    return {name: shape for layer in layers for name, shape in layer.items()}


def lstm(inputs: int, units: int) -> dict[str, tuple[int, ...]]:
    path = "network/encoder/lstms/0"
    gates = 4 * units
    return {f"{path}/kernel": (inputs, gates), f"{path}/recurrent_kernel": (units, gates), f"{path}/bias": (gates,)}


def policy_value(features: int) -> dict[str, tuple[int, ...]]:
    return linear("policy", features, 4) | linear("value", features, 1)


def dueling(features: int, hidden: int) -> dict[str, tuple[int, ...]]:
    value = linear("value_head/0", features, hidden) | linear("value_head/1", hidden, 1)
    return value | linear("advantage_head/0", features, hidden) | linear("advantage_head/1", hidden, 4)


NATURE = torso((8, 8, 4, 32), (4, 4, 32, 64), (3, 3, 64, 64), (3136, 512), dense=True)
NORMALIZER = {f"network/encoder/normalizers/0/{name}": (84, 84, 1) for name in ("mean", "squares")}
STATISTICS = ("weight", "first", "second", "advantage_weight", "advantage_second")
VALUE_SCALE = {f"network/value_scale/{name}": () for name in STATISTICS}
PONG = {**NORMALIZER, "network/encoder/normalizers/0/count": (), **VALUE_SCALE}
# Name → shape of the network variables in checkpoints of presets.
LAYOUTS = {
    "atari_vtrace": NATURE | policy_value(512),
    "atari_r2d2": NATURE | lstm(517, 512) | dueling(512, 512),
    "pong_vtrace": torso((8, 8, 4, 16), (4, 4, 16, 32), (2592, 256), dense=True) | policy_value(256) | PONG,
    "cartpole_vtrace": torso((5, 64), (64, 64)) | policy_value(64) | VALUE_SCALE,
    "cartpole_memory_r2d2": torso((5, 64)) | lstm(64, 64) | dueling(64, 64),
}


@pytest.mark.parametrize("preset", LAYOUTS)
def test_variables_of_presets_keep_their_names(preset: str) -> None:
    path = Path(__file__).parents[3] / "presets" / f"{preset}.toml"
    config = make_config({"agent": tomllib.loads(path.read_text())["agent"]}).agent
    observation = VECTOR.observation if config.network.torso == "mlp" else ArraySpec((84, 84, 1), "uint8")
    spec = EnvSpec("test/preset", observation, IMAGE.action)
    network = create_agent(config, training_config(), spec, 0).network
    found = {name: tuple(variable.shape) for name, variable in named_variables(network=network).items()}
    assert found == LAYOUTS[preset]


def test_binary_planes_reach_a_network_as_zeros_and_ones() -> None:
    net = PolicyValueNetwork(agent_config(torso="impala_deep"), BINARY, 0)
    twin = EnvSpec("test/twin", ArraySpec((36, 37, 4), "float32"), BINARY.action)
    other = PolicyValueNetwork(agent_config(torso="impala_deep"), twin, 0)
    planes = random_records(BINARY, 1, 2)["observation"][0]
    given = net.step(planes, tf.zeros([2]), {})[0].value
    np.testing.assert_allclose(given, other.step((planes / 255).astype(np.float32), tf.zeros([2]), {})[0].value, 1e-5)
