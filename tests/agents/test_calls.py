"""Direct calls of traced functions: bit-identical to TensorFlow's own, for every structure and batch size."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from seedcli.agents import calls
from seedcli.agents.calls import DirectCall, traced
from seedcli.agents.registry import create_agent
from seedcli.inference.policy import AgentPolicy
from seedcli.specs import EnvSpec
from seedcli.training.batches import TrainingBatch
from seedcli.training.trainer import Trainer
from tests.agents.helpers import IMAGE, MIXED, VECTOR, agent_config, random_records, training_config, unroll_batch

SLOTS = 24
R2D2: dict[str, Any] = {"algorithm": "r2d2", "dueling_hidden": 8}
NETWORKS: dict[str, tuple[EnvSpec, dict[str, Any]]] = {
    "mlp": (VECTOR, {"hidden": (64, 64)}),
    "conv-stack": (IMAGE, {"torso": "nature", "frame_stack": 4}),
    "named-lstm": (MIXED, {"lstm": 6}),
    "r2d2-lstm": (VECTOR, {**R2D2, "lstm": 6}),
    "r2d2-lstm-stack": (IMAGE, {**R2D2, "torso": "nature", "lstm": 6, "frame_stack": 4}),
}

pytestmark = pytest.mark.skipif(
    bool(tf.config.list_physical_devices("GPU")), reason="with a GPU nothing is called directly"
)


@pytest.fixture
def plain(monkeypatch):
    """Returns a function that builds something with the `tf.function` in place of the direct call."""

    def make(maker):
        with monkeypatch.context() as patch:
            patch.setattr(calls, "DirectCall", lambda function: function)
            return maker()

    return make


def equal(one: Any, other: Any) -> None:
    tf.nest.assert_same_structure(one, other)
    for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype and a.shape == b.shape
        if a.dtype.kind == "f":  # the sign of a NaN is arbitrary
            a, b = (np.where(np.isnan(x), np.nan, x).astype(x.dtype) for x in (a, b))
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("name", NETWORKS)
def test_acting_directly_equals_acting_by_tf_function_to_the_bit(name, plain):
    spec, values = NETWORKS[name]
    agent = create_agent(agent_config(**values), training_config(batch_size=4, unroll_length=5), spec, 3)

    def policy() -> AgentPolicy:
        return AgentPolicy(agent, spec, max_slots=SLOTS, seed=5, training_envs=SLOTS)

    direct, other = policy(), plain(policy)
    assert isinstance(direct.devices[0]._act, DirectCall) and not isinstance(other.devices[0]._act, DirectCall)
    rng = np.random.default_rng(1)
    for each in (direct, other):
        each.devices[0].assign(np.arange(SLOTS, dtype=np.int32), "training", np.arange(SLOTS))
    for batch, rows in enumerate((16, 1, 7, 24) * 5):
        records = random_records(spec, 1, rows, seed=batch)
        observation = tf.nest.map_structure(lambda x: x[0], records["observation"])
        slots = rng.permutation(SLOTS)[:rows].astype(np.int32)
        first = rng.random(rows) < (0.2 if batch else 1.0)
        equal(direct.devices[0].snapshot(slots, first), other.devices[0].snapshot(slots, first))
        inputs = observation, records["reward"][0], first, slots
        equal(direct.devices[0].act(*inputs), other.devices[0].act(*inputs))
        if batch % 6 == 5:
            for variable in agent.network.trainable_variables:
                variable.assign(variable * 0.9)
            direct.publish(batch)
            other.publish(batch)
    equal(direct.devices[0]._table, other.devices[0]._table)


@pytest.mark.parametrize("name", ["mlp", "r2d2-lstm"])
def test_updating_directly_equals_updating_by_tf_function_to_the_bit(name, plain):
    spec, values = NETWORKS[name]
    training = training_config(batch_size=4, unroll_length=5, learning_rate=0.01, clip_norm=0.5)
    config = agent_config(target_period=3, n_step=2, **values)

    def trainer() -> tuple[Any, Trainer]:
        agent = create_agent(config, training, spec, 3)
        return agent, Trainer(agent, training, total_steps=100)

    made = trainer(), plain(trainer)
    assert [isinstance(trainer._update, DirectCall) for _, trainer in made] == [True, False]
    before = [variable.numpy() for variable in made[0][0].variables().values()]
    for update in range(8):
        results, priorities = [], []
        for agent, trainer in made:
            records = random_records(spec, 6, 4, seed=update)
            rng = np.random.default_rng(update)
            recorded = {
                field: rng.normal(size=(6, 4, *array.shape)).astype(np.float32)
                for field, array in agent.algorithm.recorded.items()
            }
            unrolls = unroll_batch(records, agent.initial_state(4), ())._replace(recorded=recorded)
            # Alternately host arrays, which the trainer places, and tensors that are already placed.
            if update % 2:
                unrolls = tf.nest.map_structure(np.asarray, unrolls)
            if update == 4:
                unrolls = unrolls._replace(reward=unrolls.reward * np.float32(np.nan))
            batch = TrainingBatch.of(unrolls, np.zeros((6, 4), np.int64))
            result = trainer.update(batch, env_steps=10 * update)
            results.append(result._asdict() | {"priorities": None})
            priorities.append(result.priorities)
            assert result.applied == (update != 4)
            if agent.algorithm.source == "replay":
                priorities.append(agent.initial_priorities(unrolls))
        equal(*results)
        equal(priorities[: len(priorities) // 2], priorities[len(priorities) // 2 :])
        equal(*[[*agent.variables().values(), *trainer.variables().values()] for agent, trainer in made])
    after = [variable.numpy() for variable in made[0][0].variables().values()]
    assert any((a != b).any() for a, b in zip(before, after, strict=True))


class _Pair(NamedTuple):
    second: Any
    first: Any


def _shuffle(values: dict[str, Any], pair: _Pair, scale: Any) -> tuple[Any, ...]:
    """Uses every kind of structure, in an order other than that of the names."""
    total = values["b"] - values["a"]["z"]
    if scale is not None:
        total *= scale
    return {"z": total, "a": [pair.first, None]}, _Pair(pair.second, (values["a"]["y"], {}))


def test_structures_are_those_that_tf_function_gives():
    graph = tf.function(_shuffle, autograph=False)
    direct = DirectCall(graph)
    values = {"b": np.float32([5, 6]), "a": {"z": np.float32([1, 2]), "y": np.int64([3])}}
    for scale in (None, np.float32(3.0), None, tf.constant(4.0)):
        for pair in (_Pair(np.array(True), np.uint8([[7]])), _Pair(tf.constant([9]), tf.constant([[1.5]]))):
            found, expected = direct(values, pair, scale), graph(values, pair, scale)
            equal(found, expected)
            assert [type(each) for each in found] == [type(each) for each in expected]
            assert list(found[0]) == list(expected[0]), "names keep their order"


def test_names_tell_structures_apart():
    direct = DirectCall(tf.function(lambda x: {name: value * 2 for name, value in x.items()}))
    one = np.float32([1.0])
    equal(direct({"a": one, "b": one * 3}), {"a": one * 2, "b": one * 6})
    equal(direct({"a": one, "c": one * 3}), {"a": one * 2, "c": one * 6})


def test_a_function_without_results_runs():
    variable = tf.Variable(1.0)
    direct = DirectCall(tf.function(lambda: (variable.assign_add(2.0), None)[1]))
    for expected in (3.0, 5.0):
        assert direct() is None
        assert variable.numpy() == expected


def test_arguments_are_checked_against_the_signature():
    signature = [tf.TensorSpec([None, 2], tf.float32)]
    direct = traced(lambda x: x + 1.0, input_signature=signature)
    assert isinstance(direct, DirectCall)
    for rows in (1, 5, 1):
        equal(direct(np.zeros((rows, 2), np.float32)), np.ones((rows, 2), np.float32))
    with pytest.raises((TypeError, ValueError)):
        direct(np.zeros((1, 3), np.float32))
    with pytest.raises((TypeError, ValueError)):
        direct(np.zeros((1, 2), np.int64))
    with pytest.raises((TypeError, ValueError)):
        direct()


def test_arrays_need_not_be_contiguous():
    direct = DirectCall(tf.function(lambda x, y: x + y))
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    equal(direct(whole[:, ::2], whole.T[1:4].T), whole[:, ::2] + whole[:, 1:4])
    equal(direct(np.float32(2.0), whole), whole + 2.0)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(), (0, 3), (1, 5), (3, 4, 2), (70_000,)])
def test_arrays_of_any_type_and_size_arrive(dtype, shape):
    direct = DirectCall(tf.function(lambda x: tf.reverse(x, [0]) if shape else tf.identity(x)))
    array = np.random.default_rng(1).integers(0, 2, shape).astype(dtype)
    read_only = array.copy()
    read_only.flags.writeable = False
    results = [direct(each) for each in (array, read_only)]
    expected = np.flip(array, 0).copy() if shape else array.copy()
    array[...] = 1 - array.astype("int8")  # a caller's array may change afterwards
    for result in results:
        equal(result, expected)


def test_an_argument_that_has_no_use_may_be_anything():
    variable = tf.Variable([0.0, 0.0])

    def add(x: tf.Tensor, unused: tf.Tensor, added: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
        tf.gather(unused, index) + 1.0
        variable.scatter_update(tf.IndexedSlices(added, tf.constant([1])))
        return x * 2.0

    rows = [None]
    signature = [tf.TensorSpec(rows, dtype) for dtype in (tf.float32, tf.float32, tf.float32, tf.int32)]
    direct = DirectCall(tf.function(add, autograph=False, input_signature=signature))
    for rows_given in (1, 3):
        x = np.arange(rows_given, dtype=np.float32)
        equal(direct(x, x, np.float32([rows_given]), np.zeros(rows_given, np.int32)), x * 2)
        equal(variable, np.float32([0.0, rows_given]))  # a side effect counts as a use


def test_errors_are_those_of_tf_function():
    def checked(x: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([tf.debugging.assert_positive(x)]):
            return tf.identity(x)

    for function in (tf.function(checked), DirectCall(tf.function(checked))):
        with pytest.raises(tf.errors.InvalidArgumentError):
            function(np.float32([-1.0]))


def test_no_gradient_is_lost_silently():
    variable = tf.Variable(1.0)
    direct = DirectCall(tf.function(lambda: variable * 2.0))
    with tf.GradientTape() as tape:
        doubled = direct()
    with pytest.raises(LookupError):
        tape.gradient(doubled, variable)


def test_xla_and_distribution_keep_the_tf_function():
    assert isinstance(traced(lambda: tf.constant(1)), DirectCall)
    assert not isinstance(traced(lambda: tf.constant(1), jit_compile=True), DirectCall)
    assert not isinstance(traced(lambda: tf.constant(1), direct=False), DirectCall)
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        assert not isinstance(traced(lambda: tf.constant(1)), DirectCall)
