"""The replay with either storage: frequencies of draws, eviction, and the ratio of training to insertion."""

from __future__ import annotations

import hashlib
import logging
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seedcli.config.sections import ReplayConfig
from seedcli.errors import UsageError
from seedcli.training.replay.blocks import BlockCodec, BlockField
from seedcli.training.replay.buffer import Replay
from seedcli.training.replay.draws import MIN_PRIORITY
from seedcli.training.replay.rate_limiter import RateLimiter

R = 3
CODEC = BlockCodec([BlockField("x", (R, 2), "float32", True), BlockField("s", (4,), "int64", False)])
FREE = {"min_size": 1, "window": 1e9}  # training and insertion do not wait for each other


@pytest.fixture(params=["plain", "compressed"], autouse=True, scope="module")
def storage(request):
    """Every test runs with both."""
    FREE["storage"] = request.param
    return request.param


def _replay(batch=2, seed=7, codec=CODEC, **config):
    return Replay(codec, ReplayConfig(**{"capacity": 1000, **FREE, **config}), batch, seed)


def _columns(replay, start, count):
    """Unrolls that hold their own number everywhere, so that a misplaced value shows."""
    number = np.arange(start, start + count)
    x = np.broadcast_to(number[None, :, None], (R, count, 2)).astype(np.float32)
    return replay.pack({"x": x, "s": np.repeat(number[:, None], 4, axis=1)})


def _fill(replay, priorities):
    start = replay.inserted
    taken = replay.insert(_columns(replay, start, len(priorities)), np.asarray(priorities, np.float64), wait=False)
    assert taken == len(priorities)


def _contents(snapshot):
    """The number that each row of a snapshot of `_columns` holds."""
    arrays = CODEC.unpacked(list(snapshot.rows.blocks(snapshot.oldest)))
    assert (arrays["x"] == arrays["s"][:, 0, None]).all()
    return arrays["s"][:, 0].tolist()


def _count_draws(replay, n):
    """How often each of n rows is drawn in 5,000 batches."""
    counts = np.zeros(n)
    for _ in range(5000):
        sample = replay.sample(wait=False)
        np.add.at(counts, sample.serials, 1)
    return counts


# Quantiles of the chi-square distribution with 19 degrees of freedom.
CHI2_19_LOW, CHI2_19_HIGH = 4.91, 45.97  # 0.0005 and 0.9995
N = 20


def _chi2(counts, probabilities):
    expected = counts.sum() * probabilities
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("exponent", [0.0, 0.5, 0.9, 1.0])
def test_unrolls_are_drawn_in_proportion_to_their_priority_to_the_exponent(exponent):
    # Batches of one: draws of a larger batch are stratified, so not independent.
    priorities = np.linspace(0.05, 2.0, N)[np.random.default_rng(1).permutation(N)]
    replay = _replay(batch=1, seed=11, priority_exponent=exponent)
    _fill(replay, priorities)
    counts = _count_draws(replay, N)

    def statistic(alpha):
        return _chi2(counts, priorities**alpha / (priorities**alpha).sum())

    assert CHI2_19_LOW < statistic(exponent) < CHI2_19_HIGH
    assert statistic(exponent + 0.2) > CHI2_19_HIGH, "the test must tell a wrong exponent apart"


def test_stratified_batches_have_the_same_mean_frequencies_and_less_spread():
    priorities = np.linspace(0.05, 2.0, N)
    replay = _replay(batch=40, priority_exponent=0.9)
    _fill(replay, priorities)
    counts = np.zeros(N)
    for _ in range(500):
        np.add.at(counts, replay.sample(wait=False).serials, 1)
    expected = priorities**0.9 / (priorities**0.9).sum()
    np.testing.assert_allclose(counts / counts.sum(), expected, rtol=0.1)
    assert _chi2(counts, expected) < CHI2_19_HIGH


@pytest.mark.parametrize("beta", [0.0, 0.6, 1.0])
def test_importance_weights_agree_with_an_independent_computation(beta):
    rng = np.random.default_rng(3)
    priorities = rng.random(50) * 5
    replay = _replay(batch=16, priority_exponent=0.9, importance_exponent=beta)
    _fill(replay, priorities)
    probability = np.array([p**0.9 for p in priorities]) / sum(p**0.9 for p in priorities)
    for _ in range(20):
        sample = replay.sample(wait=False)
        expected = np.array([(50 * probability[i]) ** -beta for i in sample.serials])
        expected /= expected.max()
        assert sample.weights.dtype == np.float32 and sample.weights.max() == 1
        np.testing.assert_allclose(sample.weights, expected, rtol=1e-6)


