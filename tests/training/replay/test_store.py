"""A replay on disk: it is restored completely, only new rows are written, and damage is detected."""

from __future__ import annotations

import json
import os
import tracemalloc

import numpy as np
import pytest

from seedcli.config.sections import ReplayConfig
from seedcli.errors import CheckpointError
from seedcli.training.replay.blocks import BlockCodec, BlockField
from seedcli.training.replay.buffer import Replay
from seedcli.training.replay.store import MANIFEST, PRIORITIES, ReplayStore

R = 3
CODEC = BlockCodec([BlockField("x", (R, 100), "uint8", True), BlockField("s", (4,), "float32", False)])
OTHER = BlockCodec([BlockField("x", (R, 101), "uint8", True), BlockField("s", (4,), "float32", False)])


CONFIG = {"capacity": 40, "min_size": 5, "window": 1e9}


@pytest.fixture(params=["plain", "compressed"], autouse=True, scope="module")
def storage(request):
    """Every test runs with both."""
    CONFIG["storage"] = request.param
    return request.param


def _replay(batch=8, **config):
    return Replay(CODEC, ReplayConfig(**{**CONFIG, **config}), batch, seed=3)


def _blocks(snapshot):
    return list(snapshot.rows.blocks(snapshot.oldest))


def _insert(replay, count):
    rng = np.random.default_rng(replay.inserted)
    arrays = {
        "x": rng.integers(0, 256, (R, count, 100), np.uint8),
        "s": rng.normal(size=(count, 4)).astype(np.float32),
    }
    assert replay.insert(replay.pack(arrays), rng.random(count) + 0.1, wait=False) == count


def _train(replay, batches):
    """Draw and update deterministically; returns the draws."""
    drawn = []
    for _ in range(batches):
        sample = replay.sample(wait=False)
        drawn.append((sample.serials, sample.weights, sample.arrays["x"], sample.arrays["s"]))
        replay.update(sample.serials, sample.weights + 0.01 * (sample.serials % 7))
    return drawn


def _assert_same(one, other):
    a, b = one.snapshot(), other.snapshot()
    assert a._replace(priorities=None, places=0, rows=_blocks(a)) == b._replace(
        priorities=None, places=0, rows=_blocks(b)
    )
    np.testing.assert_array_equal(a.priorities, b.priorities)
    assert one.stats() == other.stats()


def _checkpoint(tmp_path, store, replay, name="checkpoint"):
    directory = tmp_path / name
    directory.mkdir()
    store.save(directory, replay.snapshot())
    return directory


def _segments(tmp_path):
    return sorted(p.name for p in (tmp_path / "replay").iterdir())


def _store(tmp_path, codec=CODEC):
    return ReplayStore(tmp_path / "replay", codec.signature)


@pytest.mark.parametrize("inserted", [3, 30, 100])
def test_a_restored_replay_continues_exactly_like_the_saved_one(tmp_path, inserted):
    replay = _replay(min_size=1)
    _insert(replay, inserted)
    _train(replay, 5)
    replay.update(np.array([replay.inserted - 1]), np.array([np.nan]))  # dropped rows stay dropped
    checkpoint = _checkpoint(tmp_path, _store(tmp_path), replay)
    restored = _replay(min_size=1)
    assert _store(tmp_path).restore(checkpoint, restored)
    _assert_same(replay, restored)
    for mine, theirs in zip(_train(replay, 10), _train(restored, 10), strict=True):
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(a, b)
    _insert(replay, 20)
    _insert(restored, 20)
    _assert_same(replay, restored)


