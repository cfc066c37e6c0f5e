"""Codecs: arrays round-trip bit-exactly; corrupt payloads raise ProtocolError and write nothing out of bounds."""

from __future__ import annotations

import os
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from seedcli.errors import EnvironmentFailed, ProtocolError, RefusedError
from seedcli.net.codecs import CODECS, ArrayCodec, RowDecoder, RowEncoder, check_codecs, fitting_codecs
from seedcli.net.frames import Kind
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec, RowLayout, aligned_empty
from tests.net.harness import LIMIT, Actor, Learner, expect, make_server, wait_until_gone

DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bool")
PLANES = ArraySpec((72, 96, 4), "uint8", binary=(0, 255))
FRAMES = ArraySpec((84, 84, 1), "uint8")


def round_trip(codec: ArrayCodec, raw: npt.NDArray[np.uint8]) -> int:
    """Encode and decode; returns the size of the block."""
    block = bytes(codec.encode(raw))
    assert len(block) <= codec.max_bytes <= codec.raw_bytes and codec.check_length(len(block))
    guarded = np.full(codec.raw_bytes + 2, 0xA5, np.uint8)
    codec.decode(memoryview(block), guarded[1:-1])
    assert np.array_equal(guarded[1:-1], raw) and guarded[0] == guarded[-1] == 0xA5
    return len(block)


