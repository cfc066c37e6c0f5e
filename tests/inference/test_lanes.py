"""Several inference devices behind one engine: streams are spread, and each lane has its own batches."""

from __future__ import annotations

import numpy as np
import pytest

from seedcli.inference.lane import share
from tests.inference.helpers import FakeGroup, Player, answered, make_engine, take_answers, take_unblocked


def lanes_of(group: FakeGroup) -> list[list[int]]:
    """Slots assigned to each lane."""
    return [sorted(lane.assigned) for lane in group.devices]


def players(engine, sizes, role="training"):
    streams = [engine.open_stream(None, i, envs, role) for i, envs in enumerate(sizes)]
    return [Player(engine, stream, i, np.full((stream.num_envs, 1), 50)) for i, stream in enumerate(streams)]


def test_streams_go_to_the_lane_with_the_fewest_environments():
    group = FakeGroup(3, 16)
    engine, *_ = make_engine(max_envs=16, policy=group)
    streams = [engine.open_stream(None, i, envs) for i, envs in enumerate((4, 2, 3, 2, 1))]
    assert engine.lane_envs == [4, 4, 4]
    assert lanes_of(group) == [[0, 1, 2, 3], [4, 5, 9, 10], [6, 7, 8, 11]], "slots are numbered over the whole host"
    ranks = {slot: part for lane in group.devices for slot, part in lane.assigned.items()}
    assert ranks == {slot: ("training", slot) for slot in range(12)}, "and ranks too"
    assert engine.open_stream(None, 5, 5) is None, "16 environments are the limit over all lanes"
    engine.close_stream(streams[0])
    assert engine.lane_envs == [0, 4, 4]
    engine.open_stream(None, 6, 6, "evaluation")
    assert engine.lane_envs == [6, 4, 4] and engine.connected_envs == 14


def test_the_batch_size_is_split_between_lanes():
    assert [share(10, 4), share(8, 4), share(1, 4), share(0, 4), share(7, 1)] == [3, 2, 1, 0, 7]
    group = FakeGroup(2, 32)
    engine, *_ = make_engine(max_envs=32, batch_size=5, deadline=9.0, policy=group)
    one, _, three = players(engine, (2, 2, 2))  # lanes 0, 1, 0
    one.send()
    assert engine.wait() > 0
    three.send()
    assert engine.wait() == 0.0, "each of two lanes waits for 3 of 5"
    assert answered(take_answers(engine)) == {0, 2}


def test_reading_continues_until_every_lane_has_its_batch():
    engine, *_ = make_engine(max_envs=32, deadline=9.0, policy=FakeGroup(3, 32))
    assert not engine.full, "no environment is connected"
    one, two, three, _ = players(engine, (2, 2, 2, 2))  # lanes 0, 1, 2, 0
    for player in (one, two):
        player.send()
        assert not engine.full and engine.wait() == 0.0
    three.send()
    assert engine.full
    engine.close_stream(three.stream)
    assert engine.full, "a lane without environments is not waited for"
    assert answered(take_answers(engine)) == {0, 1} and not engine.full


def test_a_lane_that_is_due_does_not_wait_for_another():
    now = [0.0]
    group = FakeGroup(2, 32)
    engine, *_ = make_engine(max_envs=32, deadline=0.004, clock=lambda: now[0], policy=group)
    first, second, third, fourth = players(engine, (2, 2, 2, 2))  # lanes 0, 1, 0, 1; half of a lane is 2
    engine.open_stream(None, 9, 8)  # lane 0: 12 environments, half of them 6
    second.send()
    first.send()
    now[0] = 0.001
    assert engine.wait() == 0.0
    assert answered(take_answers(engine)) == {1}, "lane 0 is not full yet"
    assert group.log == [("begin", 1), ("finish", 1)]
    assert engine.wait() == pytest.approx(0.003), "its deadline is next"
    now[0] = 0.003
    fourth.send()
    assert answered(take_answers(engine)) == {3}
    third.send()
    now[0] = 0.0041
    assert not engine.full and engine.wait() == 0.0, "its oldest row is overdue"
    assert answered(take_answers(engine)) == {0, 2} and engine.wait() is None


def test_all_due_lanes_start_before_any_result_is_fetched():
    group = FakeGroup(4, 32)
    engine, *_ = make_engine(max_envs=32, length=1, policy=group)
    all_four = players(engine, (2, 3, 1, 2))
    for round_ in range(3):
        group.log.clear()
        for player in all_four[: 4 if round_ != 1 else 3]:
            player.send()
        expected = 4 if round_ != 1 else 3
        assert len(take_answers(engine)) == expected
        lanes = list(range(expected))
        assert group.log == [("begin", lane) for lane in lanes] + [("finish", lane) for lane in lanes]
    assert engine.stats.batches == 11 and engine.stats.batch_rows == 8 + 6 + 8
    assert [lane.batches for lane in group.devices] == [[2, 2, 2], [3, 3, 3], [1, 1, 1], [2, 2]]


