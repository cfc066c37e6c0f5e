"""Observations that stay on a device: batches are those that uploading gives, places are used once, nothing leaks."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from seedcli.config import Config
from seedcli.errors import SeedError, UsageError
from seedcli.inference.arena import Arena
from seedcli.inference.trajectories import ObservationStore
from seedcli.specs import DTYPES, ActionSpec, ArraySpec, EnvSpec
from seedcli.training import trajectories
from seedcli.training.batches import Piece
from seedcli.training.devices import Devices
from seedcli.training.sources import QueueSource
from seedcli.training.trajectories import Trajectories
from tests.inference.helpers import SPEC, FakeGroup, Player, make_engine
from tests.training.on_trajectories import play

ROOT = Path(__file__).parents[2]
RECORD_BYTES = 2 + 4 + 12 + 4
RECORDS, B = 5, 6
PLACE_BYTES = 4


def _assert_same(on: dict[str, Any], off: dict[str, Any]) -> None:
    assert len(on["batches"]) == len(off["batches"]) >= 5
    for (names, mine), (other_names, theirs) in zip(on["batches"], off["batches"], strict=True):
        assert names == other_names
        for one, other in zip(mine, theirs, strict=True):
            assert one.dtype == other.dtype and one.shape == other.shape
            assert one.tobytes() == other.tobytes()
    assert on["faults"] == off["faults"] and on["faults"] == ["an observation that is not finite (numbers)"] * 2
    assert on["free"] == [on["places"]] * on["lanes"], "every place is free when all buffers have come back"


@pytest.fixture(scope="module")
def uploaded() -> dict[str, Any]:
    """What the host's arrays give on one device."""
    return play(Devices.default(), kept=False)


@pytest.mark.parametrize("pad_to", [(), (3, 8, 24)])
def test_batches_are_those_of_uploading_to_the_bit(pad_to: tuple[int, ...]) -> None:
    off = play(Devices.default(), kept=False, pad_to=pad_to)
    on = play(Devices.default(), kept=True, pad_to=pad_to)
    _assert_same(on, off)
    weights = np.concatenate([arrays[-1] for _, arrays in on["batches"]])
    assert (weights == 0).any(), "an unroll with a mended reward is among them"
    assert on["uploaded"] == len(on["batches"]) * B * RECORDS * PLACE_BYTES, "the numbers of places, and nothing else"
    assert on["copied"] == 0


def test_what_finds_no_place_is_uploaded(uploaded: dict[str, Any]) -> None:
    few, none = (play(Devices.default(), kept=True, places=places) for places in (60, 3))
    _assert_same(few, uploaded)
    _assert_same(none, uploaded)
    records = len(uploaded["batches"]) * B * RECORDS
    assert none["uploaded"] == records * RECORD_BYTES
    assert records * PLACE_BYTES < few["uploaded"] < records * RECORD_BYTES


