"""Sources: the records played are those trained on, and playing and training keep pace."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from seedcli.agents.base import UnrollBatch
from seedcli.agents.registry import create_agent
from seedcli.config.schema import Config
from seedcli.config.sources import load_config
from seedcli.errors import UsageError
from seedcli.inference.arena import Arena, UnrollBuffer
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec
from seedcli.training import sources
from seedcli.training.replay.unrolls import expected_bytes, unroll_fields
from seedcli.training.sources import QueueSource, ReplaySource, create_source
from seedcli.training.trainer import Trainer
from tests.training.helpers import LIMIT, SPEC, B, K, T, resolved

E = 2
R = K + T + 1


def _config(*values: str) -> Config:
    return resolved(*values).config


def _wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, f"not within {LIMIT:.0f} s: {what}"
        time.sleep(0.005)


class Rig:
    """A replay source with a real agent, and a player that fills buffers with random numbers."""

    def __init__(self, folder: Path, *values: str, change: Callable[[Any], None]) -> None:
        self.config = _config(*values)
        self.agent = create_agent(self.config.agent, self.config.training, SPEC, 3)
        change(self.agent)
        algorithm = self.agent.algorithm
        # 11 buffers of 2 columns, more than insertion takes without training.
        self.arena = Arena(SPEC, algorithm.records, algorithm.recorded, batch_size=1, queue_batches=9)
        self.source = create_source(self.agent, SPEC, self.config, self.arena, folder / "replay")
        assert isinstance(self.source, ReplaySource)
        self.replay = self.source.replay
        self.arena.admit(E)
        self.played: list[dict[str, Any]] = []  # by serial, if every column is kept
        self._rng = np.random.default_rng(5)
        self._threads = [
            threading.Thread(target=worker, name=name, daemon=True) for name, worker in self.source.workers().items()
        ]

    def fill(self, keep: list[bool] | None = None, q: float | None = None) -> UnrollBuffer | None:
        """Put a buffer of new random values; returns None if the arena has no buffer."""
        buffer = self.arena.acquire(E)
        if buffer is None:
            return None
        rng, records = self._rng, len(buffer.version)
        buffer.memory[:] = 0xA5
        buffer.rows.observation[:] = rng.normal(size=(records, E, 3))
        buffer.rows.reward[:] = rng.normal(size=(records, E))
        buffer.rows.terminated[:] = rng.random((records, E)) < 0.2
        buffer.rows.truncated[:] = rng.random((records, E)) < 0.2
        buffer.action[:] = rng.integers(0, 4, (records, E))
        for values in buffer.recorded.values():
            values[:] = rng.normal(size=(records, E)) if q is None else q
        buffer.version[:] = rng.integers(0, 1000, records)
        buffer.state = tf.nest.map_structure(
            lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), self.agent.initial_state(E)
        )
        buffer.keep = None if keep is None else np.array(keep)
        for column in range(E):
            if keep is None or keep[column]:
                self.played.append(_column(buffer, column))
        self.source.put(buffer)
        return buffer

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(timeout=LIMIT)
            assert not thread.is_alive(), f"the {thread.name} thread has not ended"


def _column(buffer: UnrollBuffer, e: int) -> dict[str, Any]:
    rows = buffer.rows
    column = {name: getattr(rows, name)[:, e].copy() for name in ("observation", "reward", "terminated", "truncated")}
    column |= {"action": buffer.action[:, e].copy(), "version": buffer.version.copy()}
    column |= {f"recorded/{name}": values[:, e].copy() for name, values in buffer.recorded.items()}
    for i, leaf in enumerate(tf.nest.flatten(buffer.state)):
        column[f"state/{i}"] = np.asarray(leaf)[e].copy()
    return column


def _unrolls(column: dict[str, Any]) -> UnrollBatch:
    """One played unroll as a batch of one, for initial priorities."""
    return UnrollBatch(
        observation=None,
        reward=tf.constant(column["reward"][:, None]),
        terminated=tf.constant(column["terminated"][:, None] != 0),
        truncated=tf.constant(column["truncated"][:, None] != 0),
        action=None,
        recorded={name: tf.constant(column[f"recorded/{name}"][:, None]) for name in ("q_taken", "q_max")},
        state=None,
        weights=None,
    )


@pytest.fixture(params=["plain", "compressed"])
def storage(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def rig(tmp_path: Path, storage: str) -> Iterator[Callable[..., Rig]]:
    """Makes rigs; every test that asks for one runs with both storages."""
    made: list[Rig] = []

    def make(*values: str, change: Callable[[Any], None] = lambda agent: None) -> Rig:
        made.append(Rig(tmp_path / f"rig{len(made)}", f"replay.storage={storage}", *values, change=change))
        return made[-1]

    yield make
    for rig in made:
        rig.source.close()


def test_every_sampled_column_equals_the_played_one(rig: Callable[..., Rig]) -> None:
    """Field by field, after buffers were reused, over a full cycle of the replay."""
    it = rig("replay.capacity=20", "replay.window=1000")
    checked = set()
    for _ in range(40):
        assert it.fill() is not None, "without a thread every buffer is released at once"
        batch = it.source.next_batch(wait=False)
        if batch is None:
            assert it.replay.inserted < 8
            continue
        assert batch.serials is not None and (batch.serials >= it.replay.inserted - 20).all()
        unrolls = batch.unrolls
        state = tf.nest.flatten(unrolls.state)
        tf.nest.assert_same_structure(unrolls.state, it.agent.initial_state(B))
        for b, serial in enumerate(batch.serials.tolist()):
            column = it.played[serial]
            for name in ("observation", "reward", "terminated", "truncated", "action"):
                np.testing.assert_array_equal(getattr(unrolls, name)[:, b], column[name], err_msg=name)
            for name in ("q_taken", "q_max"):
                np.testing.assert_array_equal(unrolls.recorded[name][:, b], column[f"recorded/{name}"], err_msg=name)
            for i, leaf in enumerate(state):
                np.testing.assert_array_equal(leaf[b], column[f"state/{i}"], err_msg=f"state/{i}")
            np.testing.assert_array_equal(batch.versions[:, b], column["version"])
            np.testing.assert_array_equal(batch.counted[:, b], (column["terminated"] | column["truncated"]) == 0)
            checked.add(serial)
        assert unrolls.terminated.dtype == unrolls.truncated.dtype == tf.bool
        assert unrolls.weights.shape == (B,) and float(tf.reduce_max(unrolls.weights)) == 1.0
        it.source.trained(batch, np.ones(B, np.float32))
    assert len(checked) > 40 and max(checked) > 70 and it.replay.size == 20


def test_fresh_unrolls_have_the_agents_initial_priorities_and_training_changes_them(rig: Callable[..., Rig]) -> None:
    it = rig()
    for _ in range(6):
        it.fill()
    batch = it.source.next_batch(wait=False)
    assert batch is not None and batch.serials is not None
    before = it.replay.snapshot().priorities
    expected = [float(it.agent.initial_priorities(_unrolls(column))[0]) for column in it.played]
    assert len(before) == 12 and len(set(expected)) == 12
    np.testing.assert_allclose(before, expected, rtol=1e-6)
    given = np.arange(1, B + 1).astype(np.float32)
    it.source.trained(batch, given)
    after = it.replay.snapshot().priorities
    for serial in range(12):
        drawn = np.flatnonzero(batch.serials == serial)
        assert after[serial] == (given[drawn[-1]] if len(drawn) else before[serial])


def test_dropped_columns_are_not_inserted(rig: Callable[..., Rig]) -> None:
    it = rig()
    for i in range(8):
        it.fill(keep=[True, i % 2 == 0])
    it.fill(keep=[False, False])
    assert it.source.next_batch(wait=False) is not None
    assert it.replay.inserted == 12 == len(it.played) and it.source.dropped == 6
    for _ in range(20):
        batch = it.source.next_batch(wait=False)
        if batch is None:
            break
        for b, serial in enumerate(batch.serials.tolist()):
            np.testing.assert_array_equal(batch.unrolls.reward[:, b], it.played[serial]["reward"])
        it.source.trained(batch, np.ones(B, np.float32))
    assert it.arena.acquire(E) is not None, "their buffers were released"


def test_unrolls_with_non_finite_priorities_are_dropped_and_counted(rig: Callable[..., Rig]) -> None:
    it = rig()
    it.fill(q=math.nan)
    assert it.source.next_batch(wait=False) is None
    assert (it.replay.inserted, it.source.dropped) == (0, 2)
    it.played.clear()
    for _ in range(6):
        it.fill()
    batch = it.source.next_batch(wait=False)
    assert batch is not None and batch.serials is not None
    given = np.ones(B, np.float32)
    given[0] = np.nan
    it.source.trained(batch, given)
    lost = int(batch.serials[0])
    assert it.source.dropped == 3 and it.replay.snapshot().priorities[lost] == 0
    for _ in range(30):
        it.fill()
        batch = it.source.next_batch(wait=False)
        if batch is not None:
            assert lost not in batch.serials, "it is never drawn again"
            it.source.trained(batch, np.ones(B, np.float32))
    assert it.source.dropped == 3


def test_insertion_stops_without_training_until_training_continues(
    rig: Callable[..., Rig],
) -> None:
    it = rig()
    it.start()

    def dry() -> bool:
        while it.fill() is not None:
            pass
        return it.replay.inserted == 17 and len(it.played) == 2 * (9 + 11)

    # min_size 8, ratio 1, window 2·4 + 1: 17 unrolls go in, the last of the ninth buffer waits; 11 buffers queue up.
    _wait_for(dry, "no buffer is left")
    assert it.arena.acquire(E) is None and it.replay.inserted == 17
    batch = it.source.next_batch(wait=True)
    assert batch is not None
    _wait_for(lambda: it.replay.inserted == 21, "insertion of another batch")
    _wait_for(lambda: it.fill() is not None, "a released buffer")
    it.source.trained(batch, np.ones(B, np.float32))
    it.source.close()
    it.join()


@pytest.mark.parametrize("state", ["empty", "blocked", "waiting for a batch"])
def test_close_ends_every_thread(rig: Callable[..., Rig], state: str) -> None:
    it = rig()
    it.start()
    got: list[Any] = []
    prefetch = threading.Thread(target=lambda: got.append(it.source.next_batch(wait=True)), daemon=True)
    if state == "blocked":
        # Until no buffer is left: insertion waits for training.
        def exhausted() -> bool:
            while it.fill() is not None:
                pass
            return it.replay.inserted == 17

        _wait_for(exhausted, "insertion is blocked")
    elif state == "waiting for a batch":
        prefetch.start()
    begun = time.monotonic()
    it.source.close()
    it.join()
    if prefetch.ident is not None:
        prefetch.join(timeout=LIMIT)
        assert got == [None]
    assert time.monotonic() - begun < 5
    assert it.source.next_batch(wait=True) is None, "a closed source returns nothing"


def test_a_source_without_threads_makes_progress(rig: Callable[..., Rig]) -> None:
    """In serial mode all buffers are released whenever no batch can be formed, so that playing continues."""
    it = rig("replay.ratio=2.5")
    batches = 0
    for _ in range(30):
        while it.fill() is not None:
            pass
        before = it.replay.inserted
        progress = False
        while (batch := it.source.next_batch(wait=False)) is not None:
            it.source.trained(batch, np.ones(B, np.float32))
            batches += 1
            progress = True
        assert progress or it.replay.inserted > before
    sampled, inserted = it.replay.sampled, it.replay.inserted
    assert batches > 20 and sampled == B * batches
    assert abs(2.5 * (inserted - 8) - sampled) <= 2 * B + 2.5, "the ratio holds"


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    free = [10**12]
    monkeypatch.setattr(sources, "available_memory", lambda: free[0])
    return free


def test_a_replay_too_large_for_the_machine_is_refused_before_anything_is_inserted(
    rig: Callable[..., Rig], memory: list[int], storage: str
) -> None:
    it = rig()
    fields = unroll_fields(it.agent, SPEC)
    # 2·5 float32 of state; 6 records of 3 float32, reward, two flags, action, two Q values, version.
    assert expected_bytes(fields) == 2 * 5 * 4 + 6 * (12 + 4 + 1 + 1 + 4 + 4 + 4 + 8)
    memory[0] = 50_000_000
    with pytest.raises(UsageError) as caught:
        rig("replay.capacity=1_000_000")
    message = str(caught.value)
    # 268 bytes an unroll, 268 MB: 0.9 · 50/268 of a million fit, less four batches.
    about = "about " if storage == "compressed" else ""  # exact with plain storage
    assert f"replay.capacity = 1,000,000 unrolls take {about}268.0 MB, and this machine has 50.0 MB" in message
    assert "lower replay.capacity to 167,896 or set replay.capacity_gb to 0.045" in message and "\n" not in message
    assert rig("replay.capacity=1_000_000", "replay.capacity_gb=0.045").replay.size == 0
    assert rig("replay.capacity=167_910").replay.size == 0


@dataclasses.dataclass
class _Without:
    """An agent of the tests without a method that others have."""

    agent: Any
    missing: str

    def __getattr__(self, name: str) -> Any:
        if name == self.missing:
            raise AttributeError(name)
        return getattr(self.agent, name)


def test_any_agent_can_have_a_prioritized_replay(rig: Callable[..., Rig]) -> None:
    """Without initial priorities new unrolls get the highest so far."""
    it = rig()
    it.source._agent = _Without(it.agent, "initial_priorities")
    for _ in range(6):
        it.fill()
    batch = it.source.next_batch(wait=False)
    assert batch is not None and batch.serials is not None
    assert it.replay.snapshot().priorities.tolist() == [1.0] * 12
    it.source.trained(batch, np.full(B, 5.0, np.float32))
    it.fill()
    it.source.next_batch(wait=False)
    assert it.replay.snapshot().priorities[12:].tolist() == [5.0, 5.0]


def test_a_loss_without_priorities_is_named_at_the_first_batch(rig: Callable[..., Rig]) -> None:
    it = rig()
    for _ in range(6):
        it.fill()
    batch = it.source.next_batch(wait=False)
    with pytest.raises(UsageError) as caught:
        it.source.trained(batch, None)
    assert str(caught.value) == (
        'R2D2Agent.loss returned no priorities, which replay.sampling = "prioritized" draws by: return them in '
        'LossOutputs.priorities, or set replay.sampling = "uniform"'
    )


def test_uniform_draws_compute_no_priorities(rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch) -> None:
    it = rig("replay.sampling=uniform")

    def refuse(unrolls: UnrollBatch) -> None:
        raise AssertionError("priorities were computed")

    monkeypatch.setattr(it.agent, "initial_priorities", refuse)
    for _ in range(6):
        it.fill()
    batch = it.source.next_batch(wait=False)
    assert batch is not None and batch.serials is not None
    assert (np.asarray(batch.unrolls.weights) == 1).all()
    for b, serial in enumerate(batch.serials.tolist()):
        np.testing.assert_array_equal(batch.unrolls.reward[:, b], it.played[serial]["reward"])
    it.source.trained(batch, None)
    it.source.trained(batch, np.ones(B, np.float32))  # from a loss that does not know the sampling method
    assert "priority_mean" not in it.source.stats()


SHORT = ("replay.sampling=uniform", "training.burn_in=0", "agent.network.lstm=0")


def _short(length: int) -> Callable[[Any], None]:
    def change(agent: Any) -> None:
        agent.algorithm = dataclasses.replace(agent.algorithm, sample_length=length)

    return change


@pytest.mark.parametrize("length", [1, 2, 3])
def test_short_columns_are_consecutive_records_of_what_was_played(rig: Callable[..., Rig], length: int) -> None:
    it = rig(*SHORT, "replay.capacity=20", change=_short(length))
    algorithm = it.agent.algorithm
    assert (algorithm.records, algorithm.batch_records, algorithm.batch_length) == (T + 1, length + 1, length)
    starts, transitions, batches = set(), 0, 0
    for _ in range(60):
        it.fill()
        while (batch := it.source.next_batch(wait=False)) is not None:
            unrolls = batch.unrolls
            assert unrolls.state == {} and unrolls.weights.shape == (B,)
            for b, serial in enumerate(batch.serials.tolist()):
                column = it.played[serial]
                (start,) = [
                    t
                    for t in range(T + 1 - length)
                    if np.array_equal(column["observation"][t : t + length + 1], unrolls.observation[:, b])
                ]
                part = slice(start, start + length + 1)
                for name in ("reward", "terminated", "truncated", "action"):
                    np.testing.assert_array_equal(getattr(unrolls, name)[:, b], column[name][part], err_msg=name)
                for name in ("q_taken", "q_max"):
                    np.testing.assert_array_equal(unrolls.recorded[name][:, b], column[f"recorded/{name}"][part])
                final = (column["terminated"] | column["truncated"])[part] != 0
                np.testing.assert_array_equal(batch.versions[:, b], column["version"][part])
                np.testing.assert_array_equal(batch.counted[:, b], ~final)
                assert not (length == 1 and final[0])
                starts.add(start)
            transitions += B * length
            batches += 1
            last = batch
            it.source.trained(batch, None)
    assert starts == set(range(T + 1 - length)) and batches > 20
    beyond = T * (it.replay.inserted - 8)
    assert abs(beyond - transitions) <= 3 * B * length + T, "replay.ratio = 1 is that of transitions"
    trainer = Trainer(it.agent, it.config.training, 10**6)
    result = trainer.update(last, 0)
    assert result.applied and result.priorities is not None and result.priorities.shape == (B,)
    assert trainer.trained_steps == np.count_nonzero(last.counted[:-1]) <= B * length


OF_LENGTH = "which must be at least 1 and at most training.unroll_length = 3"


@pytest.mark.parametrize(
    ("length", "values", "sentence"),
    [
        (0, SHORT, f"R2D2Agent has AlgorithmSpec.sample_length = 0, {OF_LENGTH}"),
        (4, SHORT, f"R2D2Agent has AlgorithmSpec.sample_length = 4, {OF_LENGTH}"),
        (
            1,
            (*SHORT, "replay.sampling=prioritized"),
            'replay.sampling = "prioritized" must be "uniform" with R2D2Agent',
        ),
        (1, SHORT[:1], "training.burn_in = 2 must be 0 with R2D2Agent, which trains on 1 of an unroll's 3 transitions"),
        (2, SHORT[:2], "R2D2Agent has AlgorithmSpec.sample_length = 2, but it also has a state"),
    ],
)
def test_short_columns_that_cannot_be_are_refused(
    tmp_path: Path, length: int, values: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(UsageError) as caught:
        Rig(tmp_path, *values, change=_short(length))
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_a_queue_has_no_short_columns(tmp_path: Path) -> None:
    config = load_config(None, environ={}, sets=["agent.algorithm=vtrace"]).config
    agent = create_agent(config.agent, config.training, SPEC, 3)
    _short(1)(agent)
    arena = Arena(SPEC, agent.algorithm.records, agent.algorithm.recorded, batch_size=B, queue_batches=1)
    with pytest.raises(UsageError, match="a queue gives out whole unrolls, so leave sample_length out"):
        create_source(agent, SPEC, config, arena, tmp_path)


def test_images_are_reckoned_at_what_they_take_when_packed() -> None:
    config = _config(
        "agent.network.torso=nature", "agent.network.lstm=0", "agent.network.frame_stack=4", "replay.capacity=100_000"
    )
    spec = EnvSpec("atari/pong", ArraySpec((84, 84, 1), "uint8"), ActionSpec((6,)), 4)
    fields = unroll_fields(create_agent(config.agent, config.training, spec, 1), spec)
    frames = R * 84 * 84
    assert frames / 8 < expected_bytes(fields) < frames
    # The frame stack before the first record holds images too.
    assert any(field.name.startswith("state/") for field in fields)


def test_a_replay_that_exceeds_its_estimate_is_refused_when_training_starts(
    rig: Callable[..., Rig], memory: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "expected_bytes", lambda fields: 1)
    it = rig("replay.capacity=100_000_000", "replay.storage=compressed")
    memory[0] = 1_000_000_000
    for _ in range(3):
        it.fill()
        assert it.source.next_batch(wait=False) is None
    it.fill()
    with pytest.raises(UsageError, match=r"100,000,000 unrolls take up to an estimated .* GB, and this machine has"):
        it.source.next_batch(wait=False)


def test_a_queue_counts_and_keeps_nothing(tmp_path: Path) -> None:
    config = load_config(None, environ={}, sets=["agent.algorithm=vtrace"]).config
    agent = create_agent(config.agent, config.training, SPEC, 3)
    algorithm = agent.algorithm
    arena = Arena(SPEC, algorithm.records, algorithm.recorded, batch_size=B, queue_batches=1)
    source = create_source(agent, SPEC, config, arena, tmp_path)
    assert isinstance(source, QueueSource)
    assert (source.stats(), source.capture(), source.restore(tmp_path), source.dropped) == ({}, None, False, 0)
    assert source.workers() == {} and source.next_batch(wait=False) is None
    source.close()
    assert source.next_batch(wait=True) is None


@pytest.mark.parametrize("algorithm", ["vtrace", "r2d2"])
def test_batches_stay_on_the_host_until_they_are_placed(tmp_path: Path, algorithm: str) -> None:
    vtrace = ["agent.algorithm=vtrace", "training.batch_size=4", "training.unroll_length=3"]
    config = _config() if algorithm == "r2d2" else load_config(None, environ={}, sets=vtrace).config
    agent = create_agent(config.agent, config.training, SPEC, 3)
    spec = agent.algorithm
    arena = Arena(SPEC, spec.records, spec.recorded, batch_size=B, queue_batches=9)
    given: list[UnrollBatch] = []

    def place(unrolls: UnrollBatch) -> Any:
        assert all(isinstance(leaf, np.ndarray) for leaf in tf.nest.flatten(unrolls))
        given.append(unrolls)
        return f"batch {len(given)}"

    source = create_source(agent, SPEC, config, arena, tmp_path / "replay", place=place)
    arena.admit(4)
    for _ in range(4):
        buffer = arena.acquire(4)
        assert buffer is not None
        buffer.memory[:] = 0
        buffer.state = tf.nest.map_structure(lambda leaf: leaf.numpy(), agent.initial_state(4))
        source.put(buffer)
    batch = source.next_batch(wait=False)
    assert batch is not None and batch.unrolls == "batch 1"
    np.testing.assert_array_equal(batch.counted, np.broadcast_to(given[0].weights > 0, (spec.records, B)))
    assert source.profiles["prefetch thread"].seconds()["transfer"] > 0.0
    source.close()
