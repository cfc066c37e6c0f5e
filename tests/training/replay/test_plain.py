"""Plain unrolls: rings that wrap, snapshots that insertion does not change, checkpoints of short columns."""

from __future__ import annotations

import itertools
import threading
import time

import numpy as np
import pytest

from seedcli.config.sections import ReplayConfig
from seedcli.errors import UsageError
from seedcli.training.replay.blocks import BlockCodec, BlockField
from seedcli.training.replay.buffer import Replay
from seedcli.training.replay.plain import PlainStorage
from seedcli.training.replay.storage import is_plain, max_rows
from seedcli.training.replay.store import ReplayStore

R = 4
CODEC = BlockCodec(
    [
        BlockField("x", (R, 3), "int64", True),
        BlockField("terminated", (R,), "uint8", True),
        BlockField("truncated", (R,), "uint8", True),
    ]
)
LOCK = threading.Condition()


def _arrays(serials, final=0):
    """Unrolls all of whose records hold 10 · serial + index."""
    x = np.broadcast_to((10 * np.asarray(serials) + np.arange(R)[:, None])[..., None], (R, len(serials), 3))
    flags = np.full((R, len(serials)), final, np.uint8)
    return {"x": x, "terminated": flags, "truncated": np.zeros_like(flags)}


def _put(storage, serials):
    storage.put(serials[0], storage.pack(_arrays(serials)), 0, len(serials))


def _serials(blocks):
    blocks = list(blocks)
    if not blocks:
        return []
    x = CODEC.unpacked(blocks)["x"]
    assert (x == x[:1, :, :1] + np.arange(R)[:, None, None]).all()
    return (x[0, :, 0] // 10).tolist()


def test_rows_wrap_around_the_ring():
    storage = PlainStorage(CODEC, 7)
    _put(storage, range(5))
    for first in range(5, 60, 3):
        storage.evict(min(3, max(0, first + 3 - 7)))
        _put(storage, range(first, first + 3))
        assert _serials(storage.freeze(LOCK).blocks(first + 3 - 7 if first > 5 else 1)) == list(
            range(max(first + 3 - 7, 1), first + 3)
        )


def test_packed_unrolls_share_no_memory_with_the_buffer():
    # One environment, and one record: NumPy would see both layouts as contiguous.
    for records, columns in ((1, 1), (1, 3), (4, 1)):
        field = BlockField("x", (records, 3), "int64", True)
        array = np.zeros((records, columns, 3), np.int64)
        packed = PlainStorage(BlockCodec([field]), 5).pack({"x": array})
        assert packed["x"].shape == (columns, records, 3) and not np.shares_memory(packed["x"], array)


def test_a_snapshot_keeps_what_insertion_overwrites():
    storage = PlainStorage(CODEC, 10)
    _put(storage, range(10))
    frozen = [storage.freeze(LOCK) for _ in range(3)]
    reader = frozen[1].blocks(4)
    storage.evict(6)
    _put(storage, range(10, 16))
    assert _serials(frozen[0].blocks(2)) == list(range(2, 10))
    storage.evict(10)
    _put(storage, range(16, 26))
    assert _serials(reader) == list(range(4, 10))
    assert _serials(frozen[2].blocks(0)) == list(range(10))
    assert _serials(storage.freeze(LOCK).blocks(16)) == list(range(16, 26))
    with pytest.raises(ValueError, match="read already"):
        list(frozen[2].blocks(0))


def test_a_snapshot_that_is_gone_costs_insertion_nothing(monkeypatch):
    storage = PlainStorage(CODEC, 4)
    _put(storage, range(4))
    frozen = storage.freeze(LOCK)
    list(frozen.blocks(0))  # what was read need not be kept
    dropped = storage.freeze(LOCK)
    del dropped

    def refuse(*arguments):
        raise AssertionError("rows were packed")

    monkeypatch.setattr(BlockCodec, "pack", refuse)
    storage.evict(4)
    _put(storage, range(4, 8))


def test_snapshots_are_consistent_while_another_thread_inserts(monkeypatch):
    replay = Replay(
        CODEC, ReplayConfig(capacity=300, min_size=1, window=1e12, storage="plain", sampling="uniform"), 8, 1
    )
    monkeypatch.setattr(CODEC, "chunk", 16)  # so that a snapshot is read in many steps
    stop = threading.Event()

    def insert():
        for start in itertools.count(0, 20):
            if stop.is_set():
                return
            replay.insert(replay.pack(_arrays(range(start, start + 20))))
            time.sleep(0)  # releases the GIL, so that the reader sometimes gets the replay's lock

    thread = threading.Thread(target=insert, daemon=True)
    thread.start()
    taken = overwritten = 0
    deadline = time.monotonic() + 60
    try:
        while (taken < 10 or overwritten < 3) and time.monotonic() < deadline:
            snapshot = replay.snapshot()
            assert _serials(snapshot.rows.blocks(snapshot.oldest)) == list(range(snapshot.oldest, snapshot.next))
            taken += 1
            overwritten += replay.inserted > snapshot.oldest + 300
    finally:
        stop.set()
        thread.join(30)
    assert taken >= 10 and overwritten >= 3


@pytest.mark.parametrize("storage", ["plain", "compressed"])
def test_short_columns_of_a_restored_replay_are_the_same(tmp_path, storage):
    def make():
        config = ReplayConfig(capacity=40, min_size=1, window=1e9, storage=storage, sampling="uniform")
        return Replay(CODEC, config, 32, seed=3, sample_length=1)

    def fill(replay, count, final=0):
        start = replay.inserted
        replay.insert(replay.pack(_arrays(range(start, start + count), final)))

    replay = make()
    fill(replay, 30)
    fill(replay, 5, final=1)
    fill(replay, 25)
    replay.sample(wait=False)
    store = ReplayStore(tmp_path / "replay", CODEC.signature)
    store.save(tmp_path, replay.snapshot())
    restored = make()
    assert ReplayStore(tmp_path / "replay", CODEC.signature).restore(tmp_path, restored)
    for _ in range(10):
        mine, theirs = replay.sample(wait=False), restored.sample(wait=False)
        np.testing.assert_array_equal(mine.serials, theirs.serials)
        np.testing.assert_array_equal(mine.starts, theirs.starts)
        np.testing.assert_array_equal(
            theirs.arrays["x"][..., 0], 10 * mine.serials + mine.starts + np.arange(2)[:, None]
        )
        assert not set(range(30, 35)) & set(theirs.serials.tolist()), "these are final throughout"
    assert restored.stats() == replay.stats()


def test_small_records_are_plain_and_large_ones_compressed():
    def codec(size):
        return BlockCodec([BlockField("s", (9000,), "uint8", False), BlockField("x", (R, size), "uint8", True)])

    assert is_plain(codec(4096), ReplayConfig()) and not is_plain(codec(4097), ReplayConfig())
    assert is_plain(codec(4097), ReplayConfig(storage="plain"))
    assert not is_plain(codec(1), ReplayConfig(storage="compressed"))
    assert max_rows(CODEC, ReplayConfig(capacity=1000)) == 1000
    gigabytes = 10.5 * CODEC.raw_bytes / 1e9
    assert max_rows(CODEC, ReplayConfig(capacity=1000, capacity_gb=gigabytes)) == 10
    assert max_rows(CODEC, ReplayConfig(capacity=5, capacity_gb=gigabytes)) == 5
    with pytest.raises(UsageError, match="holds 10 unrolls, fewer than replay.min_size = 11"):
        Replay(CODEC, ReplayConfig(capacity=1000, capacity_gb=gigabytes, min_size=11), 8, 1)