def test_a_batch_holds_the_unrolls_its_serials_name_aligned_and_contiguous():
    replay = _replay(batch=5)
    _fill(replay, np.ones(9))
    for _ in range(10):
        sample = replay.sample(wait=False)
        assert sample.serials.dtype == np.int64 and sample.serials.shape == (5,)
        assert sample.arrays["x"].shape == (R, 5, 2) and sample.arrays["x"].dtype == np.float32
        assert sample.arrays["s"].shape == (5, 4) and sample.arrays["s"].dtype == np.int64
        for array in sample.arrays.values():
            assert array.flags.c_contiguous and array.ctypes.data % 64 == 0
        np.testing.assert_array_equal(sample.arrays["s"], np.repeat(sample.serials[:, None], 4, 1))
        expected = np.broadcast_to(sample.serials[None, :, None], (R, 5, 2))
        np.testing.assert_array_equal(sample.arrays["x"], expected)


def test_draws_depend_only_on_the_seed():
    def serials(seed):
        replay = _replay(batch=8, seed=seed)
        _fill(replay, np.ones(100))
        return np.concatenate([replay.sample(wait=False).serials for _ in range(5)])

    np.testing.assert_array_equal(serials(1), serials(1))
    assert not np.array_equal(serials(1), serials(2))


def test_the_draws_of_a_seed_are_those_of_earlier_versions():
    """Through growth, eviction, new priorities and dropped unrolls; recorded before plain storage existed."""
    replay = _replay(batch=16, seed=5, capacity=1500, min_size=64, ratio=2.0, window=0)
    rng = np.random.default_rng(9)
    digest, batches, last = hashlib.blake2b(digest_size=16), 0, None
    for _ in range(400):
        unrolls, priorities, start = _columns(replay, replay.inserted, 8), rng.random(8), 0
        while start < 8:
            start = replay.insert(unrolls, priorities, start=start, wait=False)
            while (sample := replay.sample(wait=False)) is not None:
                digest.update(sample.serials.tobytes())
                last, batches = sample.serials.tolist(), batches + 1
                new = rng.random(16) * 3
                new[rng.random(16) < 0.01] = np.nan
                replay.update(sample.serials, new)
    assert (batches, replay.inserted, replay.dropped) == (394, 3200, 39)
    assert last == [2131, 2150, 2329, 2354, 2478, 2531, 2680, 2708, 2853, 2923, 3014, 3112, 1750, 1831, 1947, 2041]
    assert digest.hexdigest() == "2c5eb2696d3928822bc89dccbaa0bd3c"


def test_new_unrolls_without_a_priority_get_the_highest_so_far():
    replay = _replay(batch=8, capacity=6)
    assert replay.insert(_columns(replay, 0, 2), wait=False) == 2
    assert replay.snapshot().priorities.tolist() == [1, 1]
    replay.update(np.array([0, 1]), np.array([0.25, 0.5]))
    replay.insert(_columns(replay, 2, 1), wait=False)
    replay.update(np.array([0]), np.array([7.0]))
    replay.update(np.array([0]), np.array([2.0]))
    replay.insert(_columns(replay, 3, 2), keep=np.array([False, True]), wait=False)
    assert replay.snapshot().priorities.tolist() == [2, 0.5, 1, 7] and replay.dropped == 1
    replay.insert(_columns(replay, 4, 6), wait=False)  # the row that had it is gone
    assert replay.snapshot().priorities.tolist() == [7] * 6 and replay.snapshot().highest == 7


# ---------------------------------------------------------------------------------------------- eviction


def test_the_oldest_rows_are_evicted_at_the_capacity_in_unrolls():
    replay = _replay(batch=64, capacity=6)
    for start in range(0, 40, 4):
        _fill(replay, np.ones(4))
        assert replay.size == min(6, start + 4)
        held = range(max(0, start + 4 - 6), start + 4)
        assert set(replay.sample(wait=False).serials.tolist()) == set(held)
    snapshot = replay.snapshot()
    assert (snapshot.oldest, snapshot.next) == (34, 40)
    assert _contents(snapshot) == list(range(34, 40))