def test_a_wrong_place_would_be_noticed(uploaded: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        _assert_same(play(Devices.default(), kept=True, spoil=True), uploaded)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process with three virtual devices finds."""
    output = tmp_path_factory.mktemp("trajectories") / "found"
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.on_trajectories", str(output)],
        cwd=ROOT, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = pickle.loads(output.read_bytes())  # noqa: S301 - written by a process of our own
    return result


@pytest.mark.timeout(450)
@pytest.mark.parametrize(("which", "lanes"), [("apart", 2), ("all", 3)])
def test_pieces_of_several_devices_make_up_the_parts_of_two(found: dict[str, Any], which: str, lanes: int) -> None:
    off, on, few = (found[which][name] for name in ("off", "on", "few"))
    assert on["lanes"] == lanes
    _assert_same(on, off)
    _assert_same(few, off)
    names = on["batches"][0][0]
    assert sorted(set(names)) == ["CPU:0", "CPU:1"], "each training device has its part"
    records = len(on["batches"]) * B * RECORDS
    assert on["uploaded"] == records * PLACE_BYTES
    assert 0 < on["copied"] < records * RECORD_BYTES, "between devices, and not what is on the right one already"
    assert few["uploaded"] > on["uploaded"] and few["copied"] < on["copied"]


class KeepingGroup(FakeGroup):
    """Lanes that can be checked by hand and keep what they are given."""

    def __init__(self, lanes: int, places: int) -> None:
        super().__init__(lanes, 64)
        for lane in self.lanes:
            lane.store = store = ObservationStore(SPEC, "", places)
            begin = lane.begin

            def keep(observation: Any, *others: Any, store: Any = store, begin: Any = begin) -> Any:
                store.write(observation, others[-1])
                return begin(observation, *others)

            lane.begin = keep  # type: ignore[method-assign]


def _check(unrolls: list[Any], open_streams: list[Any]) -> None:
    """What is kept of unrolls is what the host has, and no two records that are not the same share a place."""
    for unroll in unrolls:
        if unroll.store is not None:
            np.testing.assert_array_equal(unroll.store.read(unroll.positions).numpy(), unroll.steps.observation)
    for stream in open_streams:
        if stream.buffer.store is not None and stream.ranks is not None:
            held = stream.buffer.store.read(stream.buffer.positions[: stream.cursor]).numpy()
            np.testing.assert_array_equal(held, stream.buffer.steps.observation[: stream.cursor])


@settings(max_examples=25, deadline=None)
@given(data=st.data(), lanes=st.integers(1, 2), length=st.integers(1, 3), burn_in=st.integers(0, 2),
       places=st.sampled_from([10, 60, 800]))  # fmt: skip
def test_what_is_kept_is_what_came_until_it_is_released(
    data: st.DataObject, lanes: int, length: int, burn_in: int, places: int
) -> None:
    group = KeepingGroup(lanes, places)
    engine, arena, _, unrolls = make_engine(burn_in=burn_in, length=length, policy=group)
    players: list[Player] = []
    for turn in range(data.draw(st.integers(4, 14))):
        if turn < 2 or data.draw(st.integers(0, 5)) == 0:
            role: Any = data.draw(st.sampled_from(["training", "training", "evaluation"]))
            stream = engine.open_stream(None, len(players), data.draw(st.integers(1, 4)), role)
            assert stream is not None
            players.append(Player(engine, stream, len(players), np.full((stream.num_envs, 1), 5)))
        for player in players:
            if not player.stream.closed and not player.stream.pending and data.draw(st.integers(0, 4)):
                player.send()
        if data.draw(st.integers(0, 7)) == 0:
            engine.close_stream(data.draw(st.sampled_from(players)).stream)
        engine.answer()
        _check(unrolls, [player.stream for player in players if not player.stream.closed])
        # In any order, as a queue never does.
        for _ in range(data.draw(st.integers(0, len(unrolls)))):
            arena.release(unrolls.pop(data.draw(st.integers(0, len(unrolls) - 1))))
        engine.unblock()
    for player in players:
        engine.close_stream(player.stream)
    while unrolls:
        _check(unrolls, [])
        arena.release(unrolls.pop())
    assert [lane.store.free for lane in group.lanes] == [places] * lanes


def test_places_are_not_used_again_before_they_have_been_read() -> None:
    """One thread plays, another trains as fast as it can: what comes from the device fits what comes from the host."""
    group = KeepingGroup(2, 250)
    engine, arena, _, _ = make_engine(length=3, training_batch=8, policy=group)
    kept = Trajectories(SPEC, Devices.default())
    source = QueueSource(8, arena, Devices.default().place, kept)
    engine._on_unroll = source.put
    wrong: list[Any] = []
    made = 0

    def train() -> None:
        nonlocal made
        while (batch := source.next_batch(wait=True)) is not None:
            episode, step = batch.unrolls.observation.numpy()[..., 1:].transpose(2, 0, 1)
            made += 1
            if (np.where(step == 0, 0, 1 + episode) != batch.unrolls.reward.numpy()).any():
                wrong.append((episode, step))
            if (((step + 1) % 5)[:-1] != step[1:]).any():
                wrong.append(step)

    thread = threading.Thread(target=train)
    thread.start()
    players = []
    for name, envs in enumerate((4, 3, 8, 1)):
        stream = engine.open_stream(None, name, envs)
        assert stream is not None
        players.append(Player(engine, stream, name, np.full((envs, 1), 5)))
    deadline = time.monotonic() + 60
    while made < 150 and time.monotonic() < deadline:
        for player in players:
            if not player.stream.pending:
                player.send()
        engine.answer()
        engine.unblock()
    source.close()
    thread.join(30)
    assert made >= 150 and not wrong
    assert kept.uploaded < made * 8 * 4 * 12 / 2, "most of it came from the device"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 1, 2)])
def test_bits_of_any_type_are_kept(dtype: str, shape: tuple[int, ...]) -> None:
    spec = EnvSpec("test/env", ArraySpec(shape, dtype), ActionSpec((2,)))
    store = ObservationStore(spec, "", 6)
    rng = np.random.default_rng(0)
    size = np.dtype(dtype).itemsize * int(np.prod(shape, dtype=int))
    rows = rng.integers(0, 2 if dtype == "bool" else 256, (4, size)).astype(np.uint8).view(dtype).reshape(4, *shape)
    store.write(rows, np.array([5, 0, 3, store.spare], np.int32))
    read = store.read(np.array([[3, 0], [5, 5]], np.int32)).numpy()
    assert read.shape == (2, 2, *shape)
    assert read.tobytes() == rows[[2, 1, 0, 0]].tobytes()
    assert store.nbytes == 7 * size


def test_a_batch_that_finds_no_memory_is_told_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any, **__: Any) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    spec = EnvSpec("test/env", ArraySpec((1000,), "float32"), ActionSpec((2,)))
    arena = Arena(spec, 5, {}, batch_size=4, queue_batches=1)
    arena.admit(3)
    buffer = arena.acquire(3)
    assert buffer is not None
    store = ObservationStore(spec, "", 49)
    store.open(buffer)
    monkeypatch.setattr(tf.raw_ops, "ResourceGather", exhausted)
    with pytest.raises(SeedError) as raised:
        Trajectories(spec, Devices.default()).gather([Piece(buffer, 0, 2)])
    assert raised.value.exit_status == 1
    for part in (
        "out of memory to gather a training batch",
        "the observations of 2 unrolls (40.0 kB)",
        "the observations that stay on it (0.2 MB)",
        "set topology.device_trajectories = off, or lower training.batch_size or inference.max_envs",
    ):
        assert part in str(raised.value)


# -- what the setting means ---------------------------------------------------------------------------------------


def _keep(
    monkeypatch: pytest.MonkeyPatch, setting: str, source: str = "queue", kind: str = "CPU", free: int = 0
) -> Any:
    """`keep_observations` for one device of a kind, of which so many bytes are free."""
    from seedcli.agents import create_agent
    from seedcli.inference.policy import AgentPolicy

    config = Config.model_validate(
        {"topology": {"device_trajectories": setting}, "actors": {"envs": 4, "streams": 2},
         "inference": {"max_envs": 8}, "training": {"batch_size": 4, "unroll_length": 3}}
    )  # fmt: skip
    agent = create_agent(config.agent, config.training, SPEC, 1)
    algorithm = dataclasses.replace(agent.algorithm, source=source)
    arena = Arena(SPEC, 4, {}, batch_size=4, queue_batches=1)
    policy = AgentPolicy(agent, SPEC, max_slots=8, seed=1)
    policy.devices[0].device = f"{kind}:0"
    monkeypatch.setattr(trajectories, "free_memory", lambda devices: [free])
    made = trajectories.keep_observations(config, SPEC, algorithm, arena, policy, Devices.default())
    assert (made is None) == (policy.devices[0].store is None)
    return policy.devices[0].store


def test_on_is_on_and_off_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    store = _keep(monkeypatch, "on")
    assert store.places == (8 // 2 + 2 * 2) * 4 * 2, "buffers of open streams and of two batches, 4 records of 2"
    assert _keep(monkeypatch, "off", kind="GPU", free=10**9) is None
    with pytest.raises(UsageError, match="without a replay"):
        _keep(monkeypatch, "on", source="replay")
    with pytest.raises(UsageError, match="not for TPUs"):
        _keep(monkeypatch, "on", kind="TPU")


def test_auto_is_for_gpus_with_the_memory(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    needed = (64 + 1) * 12
    caplog.set_level("INFO")
    assert _keep(monkeypatch, "auto", kind="CPU", free=10**9) is None
    assert _keep(monkeypatch, "auto", source="replay", kind="GPU", free=10**9) is None
    assert not caplog.messages
    assert _keep(monkeypatch, "auto", kind="GPU", free=2 * needed - 1) is None
    assert "more than half" in caplog.messages[-1]
    assert _keep(monkeypatch, "auto", kind="GPU", free=2 * needed).nbytes == needed
    assert "stay on GPU:0" in caplog.messages[-1]


def test_a_replay_is_refused_before_anything_starts() -> None:
    with pytest.raises(ValueError, match="device_trajectories = on must be auto or off"):
        Config.model_validate({"agent": {"algorithm": "r2d2"}, "topology": {"device_trajectories": "on"}})