def test_draws_are_the_same_where_the_replay_had_once_been_larger(tmp_path):
    # Packed rows become larger, so that fewer fit: the ring keeps the places it grew to.
    def make():
        return _replay(storage="compressed", batch=16, capacity=5000, capacity_gb=60_000e-9, min_size=1)

    replay = make()
    small = {"x": np.zeros((R, 1100, 100), np.uint8), "s": np.zeros((1100, 4), np.float32)}
    replay.insert(replay.pack(small), np.ones(1100))
    assert replay.snapshot().places == 2048
    _insert(replay, 150)
    checkpoint = _checkpoint(tmp_path, _store(tmp_path), replay)
    restored = make()
    _store(tmp_path).restore(checkpoint, restored)
    assert restored.size < 1024
    for mine, theirs in zip(_train(replay, 10), _train(restored, 10), strict=True):
        np.testing.assert_array_equal(mine[0], theirs[0])


def test_the_highest_priority_outlives_its_unroll(tmp_path):
    replay = _replay()
    _insert(replay, 40)
    replay.update(np.array([3]), np.array([50.0]))
    _insert(replay, 40)
    checkpoint = _checkpoint(tmp_path, _store(tmp_path), replay)
    restored = _replay()
    _store(tmp_path).restore(checkpoint, restored)
    arrays = {"x": np.zeros((R, 1, 100), np.uint8), "s": np.zeros((1, 4), np.float32)}
    restored.insert(restored.pack(arrays))
    assert restored.snapshot().priorities[-1] == 50
    # A manifest of an earlier version lacks these fields.
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    del manifest["highest_priority"], manifest["prioritized"]
    (checkpoint / MANIFEST).write_text(json.dumps(manifest))
    earlier = _replay()
    _store(tmp_path).restore(checkpoint, earlier)
    np.testing.assert_array_equal(earlier.snapshot().priorities, replay.snapshot().priorities)


def test_a_replay_can_be_restored_into_the_other_storage(tmp_path, storage):
    replay, store = _replay(), _store(tmp_path)
    _insert(replay, 60)
    store.write(replay.snapshot())
    _insert(replay, 7)
    checkpoint = _checkpoint(tmp_path, store, replay)
    other, store = _replay(storage="compressed" if storage == "plain" else "plain"), _store(tmp_path)
    store.restore(checkpoint, other)
    assert _blocks(other.snapshot()) == _blocks(replay.snapshot()) and other.nbytes != replay.nbytes
    for mine, theirs in zip(_train(replay, 5), _train(other, 5), strict=True):
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(a, b)
    _insert(other, 5)
    assert [(s["first"], s["last"]) for s in store.write(other.snapshot())["segments"]] == [
        (20, 59),
        (60, 66),
        (67, 71),
    ]


def test_priorities_appear_and_vanish_with_the_way_of_sampling(tmp_path):
    prioritized = _replay()
    _insert(prioritized, 20)
    checkpoint = _checkpoint(tmp_path, _store(tmp_path), prioritized)
    uniform, store = _replay(sampling="uniform"), _store(tmp_path)
    store.restore(checkpoint, uniform)
    assert uniform.size == 20 and (uniform.sample(wait=False).weights == 1).all()
    checkpoint = _checkpoint(tmp_path, store, uniform, "uniform")
    assert not (checkpoint / PRIORITIES).exists()
    again = _replay()
    _store(tmp_path).restore(checkpoint, again)
    assert again.snapshot().priorities.tolist() == [1.0] * 20 and again.sampled == 8


def test_an_empty_replay_is_saved_and_restored(tmp_path):
    checkpoint = _checkpoint(tmp_path, _store(tmp_path), _replay())
    restored = _replay()
    assert _store(tmp_path).restore(checkpoint, restored)
    assert restored.size == 0
    _insert(restored, 10)


def test_restore_returns_false_without_a_replay(tmp_path):
    assert _store(tmp_path).restore(tmp_path, _replay()) is False