def test_a_replay_that_grows_far_beyond_its_first_places_keeps_every_row():
    replay = _replay(batch=3000, capacity=2500)
    _fill(replay, np.ones(3100))
    assert replay.size == 2500
    assert _contents(replay.snapshot()) == list(range(600, 3100))
    sample = replay.sample(wait=False)
    np.testing.assert_array_equal(sample.arrays["s"][:, 0], sample.serials)
    assert sample.serials.min() >= 600


NOISE = BlockCodec([BlockField("noise", (R, 4000), "uint8", True)])  # blocks of about 12 kB


def _noise(replay, count, seed=0):
    return replay.pack({"noise": np.random.default_rng(seed).integers(0, 256, (R, count, 4000), np.uint8)})


def test_the_oldest_go_first_when_the_bytes_allowed_are_full(storage):
    replay = _replay(codec=NOISE, capacity_gb=100_000e-9)
    for seed in range(5):
        replay.insert(_noise(replay, 5, seed), np.ones(5))
        assert replay.nbytes <= 100_000
    assert replay.size == 8  # of 12,000 bytes, and a few where they are packed
    assert replay.inserted == 25
    snapshot = replay.snapshot()
    blocks = list(snapshot.rows.blocks(17))
    assert snapshot.oldest == 17 and len(blocks) == 8
    assert replay.nbytes == (8 * 12_000 if storage == "plain" else sum(map(len, blocks)))


def test_bytes_too_few_for_the_minimum_size_are_an_error_that_says_what_to_do():
    with pytest.raises(UsageError) as caught:  # with plain storage, already before the first insertion
        replay = _replay(codec=NOISE, capacity_gb=100_000e-9, min_size=20, capacity=50)
        replay.insert(_noise(replay, 25), np.ones(25))
    message = str(caught.value)
    assert "replay.capacity_gb = 0.0001 holds 8 unrolls" in message
    assert "replay.min_size = 20" in message
    advised = float(message.split("replay.capacity_gb to ")[1].split()[0])
    enough = _replay(codec=NOISE, capacity_gb=advised, min_size=20, capacity=50)
    assert enough.insert(_noise(enough, 25), np.ones(25)) == 25


def test_a_late_priority_does_not_reach_the_row_in_the_same_place():
    replay = _replay(batch=8, capacity=4)
    _fill(replay, [1, 1, 1, 1])
    sample = replay.sample(wait=False)
    _fill(replay, [2, 3])  # rows 4 and 5 take the places of rows 0 and 1
    replay.update(sample.serials, np.full(8, 50.0))
    drawn = set(sample.serials.tolist())
    snapshot = replay.snapshot()
    assert snapshot.oldest == 2
    assert snapshot.priorities.tolist() == [50.0 if 2 in drawn else 1, 50.0 if 3 in drawn else 1, 2, 3]
    replay.update(np.array([-1, 6, 10**12]), np.full(3, 9.0))  # serials of no row
    assert replay.snapshot().priorities.tolist() == snapshot.priorities.tolist()


def test_the_last_of_two_priorities_of_a_row_counts():
    replay = _replay()
    _fill(replay, [1, 1])
    replay.update(np.array([1, 0, 1]), np.array([4.0, 5.0, 6.0], np.float32))
    assert replay.snapshot().priorities.tolist() == [5, 6]


# ---------------------------------------------------------------------------------------------- dropped rows


def test_non_finite_unrolls_are_dropped_counted_and_logged(caplog):
    replay = _replay(batch=64)
    priorities = np.array([1, np.nan, 2, -1, np.inf, 3], np.float32)
    keep = np.array([True, True, False, True, True, True])
    with caplog.at_level(logging.WARNING):
        assert replay.insert(_columns(replay, 0, 6), priorities, keep) == 6
    assert replay.dropped == 4 and replay.inserted == 2
    assert "initial priority is nan" in caplog.text and "values are non-finite" in caplog.text
    contents = replay.sample(wait=False).arrays["s"][:, 0]
    assert set(contents.tolist()) == {0, 5}


