"""Uniform draws, of whole unrolls and of short columns out of them, with either storage."""

from __future__ import annotations

import numpy as np
import pytest

from seedcli.config.sections import ReplayConfig
from seedcli.training.replay import draws
from seedcli.training.replay.blocks import BlockCodec, BlockField
from seedcli.training.replay.buffer import Replay

T = 5
R = T + 1
CODEC = BlockCodec(
    [
        BlockField("record", (R, 2), "int32", True),
        BlockField("terminated", (R,), "uint8", True),
        BlockField("truncated", (R,), "uint8", True),
    ]
)
CONFIG = {"capacity": 1000, "min_size": 1, "window": 1e9, "sampling": "uniform"}


@pytest.fixture(params=["plain", "compressed"], autouse=True, scope="module")
def storage(request):
    """Every test runs with both."""
    CONFIG["storage"] = request.param
    return request.param


def _replay(length=None, batch=1, seed=7, **config):
    return Replay(CODEC, ReplayConfig(**{**CONFIG, **config}), batch, seed, length)


def _fill(replay, count, terminated=None, truncated=None):
    """Insert unrolls whose records hold the unroll's serial and their own index; ends are [R, count]."""
    start = replay.inserted
    record = np.stack(np.broadcast_arrays(np.arange(start, start + count), np.arange(R)[:, None]), axis=-1)
    none = np.zeros((R, count), np.uint8)
    arrays = {
        "record": record.astype(np.int32),
        "terminated": none if terminated is None else terminated.astype(np.uint8),
        "truncated": none if truncated is None else truncated.astype(np.uint8),
    }
    assert replay.insert(replay.pack(arrays), wait=False) == count


def _count_starts(replay, unrolls, batches):
    """How often a column began at each record of each unroll, [unrolls, T]."""
    counts = np.zeros((unrolls, T))
    for _ in range(batches):
        sample = replay.sample(wait=False)
        np.add.at(counts, (sample.serials, sample.starts), 1)
    return counts


def _chi2(counts):
    return float(((counts - counts.mean()) ** 2 / counts.mean()).sum())


# 0.0005 and 0.9995 quantiles of the chi-square distribution, by degrees of freedom.
CHI2 = {19: (4.91, 45.97), 59: (29.5, 101.6), 99: (59.0, 152.1)}


@pytest.mark.parametrize(("length", "starts"), [(1, 5), (3, 3), (5, 1), (None, 1)])
def test_every_column_is_drawn_with_the_same_probability(length, starts):
    unrolls = 20
    replay = _replay(length, batch=10)
    _fill(replay, unrolls)
    counts = _count_starts(replay, unrolls, 1000)
    assert (counts[:, starts:] == 0).all(), "a column ends within its unroll"
    low, high = CHI2[unrolls * starts - 1]
    assert low < _chi2(counts[:, :starts]) < high
    skewed = counts[:, :starts] * np.linspace(0.8, 1.2, unrolls)[:, None]
    assert _chi2(skewed) > high, "the test must tell a skewed distribution apart"


@pytest.mark.parametrize("length", [1, 2, 4, None])
def test_a_column_holds_the_consecutive_records_that_went_in(length):
    replay = _replay(length, batch=64, capacity=30)
    records = R if length is None else length + 1
    seen = set()
    for _ in range(20):
        _fill(replay, 7)  # the ring of 30 wraps at another place each time
        sample = replay.sample(wait=False)
        record = sample.arrays["record"]
        assert record.shape == (records, 64, 2) and record.flags.c_contiguous and record.ctypes.data % 64 == 0
        np.testing.assert_array_equal(record[..., 0], np.broadcast_to(sample.serials, (records, 64)))
        np.testing.assert_array_equal(record[..., 1], sample.starts + np.arange(records)[:, None])
        assert (sample.serials >= replay.inserted - 30).all() and (record[..., 1] < R).all()
        assert (sample.weights == 1).all() and sample.weights.dtype == np.float32
        seen.update(sample.starts.tolist())
    assert seen == set(range(R - records + 1))