def test_answers_and_versions_come_from_the_streams_lane():
    group = FakeGroup(2, 16)
    engine, arena, _, unrolls = make_engine(max_envs=16, length=2, policy=group)
    both = players(engine, (2, 2))
    for _ in range(3):
        for player in both:
            player.send()
        for answer in take_answers(engine):
            sent = both[answer.stream.index].sent[-1]["observation"]
            np.testing.assert_array_equal(answer.actions, sent.sum(axis=1).astype(int) % 1000)
        take_unblocked(engine)
    versions = {int(u.rows.observation[0, 0, 0]) // 100: u.version.tolist() for u in unrolls}
    assert versions == {0: [1, 3, 5], 1: [2, 4, 6]}


def test_a_fault_in_one_lane_removes_its_owners_rows_from_every_lane():
    """An actor's streams are in different lanes: none of its rows is answered, rows of other actors are."""
    group = FakeGroup(2, 32)
    faults = []

    def on_fault(stream, sentence):
        faults.append(stream.index)
        for other in streams:
            if other.owner == stream.owner:
                engine.close_stream(other)

    engine, arena, _, _ = make_engine(max_envs=32, on_fault=on_fault, policy=group)
    streams = [engine.open_stream(owner, i, 2) for i, owner in enumerate("aabb")]  # lanes 0, 1, 0, 1
    everyone = [Player(engine, stream, i, np.full((2, 1), 50)) for i, stream in enumerate(streams)]
    for player in everyone:
        player.send()
    streams[1].buffer.row[0].observation[1, 0] = np.inf
    answers = take_answers(engine)
    assert answered(answers) == {2, 3} and faults == [1]
    for answer in answers:
        sent = everyone[answer.stream.index].sent[-1]["observation"]
        np.testing.assert_array_equal(answer.actions, sent.sum(axis=1).astype(int) % 1000)
    assert engine.connected_envs == 4 and engine.lane_envs == [2, 2] and engine.stats.batch_rows == 4
    for stream in streams[2:]:
        engine.close_stream(stream)
    assert arena.allocated_bytes == 0


def test_closing_a_stream_keeps_the_other_pending_rows_of_its_lane():
    group = FakeGroup(2, 32)
    engine, *_ = make_engine(max_envs=32, deadline=9.0, policy=group)
    everyone = players(engine, (2, 2, 4, 4))  # lanes 0, 1, 0, 1
    for player in everyone[:2]:
        player.send()
    everyone[2].send()
    engine.close_stream(everyone[0].stream)
    answers = take_answers(engine)
    assert answered(answers) == {2}
    np.testing.assert_array_equal(
        answers[0].actions, everyone[2].sent[-1]["observation"].sum(axis=1).astype(int) % 1000
    )
    assert engine.wait() > 0, "the other lane waits for its remaining rows"


def test_evaluation_streams_are_counted_separately_in_every_lane():
    group = FakeGroup(2, 32)
    engine, arena, _, unrolls = make_engine(max_envs=32, length=2, policy=group)
    trains = [engine.open_stream(None, i, 2) for i in range(2)]
    watched = [engine.open_stream(None, 2 + i, 1, "evaluation") for i in range(2)]
    assert engine.lane_envs == [3, 3]
    everyone = [Player(engine, s, i, np.full((s.num_envs, 1), 3)) for i, s in enumerate([*trains, *watched])]
    for _ in range(6):
        for player in everyone:
            if not player.stream.pending:
                player.send()
        take_answers(engine)
        while unrolls:
            arena.release(unrolls.pop())
        take_unblocked(engine)
    assert engine.stats.episodes == 8 and engine.stats.evaluation_episodes == 4
    assert engine.stats.env_steps == 16 and engine.stats.evaluation_steps == 8


def test_wait_follows_the_oldest_row_of_any_lane():
    now = [0.0]
    engine, *_ = make_engine(
        max_envs=32, batch_size=32, deadline=0.004, clock=lambda: now[0], policy=FakeGroup(2, 32)
    )  # fmt: skip
    first, second, _, _ = players(engine, (2, 2, 2, 2))  # lanes 0, 1, 0, 1
    for late, early in ((second, first), (first, second)):
        early.send()
        now[0] += 0.001
        late.send()
        assert engine.wait() == pytest.approx(0.003)
        now[0] += 0.0031
        assert engine.wait() == 0.0
        assert answered(take_answers(engine)) == {early.stream.index}
        now[0] += 0.001
        assert answered(take_answers(engine)) == {late.stream.index}


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_batch_is_gathered_correctly_after_a_stream_closes(lanes):
    """No environment gets the observation of the closed stream."""
    engine, *_ = make_engine(max_envs=32, batch_size=32, deadline=9.0, policy=FakeGroup(lanes, 32))
    everyone = players(engine, (2,) * 4 * lanes)
    mine = [player for player in everyone if player.stream.lane is everyone[0].stream.lane]
    assert len(mine) == 4
    for player in mine[:3]:
        player.send()
    engine.close_stream(mine[0].stream)
    mine[3].send()
    answers = take_answers(engine)
    assert answered(answers) == {player.stream.index for player in mine[1:]}
    for answer in answers:
        sent = everyone[answer.stream.index].sent[-1]["observation"]
        np.testing.assert_array_equal(answer.actions, sent.sum(axis=1).astype(int) % 1000)