def test_a_row_with_a_non_finite_priority_is_dropped_permanently(caplog):
    replay = _replay(batch=64)
    _fill(replay, [1, 1, 1])
    with caplog.at_level(logging.WARNING):
        replay.update(np.array([1, 1, 2, 2]), np.array([np.nan, np.nan, np.nan, 4.0]))
    assert replay.dropped == 2
    assert "priorities are non-finite" in caplog.text and "unroll 1" in caplog.text
    assert set(replay.sample(wait=False).serials.tolist()) == {0}
    replay.update(np.array([1, 2]), np.array([5.0, np.nan]))  # for a batch drawn before
    assert replay.dropped == 2 and set(replay.sample(wait=False).serials.tolist()) == {0}
    assert replay.size == 3


def test_insertion_continues_if_every_row_was_dropped():
    replay = _replay(batch=4, window=4, ratio=1.0)
    _fill(replay, np.ones(5))
    assert replay.insert(_columns(replay, 5, 1), np.ones(1), wait=False) == 0
    replay.update(np.arange(5), np.full(5, np.nan))
    assert replay.sample(wait=False) is None
    assert (
        replay.insert(_columns(replay, 5, 2), np.ones(2), wait=False) == 1
    )  # the first can be drawn; the second waits
    assert set(replay.sample(wait=False).serials.tolist()) == {5}


def test_a_priority_of_zero_can_still_be_drawn():
    replay = _replay(batch=4, priority_exponent=0.9)
    _fill(replay, [0.0])
    sample = replay.sample(wait=False)
    assert sample.serials.tolist() == [0] * 4
    replay.update(sample.serials, np.zeros(4))
    assert replay.sample(wait=False) is not None
    assert replay.snapshot().priorities.tolist() == [MIN_PRIORITY]


@pytest.mark.parametrize("exponent", [0.0, 1.0, 60.0])
def test_extreme_priorities_and_exponents_neither_overflow_nor_vanish(exponent):
    replay = _replay(batch=32, priority_exponent=exponent)
    _fill(replay, [0.0, 1e-30, 1.0, 3e38, 3e38])
    sample = replay.sample(wait=False)
    assert np.isfinite(sample.weights).all() and (sample.weights >= 0).all()
    assert {3, 4} <= set(sample.serials.tolist())


# ---------------------------------------------------------------------------------------------- the ratio


def test_the_limiter_allows_what_keeps_the_difference_in_its_window():
    limiter = RateLimiter(ratio=0.5, min_size=10, window=4)
    assert limiter.can_insert(0, 0, 10)  # nothing holds insertion back before training can start
    assert not limiter.can_sample(9, 0, 1)
    assert limiter.can_sample(10, 0, 4) and not limiter.can_sample(10, 0, 5)
    assert limiter.can_insert(17, 0) and not limiter.can_insert(18, 0)
    assert limiter.can_insert(18, 1) and not limiter.can_insert(20, 1)
    assert limiter.can_insert(10, 0, 8) and not limiter.can_insert(10, 0, 9)


@settings(max_examples=300)
@given(
    ratio=st.one_of(st.floats(0.01, 20), st.sampled_from([0.1, 0.75, 1 / 3, 1.0, 1e-300])),
    window=st.one_of(st.floats(0.5, 100), st.just(1e12)),
    inserted=st.integers(0, 60),
    sampled=st.floats(0, 400),
    most=st.integers(0, 40),
)
def test_the_limiter_counts_what_may_be_inserted_at_once(ratio, window, inserted, sampled, most):
    limiter = RateLimiter(ratio, 20, window)
    one_by_one = 0
    while one_by_one < most and limiter.can_insert(inserted + one_by_one, sampled):
        one_by_one += 1
    assert limiter.insertable(inserted, sampled, most) == one_by_one


def test_an_automatic_window_is_two_batches_and_a_step():
    assert RateLimiter.from_config(ReplayConfig(ratio=0.75), 64).window == 2 * 64 + 0.75
    with pytest.raises(ValueError, match=r"at least 32\.375"):
        RateLimiter.from_config(ReplayConfig(ratio=0.75, window=32), 64)