def test_a_column_of_one_transition_never_starts_at_a_final_record():
    rng = np.random.default_rng(5)
    unrolls = 12
    terminated, truncated = rng.random((2, R, unrolls)) < 0.2
    replay = _replay(1, batch=10)
    _fill(replay, unrolls, terminated, truncated)
    counts = _count_starts(replay, unrolls, 1000)
    final = (terminated | truncated)[:-1].T
    assert 10 < final.sum() < 30 and (counts[final] == 0).all()
    valid = counts[~final]
    # Quantiles of the normal approximation; degrees of freedom depend on the flags drawn.
    degrees = len(valid) - 1
    assert abs(_chi2(valid) - degrees) < 3.5 * np.sqrt(2 * degrees)


def test_an_unroll_of_final_records_alone_does_not_stall_the_draws():
    replay = _replay(1, batch=4)
    _fill(replay, 2, terminated=np.ones((R, 2)))
    assert replay.sample(wait=False) is None
    _fill(replay, 1)
    assert set(replay.sample(wait=False).serials.tolist()) == {2}
    _fill(replay, 2, truncated=np.ones((R, 2)))
    assert set(replay.sample(wait=False).serials.tolist()) == {2}


def test_dropped_and_evicted_unrolls_are_not_drawn():
    replay = _replay(1, batch=256, capacity=6)
    for _ in range(3):
        _fill(replay, 4)
    assert set(replay.sample(wait=False).serials.tolist()) == set(range(6, 12))
    arrays = {
        "record": np.full((R, 3, 2), -1, np.int32),
        **dict.fromkeys(("terminated", "truncated"), np.zeros((R, 3), np.uint8)),
    }
    assert replay.insert(replay.pack(arrays), keep=np.array([False, True, False])) == 3
    assert replay.dropped == 2 and replay.inserted == 13
    sample = replay.sample(wait=False)
    assert set(sample.serials.tolist()) == set(range(7, 13))


def test_uniform_draws_keep_no_priorities_and_no_tree(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("a sum tree was made")

    monkeypatch.setattr(draws, "SumTree", refuse)
    replay = _replay(2, batch=4)
    _fill(replay, 10)
    assert replay.sample(wait=False) is not None
    assert replay.snapshot().priorities is None
    assert not {"priority_mean", "priority_max"} & replay.stats().keys()
    with pytest.raises(ValueError, match="no priorities"):
        replay.update(np.array([0]), np.ones(1))
    with pytest.raises(ValueError, match="cannot be drawn by priority"):
        _replay(2, sampling="prioritized")


@pytest.mark.parametrize(("length", "batch"), [(1, 8), (2, 3), (5, 4)])
def test_the_ratio_is_that_of_transitions(length, batch):
    ratio, min_size = 1.6, 4
    replay = _replay(length, batch=batch, ratio=ratio, min_size=min_size, window=0, capacity=50)
    trained = 0
    for _ in range(400):
        _try_to_insert(replay)
        if replay.sample(wait=False) is not None:
            trained += batch * length
    beyond = (replay.inserted - min_size) * T
    assert replay.inserted > 100 and replay.sampled * length == trained
    # The window: two batches and a step, in transitions; and a batch.
    assert abs(ratio * beyond - trained) <= 3 * batch * length + ratio * T + 1e-6
    assert replay.stats()["replay_ratio"] == pytest.approx(trained / beyond)


def _try_to_insert(replay):
    arrays = {
        "record": np.zeros((R, 1, 2), np.int32),
        **dict.fromkeys(("terminated", "truncated"), np.zeros((R, 1), np.uint8)),
    }
    replay.insert(replay.pack(arrays), wait=False)


def test_the_same_seed_draws_the_same_from_either_storage():
    def drawn(seed, kept):
        replay = _replay(1, batch=16, seed=seed, capacity=40, storage=kept)
        ends = np.random.default_rng(1).random((R, 100)) < 0.2
        found = []
        for start in range(0, 100, 10):
            _fill(replay, 10, ends[:, start : start + 10])
            sample = replay.sample(wait=False)
            found.append((sample.serials, sample.starts, sample.arrays["record"][..., 1].T))
        return [np.concatenate(parts) for parts in zip(*found, strict=True)]

    for one, other in zip(drawn(1, "plain"), drawn(1, "compressed"), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(drawn(1, "plain")[0], drawn(2, "plain")[0])
