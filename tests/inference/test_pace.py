"""Streams that wait for training (`training.synchronous`)."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from seedcli.inference.pace import Pace
from tests.inference.helpers import Player, answered, make_engine, take_answers, take_unblocked


def play(engine, players):
    """Send a row of every stream that is not waiting; returns the indices of the streams answered."""
    for player in players:
        if not player.stream.pending and not player.stream.closed:
            player.send()
    return answered(take_answers(engine) if engine.wait() == 0.0 else [])


def make_players(engine, sizes):
    streams = [engine.open_stream(None, index, envs) for index, envs in enumerate(sizes)]
    return [Player(engine, stream, stream.index, np.full((stream.num_envs, 1), 50)) for stream in streams]


def test_a_stream_waits_after_its_unroll_until_the_batch_is_trained():
    pace = Pace(4)
    engine, arena, _, unrolls = make_engine(length=3, training_batch=4, pace=pace)
    first, second = players = make_players(engine, [2, 2])
    for _ in range(3):
        assert play(engine, [first]) == {0}
    assert play(engine, [first]) == set(), "its unroll is complete, though the batch is not"
    for _ in range(3):
        assert play(engine, [second]) == {1}
    assert play(engine, players) == set()
    assert [buffer.num_envs for buffer in unrolls] == [2, 2]
    for buffer in unrolls:
        arena.release(buffer)  # copied, but not trained on
    assert take_unblocked(engine) == []
    pace.trained()
    assert answered(take_unblocked(engine)) == {0, 1}
    for _ in range(2):
        assert play(engine, players) == {0, 1}
    assert play(engine, players) == set()


def test_streams_continue_until_a_batch_of_several_unrolls_is_complete():
    pace = Pace(8)
    engine, _, _, unrolls = make_engine(length=2, training_batch=8, pace=pace)
    players = make_players(engine, [2, 2])
    for _ in range(4):
        assert play(engine, players) == {0, 1}
    assert play(engine, players) == set()
    assert sum(buffer.num_envs for buffer in unrolls) == 8


def test_a_stream_whose_partners_leave_collects_the_batch_alone():
    pace = Pace(4)
    engine, _, _, unrolls = make_engine(length=2, training_batch=4, pace=pace)
    first, second = make_players(engine, [2, 2])
    while play(engine, [first]):
        pass
    engine.close_stream(second.stream)
    assert answered(take_unblocked(engine)) == {0}, "the batch needs two unrolls of it now"
    while play(engine, [first]):
        pass
    assert sum(buffer.num_envs for buffer in unrolls) == 4


def test_evaluation_streams_do_not_wait():
    pace = Pace(2)
    engine, _, _, _ = make_engine(length=2, training_batch=2, pace=pace)
    (training,) = make_players(engine, [2])
    stream = engine.open_stream(None, 1, 1, "evaluation")
    evaluation = Player(engine, stream, 1, np.full((1, 1), 50))
    while play(engine, [training]):
        pass
    assert play(engine, [evaluation]) == {1}


@settings(max_examples=150)
@given(
    batch_size=st.integers(1, 9),
    length=st.integers(1, 4),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    order=st.randoms(use_true_random=False),
)
def test_training_never_waits_for_streams_that_wait_for_it(batch_size, length, sizes, order):
    """Streams of any size come and go; whenever all of them wait, the queue has a batch."""
    pace = Pace(batch_size)
    engine, arena, _, unrolls = make_engine(max_envs=256, length=length, training_batch=batch_size, pace=pace)
    players = make_players(engine, sizes)
    queued, batches, partly = [], 0, 0
    for turn in range(120):
        changing = turn < 60
        if changing and order.random() < 0.1 and len(players) > 1:
            engine.close_stream(players.pop(order.randrange(len(players))).stream)
        if changing and order.random() < 0.1:
            stream = engine.open_stream(None, 10 + turn, order.randint(1, 4))
            players.append(Player(engine, stream, 10 + turn, np.full((stream.num_envs, 1), 50)))
        ready = [player for player in players if not player.stream.pending]
        play(engine, order.sample(ready, order.randint(0, len(ready))) if changing else ready)
        take_unblocked(engine)
        while all(player.stream.pending for player in players):
            queued, unrolls[:] = queued + unrolls, []
            assert sum(buffer.num_envs for buffer in queued) - partly >= batch_size
            partly += batch_size
            while queued and partly >= queued[0].num_envs:
                partly -= queued[0].num_envs
                arena.release(queued.pop(0))
            pace.trained()
            batches += not changing
            take_unblocked(engine)
    assert batches