@settings(max_examples=150)
@given(
    ratio=st.one_of(st.floats(0.01, 20), st.sampled_from([0.1, 0.75, 1 / 3, 1.0, 8.0])),
    batch=st.integers(1, 20),
    slack=st.sampled_from([0.0, 0.5, 100.0]),
    choices=st.lists(st.booleans(), min_size=100, max_size=300),
    far=st.integers(0, 10**8),
)
def test_one_side_can_always_proceed_and_the_difference_stays_bounded(ratio, batch, slack, choices, far):
    window = (batch + ratio) / 2 + slack
    limiter = RateLimiter(ratio, 3, window)
    inserted, sampled = 3 + far, max(0, round(ratio * far) - round(ratio * far) % batch)
    for insertion_first in choices:
        may_insert = limiter.can_insert(inserted, sampled)
        may_sample = limiter.can_sample(inserted, sampled, batch)
        difference = ratio * (inserted - 3) - sampled
        assert may_insert or may_sample, (inserted, sampled)
        if may_insert and (insertion_first or not may_sample):
            inserted += 1
            assert ratio * (inserted - 3) - sampled <= window + 1e-5
        else:
            sampled += batch
            assert ratio * (inserted - 3) - sampled >= -window - 1e-5
        assert abs(difference) <= window + batch + ratio + 1e-5


@pytest.mark.parametrize(("batch", "ratio"), [(4, 0.75), (1, 0.1), (3, 2.5), (8, 1 / 3)])
def test_two_threads_in_the_smallest_window_end_at_the_ratio(batch, ratio):
    window = (batch + ratio) / 2
    columns = 2000
    replay = _replay(batch=batch, ratio=ratio, min_size=5, window=window, capacity=50)
    differences: list[float] = []

    def train():
        while (sample := replay.sample()) is not None:
            replay.update(sample.serials, np.ones(batch))
            snapshot = replay.snapshot()
            differences.append(ratio * (snapshot.next - 5) - snapshot.sampled)

    def insert():
        for start in range(0, columns, 16):
            replay.insert(_columns(replay, start, 16), np.ones(16))

    threads = [threading.Thread(target=insert, daemon=True), threading.Thread(target=train, daemon=True)]
    for thread in threads:
        thread.start()
    threads[0].join(60)
    assert not threads[0].is_alive(), "insertion and training wait for each other"
    inserted, sampled = replay.inserted, replay.sampled
    replay.close()
    threads[1].join(10)
    assert not threads[1].is_alive()
    assert inserted == columns
    assert abs(ratio * (inserted - 5) - sampled) <= window + batch + 1e-6
    assert len(differences) > 10 and max(abs(d) for d in differences) <= window + 1e-5
    assert replay.stats()["replay_ratio"] == pytest.approx(ratio, abs=(window + batch) / (columns - 5))


def test_insertion_without_wait_stops_and_continues_later():
    replay = _replay(batch=4, ratio=1.0, min_size=4, window=4)
    columns, priorities = _columns(replay, 0, 20), np.ones(20)
    stop = replay.insert(columns, priorities, wait=False)
    assert stop == 8 == replay.inserted
    assert replay.insert(columns, priorities, start=stop, wait=False) == stop
    assert replay.sample(wait=False) is not None
    assert replay.insert(columns, priorities, start=stop, wait=False) == 12
    assert _contents(replay.snapshot()) == list(range(12))


def test_sampling_without_wait_returns_none():
    replay = _replay(batch=4, ratio=1.0, min_size=6, window=4)
    _fill(replay, np.ones(5))
    assert replay.sample(wait=False) is None
    _fill(replay, np.ones(1))
    assert replay.sample(wait=False) is not None
    assert replay.sample(wait=False) is None
    assert replay.sampled == 4


def _started(work):
    result: list[object] = []
    thread = threading.Thread(target=lambda: result.append(work()), daemon=True)
    thread.start()
    return thread, result


def _assert_waits(thread):
    thread.join(0.05)
    assert thread.is_alive()


def test_sampling_wakes_insertion_and_insertion_wakes_sampling():
    replay = _replay(batch=4, ratio=1.0, min_size=4, window=4)
    thread, result = _started(lambda: replay.insert(_columns(replay, 0, 12), np.ones(12)))
    _assert_waits(thread)
    assert replay.inserted == 8
    assert replay.sample() is not None
    thread.join(10)
    assert result == [12]
    assert replay.sample() is not None and replay.sample() is not None
    thread, result = _started(replay.sample)
    _assert_waits(thread)
    replay.insert(_columns(replay, 12, 4), np.ones(4))
    thread.join(10)
    assert len(result) == 1 and result[0].waited >= 0.05  # type: ignore[attr-defined]


