"""The step engine: rows in, actions out, unrolls on. All bookkeeping is per stream and per batch.

It knows nothing of connections. One thread owns it (`release` of the arena's buffers apart).
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seedcli.agents.base import AlgorithmSpec
from seedcli.inference.arena import Arena, UnrollBuffer
from seedcli.inference.policy import Policy
from seedcli.specs import EnvSpec
from seedcli.telemetry.metrics import Profile, Reservoir


class Stream:
    """E environments stepped in lock-step: an open buffer, a cursor, a range of slots.

    Attributes:
        owner: whatever the service needs to send the answer; the engine only carries it.
        index: number of the stream within its session.
        slots: int32 [E], rows of the agent-state table.
        sequence: sequence number of the step that is expected next.
        pending: a row has arrived and is not answered yet.
    """

    __slots__ = ("arrived", "buffer", "closed", "cursor", "index", "num_envs", "owner", "pending", "records",
                 "rows", "sequence", "slots", "states")  # fmt: skip

    def __init__(self, owner: Any, index: int, slots: npt.NDArray[np.int32], buffer: UnrollBuffer) -> None:
        self.owner = owner
        self.index = index
        self.num_envs = len(slots)
        self.slots = slots
        # NumPy reads a slice several times faster than a list of indices.
        together = slots[-1] - slots[0] == len(slots) - 1
        self.rows: slice | npt.NDArray[np.int32] = slice(int(slots[0]), int(slots[-1]) + 1) if together else slots
        self.buffer = buffer
        self.cursor = 0
        self.sequence = 0
        self.pending = False
        self.closed = False
        self.arrived = 0.0
        self.records = 0
        # Agent states before the first record of each unroll begun and not yet handed on.
        self.states: deque[Any] = deque()


class Answer(NamedTuple):
    """Actions [E] int32 for a stream's pending step, with the step's sequence number."""

    stream: Stream
    sequence: int
    actions: npt.NDArray[np.int32]


class SlotAllocator:
    """Which slots are free; neighbouring ones are given where there are enough of them."""

    def __init__(self, slots: int) -> None:
        self._free: npt.NDArray[np.bool_] = np.ones(slots, np.bool_)

    def take(self, count: int) -> npt.NDArray[np.int32] | None:
        """Take `count` slots, ascending and next to each other if possible; None where fewer are free."""
        free = np.flatnonzero(self._free)
        if len(free) < count:
            return None
        runs = np.flatnonzero(free[count - 1 :] - free[: len(free) - count + 1] == count - 1)
        start = int(runs[0]) if len(runs) else 0
        taken = free[start : start + count]
        self._free[taken] = False
        return taken.astype(np.int32)

    def give(self, slots: npt.NDArray[np.int32]) -> None:
        """Give slots back."""
        self._free[slots] = True


@dataclass
class EngineStats:
    """Counters of the engine; read by telemetry, written by the engine's thread.

    Environment steps count transitions: the first record of an episode is none.
    """

    env_steps: int = 0
    episodes: int = 0
    batches: int = 0
    batch_rows: int = 0
    latency: Reservoir = field(default_factory=Reservoir)
    finished: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=100_000))


class StepEngine:
    """Batches steps, asks the policy, completes unrolls.

    Args:
        algorithm: burn-in, length and recorded fields.
        spec: the environment.
        policy: what answers.
        arena: where records lie.
        max_envs: slots.
        batch_size: environments a batch waits for; 0: half of those connected.
        deadline: seconds a row waits at most for others.
        on_unroll: takes a completed buffer (owner of it until `arena.release`).
        on_fault: called with (stream, sentence) when a stream's data is unusable; must close the stream.
    """

    def __init__(
        self,
        algorithm: AlgorithmSpec,
        spec: EnvSpec,
        policy: Policy,
        arena: Arena,
        *,
        max_envs: int,
        batch_size: int,
        deadline: float,
        on_unroll: Callable[[UnrollBuffer], None],
        on_fault: Callable[[Stream, str], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._policy = policy
        self._arena = arena
        self._records = algorithm.records
        # Unrolls begin with every T-th record of a stream.
        self._stride = algorithm.unroll_length
        self._batch_size = batch_size
        self._deadline = deadline
        self._on_unroll = on_unroll
        self._on_fault = on_fault
        self._clock = clock
        self._allocator = SlotAllocator(max_envs)
        self._check_observation = np.dtype(spec.observation.dtype).kind == "f"
        self._pending: list[Stream] = []
        self._pending_envs = 0
        # How many of the pending rows stand in `_gathered` already, in order; see `arrived`.
        self._gathered_streams = 0
        self._blocked: list[tuple[Stream, npt.NDArray[np.int32]]] = []
        self.connected_envs = 0
        self._gathered: npt.NDArray[Any] = np.empty((max_envs, *spec.observation.shape), spec.observation.dtype)
        # By slot: whether the previous record was final (a new slot starts an episode), and the episode so far.
        self._final: npt.NDArray[np.bool_] = np.ones(max_envs, np.bool_)
        self._return: npt.NDArray[np.float64] = np.zeros(max_envs, np.float64)
        self._length: npt.NDArray[np.int64] = np.zeros(max_envs, np.int64)
        self.stats = EngineStats()
        self.profile = Profile()

    def open_stream(self, owner: Any, index: int, num_envs: int) -> Stream | None:
        """A new stream with fresh slots, or None where no room is left."""
        slots = self._allocator.take(num_envs)
        if slots is None:
            return None
        self._arena.admit(num_envs)
        buffer = self._arena.acquire(num_envs)
        assert buffer is not None, "admit makes a buffer for every stream"
        stream = Stream(owner, index, slots, buffer)
        self._final[slots] = True
        self.connected_envs += num_envs
        return stream

    def close_stream(self, stream: Stream) -> None:
        """Free a stream's slots and discard its partial unroll; safe to call twice."""
        if stream.closed:
            return
        stream.closed = True
        if stream.pending:
            stream.pending = False
            if stream in self._pending:
                self._pending.remove(stream)
                self._pending_envs -= stream.num_envs
                self._gathered_streams = -1  # what was gathered has a hole: the batch is gathered anew
        # A full buffer that waits for its successor is given back too: handed on, it would stand against the bound
        # that keeps a buffer free for the next stream.
        self._blocked = [item for item in self._blocked if item[0] is not stream]
        self._arena.release(stream.buffer)
        self._arena.retire(stream.num_envs)
        self._allocator.give(stream.slots)
        self.connected_envs -= stream.num_envs

    def destination(self, stream: Stream) -> memoryview:
        """Where the stream's next row is to be written."""
        return stream.buffer.destinations[stream.cursor]

    def arrived(self, stream: Stream) -> None:
        """The row is in its destination."""
        stream.pending = True
        stream.sequence = (stream.sequence + 1) & 0xFFFFFFFF
        stream.arrived = self._clock()
        start, self._pending_envs = self._pending_envs, self._pending_envs + stream.num_envs
        self._pending.append(stream)
        # A batch of several rows is gathered as they come, while each is in the processor's cache; a batch of one
        # is read where it lies.
        count = len(self._pending)
        if count > 1 or self._pending_envs < self._target():
            if self._gathered_streams == count - 1:
                self._gathered[start : self._pending_envs] = stream.buffer.records[stream.cursor].observation
                self._gathered_streams = count

    def _target(self) -> int:
        return self._batch_size or (self.connected_envs + 1) // 2

    @property
    def full(self) -> bool:
        """Whether the pending rows make up a batch."""
        return self._pending_envs >= self._target() > 0

    def wait(self) -> float | None:
        """Seconds until a batch is due: 0 now, None when nothing is pending."""
        if not self._pending:
            return None
        if self._pending_envs >= self._target():
            return 0.0
        return max(0.0, self._pending[0].arrived + self._deadline - self._clock())

    def answer(self) -> list[Answer]:
        """Close the batch, act on it, and give the answers that may go out."""
        streams, self._pending, self._pending_envs = self._pending, [], 0
        gathered, self._gathered_streams = self._gathered_streams == len(streams), 0
        begun = self._clock()
        while True:
            batch = self._batch(streams, gathered)
            faulty = self._faulty(streams, batch)
            if not faulty:
                break
            gathered = False
            for stream, sentence in faulty:
                self._on_fault(stream, sentence)
            streams = [stream for stream in streams if not stream.closed]
            if not streams:
                return []
        observation, reward, final, slots = batch
        rows = streams[0].rows if len(streams) == 1 else slots
        first = self._final[rows]
        self._capture_states(streams, slots, first)
        batched = self._clock()
        decision = self._policy.act(observation, reward, first, slots)
        acted = self._clock()
        self._count(rows, reward, first, final)
        answers = self._record(streams, decision.action, decision.recorded, decision.version)
        done = self._clock()
        self.stats.batches += 1
        self.stats.batch_rows += len(slots)
        if len(streams) == 1:
            self.stats.latency.add(done - streams[0].arrived)
        else:
            self.stats.latency.add_many(done - np.array([stream.arrived for stream in streams]))
        self.profile.add("inference", acted - batched)
        self.profile.add("batching", (batched - begun) + (done - acted))
        return answers

    def _batch(self, streams: list[Stream], gathered: bool) -> tuple[Any, Any, Any, Any]:
        """Observation, reward, final and slots of the streams' rows, [N, ...]."""
        records = [stream.buffer.records[stream.cursor] for stream in streams]
        if len(records) == 1:
            record = records[0]
            return record.observation, record.reward, record.terminated | record.truncated, streams[0].slots
        rows = sum(stream.num_envs for stream in streams)
        observation = self._gathered[:rows]
        if not gathered:
            np.concatenate([r.observation for r in records], out=observation)
        reward = np.concatenate([r.reward for r in records])
        final = np.concatenate([r.terminated for r in records]) | np.concatenate([r.truncated for r in records])
        return observation, reward, final, np.concatenate([stream.slots for stream in streams])

    def _faulty(self, streams: list[Stream], batch: tuple[Any, Any, Any, Any]) -> list[tuple[Stream, str]]:
        """The streams whose data is unusable: looked for only where the batch as a whole shows a fault."""
        observation, reward, final, _ = batch
        # A sum is finite only where every part of it is; the streams are looked at one by one only where it is not.
        if final.max() <= 1 and math.isfinite(reward.sum()):
            if not self._check_observation or math.isfinite(observation.sum()):
                return []
        faulty = []
        for stream in streams:
            record = stream.buffer.records[stream.cursor]
            if max(record.terminated.max(), record.truncated.max()) > 1:
                faulty.append((stream, "an end-of-episode flag that is neither 0 nor 1"))
            elif not np.isfinite(record.reward).all():
                faulty.append((stream, "a reward that is not finite"))
            elif self._check_observation and not np.isfinite(record.observation).all():
                faulty.append((stream, "an observation that is not finite"))
        return faulty

    def _capture_states(
        self, streams: list[Stream], slots: npt.NDArray[np.int32], first: npt.NDArray[np.bool_]
    ) -> None:
        """Keep the agent states before this record for streams where an unroll begins with it."""
        start = 0
        for stream in streams:
            stop = start + stream.num_envs
            if stream.records % self._stride == 0:
                stream.states.append(self._policy.snapshot(slots[start:stop], first[start:stop]))
            start = stop

    def _count(self, rows: slice | npt.NDArray[np.int32], reward: Any, first: Any, final: Any) -> None:
        """Environment steps and episodes of the slots `rows`, by raw rewards."""
        ongoing = ~first
        returns = self._return[rows] * ongoing
        returns += reward
        lengths = self._length[rows] * ongoing
        lengths += ongoing
        self._return[rows] = returns
        self._length[rows] = lengths
        self._final[rows] = final
        self.stats.env_steps += int(np.count_nonzero(ongoing))
        episodes = int(np.count_nonzero(final))
        if episodes:
            ended = final != 0
            self.stats.episodes += episodes
            self.stats.finished.extend(zip(returns[ended].tolist(), lengths[ended].tolist(), strict=True))

    def _record(self, streams: list[Stream], action: Any, recorded: Any, version: int) -> list[Answer]:
        answers = []
        start = 0
        for stream in streams:
            stop = start + stream.num_envs
            buffer, t = stream.buffer, stream.cursor
            actions = action[start:stop]
            buffer.action[t] = actions
            for name, values in recorded.items():
                buffer.recorded[name][t] = values[start:stop]
            buffer.version[t] = version
            stream.cursor = t + 1
            stream.records += 1
            if stream.cursor < self._records or self._turn_over(stream):
                stream.pending = False
                answers.append(Answer(stream, stream.sequence - 1 & 0xFFFFFFFF, actions))
            else:
                self._blocked.append((stream, actions))
            start = stop
        return answers

    def _turn_over(self, stream: Stream) -> bool:
        """Hand on the full buffer and open the next; False where the arena has none."""
        following = self._arena.acquire(stream.num_envs)
        if following is None:
            return False
        following.carry_over(stream.buffer, self._stride)
        stream.buffer.state = stream.states.popleft()
        self._on_unroll(stream.buffer)
        stream.buffer = following
        stream.cursor = self._records - self._stride
        return True

    def unblock(self) -> list[Answer]:
        """Answers that were held back for want of a buffer and can go out now."""
        if not self._blocked:
            return []
        answers = []
        blocked, self._blocked = self._blocked, []
        for stream, actions in blocked:
            # Streams of another size draw on another pool, so one that waits says nothing of the next.
            if self._turn_over(stream):
                stream.pending = False
                answers.append(Answer(stream, stream.sequence - 1 & 0xFFFFFFFF, actions))
            else:
                self._blocked.append((stream, actions))
        return answers
