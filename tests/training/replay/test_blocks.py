"""Blocks round-trip bit-exactly, for all types and strides, and are small."""

from __future__ import annotations

import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seedcli.training.replay.blocks import BlockCodec, BlockField

DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bool")
R = 5


def _one_column(codec, arrays):
    """Views of one unroll's arrays, with a batch axis of 1."""
    axis = {f.name: int(f.per_record) for f in codec.fields}
    return {name: np.expand_dims(array, axis[name]) for name, array in arrays.items()}


def _encode(codec, arrays):
    """The block of one unroll."""
    (block,) = codec.pack(_one_column(codec, arrays))
    return block


def _decode(codec, block, out):
    """Read one block into arrays of one unroll."""
    codec.unpack([block], _one_column(codec, out))


def _bits(array):
    return np.ascontiguousarray(array).tobytes()


def _random(rng, shape, dtype):
    """Any bit pattern of the type: NaNs with payloads, infinities, denormals, minus zero."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return rng.integers(0, 256, count, np.uint8).view(dtype).reshape(shape)


@settings(max_examples=60)
@given(
    fields=st.lists(
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(1, 4), max_size=3), st.booleans()),
        min_size=1,
        max_size=6,
    ),
    seed=st.integers(0, 1000),
)
def test_a_column_round_trips_into_another_one_to_the_bit(fields, seed):
    rng = np.random.default_rng(seed)
    fields = [
        BlockField(f"f{i}", (R, *shape) if records else tuple(shape), dtype, records)
        for i, (dtype, shape, records) in enumerate(fields)
    ]
    codec = BlockCodec(fields)
    assert codec.raw_bytes == sum(f.nbytes for f in fields)
    source, target = {}, {}
    for f in fields:
        full = (f.shape[0], 3, *f.shape[1:]) if f.per_record else (3, *f.shape)
        source[f.name] = _random(rng, full, f.dtype)
        target[f.name] = _random(rng, full, f.dtype)
    before = {name: array.copy() for name, array in target.items()}

    def column(arrays, c):
        return {f.name: arrays[f.name][:, c] if f.per_record else arrays[f.name][c, ...] for f in fields}

    block = _encode(codec, column(source, 1))
    assert isinstance(block, bytes)
    _decode(codec, block, column(target, 2))
    for name, array in column(target, 2).items():
        assert _bits(array) == _bits(column(source, 1)[name]), name
    for untouched in (0, 1):
        for name, array in column(target, untouched).items():
            assert _bits(array) == _bits(column(before, untouched)[name]), name


def test_special_values_round_trip():
    values = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, 5e-324, np.finfo(np.float64).max], np.float64)
    signalling = np.array([0x7FF0000000000001], np.uint64).view(np.float64)
    codec = BlockCodec([BlockField("x", (8,), "float64", False)])
    x = np.concatenate([values, signalling])
    out = np.zeros(8)
    _decode(codec, _encode(codec, {"x": x}), {"x": out})
    assert _bits(out) == _bits(x)


def test_arrays_with_zero_and_negative_strides():
    codec = BlockCodec([BlockField("v", (6,), "int64", True), BlockField("r", (6, 2), "float32", True)])
    source = {"v": np.broadcast_to(np.int64(7), (6,)), "r": np.arange(12, dtype=np.float32).reshape(2, 6).T[::-1]}
    out = {"v": np.zeros(6, np.int64), "r": np.zeros((2, 6), np.float32).T}
    _decode(codec, _encode(codec, source), out)
    np.testing.assert_array_equal(out["v"], np.full(6, 7))
    np.testing.assert_array_equal(out["r"], source["r"])


def test_arrays_that_do_not_fit_are_named():
    codec = BlockCodec([BlockField("reward", (R,), "float32", True)])
    for wrong in ({}, {"reward": np.zeros(R, np.float64)}, {"reward": np.zeros((R, 1), np.float32)}):
        with pytest.raises(ValueError, match="field reward is"):
            _encode(codec, wrong)
    block = _encode(codec, {"reward": np.zeros(R, np.float32)})
    with pytest.raises(ValueError, match="field reward is"):
        _decode(codec, block, {"reward": np.zeros(R, np.int32)})


def test_blocks_of_other_fields_and_damaged_ones_are_refused():
    small = BlockCodec([BlockField("x", (R,), "float32", True)])
    large = BlockCodec([BlockField("x", (1000,), "float32", True)])
    assert small.signature != large.signature
    assert small.signature == BlockCodec([BlockField("x", (R,), "float32", True)]).signature
    out = {"x": np.zeros(R, np.float32)}
    with pytest.raises(ValueError, match="other fields"):
        _decode(small, _encode(large, {"x": np.zeros(1000, np.float32)}), out)
    block = _encode(large, {"x": np.arange(1000, dtype=np.float32)})
    for damaged in (b"", b"no frame", block[: len(block) // 2]):
        with pytest.raises(ValueError, match=r"damaged|other fields"):
            _decode(large, damaged, {"x": np.zeros(1000, np.float32)})


def test_fields_must_have_different_names_and_must_not_be_empty():
    with pytest.raises(ValueError, match="must have different names"):
        BlockCodec([BlockField("x", (1,), "uint8", False)] * 2)
    with pytest.raises(ValueError, match="needs a non-empty field"):
        BlockCodec([])


def test_a_block_takes_only_the_memory_of_its_content():
    codec = BlockCodec([BlockField("frames", (100, 84, 84, 1), "uint8", True)])
    frames = np.zeros((100, 84, 84, 1), np.uint8)
    frames[:, 40, 40] = np.random.default_rng(0).integers(0, 256, (100, 1))
    _encode(codec, {"frames": frames})  # one-time allocations
    tracemalloc.start()
    try:
        blocks = [_encode(codec, {"frames": frames}) for _ in range(50)]
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * sum(len(b) for b in blocks) + 50_000


def test_constant_frames_compress_to_almost_nothing_and_smooth_floats_well():
    rng = np.random.default_rng(0)
    frames = BlockCodec([BlockField("frames", (81, 84, 84, 1), "uint8", True)])
    still = np.repeat(rng.integers(0, 256, (1, 84, 84, 1), np.uint8), 81, 0)
    assert len(_encode(frames, {"frames": still})) < 1.05 * 84 * 84 + 1000
    floats = BlockCodec([BlockField("q", (1000,), "float32", True)])
    q = (5 + np.cumsum(rng.normal(size=1000)) * 0.01).astype(np.float32)
    assert len(_encode(floats, {"q": q})) < 0.8 * 4000  # sign and exponent planes vanish


def test_threads_share_a_codec():
    codec = BlockCodec([BlockField("x", (50_000,), "uint8", False)])
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(30):
            x = rng.integers(0, 4, 50_000).astype(np.uint8)
            out = np.zeros_like(x)
            _decode(codec, _encode(codec, {"x": x}), {"x": out})
            if not np.array_equal(x, out):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong
