"""The step engine: evaluation streams and non-finite rewards."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.inference.helpers import Player, make_engine, take_answers, take_unblocked


def _play(engine, arena, players, rounds, unrolls, seen=None):
    """Play rounds in which every stream that is not blocked sends a row; buffers are released at once."""
    for _ in range(rounds):
        for player in players:
            if not player.stream.pending:
                player.send()
        take_answers(engine)
        while unrolls:
            if seen is not None:
                seen.extend(unrolls[0].rows.observation[:, :, 0].ravel().tolist())
            arena.release(unrolls.pop(0))
        take_unblocked(engine)


def test_evaluation_streams_are_answered_counted_separately_and_not_trained_on():
    engine, arena, policy, unrolls = make_engine(length=3)
    trains = Player(engine, engine.open_stream(None, 0, 2), 1, np.array([[3], [4]]))
    before = arena.allocated_bytes
    watched = Player(engine, engine.open_stream(None, 1, 3, "evaluation"), 2, np.array([[3], [4], [6]]))
    assert arena.allocated_bytes == before, "its records need no buffers of the arena"
    seen: list[float] = []
    _play(engine, arena, [trains, watched], 12, unrolls, seen)
    assert len(watched.sent) == len(trains.sent) == 12 and not watched.stream.pending
    assert set(seen) == {100.0, 101.0}
    stats = engine.stats
    # 12 records: 4 and 3 episodes of training, 4, 3 and 2 of evaluation; the first record of each is not a transition.
    assert (stats.env_steps, stats.episodes) == (24 - 7, 7)
    assert (stats.evaluation_steps, stats.evaluation_episodes) == (36 - 9, 9)
    assert len(stats.finished) == 7
    # The reward is 1 + episode on every record but the first.
    lengths = {3: 4, 4: 3, 6: 2}
    expected = sorted(((n - 1) * (1.0 + e), n - 1) for n, episodes in lengths.items() for e in range(episodes))
    assert sorted(stats.finished_evaluation) == expected
    assert sorted(stats.recent_evaluation_returns) == [episode[0] for episode in expected]
    # States carry over from record to record, as in training.
    np.testing.assert_array_equal(policy.state[watched.stream.slots], watched.sent[-1]["observation"][:, 2] + 1)
    assert engine.training_slots[trains.stream.slots].all() and engine.training_slots.sum() == 2


def test_evaluation_streams_get_the_actions_for_their_observations():
    engine, _, _, _ = make_engine(length=2)
    player = Player(engine, engine.open_stream(None, 0, 3, "evaluation"), 4, np.full((3, 1), 5))
    for sequence in range(9):
        player.send()
        (answer,) = take_answers(engine)
        assert answer.sequence == sequence
        np.testing.assert_array_equal(answer.actions, player.sent[-1]["observation"].sum(axis=1).astype(int) % 1000)


def test_evaluation_waits_for_blocked_training_streams():
    engine, arena, _, unrolls = make_engine(length=2, training_batch=2)
    trains = Player(engine, engine.open_stream(None, 0, 2), 1, np.full((2, 1), 1000))
    watched = Player(engine, engine.open_stream(None, 1, 3, "evaluation"), 2, np.full((3, 1), 4))

    def play(rounds: int) -> None:
        for _ in range(rounds):
            for player in (trains, watched):
                if not player.stream.pending and not player.stream.closed:
                    player.send()
            if engine.wait() is not None:
                take_answers(engine)
            take_unblocked(engine)

    play(50)  # buffers are not released
    assert trains.stream.pending and len(trains.sent) == 7 and len(unrolls) == 2
    # Evaluation may be one unroll ahead, T = 2 records; the next answer waits.
    assert watched.stream.pending and len(watched.sent) == 7 + 2 + 1
    arena.release(unrolls.pop(0))
    play(50)
    assert trains.stream.pending and len(trains.sent) == 9 and len(watched.sent) == 12
    engine.close_stream(trains.stream)
    play(5)
    assert len(watched.sent) > 12, "no training stream is left to wait for"


def test_alternately_blocked_streams_do_not_starve_evaluation():
    engine, arena, _, unrolls = make_engine(length=2, training_batch=2)
    players = [Player(engine, engine.open_stream(None, i, 2), i, np.full((2, 1), 1000)) for i in range(2)]
    watched = Player(engine, engine.open_stream(None, 2, 1, "evaluation"), 2, np.full((1, 1), 4))
    for turn in range(400):
        for player in (*players, watched):
            if not player.stream.pending:
                player.send()
        if engine.wait() is not None:
            take_answers(engine)
        take_unblocked(engine)
        if turn % 3 == 0 and unrolls:  # training takes a buffer from time to time
            arena.release(unrolls.pop(0))
    mean = sum(len(player.sent) for player in players) / 2
    assert mean > 50 and abs(len(watched.sent) - mean) <= 4


def test_closed_evaluation_streams_free_their_slots():
    engine, arena, policy, _ = make_engine(max_envs=6)
    trains = engine.open_stream(None, 0, 3)
    watched = engine.open_stream(None, 1, 3, "evaluation")
    assert engine.open_stream(None, 2, 1, "evaluation") is None
    assert [policy.assigned[slot] for slot in watched.slots.tolist()] == [("evaluation", i) for i in range(3)]
    player = Player(engine, watched, 1, np.full((3, 1), 4))
    player.send()
    for _ in range(2):
        engine.close_stream(watched)
    assert engine.wait() is None and engine.connected_envs == 3
    again = engine.open_stream(None, 3, 3)
    assert again is not None and again.slots.tolist() == watched.slots.tolist()
    assert engine.training_slots.all()
    player = Player(engine, again, 1, np.full((3, 1), 4))
    player.send()
    take_answers(engine)
    assert engine.stats.evaluation_steps == 0, "the slots are no longer those of evaluation"
    for stream in (trains, again):
        engine.close_stream(stream)
    assert not engine.training_slots.any() and arena.allocated_bytes == 0


def test_ranks_belong_to_training_environments_and_are_reused():
    engine, _, policy, _ = make_engine(max_envs=16)

    def ranks(stream):
        return [policy.assigned[slot] for slot in stream.slots.tolist()]

    first = engine.open_stream(None, 0, 4)
    engine.open_stream(None, 1, 2, "evaluation")
    third = engine.open_stream(None, 2, 3)
    assert ranks(first) == [("training", i) for i in range(4)]
    assert ranks(third) == [("training", i) for i in (4, 5, 6)], "evaluation takes no rank"
    engine.close_stream(first)
    again = engine.open_stream(None, 3, 2)
    assert ranks(again) == [("training", i) for i in (0, 1)]
    assert ranks(engine.open_stream(None, 4, 2)) == [("training", i) for i in (2, 3)]
    assert ranks(engine.open_stream(None, 5, 1)) == [("training", 7)]


@settings(max_examples=60)
@given(
    burn_in=st.integers(0, 3),
    length=st.integers(1, 5),
    envs=st.integers(1, 3),
    seed=st.integers(0, 10_000),
    rare=st.floats(0.01, 0.4),
    value=st.sampled_from([np.nan, np.inf, -np.inf]),
    hold=st.integers(0, 4),
)
def test_exactly_the_unrolls_with_a_non_finite_reward_are_dropped(burn_in, length, envs, seed, rare, value, hold):
    """Only in that environment's column, for any number of buffers held by training."""
    engine, arena, _, unrolls = make_engine(burn_in=burn_in, length=length, training_batch=2)
    rng = np.random.default_rng(seed)
    player = Player(engine, engine.open_stream(None, 0, envs), 0, rng.integers(2, 7, (envs, 5)))
    other = Player(engine, engine.open_stream(None, 1, 2), 1, np.full((2, 1), 9))
    bad: list[np.ndarray] = []
    done: list[tuple[np.ndarray, np.ndarray]] = []
    records = burn_in + length + 1

    def train() -> None:
        buffer = unrolls.pop(0)
        if buffer.rows.observation[0, 0, 0] < 100:
            keep = np.ones(envs, np.bool_) if buffer.keep is None else buffer.keep.copy()
            done.append((keep, buffer.rows.reward.copy()))
        else:
            assert buffer.keep is None
        arena.release(buffer)
        assert buffer.keep is None, "released buffers are reset"

    for step in range(6 * records):
        if not player.stream.pending:
            bad.append(rng.random(envs) < rare)
            player.send(bad[-1], value)
        if not other.stream.pending:
            other.send()
        if engine.wait() == 0.0:
            take_answers(engine)
        if hold == 0 or step % hold == 0:  # otherwise buffers wait and may block the stream
            while unrolls:
                train()
            take_unblocked(engine)
    while unrolls:
        train()
    take_unblocked(engine)
    while unrolls:
        train()
    found = np.array(bad)
    dropped = 0
    for i, (keep, reward) in enumerate(done):
        window = found[i * length : i * length + records]
        np.testing.assert_array_equal(keep, ~window.any(axis=0), err_msg=f"unroll {i}")
        assert np.isfinite(reward).all() and (reward[window] == 0).all()
        dropped += int(window.any(axis=0).sum())
    assert done and engine.stats.dropped_unrolls == dropped
    assert len(done) == max(0, (len(player.sent) - player.stream.pending - 1 - burn_in) // length)


def test_a_blocked_stream_drops_only_the_unrolls_with_the_non_finite_reward():
    engine, arena, _, unrolls = make_engine(burn_in=1, length=2, training_batch=1)
    player = Player(engine, engine.open_stream(None, 0, 2), 0, np.full((2, 1), 1000))
    keeps = []

    def take() -> None:
        buffer = unrolls.pop(0)
        keeps.append([True, True] if buffer.keep is None else buffer.keep.tolist())
        arena.release(buffer)

    # Unrolls hold records 0-3, 2-5, 4-7, 6-9, 8-11, …: record 7 is in the third and the fourth.
    while not player.stream.pending:
        player.send(np.array([False, len(player.sent) == 7]))
        take_answers(engine)
    assert len(player.sent) == 8 and len(unrolls) == 2, "the third unroll, full with record 7, waits"
    while len(player.sent) < 16:
        take()
        take_unblocked(engine)
        while not player.stream.pending:
            player.send()
            take_answers(engine)
    while unrolls:
        take()
        take_unblocked(engine)
    good = [True, True]
    assert keeps[:5] == [good, good, [True, False], [True, False], good] and all(k == good for k in keeps[5:])
    assert engine.stats.dropped_unrolls == 2


@pytest.mark.parametrize("role", ["training", "evaluation"])
def test_a_non_finite_reward_counts_as_0_in_the_return(role, caplog, monkeypatch):
    monkeypatch.setattr("seedcli.telemetry.logs._limiter", {})  # forget earlier lines
    engine, arena, _, unrolls = make_engine()
    player = Player(engine, engine.open_stream(None, 0, 1, role), 0, np.array([[5]]))
    for step in range(5):
        player.send(np.array([step in (1, 3)]), np.inf if step == 3 else np.nan)
        assert len(take_answers(engine)) == 1
    finished = engine.stats.finished if role == "training" else engine.stats.finished_evaluation
    assert list(finished) == [(2.0, 4)], "two of four rewards of 1 are left"
    assert caplog.text.count("returned a non-finite reward") == 1, "one line is enough"
