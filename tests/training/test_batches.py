"""From buffers to batches: each column once, in order and complete."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seedcli.inference.arena import Arena, UnrollBuffer
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec
from seedcli.training.batches import UnrollQueue, assemble

SPEC = EnvSpec("test/env", ArraySpec((2,), "uint8"), ActionSpec((3,)))
RECORDS = 4


def _arena(batch: int) -> Arena:
    return Arena(SPEC, RECORDS, {"logits": ArraySpec((3,), "float32")}, batch_size=batch, queue_batches=1)


def _filled(buffer: UnrollBuffer, first_column: int) -> UnrollBuffer:
    """Fill column c of every array with c, so that a misplaced value shows."""
    columns = first_column + np.arange(buffer.num_envs)
    buffer.memory[:] = 255
    buffer.rows.observation[:] = columns[None, :, None]
    buffer.rows.reward[:] = columns
    buffer.rows.terminated[:] = columns % 2
    buffer.rows.truncated[:] = columns % 3 == 0
    buffer.action[:] = columns
    buffer.recorded["logits"][:] = columns[None, :, None]
    buffer.version[:] = np.arange(RECORDS) + 10 * first_column
    buffer.state = {"core": np.repeat(columns[:, None], 2, axis=1).astype(np.float32)}
    return buffer


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=8), batch=st.integers(1, 6))
def test_each_column_is_trained_on_once_and_buffers_are_released(sizes, batch):
    arena = _arena(batch)
    released: list[UnrollBuffer] = []
    arena.release = released.append  # type: ignore[method-assign]
    queue = UnrollQueue()
    column = 0
    buffers = []
    for size in sizes:
        arena.admit(size)
        buffer = arena.acquire(size)
        buffers.append(_filled(buffer, column))
        queue.put(buffer)
        column += size
    taken = 0
    while (pieces := queue.take(batch, wait=False)) is not None:
        prepared = assemble(pieces, arena)
        expected = taken + np.arange(batch)
        unrolls = prepared.unrolls
        assert unrolls.observation.shape == (RECORDS, batch, 2)
        np.testing.assert_array_equal(unrolls.observation[:, :, 1], np.tile(expected, (RECORDS, 1)))
        np.testing.assert_array_equal(unrolls.reward, np.tile(expected, (RECORDS, 1)))
        np.testing.assert_array_equal(unrolls.terminated, np.tile(expected % 2 == 1, (RECORDS, 1)))
        np.testing.assert_array_equal(unrolls.truncated, np.tile(expected % 3 == 0, (RECORDS, 1)))
        np.testing.assert_array_equal(unrolls.action, np.tile(expected, (RECORDS, 1)))
        np.testing.assert_array_equal(unrolls.recorded["logits"][:, :, 2], np.tile(expected, (RECORDS, 1)))
        np.testing.assert_array_equal(unrolls.state["core"][:, 0], expected)
        assert prepared.versions.shape == (RECORDS, batch)
        assert unrolls.weights.shape == (batch,)
        np.testing.assert_array_equal(prepared.counted, np.tile((expected % 2 == 0) & (expected % 3 > 0), (RECORDS, 1)))
        taken += batch
    assert taken == column // batch * batch
    ends = np.cumsum(sizes)
    assert released == [b for b, end in zip(buffers, ends, strict=True) if end <= taken]


def test_a_batch_is_a_copy():
    arena = _arena(2)
    arena.admit(2)
    queue = UnrollQueue()
    buffer = _filled(arena.acquire(2), 5)
    queue.put(buffer)
    prepared = assemble(queue.take(2, wait=False), arena)
    buffer.memory[:] = 0
    buffer.action[:] = 0
    np.testing.assert_array_equal(prepared.unrolls.observation[0, :, 0], [5, 6])
    np.testing.assert_array_equal(prepared.unrolls.action[0], [5, 6])


def test_closing_wakes_waiting_threads():
    queue = UnrollQueue()
    taken: list[object] = ["nothing"]
    waiter = threading.Thread(target=lambda: taken.__setitem__(0, queue.take(4)))
    waiter.start()
    queue.close()
    waiter.join(timeout=10)
    assert not waiter.is_alive() and taken == [None]


def test_too_few_columns_are_not_taken():
    arena = _arena(4)
    arena.admit(3)
    queue = UnrollQueue()
    queue.put(_filled(arena.acquire(3), 0))
    assert queue.take(4, wait=False) is None
    pieces = queue.take(3, wait=False)
    assert pieces is not None and [(p.start, p.stop) for p in pieces] == [(0, 3)]


@pytest.mark.parametrize(("batch", "envs"), [(4, 2), (3, 2), (32, 8)])
def test_the_arena_holds_a_batch_beside_the_open_buffers(batch, envs):
    """This bound prevents a deadlock: with every buffer full, a batch can be formed."""
    arena = _arena(batch)
    arena.admit(envs)
    count = 0
    while arena.acquire(envs) is not None:
        count += 1
    assert (count - 1) * envs >= batch


def test_columns_that_must_not_be_trained_on_have_weight_0():
    arena = _arena(4)
    queue = UnrollQueue()
    for size, first, keep in ((3, 0, [True, False, True]), (3, 3, None), (3, 6, [False, False, False])):
        arena.admit(size)
        buffer = _filled(arena.acquire(size), first)
        buffer.keep = None if keep is None else np.array(keep)
        queue.put(buffer)
    weights = []
    for _ in range(2):
        prepared = assemble(queue.take(4, wait=False), arena)
        assert prepared.serials is None and prepared.unrolls.weights.dtype == np.float32
        weights += prepared.unrolls.weights.tolist()
        assert not prepared.counted[:, prepared.unrolls.weights == 0].any()
    assert weights == [1, 0, 1, 1, 1, 1, 0, 0]
    assert arena.acquire(3).keep is None, "released buffers are reset"


def test_whole_buffers_are_taken_in_order():
    arena = _arena(4)
    queue = UnrollQueue()
    assert queue.take_buffer(wait=False) is None
    buffers = []
    for size in (2, 3):
        arena.admit(size)
        buffers.append(_filled(arena.acquire(size), 0))
        queue.put(buffers[-1])
    assert [queue.take_buffer(wait=False) for _ in range(3)] == [*buffers, None]
    taken: list[object] = ["nothing"]
    waiter = threading.Thread(target=lambda: taken.__setitem__(0, queue.take_buffer()))
    waiter.start()
    queue.put(buffers[0])
    waiter.join(timeout=10)
    assert taken == [buffers[0]]
    waiter = threading.Thread(target=lambda: taken.__setitem__(0, queue.take_buffer()))
    waiter.start()
    queue.close()
    waiter.join(timeout=10)
    assert not waiter.is_alive() and taken == [None]
    queue.put(buffers[0])
    assert queue.take_buffer() is None, "a closed queue returns nothing"
