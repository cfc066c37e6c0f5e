"""Conversion between unroll buffers, the fields of a replay and training batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from seedcli.agents.base import Agent, UnrollBatch
from seedcli.inference.arena import UnrollBuffer
from seedcli.specs import EnvSpec, map_arrays
from seedcli.training.batches import TrainingBatch
from seedcli.training.replay.blocks import BlockField
from seedcli.training.replay.data import Sample

# Upper bound on the compression ratio of unrolls of images, measured for the games in docs/performance.md.
_IMAGE_RATIO = 1 / 8
_IMAGE_BYTES = 1024  # a uint8 observation of at least this size counts as an image


def _observation_fields(spec: EnvSpec) -> Any:
    """Field names of an observation's arrays, in the observation's structure."""
    if isinstance(spec.observation, Mapping):
        return {name: f"observation/{name}" for name in spec.observation}
    return "observation"


def to_unrolls(sample: Sample, agent: Agent, spec: EnvSpec) -> TrainingBatch:
    """Convert a replay sample to a training batch of host arrays."""
    arrays = sample.arrays
    structure = agent.initial_state(1)
    state = [arrays[f"state/{i}"] for i in range(len(tf.nest.flatten(structure)))]
    unrolls = UnrollBatch(
        observation=map_arrays(arrays.__getitem__, _observation_fields(spec)),
        reward=arrays["reward"],
        terminated=arrays["terminated"].view(np.bool_),
        truncated=arrays["truncated"].view(np.bool_),
        action=arrays["action"],
        recorded={name: arrays[f"recorded/{name}"] for name in agent.algorithm.recorded},
        state=tf.nest.pack_sequence_as(structure, state),
        weights=sample.weights,
    )
    return TrainingBatch.of(unrolls, arrays["version"], sample.serials)


def unroll_fields(agent: Agent, spec: EnvSpec) -> list[BlockField]:
    """Fields of an unroll in the order of storage: similar images are adjacent."""
    algorithm = agent.algorithm
    records = algorithm.records
    state = [np.asarray(leaf)[0] for leaf in tf.nest.flatten(agent.initial_state(1))]
    fields = [BlockField(f"state/{i}", leaf.shape, str(leaf.dtype), False) for i, leaf in enumerate(state)]
    map_arrays(
        lambda name, array: fields.append(BlockField(name, (records, *array.shape), array.dtype, True)),
        _observation_fields(spec),
        spec.observation,
    )
    for name, dtype in (("reward", "float32"), ("terminated", "uint8"), ("truncated", "uint8")):
        fields.append(BlockField(name, (records,), dtype, True))
    action = spec.action.array
    fields.append(BlockField("action", (records, *action.shape), action.dtype, True))
    for name, array in algorithm.recorded.items():
        fields.append(BlockField(f"recorded/{name}", (records, *array.shape), array.dtype, True))
    fields.append(BlockField("version", (records,), "int64", True))
    return fields


def expected_bytes(fields: list[BlockField]) -> int:
    """Estimated bytes of an unroll in a replay: an upper bound for the Atari games measured."""
    total = 0.0
    for field in fields:
        nbytes = int(np.prod(field.shape, dtype=np.int64)) * np.dtype(field.dtype).itemsize
        image = field.dtype == "uint8" and len(field.shape) > 1 and np.prod(field.shape[1:]) >= _IMAGE_BYTES
        total += nbytes * _IMAGE_RATIO if image else nbytes
    return int(total)


def stored_arrays(buffer: UnrollBuffer, spec: EnvSpec) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a finished buffer by the names of `unroll_fields`, its unrolls side by side."""
    rows = buffer.rows
    observation: dict[str, npt.NDArray[Any]] = {}
    map_arrays(observation.__setitem__, _observation_fields(spec), rows.observation)
    version = np.broadcast_to(buffer.version[:, None], (len(buffer.version), buffer.num_envs))
    state = {f"state/{i}": np.asarray(leaf) for i, leaf in enumerate(tf.nest.flatten(buffer.state))}
    recorded = {f"recorded/{name}": values for name, values in buffer.recorded.items()}
    return {
        **state,
        **observation,
        "reward": rows.reward,
        "terminated": rows.terminated,
        "truncated": rows.truncated,
        "action": buffer.action,
        **recorded,
        "version": version,
    }
