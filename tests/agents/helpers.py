"""Helpers for tests of agents: small environments, an acting loop, and batches of random unrolls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from seedcli.agents.base import ActInputs, UnrollBatch
from seedcli.agents.distributions import make_distribution
from seedcli.agents.networks.models import RecurrentNetwork, record_states
from seedcli.config.sections import TrainingConfig
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec, map_arrays
from seedcli.training.optimizer import Step, apply_where, clip_gradients
from tests import configs

IMAGE = EnvSpec("test/image", ArraySpec((36, 37, 1), "uint8"), ActionSpec((4,)))
COLOUR = EnvSpec("test/colour", ArraySpec((36, 37, 3), "uint8"), ActionSpec((4,)))
FLAT_IMAGE = EnvSpec("test/flat", ArraySpec((36, 37), "uint8"), ActionSpec((4,)))
VECTOR = EnvSpec("test/vector", ArraySpec((5,), "float32"), ActionSpec((3,)))
DISCRETE = EnvSpec("test/discrete", ArraySpec((), "int64", categories=(6,)), ActionSpec((3,)))
PARTS = ActionSpec((3, 2, 4))
BOX = ActionSpec(size=2)
MULTI_DISCRETE = EnvSpec("test/multi_discrete", ArraySpec((2, 2), "int32", categories=(3, 2, 5, 2)), PARTS)
ONE_PART = EnvSpec("test/one_part", ArraySpec((2,), "int32", categories=(3, 3)), ActionSpec((3,), vector=True))
CONTINUOUS = EnvSpec("test/continuous", ArraySpec((5,), "float32"), BOX)
BINARY = EnvSpec("test/binary", ArraySpec((36, 37, 4), "uint8", binary=(0, 255)), ActionSpec((4,)))
MIXED = EnvSpec(
    "test/mixed",
    {
        "camera": ArraySpec((36, 38), "uint8"),
        "flags": ArraySpec((3,), "bool"),
        "arm/angles": ArraySpec((2, 3), "float32"),
        "map": ArraySpec((37, 36, 2), "uint8", binary=(0, 1)),
        "mode": ArraySpec((), "int32", categories=(4,)),
        "tools": ArraySpec((2,), "int32", categories=(2, 3)),
        "thumbnail": ArraySpec((4, 4, 1), "uint8"),
    },
    BOX,
)

Records = dict[str, Any]


def agent_config(**values: Any) -> Any:
    """A configuration with some values changed."""
    return configs.agent_config(**{"hidden": (16,), **values})


def training_config(**values: Any) -> TrainingConfig:
    """A configuration with some values changed."""
    return TrainingConfig.model_validate(values)


def random_records(spec: EnvSpec, length: int, columns: int, seed: int = 0, ends: float = 0.25) -> Records:
    """Records [length, columns, ...] with many episode ends, never two in a row, as with autoreset."""
    rng = np.random.default_rng(seed)
    lead = (length, columns)

    def values(array: ArraySpec) -> npt.NDArray[Any]:
        shape = (*lead, *array.shape)
        drawn: npt.NDArray[Any]
        if array.categories:
            drawn = rng.integers(0, np.reshape(array.categories, array.shape), shape)
        elif array.dtype == "uint8":
            drawn = rng.choice(array.binary, shape) if array.binary else rng.integers(0, 256, shape)
        elif array.dtype == "bool":
            drawn = rng.random(shape) < 0.5
        else:
            drawn = rng.normal(size=shape)
        return drawn.astype(array.dtype)

    observation = map_arrays(values, spec.observation)
    distribution = make_distribution(spec.action)
    final = rng.random((length, columns)) < ends
    for t in range(1, length):
        final[t] &= ~final[t - 1]
    terminated = final & (rng.random((length, columns)) < 0.5)
    first = np.zeros_like(final)
    first[1:] = final[:-1]
    return {
        "observation": observation,
        "reward": np.where(first, 0.0, 2.0 * rng.normal(size=(length, columns))).astype(np.float32),
        "terminated": terminated,
        "truncated": final & ~terminated,
        "first": first,
        "action": values(spec.action.array),
        distribution.name: rng.normal(size=(*lead, distribution.size)).astype(np.float32),
    }


def unroll_batch(records: Records, state: Any, recorded: Sequence[str] = ("logits",)) -> UnrollBatch:
    """Records as a training batch; the fields `recorded` are those that the algorithm recorded."""
    return UnrollBatch(
        observation=map_arrays(tf.constant, records["observation"]),
        reward=tf.constant(records["reward"]),
        terminated=tf.constant(records["terminated"]),
        truncated=tf.constant(records["truncated"]),
        action=tf.constant(records["action"]),
        recorded={name: tf.constant(records[name]) for name in recorded},
        state=state,
        weights=tf.ones(records["reward"].shape[1]),
    )


def part(records: Records, start: int, stop: int) -> Records:
    """Records start … stop-1."""
    return tf.nest.map_structure(lambda array: array[start:stop], records)


def act_inputs(spec: EnvSpec, rows: int, seed: tuple[int, int] = (1, 2)) -> ActInputs:
    """One inference batch of random observations."""
    records = random_records(spec, 1, rows)
    return ActInputs(
        observation=map_arrays(lambda x: tf.constant(x[0]), records["observation"]),
        reward=tf.constant(records["reward"][0]),
        first=tf.zeros([rows], tf.bool),
        exploration=tf.zeros([rows]),
        seed=tf.constant(seed, tf.int32),
    )


def reset(network: RecurrentNetwork, state: Any, first: npt.NDArray[np.bool_]) -> Any:
    """The state, with the rows of `first` reset to the start of an episode."""
    initial = network.initial_state(len(first))

    def choose(new: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
        return tf.where(tf.reshape(first, [-1] + [1] * (len(old.shape) - 1)), new, old)

    return tf.nest.map_structure(choose, initial, state)


def play(network: RecurrentNetwork, records: Records) -> tuple[Any, list[Any], Any]:
    """Act step by step: outputs [L, B, ...], the state before each record (after any reset), and the last state."""
    state = network.initial_state(records["reward"].shape[1])
    step = tf.function(network.step)
    outputs, states = [], []
    for t in range(len(records["reward"])):
        state = reset(network, state, records["first"][t])
        states.append(state)
        observation = map_arrays(lambda x, now=t: tf.constant(x[now]), records["observation"])
        output, state = step(observation, tf.constant(records["reward"][t]), state)
        state = network.remember(state, tf.constant(records["action"][t]))
        outputs.append(output)
    return tf.nest.map_structure(lambda *x: np.stack(x), *outputs), states, state


def check_record_states(network: RecurrentNetwork, unrolls: UnrollBatch, states: Sequence[Any]) -> None:
    """Compare `models.record_states` of all records, in random order, with the states before them in acting."""
    length, columns = unrolls.reward.shape
    index = np.random.default_rng(5).permutation(length * columns).astype(np.int32)
    found = record_states(network, unrolls, tf.constant(index))
    acting = tf.nest.map_structure(lambda *each: np.concatenate(each)[index], *states[:length])
    tf.nest.map_structure(np.testing.assert_array_equal, found, acting)


def apply_gradients(
    optimizer: keras.optimizers.Optimizer,
    gradients: Sequence[tf.Tensor],
    variables: Sequence[keras.Variable],
    clip_norm: float,
) -> tf.Tensor:
    """Clip gradients by their global norm and apply them if it is finite, on one device; returns the unclipped norm."""
    if not optimizer.built:
        with tf.init_scope():
            optimizer.build(list(variables))
    gradients, norm = clip_gradients(gradients, clip_norm)
    apply_where(tf.math.is_finite(norm), [Step(optimizer, gradients, variables)])
    return norm