def test_closing_wakes_both_sides():
    waiting = _replay(batch=4, ratio=1.0, min_size=4, window=4)
    inserter, inserted = _started(lambda: waiting.insert(_columns(waiting, 0, 12), np.ones(12)))
    _assert_waits(inserter)
    empty = _replay()
    sampler, sampled = _started(empty.sample)
    _assert_waits(sampler)
    waiting.close()
    empty.close()
    inserter.join(10)
    sampler.join(10)
    assert inserted == [8] and sampled == [None]
    assert waiting.sample() is None
    assert waiting.insert(_columns(waiting, 0, 1), np.ones(1)) == 0
    assert waiting.snapshot().next == 8  # a last checkpoint can still be made


def test_three_threads_see_only_rows_that_match_their_serials():
    replay = _replay(batch=16, capacity=30, ratio=4.0, min_size=10, window=0)
    wrong: list[str] = []

    def insert():
        for start in range(0, 1500, 10):
            replay.insert(_columns(replay, start, 10), np.full(10, 1.0))
        replay.close()

    def train():
        while (sample := replay.sample()) is not None:
            if not np.array_equal(sample.arrays["s"][:, 3], sample.serials):
                wrong.append("state")
            if not np.array_equal(sample.arrays["x"][2, :, 1], sample.serials):
                wrong.append("record")
            replay.update(sample.serials, sample.serials.astype(np.float32) + 1)

    threads = [threading.Thread(target=insert, daemon=True), threading.Thread(target=train, daemon=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not wrong
    snapshot = replay.snapshot()
    fresh_or_own = (snapshot.priorities == 1) | (snapshot.priorities == np.arange(snapshot.oldest, snapshot.next) + 1)
    assert fresh_or_own.all()


# ---------------------------------------------------------------------------------------------- figures


def test_figures_are_numbers_from_the_start():
    replay = _replay(batch=2, min_size=2, ratio=1.0)
    assert set(replay.stats().values()) == {0.0}
    _fill(replay, [1.0, 3.0, 5.0, 7.0])
    replay.sample(wait=False)
    replay.update(np.array([3]), np.array([np.nan]))
    stats = replay.stats()
    assert stats["replay_size"] == 4 == replay.size
    assert stats["replay_mb"] == replay.nbytes / 1e6 > 0
    assert stats["replay_ratio"] == 1.0
    assert stats["priority_mean"] == 3 and stats["priority_max"] == 5
    assert stats["bytes_per_unroll"] == replay.nbytes / 4
    assert replay.codec.raw_bytes == R * 2 * 4 + 4 * 8


def test_a_snapshot_does_not_change_with_the_replay():
    replay = _replay(capacity=3)
    _fill(replay, [1, 2, 3])
    snapshot = replay.snapshot()
    rng = dict(snapshot.rng)
    _fill(replay, [4, 5])
    replay.sample(wait=False)
    replay.update(np.array([2]), np.array([9.0]))
    assert (snapshot.oldest, snapshot.next) == (0, 3)
    assert snapshot.priorities.tolist() == [1, 2, 3]
    assert snapshot.rng == rng and snapshot.rng != replay.snapshot().rng
    assert _contents(snapshot) == [0, 1, 2]


@pytest.mark.parametrize(("ratio", "min_size"), [(1.0, 4), (8.0, 4), (0.25, 4), (1.0, 15)])
def test_a_replay_restored_under_another_ratio_continues_at_that_ratio(ratio, min_size):
    before = _replay(batch=4, ratio=1.0, min_size=4, window=8)
    for start in range(0, 20, 4):
        before.insert(_columns(before, start, 4), np.ones(4))
        before.sample(wait=False)
    saved = before.snapshot()
    replay = _replay(batch=4, ratio=ratio, min_size=min_size, window=8)
    replay.restore(saved, saved.rows.blocks(saved.oldest))
    assert (replay.inserted, replay.sampled) == (20, 20), "what has been counted stands"
    inserted = sampled = 0
    for _ in range(200):
        inserted += replay.insert(_columns(replay, replay.inserted, 1), np.ones(1), wait=False)
        sampled += 4 * (replay.sample(wait=False) is not None)
    assert inserted > 40 and sampled > 40
    assert sampled == pytest.approx(ratio * inserted, abs=2 * 8 + 4 + ratio)