@st.composite
def arrays(draw: st.DrawFn) -> tuple[ArraySpec, npt.NDArray[Any]]:
    """A specification and a matching array [E, ...]; half of them have only a few values."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, max_side=9))
    values: Any = draw(st.none() | st.lists(st.integers(0, 100), min_size=1, max_size=3))
    envs = draw(st.integers(1, 5))
    binary: tuple[int, ...] = ()
    if dtype == "uint8" and draw(st.booleans()):
        binary = (draw(st.integers(0, 255)), draw(st.integers(0, 255)))
        values = list(binary)
    elements = None if values is None else st.sampled_from([np.dtype(dtype).type(v) for v in values])
    array = draw(hnp.arrays(dtype, (envs, *shape), elements=elements))
    return ArraySpec(tuple(map(int, shape)), dtype, binary=binary), array


@settings(max_examples=300)
@given(arrays())
def test_every_codec_round_trips_random_arrays(case: tuple[ArraySpec, npt.NDArray[Any]]) -> None:
    spec, array = case
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    for name in fitting_codecs(spec):
        round_trip(ArrayCodec(name, spec, len(array)), raw)


def test_bits_fit_only_arrays_of_two_values() -> None:
    assert fitting_codecs(FRAMES) == ("raw", "zstd")
    assert fitting_codecs(PLANES) == fitting_codecs(ArraySpec((3,), "bool")) == CODECS
    for name in ("bits", "bits+zstd", "lz4", ""):
        with pytest.raises(ValueError, match="codec"):
            ArrayCodec(name, FRAMES, 1)


@pytest.mark.parametrize("name", ["bits", "bits+zstd"])
def test_a_third_value_is_an_environment_error(name: str) -> None:
    codec = ArrayCodec(name, ArraySpec((9,), "uint8", binary=(3, 200)), 2)
    raw = np.full(18, 3, np.uint8)
    round_trip(codec, raw)
    raw[7] = 4
    with pytest.raises(EnvironmentFailed, match="a value other than 3 and 200"):
        codec.encode(raw)


def test_incompressible_arrays_are_sent_raw() -> None:
    rng = np.random.default_rng(0)
    for name, spec, size in (("zstd", FRAMES, 7056), ("bits+zstd", PLANES, 3456), ("bits", PLANES, 3456)):
        noise = rng.integers(0, 2, spec.nbytes, np.uint8) * np.uint8(255)
        if spec is FRAMES:
            noise = rng.integers(0, 256, spec.nbytes, np.uint8)
        assert round_trip(ArrayCodec(name, spec, 1), noise) == size


@pytest.mark.parametrize("game", ["pong", "breakout"])
def test_real_frames_shrink_to_a_sixth(game: str) -> None:
    from ale_py.vector_env import AtariVectorEnv

    env: Any = AtariVectorEnv(game, 8, stack_num=1, num_threads=1)
    env.reset(seed=np.arange(8))
    codec = ArrayCodec("zstd", FRAMES, 8)
    sizes = []
    for step in range(60):
        frames = env.step(np.full(8, 2 + step % 2, np.int32))[0]
        sizes.append(round_trip(codec, np.ascontiguousarray(frames).reshape(-1)))
    assert np.mean(sizes) < codec.raw_bytes / 6


def test_real_planes_shrink_to_a_sixteenth_of_their_stack() -> None:
    envpool = pytest.importorskip("envpool", reason="Google Research Football is not installed")
    env = envpool.make("gfootball/11_vs_11_easy_stochastic-v1", env_type="gymnasium", num_envs=2)
    env.reset()
    codec = {name: ArrayCodec(name, PLANES, 2) for name in CODECS}
    for step in range(12):
        planes = np.ascontiguousarray(env.step(np.full(2, 1 + step % 8, np.int32))[0]).reshape(-1)
        sizes = {name: round_trip(codec[name], planes) for name in CODECS}
        assert sizes["bits"] * 32 == 4 * planes.size, "16 planes of a stack are 16 bits"
        assert sizes["bits+zstd"] * 16 <= sizes["bits"]


# -- whole rows

SPEC = EnvSpec(
    "test/several",
    {"map": ArraySpec((8, 9, 3), "uint8", binary=(0, 255)), "pixels": FRAMES, "speed": ArraySpec((3,), "float32")},
    ActionSpec((3,)),
)
NAMES = {"map": "bits+zstd", "pixels": "zstd", "speed": "raw"}


def a_row(layout: RowLayout, seed: int = 0) -> npt.NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    row = aligned_empty(layout.nbytes)
    row[:] = 0x77
    views = layout.views(row)
    views.observation["map"][...] = rng.integers(0, 2, views.observation["map"].shape) * 255
    views.observation["pixels"][...] = np.repeat(np.arange(84), 84).reshape(84, 84, 1)
    views.observation["pixels"][:, 3:9, 7:9] = rng.integers(0, 256)
    views.observation["speed"][...] = rng.normal(size=views.observation["speed"].shape)
    views.reward[...] = rng.normal(size=layout.num_envs)
    views.terminated[...] = rng.integers(0, 2, layout.num_envs)
    views.truncated[...] = rng.integers(0, 2, layout.num_envs)
    return row


def same(layout: RowLayout, one: npt.NDArray[np.uint8], other: npt.NDArray[np.uint8]) -> bool:
    a, b = layout.views(one), layout.views(other)
    return all(np.array_equal(a.observation[name], b.observation[name]) for name in a.observation) and all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in ("reward", "terminated", "truncated")
    )


def encoded(layout: RowLayout, row: npt.NDArray[np.uint8], names: dict[str, str] = NAMES) -> bytes:
    encoder = RowEncoder(layout, names)
    out = bytearray(encoder.max_payload)
    return bytes(out[: encoder.encode(row, memoryview(out))])


@pytest.mark.parametrize("envs", [1, 3, 32])
def test_rows_round_trip_and_keep_their_padding(envs: int) -> None:
    layout = RowLayout(SPEC, envs)
    decoder = RowDecoder(layout, NAMES)
    target = aligned_empty(layout.nbytes)
    untouched = np.ones(layout.nbytes, bool)
    for start, end in zip(layout.offsets, (layout.spec.arrays[n].nbytes * envs for n in SPEC.arrays), strict=False):
        untouched[start : start + end] = False
    for start, width in zip(layout.offsets[3:], (4, 1, 1), strict=False):
        untouched[start : start + width * envs] = False
    for seed in range(5):
        row = a_row(layout, seed)
        payload = encoded(layout, row)
        assert len(payload) <= decoder.max_payload
        target[:] = 0xA5
        decoder.decode(payload, memoryview(target))
        assert same(layout, row, target) and (target[untouched] == 0xA5).all()


LAYOUT = RowLayout(SPEC, 2)
GOOD = encoded(LAYOUT, a_row(LAYOUT))
HEAD = 3 * 4 + 2 * 6


def refuses(payload: bytes, match: str | None = None) -> None:
    guarded = np.full(LAYOUT.nbytes + 128, 0x5A, np.uint8)
    with pytest.raises(ProtocolError, match=match):
        RowDecoder(LAYOUT, NAMES).decode(payload, memoryview(guarded[64:-64]))
    assert (guarded[:64] == 0x5A).all() and (guarded[-64:] == 0x5A).all()


def blocks(payload: bytes = GOOD) -> list[bytes]:
    at, parts = HEAD, []
    for length in struct.unpack_from("<3I", payload):
        parts.append(payload[at : at + length])
        at += length
    return parts


def with_block(index: int, block: bytes) -> bytes:
    parts = blocks()
    parts[index] = block
    return struct.pack("<3I", *map(len, parts)) + GOOD[12:HEAD] + b"".join(parts)


def bomb(nbytes: int) -> bytes:
    """A valid zstd frame of zeros, a thousandth of the size of its content."""
    return zstandard.ZstdCompressor(level=1).compress(bytes(nbytes))


def claiming(nbytes: int, frame: bytes) -> bytes:
    """A zstd frame whose header claims another size, in eight bytes, without a window."""
    parameters = zstandard.get_frame_parameters(frame)
    assert parameters.dict_id == 0
    return frame[:4] + b"\xe0" + nbytes.to_bytes(8, "little") + frame[zstandard.frame_header_size(frame) :]


PIXELS = 2 * 7056
CORRUPT = {
    "nothing": (b"", "fewer than"),
    "half a table": (GOOD[:10], "fewer than"),
    "no blocks": (GOOD[:HEAD], "lengths add up to"),
    "one byte less": (GOOD[:-1], "lengths add up to"),
    "one byte more": (GOOD + b"\0", "lengths add up to"),
    "lengths that overflow 32 bits": (struct.pack("<3I", 2**32 - 1, 2**32 - 1, 2) + GOOD[12:], "lengths add up to"),
    "an empty block": (with_block(1, b""), "block has 0 bytes"),
    "a block as large as it may be and one": (with_block(1, bytes(PIXELS + 1)), "a block has"),
    "a raw block too short": (with_block(2, bytes(23)), "a block has 23"),
    "no frame": (with_block(1, os.urandom(50)), "zstd|announces"),
    "a skippable frame": (with_block(1, b"\x50\x2a\x4d\x18\x04\0\0\0abcd"), "zstd|announces"),
    "a frame cut off": (with_block(1, blocks()[1][:-3]), "not a zstd frame"),
    "a frame and more": (with_block(1, blocks()[1] + b"x"), "not a zstd frame"),
    "two frames": (with_block(1, blocks()[1] * 2), "not a zstd frame"),
    "a frame of less": (with_block(1, bomb(PIXELS - 1)), f"announces {PIXELS - 1} bytes, expected {PIXELS}"),
    "a frame of more": (with_block(1, bomb(PIXELS + 1)), f"announces {PIXELS + 1} bytes"),
    "a bomb": (with_block(1, bomb(64 * 2**20)), f"announces {64 * 2**20} bytes"),
    "a bomb said to be right": (with_block(1, claiming(PIXELS, bomb(32 * 2**20))), "not a zstd frame"),
    "a frame said to be a terabyte": (with_block(1, claiming(2**40, bomb(PIXELS))), f"announces {2**40} bytes"),
    "a frame said to be endless": (with_block(1, claiming(2**64 - 3, bomb(PIXELS))), "zstd|announces"),
    "a frame without a size": (
        with_block(1, zstandard.ZstdCompressor(write_content_size=False).compress(bytes(PIXELS))),
        "announces -1 bytes",
    ),
}


@pytest.mark.parametrize(("payload", "words"), CORRUPT.values(), ids=CORRUPT)
def test_a_corrupt_row_is_a_protocol_error_and_allocates_nothing(payload: bytes, words: str) -> None:
    refuses(payload, words)
    decoder = RowDecoder(LAYOUT, NAMES)
    target = memoryview(aligned_empty(LAYOUT.nbytes))
    tracemalloc.start()
    with pytest.raises(ProtocolError):
        decoder.decode(payload, target)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * LAYOUT.nbytes


@settings(max_examples=500)
@given(
    st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=8),
    st.integers(0, len(GOOD)) | st.none(),
    st.binary(max_size=40),
)
def test_mutations_raise_only_protocol_errors(changes: list[tuple[int, int]], cut: int | None, tail: bytes) -> None:
    payload = bytearray(GOOD)
    for place, value in changes:
        payload[place] = value
    payload = payload[:cut] + tail
    guarded = np.full(LAYOUT.nbytes + 128, 0x5A, np.uint8)
    try:
        RowDecoder(LAYOUT, NAMES).decode(payload, memoryview(guarded[64:-64]))
    except ProtocolError:
        pass
    assert (guarded[:64] == 0x5A).all() and (guarded[-64:] == 0x5A).all()
    map_values = LAYOUT.views(guarded[64:-64]).observation["map"]
    assert np.isin(map_values, (0, 255, 0x5A)).all(), "bits decode to two values only"


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_noise_is_a_protocol_error(noise: bytes) -> None:
    refuses(noise)
    refuses(with_block(0, noise) if not 0 < len(noise) == 54 else b"")
    refuses(with_block(1, noise))


def test_unsuitable_codecs_and_codecs_not_offered_are_refused() -> None:
    check_codecs(SPEC, NAMES, CODECS)
    check_codecs(SPEC, dict.fromkeys(NAMES, "raw"), ["raw"])
    with pytest.raises(RefusedError, match=r"codec 'zstd' of array 'pixels' is not one of raw"):
        check_codecs(SPEC, {**NAMES, "map": "raw"}, ["raw"])
    with pytest.raises(RefusedError, match="codec 'lz4' of array 'speed'"):
        check_codecs(SPEC, {**NAMES, "speed": "lz4"}, CODECS)
    with pytest.raises(RefusedError, match="codec 'lz4'"):
        check_codecs(SPEC, {**NAMES, "speed": "lz4"}, [*CODECS, "lz4"])
    with pytest.raises(RefusedError, match="codec 'bits' needs two values, and array 'pixels'"):
        check_codecs(SPEC, {**NAMES, "pixels": "bits"}, CODECS)


# -- payloads of any size, over every transport but shared memory

SIZE = 200_000
TCP = pytest.mark.parametrize("kind", ["grpc", "zmq"])


@pytest.fixture
def encoding_learner(kind: str) -> Iterator[Learner]:
    learner = Learner(make_server(kind), [SIZE, 1000])
    learner.encoded = True
    learner.start()
    yield learner
    learner.close()


@TCP
def test_steps_of_any_size_up_to_the_limit_arrive(encoding_learner: Learner, join: Callable[..., Actor]) -> None:
    actor = join(encoding_learner)
    for size in (1, 50, 65_536, SIZE, 0, 7, 65_537):
        data = os.urandom(size)
        actor.send(0, data)
        frame = expect(actor.client, Kind.ACTION)
        assert bytes(frame.payload) == zlib.crc32(data).to_bytes(4, "little")
    assert [len(row.data) for row in encoding_learner.rows] == [1, 50, 65_536, SIZE, 0, 7, 65_537]


@TCP
@pytest.mark.parametrize("fault", ["over the limit", "more than said", "less than said"])
def test_steps_of_a_wrong_size_end_only_that_peer(
    encoding_learner: Learner, join: Callable[..., Actor], fault: str
) -> None:
    good, bad = join(encoding_learner, "good"), join(encoding_learner, "bad")
    if fault == "over the limit":
        bad.send(0, bytes(SIZE + 1))
    else:
        bad.client.send(bad.header(0, 100), bytes(101 if fault == "more than said" else 99))
    lost = encoding_learner.lost_peers.get(timeout=LIMIT)
    assert lost.malformed and lost.peer == encoding_learner.peers["bad"]
    wait_until_gone(bad.client)
    good.send(0, b"still there")
    expect(good.client, Kind.ACTION)


def test_only_shm_shares_memory(encoding_learner: Learner, join: Callable[..., Actor], kind: str) -> None:
    assert join(encoding_learner).client.shares_memory == (kind == "shm")