def test_a_second_checkpoint_writes_one_segment_with_only_the_new_rows(tmp_path):
    replay, store = _replay(), _store(tmp_path)
    _insert(replay, 10)
    first = store.write(replay.snapshot())
    before = {name: (tmp_path / "replay" / name).stat().st_mtime_ns for name in _segments(tmp_path)}
    _insert(replay, 7)
    second = store.write(replay.snapshot())
    assert [(s["first"], s["last"]) for s in second["segments"]] == [(0, 9), (10, 16)]
    assert second["segments"][:1] == first["segments"]
    for name, written in before.items():
        assert (tmp_path / "replay" / name).stat().st_mtime_ns == written
    assert len(_segments(tmp_path)) == 2
    new = sum(len(block) for block in _blocks(replay.snapshot())[10:])
    assert 0 < second["segments"][1]["bytes"] - new < 500
    third = store.write(replay.snapshot())
    assert third["segments"] == second["segments"] and len(_segments(tmp_path)) == 2
    assert json.loads(json.dumps(third)) == third


def test_segments_of_evicted_rows_leave_the_manifest(tmp_path):
    replay, store = _replay(), _store(tmp_path)
    for _ in range(6):
        _insert(replay, 15)
        manifest = store.write(replay.snapshot())
    assert (manifest["oldest"], manifest["next"]) == (50, 90)
    assert [(s["first"], s["last"]) for s in manifest["segments"]] == [(45, 59), (60, 74), (75, 89)]
    _insert(replay, 100)  # more than it holds: rows in between were never written
    manifest = store.write(replay.snapshot())
    assert [(s["first"], s["last"]) for s in manifest["segments"]] == [(150, 189)]


def test_pruning_keeps_what_a_checkpoint_names(tmp_path):
    replay, store = _replay(), _store(tmp_path)
    checkpoints = []
    for i in range(6):
        _insert(replay, 15)
        checkpoints.append(_checkpoint(tmp_path, store, replay, str(i)))
    assert len(_segments(tmp_path)) == 6
    store.prune(checkpoints)
    assert len(_segments(tmp_path)) == 6
    store.prune([checkpoints[3], tmp_path / "gone", checkpoints[5]])
    assert len(_segments(tmp_path)) == 5  # checkpoint 3 holds rows 20 to 59: segments 15 to 59
    for kept in (checkpoints[3], checkpoints[5]):
        assert _store(tmp_path).restore(kept, _replay())
    store.prune([])
    assert len(_segments(tmp_path)) == 3  # those the next checkpoint builds on
    _insert(replay, 5)
    last = _checkpoint(tmp_path, store, replay, "last")
    assert _store(tmp_path).restore(last, _replay())


def test_pruning_deletes_nothing_while_a_manifest_cannot_be_read(tmp_path):
    replay, store = _replay(), _store(tmp_path)
    checkpoints = []
    for i in range(6):
        _insert(replay, 15)
        checkpoints.append(_checkpoint(tmp_path, store, replay, str(i)))
    (checkpoints[0] / MANIFEST).write_text("{")
    store.prune(checkpoints[:1])
    assert len(_segments(tmp_path)) == 6


def test_resuming_from_an_older_checkpoint_keeps_the_newer_one_valid(tmp_path):
    replay, store = _replay(), _store(tmp_path)
    _insert(replay, 10)
    older = _checkpoint(tmp_path, store, replay, "older")
    _insert(replay, 10)
    newer = _checkpoint(tmp_path, store, replay, "newer")

    again, store = _replay(), _store(tmp_path)
    store.restore(older, again)
    other = {"x": np.ones((R, 10, 100), np.uint8), "s": np.ones((10, 4), np.float32)}
    again.insert(again.pack(other), np.ones(10))  # other rows of the same serials
    branch = _checkpoint(tmp_path, store, again, "branch")
    for checkpoint, source in ((newer, replay), (branch, again)):
        restored = _replay()
        _store(tmp_path).restore(checkpoint, restored)
        _assert_same(source, restored)


def test_a_restored_run_reuses_its_segments(tmp_path):
    replay, store = _replay(), _store(tmp_path)
    _insert(replay, 10)
    checkpoint = _checkpoint(tmp_path, store, replay)
    resumed, store = _replay(), _store(tmp_path)
    store.restore(checkpoint, resumed)
    _insert(resumed, 4)
    manifest = store.write(resumed.snapshot())
    assert [(s["first"], s["last"]) for s in manifest["segments"]] == [(0, 9), (10, 13)]


