"""The replay of small records in `seed bench replay`: a million transitions of HalfCheetah, drawn one by one.

Memory is compared with the bytes of the records, each counted once; a batch with indexing one array per field, as in a
replay of single transitions; an insertion with a copy of the same bytes. The contents are noise: nothing depends on
them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from seedcli.agents.base import AlgorithmSpec
from seedcli.config.sections import ReplayConfig
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec
from seedcli.training.replay.blocks import BlockCodec, BlockField
from seedcli.training.replay.buffer import Replay
from seedcli.training.replay.unrolls import unroll_fields

_SPEC = EnvSpec("gymnasium/HalfCheetah-v5", ArraySpec((17,), "float32"), ActionSpec(size=6))
_TRANSITIONS = 1_000_000
_UNROLL_LENGTH = 20
_ENVS = 16  # of a buffer
_BATCH_SIZE = 256
_CALLS = 1000


class _Agent:
    """The part of an agent that `unroll_fields` uses: it trains on single transitions and records no other fields."""

    algorithm = AlgorithmSpec("transitions", 0, _UNROLL_LENGTH, "replay", {}, sample_length=1)

    def initial_state(self, batch_size: int) -> dict[str, Any]:
        """No state."""
        return {}


def _median_us(work: Callable[[], object]) -> float:
    times = []
    for _ in range(_CALLS):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return 1e6 * float(np.median(times))


def _noise(field: BlockField, rng: np.random.Generator, *shape: int) -> npt.NDArray[Any]:
    """Values [*shape, ...] of a field; flags are 0."""
    values = rng.standard_normal((*shape, *field.shape[1:])) if field.dtype == "float32" else np.zeros(shape)
    return values.astype(field.dtype)


def _bare_sample(fields: list[BlockField], rng: np.random.Generator) -> float:
    """Microseconds to index one array a field, and the next observations."""
    arrays = {field.name: _noise(field, rng, _TRANSITIONS + 1) for field in fields}

    def gather() -> None:
        index = rng.integers(0, _TRANSITIONS, _BATCH_SIZE)
        for array in arrays.values():
            array[index]
        arrays["observation"][index + 1]

    return _median_us(gather)


def measure_transitions() -> dict[str, Any]:
    """Measure memory, insertion and sampling of plain unrolls; see the module's docstring.

    Returns:
        Bytes of a record, megabytes of the records and of the memory that became resident, their ratio; microseconds
        of an insertion and of a batch, each with its bare loop.
    """
    fields, rng = unroll_fields(_Agent(), _SPEC), np.random.default_rng(1)  # type: ignore[arg-type]
    codec = BlockCodec(fields)
    records = _UNROLL_LENGTH + 1
    buffer = {field.name: _noise(field, rng, records, _ENVS) for field in fields}
    sink = {name: np.empty_like(array) for name, array in buffer.items()}

    def copy() -> None:
        for name, array in buffer.items():
            np.copyto(sink[name], array)

    process = psutil.Process()
    before = process.memory_info().rss
    section = ReplayConfig(
        capacity=_TRANSITIONS // _UNROLL_LENGTH, min_size=1, window=1e12, sampling="uniform", storage="plain"
    )
    replay = Replay(codec, section, _BATCH_SIZE, 1, sample_length=1)

    def insert() -> None:
        replay.insert(replay.pack(buffer))

    while replay.size < section.capacity:
        insert()
    resident = process.memory_info().rss - before
    raw = codec.raw_bytes // records * _TRANSITIONS
    return {
        "environment": _SPEC.name,
        "transitions": _TRANSITIONS,
        "unroll_length": _UNROLL_LENGTH,
        "record_bytes": codec.raw_bytes // records,
        "raw_mb": raw / 1e6,
        "resident_mb": resident / 1e6,
        "memory_ratio": resident / raw,
        "envs": _ENVS,
        "insert_us": _median_us(insert),
        "bare_insert_us": _median_us(copy),
        "batch_size": _BATCH_SIZE,
        "sample_us": _median_us(lambda: replay.sample(wait=False)),
        "bare_sample_us": _bare_sample(fields, rng),
    }
