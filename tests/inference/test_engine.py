"""The step engine: records, states at unroll boundaries, batching, blocked and closed streams."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seedcli.inference.streams import SlotAllocator
from seedcli.specs import split_envs
from tests.inference.helpers import FakeGroup, Player, make_engine, take_answers, take_unblocked


@settings(max_examples=80)
@given(
    burn_in=st.integers(0, 3),
    length=st.integers(1, 6),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    order=st.randoms(use_true_random=False),
    lengths_seed=st.integers(0, 1000),
    lanes=st.integers(0, 3),
)
def test_unrolls_cover_all_records_without_gaps(burn_in, length, sizes, order, lengths_seed, lanes):
    """Unrolls of stride T cover a stream's records without gaps, in any order of messages.

    `lanes`: 0: one policy; otherwise a group of devices.
    """
    group = FakeGroup(lanes, 64) if lanes else None
    engine, arena, policy, unrolls = make_engine(burn_in=burn_in, length=length, policy=group)
    rng = np.random.default_rng(lengths_seed)
    players = []
    for name, envs in enumerate(sizes):
        stream = engine.open_stream(None, name, envs)
        assert stream is not None
        players.append(Player(engine, stream, name, rng.integers(2, 7, (envs, 5))))
    seen: dict[int, list[dict]] = {name: [] for name in range(len(sizes))}

    def collect() -> None:
        while unrolls:
            buffer = unrolls.pop(0)
            name = int(buffer.rows.observation[0, 0, 0]) // 100
            seen[name].append(
                {
                    "observation": buffer.rows.observation.copy(),
                    "reward": buffer.rows.reward.copy(),
                    "terminated": buffer.rows.terminated.copy(),
                    "truncated": buffer.rows.truncated.copy(),
                    "action": buffer.action.copy(),
                    "mark": buffer.recorded["mark"].copy(),
                    "version": buffer.version.copy(),
                    "state": buffer.state["count"].copy(),
                }
            )
            arena.release(buffer)

    for _ in range(4 * (burn_in + length + 1)):
        ready = [p for p in players if not p.stream.pending]
        for player in order.sample(ready, order.randint(0, len(ready))):
            player.send()
        if engine.wait() == 0.0:
            take_answers(engine)
        collect()
        take_unblocked(engine)
    collect()  # unrolls that unblocking completed

    records = burn_in + length + 1
    for player in players:
        done = seen[player.name]
        for i, unroll in enumerate(done):
            start = i * length
            for t in range(records):
                sent = player.sent[start + t]
                for name in ("observation", "reward", "terminated", "truncated"):
                    np.testing.assert_array_equal(unroll[name][t], sent[name], err_msg=f"{name} of record {start + t}")
                np.testing.assert_array_equal(unroll["action"][t], sent["observation"].sum(axis=1).astype(int) % 1000)
            np.testing.assert_array_equal(unroll["mark"], unroll["action"] / 2)
            assert (np.diff(unroll["version"]) > 0).all()
            # The state before record 0 counts the records of its episode, so it equals the record's step number.
            np.testing.assert_array_equal(unroll["state"], unroll["observation"][0, :, 2])
        assert len(done) == max(0, (len(player.sent) - player.stream.pending - 1 - burn_in) // length)


def test_episodes_are_counted_by_raw_reward_and_steps():
    engine, arena, _, unrolls = make_engine()
    stream = engine.open_stream(None, 0, 2)
    player = Player(engine, stream, 0, np.array([[3, 3], [4, 4]]))
    for _ in range(8):
        player.send()
        take_answers(engine)
        while unrolls:
            arena.release(unrolls.pop())
        take_unblocked(engine)
    # Environment 0: records of episodes 0, 1 (3 each); environment 1: episodes 0, 1 (4 each); reward 1 + episode
    # on every record but the first.
    assert sorted(engine.stats.finished) == [(2.0, 2), (3.0, 3), (4.0, 2), (6.0, 3)]
    assert engine.stats.episodes == 4
    assert engine.stats.env_steps == 16 - (3 + 2)  # 3 and 2 first records are not transitions


def test_a_batch_closes_at_half_the_environments_or_at_the_deadline():
    now = [0.0]
    engine, _, policy, _ = make_engine(deadline=0.004, clock=lambda: now[0])
    players = [Player(engine, engine.open_stream(None, i, 2), i, np.full((2, 1), 50)) for i in range(4)]
    assert engine.wait() is None
    players[0].send()
    assert engine.wait() == pytest.approx(0.004)
    now[0] = 0.003
    assert engine.wait() == pytest.approx(0.001)
    players[1].send()
    assert engine.wait() == 0.0, "4 of 8 environments are half"
    assert {a.stream.index for a in take_answers(engine)} == {0, 1}
    players[2].send()
    now[0] = 1.0
    assert engine.wait() == 0.0, "the deadline has passed"
    take_answers(engine)
    assert policy.batches == [4, 2]


def test_answers_are_sent_before_their_records_are_completed():
    engine, _, _, _ = make_engine(length=2)
    streams = [engine.open_stream(None, i, 2) for i in range(2)]
    players = [Player(engine, stream, i, np.full((2, 1), 1000)) for i, stream in enumerate(streams)]
    seen: list[list[int]] = []
    for _ in range(4):
        for player in players:
            player.send()
        # Records before the batch, and at each answer: the one that fills a buffer must be completed first.
        seen.append([streams[0].records])
        assert engine.answer(lambda answer: seen[-1].append(answer.stream.records)) == 2
        assert all(stream.records == seen[-1][0] + 1 for stream in streams)
    assert seen == [[0, 0, 0], [1, 1, 1], [2, 3, 3], [3, 3, 3]]


def test_a_stream_without_a_buffer_waits_until_one_is_released():
    engine, arena, _, unrolls = make_engine(length=2, training_batch=2)
    stream = engine.open_stream(None, 0, 2)
    player = Player(engine, stream, 0, np.full((2, 1), 1000))
    answered = 0
    for _ in range(50):
        player.send()
        if not take_answers(engine):
            break
        answered += 1
    # 1 open + ceil(2/2)·2 waiting: three buffers are full, and the answer to the record that filled the third waits.
    assert len(unrolls) == 2 and stream.pending and answered == 6
    assert take_unblocked(engine) == []
    arena.release(unrolls.pop(0))
    held = take_unblocked(engine)
    assert [a.sequence for a in held] == [6]
    np.testing.assert_array_equal(held[0].actions, player.sent[6]["observation"].sum(axis=1).astype(int) % 1000)
    player.send()
    assert take_answers(engine), "the stream continues"


def test_a_fault_closes_only_its_stream():
    faults = []

    def on_fault(stream, sentence):
        faults.append((stream.index, sentence))
        engine.close_stream(stream)

    engine, _, _, _ = make_engine(on_fault=on_fault)
    players = [Player(engine, engine.open_stream(None, i, 2), i, np.full((2, 1), 50)) for i in range(3)]
    for player in players:
        player.send()
    players[1].stream.buffer.row[0].observation[1, 2] = np.nan
    players[2].stream.buffer.row[0].terminated[0] = 7
    answers = take_answers(engine)
    assert [a.stream.index for a in answers] == [0]
    assert [index for index, _ in faults] == [1, 2]
    assert "observation" in faults[0][1] and "flag" in faults[1][1]
    assert engine.connected_envs == 2


def test_closed_streams_free_slots_and_buffers():
    engine, arena, _, unrolls = make_engine(max_envs=8)
    streams = [engine.open_stream(None, i, 4) for i in range(2)]
    assert engine.open_stream(None, 2, 1) is None, "8 slots are taken"
    before = arena.allocated_bytes
    player = Player(engine, streams[0], 0, np.full((4, 1), 50))
    player.send()
    engine.close_stream(streams[0])
    engine.close_stream(streams[0])
    assert engine.wait() is None, "a closed stream's message is not answered"
    again = engine.open_stream(None, 3, 4)
    assert again is not None and again.slots[0] == 0
    assert arena.allocated_bytes == before
    for stream in (streams[1], again):
        engine.close_stream(stream)
    assert arena.allocated_bytes == 0
    assert engine.connected_envs == 0 and not unrolls


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5)), max_size=60))
def test_slots_are_allocated_once(operations):
    allocator = SlotAllocator(16)
    held: list[np.ndarray] = []
    for take, count in operations:
        if take:
            taken = {int(slot) for slots in held for slot in slots}
            slots = allocator.take(count)
            if slots is None:
                assert len(taken) + count > 16, "there was room"
                continue
            assert len(slots) == count and not taken & set(slots.tolist()) and slots.max() < 16
            held.append(slots)
        elif held:
            allocator.give(held.pop(count % len(held)))
    for slots in held:
        allocator.give(slots)
    np.testing.assert_array_equal(allocator.take(16), np.arange(16))


def test_environments_are_spread_evenly():
    assert split_envs(7, 2) == [4, 3]
    assert split_envs(1, 2) == [1]
    assert split_envs(32, 4) == [8, 8, 8, 8]


def test_evaluation_environments_have_their_own_stream():
    assert split_envs(18, 2, 2) == [8, 8, 2]
    assert split_envs(20, 2, 1) == [10, 9, 1]
    assert split_envs(2, 2, 1) == [1, 1]
    for evaluation in (-1, 4, 5):
        with pytest.raises(ValueError, match="at least one must train"):
            split_envs(4, 2, evaluation)


def test_a_stream_that_reconnects_while_training_lags_finds_a_buffer():
    """Blocked streams leave and reconnect before any buffer was trained on."""
    engine, _, _, unrolls = make_engine(length=2, training_batch=32, max_envs=64)
    players = [Player(engine, engine.open_stream(None, i, 16), i, np.full((16, 1), 1000)) for i in range(2)]
    while not all(player.stream.pending for player in players):
        for player in players:
            if not player.stream.pending:
                player.send()
        if engine.wait() == 0.0:
            take_answers(engine)
    assert take_unblocked(engine) == [] and unrolls, "both wait for buffers, which all wait for training"
    for player in players:
        engine.close_stream(player.stream)
    for index in range(2):
        again = engine.open_stream(None, index, 16)
        assert again is not None
        Player(engine, again, index, np.full((16, 1), 1000)).send()
    assert len(take_answers(engine)) == 2


def test_a_stream_with_non_contiguous_slots():
    engine, arena, policy, unrolls = make_engine(max_envs=6)
    streams = [engine.open_stream(None, i, 2) for i in range(3)]
    engine.close_stream(streams[0])
    engine.close_stream(streams[2])
    apart = engine.open_stream(None, 3, 4)
    assert apart is not None and apart.slots.tolist() == [0, 1, 4, 5]
    player = Player(engine, apart, 3, np.full((4, 1), 3))
    for _ in range(7):
        player.send()
        assert len(take_answers(engine)) == 1
        while unrolls:
            arena.release(unrolls.pop())
        take_unblocked(engine)
    assert policy.state[[2, 3]].tolist() == [0, 0], "the other stream's slots are unchanged"
    assert engine.stats.episodes == 2 * 4