def test_a_smaller_capacity_keeps_the_newest_rows(tmp_path):
    replay = _replay()
    _insert(replay, 60)
    checkpoint = _checkpoint(tmp_path, _store(tmp_path), replay)
    whole = replay.snapshot()
    blocks = _blocks(whole)
    small = _replay(capacity=12)
    _store(tmp_path).restore(checkpoint, small)
    kept = small.snapshot()
    assert (kept.oldest, kept.next, _blocks(kept)) == (48, 60, blocks[-12:])
    np.testing.assert_array_equal(kept.priorities, whole.priorities[-12:])
    few_bytes = _replay(capacity_gb=2000e-9)
    _store(tmp_path).restore(checkpoint, few_bytes)
    kept = few_bytes.snapshot()
    few = _blocks(kept)
    assert few_bytes.nbytes <= 2000 and 0 < len(few) < 12
    assert few == blocks[-len(few) :] and kept.next == 60
    _train(few_bytes, 3)


def test_restoring_holds_the_rows_once(tmp_path):
    codec = BlockCodec([BlockField("x", (1, 50_000), "uint8", True)])
    config = ReplayConfig(**{**CONFIG, "capacity": 200, "min_size": 1})
    replay = Replay(codec, config, 1, seed=0)
    store = ReplayStore(tmp_path / "replay", codec.signature)
    noise = np.random.default_rng(0).integers(0, 256, (1, 100, 50_000), np.uint8)
    replay.insert(replay.pack({"x": noise}), np.ones(100))
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    store.save(checkpoint, replay.snapshot())
    restored = Replay(codec, config, 1, seed=0)
    tracemalloc.start()
    try:
        ReplayStore(tmp_path / "replay", codec.signature).restore(checkpoint, restored)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert restored.nbytes > 4_900_000
    assert peak < 1.2 * restored.nbytes + 500_000


# ---------------------------------------------------------------------------------------------- damage


@pytest.fixture
def saved(tmp_path):
    """A run folder with one checkpoint of two segments."""
    replay, store = _replay(), _store(tmp_path)
    _insert(replay, 10)
    store.write(replay.snapshot())
    _insert(replay, 10)
    return _checkpoint(tmp_path, store, replay)


def _refused(tmp_path, checkpoint, codec=CODEC):
    replay = Replay(codec, ReplayConfig(**CONFIG), 8, seed=3)
    with pytest.raises(CheckpointError) as caught:
        _store(tmp_path, codec).restore(checkpoint, replay)
    message = str(caught.value)
    assert "--set replay.save=false" in message and "\n" not in message
    assert replay.size == 0 and replay.inserted == 0, "nothing is restored from a damaged replay"
    return message


def test_a_truncated_segment_is_named(tmp_path, saved):
    segment = tmp_path / "replay" / _segments(tmp_path)[1]
    os.truncate(segment, segment.stat().st_size - 1)
    message = _refused(tmp_path, saved)
    assert segment.name in message and "cut short" in message


def test_a_flipped_bit_is_detected(tmp_path, saved):
    segment = tmp_path / "replay" / _segments(tmp_path)[0]
    content = bytearray(segment.read_bytes())
    content[-20] ^= 1
    segment.write_bytes(content)
    message = _refused(tmp_path, saved)
    assert segment.name in message and "checksum" in message


def test_a_missing_segment_is_named(tmp_path, saved):
    segment = tmp_path / "replay" / _segments(tmp_path)[1]
    segment.unlink()
    message = _refused(tmp_path, saved)
    assert segment.name in message and "No such file" in message


def test_unrolls_of_other_shapes_are_refused(tmp_path, saved):
    message = _refused(tmp_path, saved, OTHER)
    assert MANIFEST in message and "other shapes" in message


def test_a_segment_of_another_run_is_refused_even_if_the_manifest_agrees(tmp_path, saved):
    manifest = json.loads((saved / MANIFEST).read_text())
    manifest["signature"] = OTHER.signature
    (saved / MANIFEST).write_text(json.dumps(manifest))
    message = _refused(tmp_path, saved, OTHER)
    assert ".seg" in message and "other shapes" in message


def test_swapped_segments_are_refused(tmp_path, saved):
    manifest = json.loads((saved / MANIFEST).read_text())
    one, two = manifest["segments"]
    for key in ("name", "bytes", "blake2b"):
        one[key], two[key] = two[key], one[key]
    (saved / MANIFEST).write_text(json.dumps(manifest))
    assert "does not hold unrolls 0 to 9" in _refused(tmp_path, saved)


@pytest.mark.parametrize(
    "change",
    [
        {"segments": []},
        {"oldest": 1},
        {"next": 21},
        {"sampled": -1},
        {"sampled": "many"},
        {"places": 0},
        {"rng": {}},
        {"rng": {"bit_generator": "MT19937"}},
        {"rng": None},
        {"format": 99},
        {"highest_priority": 0.5},
        {"highest_priority": "high"},
        {"segments": [{"name": "../x"}]},
    ],
)
def test_a_contradictory_manifest_is_refused(tmp_path, saved, change):
    manifest = json.loads((saved / MANIFEST).read_text())
    (saved / MANIFEST).write_text(json.dumps({**manifest, **change}))
    _refused(tmp_path, saved)


def test_a_segment_is_never_read_from_outside_its_folder(tmp_path, saved):
    manifest = json.loads((saved / MANIFEST).read_text())
    manifest["segments"][0]["name"] = "../" + manifest["segments"][0]["name"]
    (saved / MANIFEST).write_text(json.dumps(manifest))
    assert "out of place" in _refused(tmp_path, saved)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff"])
def test_an_invalid_manifest_is_refused(tmp_path, saved, content):
    (saved / MANIFEST).write_bytes(content)
    assert MANIFEST in _refused(tmp_path, saved)


@pytest.mark.parametrize("priorities", [None, np.ones(3), np.ones(20, np.float32), np.full(20, np.nan), -np.ones(20)])
def test_priorities_that_do_not_fit_are_refused(tmp_path, saved, priorities):
    if priorities is None:
        (saved / PRIORITIES).write_bytes(b"\x93NUMPY")
    else:
        np.save(saved / PRIORITIES, priorities)
    assert PRIORITIES in _refused(tmp_path, saved)


def test_leftovers_of_a_killed_learner_are_ignored(tmp_path, saved):
    left = tmp_path / "replay" / ".000000000020.partial"
    left.write_bytes(b"half a segment")
    orphan = tmp_path / "replay" / "000000000020-0123456789ab.seg"  # its checkpoint was never finished
    orphan.write_bytes(b"a whole one")
    store, replay = _store(tmp_path), _replay()
    assert not left.exists()
    store.restore(saved, replay)
    _insert(replay, 5)
    checkpoint = _checkpoint(tmp_path, store, replay, "next")
    store.prune([saved, checkpoint])
    assert not orphan.exists()
    restored = _replay()
    _store(tmp_path).restore(checkpoint, restored)
    _assert_same(replay, restored)


def test_a_segment_that_cannot_be_written_leaves_the_store_unchanged(tmp_path, monkeypatch):
    replay, store = _replay(), _store(tmp_path)
    _insert(replay, 10)
    store.write(replay.snapshot())
    _insert(replay, 10)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            store.write(replay.snapshot())
    assert len(_segments(tmp_path)) == 1  # nor is a temporary file left
    manifest = store.write(replay.snapshot())
    assert [(s["first"], s["last"]) for s in manifest["segments"]] == [(0, 9), (10, 19)]
