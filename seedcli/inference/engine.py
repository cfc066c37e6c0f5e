"""The step engine: rows in, actions out, unrolls on. All bookkeeping is per stream and per batch.

It knows nothing of connections. One thread owns it (`release` of the arena's buffers apart).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from seedcli.agents.base import AlgorithmSpec, Role
from seedcli.inference.arena import Arena, UnrollBuffer
from seedcli.inference.policy import Policy
from seedcli.inference.streams import Answer, EngineStats, SlotAllocator, Stream
from seedcli.specs import EnvSpec, map_arrays
from seedcli.telemetry.logs import log_once_per
from seedcli.telemetry.metrics import Profile

_log = logging.getLogger(__name__)


def _episodes(
    returns: npt.NDArray[np.float64], lengths: npt.NDArray[np.int64], ended: npt.NDArray[np.bool_]
) -> Iterator[tuple[float, int]]:
    return zip(returns[ended].tolist(), lengths[ended].tolist(), strict=True)


def _named(observation: Any, name: str | None) -> Any:
    """An array of an observation by name; None: the only one."""
    return observation if name is None else observation[name]


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
        self._ranks = SlotAllocator(max_envs)
        # Names of the arrays that could hold something that is not finite; None stands for an only array.
        floats = [name for name, array in spec.arrays.items() if np.dtype(array.dtype).kind == "f"]
        single = not isinstance(spec.observation, Mapping)
        self._floats: list[str | None] = [None if single else name for name in floats]
        self._pending: list[Stream] = []
        self._pending_envs = 0
        # How many of the pending rows stand in `_gathered` already, in order; see `arrived`.
        self._gathered_streams = 0
        self._blocked: list[tuple[Stream, npt.NDArray[Any]]] = []
        self.connected_envs = 0
        self._gathered = map_arrays(lambda a: np.empty((max_envs, *a.shape), a.dtype), spec.observation)
        # By slot: whether the previous record was final (a new slot starts an episode), and the episode so far.
        self._final: npt.NDArray[np.bool_] = np.ones(max_envs, np.bool_)
        self._return: npt.NDArray[np.float64] = np.zeros(max_envs, np.float64)
        self._length: npt.NDArray[np.int64] = np.zeros(max_envs, np.int64)
        self._evaluates: npt.NDArray[np.bool_] = np.zeros(max_envs, np.bool_)
        self._trains: npt.NDArray[np.bool_] = np.zeros(max_envs, np.bool_)
        self._evaluation_envs = 0
        # Records the average training environment has played: what evaluation keeps pace with.
        self._rounds = 0.0
        self.stats = EngineStats()
        self.profile = Profile()

    def open_stream(self, owner: Any, index: int, num_envs: int, role: Role = "training") -> Stream | None:
        """A new stream with fresh slots, or None where no room is left."""
        slots = self._allocator.take(num_envs)
        if slots is None:
            return None
        if role == "training":
            self._arena.admit(num_envs)
            buffer = self._arena.acquire(num_envs)
            assert buffer is not None, "admit makes a buffer for every stream"
            ranks = self._ranks.take(num_envs)
            assert ranks is not None, "there are as many ranks as slots"
            stream = Stream(owner, index, role, slots, ranks, buffer)
            self._policy.assign(slots, role, ranks.astype(np.int64))
        else:
            stream = Stream(owner, index, role, slots, None, self._arena.unpooled(num_envs))
            self._policy.assign(slots, role, np.arange(num_envs))
            self._evaluation_envs += num_envs
        stream.begun = self._rounds
        self._trains[slots] = role == "training"
        self._evaluates[slots] = role == "evaluation"
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
        if stream.ranks is not None:
            self._arena.release(stream.buffer)
            self._arena.retire(stream.num_envs)
            self._ranks.give(stream.ranks)
        else:
            self._evaluation_envs -= stream.num_envs
        self._trains[stream.slots] = self._evaluates[stream.slots] = False
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
                stop, record = self._pending_envs, stream.buffer.records[stream.cursor]
                map_arrays(lambda to, rows: np.copyto(to[start:stop], rows), self._gathered, record.observation)
                self._gathered_streams = count

    def _target(self) -> int:
        # No more than there are can come.
        return min(self._batch_size, self.connected_envs) if self._batch_size else (self.connected_envs + 1) // 2

    @property
    def training_slots(self) -> npt.NDArray[np.bool_]:
        """[max_envs] bool, the slots of environments that train now; a copy, safe to read from another thread."""
        return self._trains.copy()

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
        batch = self._batch(streams, gathered)
        if self._suspicious(batch):
            # Only here the streams are looked at one by one: the batch as a whole shows a fault.
            for stream in streams:
                sentence = self._inspect(stream)
                if sentence is not None:
                    self._on_fault(stream, sentence)
            streams = [stream for stream in streams if not stream.closed]
            if not streams:
                return []
            batch = self._batch(streams, gathered=False)
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
        observation = map_arrays(lambda array: array[:rows], self._gathered)
        if not gathered:
            map_arrays(lambda to, *parts: np.concatenate(parts, out=to), observation, *[r.observation for r in records])
        reward = np.concatenate([r.reward for r in records])
        final = np.concatenate([r.terminated for r in records]) | np.concatenate([r.truncated for r in records])
        return observation, reward, final, np.concatenate([stream.slots for stream in streams])

    def _suspicious(self, batch: tuple[Any, Any, Any, Any]) -> bool:
        """Whether something in the batch may be unusable."""
        observation, reward, final, _ = batch
        # A sum is finite only where every part of it is.
        if final.max() > 1 or not math.isfinite(reward.sum()):
            return True
        return any(not math.isfinite(_named(observation, name).sum()) for name in self._floats)

    def _inspect(self, stream: Stream) -> str | None:
        """What makes a stream's row unusable, if anything does.

        A reward that is not finite does not: it becomes 0, and no unroll that holds it is trained on.
        """
        record = stream.buffer.records[stream.cursor]
        if max(record.terminated.max(), record.truncated.max()) > 1:
            return "an end-of-episode flag that is neither 0 nor 1"
        for name in self._floats:
            if not np.isfinite(_named(record.observation, name)).all():
                return "an observation that is not finite" + (f" ({name})" if name else "")
        bad = ~np.isfinite(record.reward)
        if bad.any():
            record.reward[bad] = 0.0
            if stream.mended is None:
                stream.mended = np.full(stream.num_envs, -1, np.int64)
            stream.mended[bad] = stream.records
            log_once_per(
                "rewards", 30.0, _log, logging.WARNING,
                "environment %d in stream %d of %s gave a reward that is not finite: it counts as 0, and unrolls with "
                "it are dropped; repair the environment", int(np.flatnonzero(bad)[0]), stream.index, stream.owner,
            )  # fmt: skip
        return None

    def _capture_states(
        self, streams: list[Stream], slots: npt.NDArray[np.int32], first: npt.NDArray[np.bool_]
    ) -> None:
        """Keep the agent states before this record for streams where an unroll begins with it."""
        start = 0
        for stream in streams:
            stop = start + stream.num_envs
            if stream.ranks is not None and stream.records % self._stride == 0:
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
        stats = self.stats
        steps = int(np.count_nonzero(ongoing))
        if self._evaluation_envs:
            evaluates = self._evaluates[rows]
            watched = int(np.count_nonzero(ongoing & evaluates))
            stats.evaluation_steps += watched
            steps -= watched
        stats.env_steps += steps
        if not np.count_nonzero(final):
            return
        ended = final != 0
        if self._evaluation_envs:
            watched = int(np.count_nonzero(ended & evaluates))
            if watched:
                stats.evaluation_episodes += watched
                stats.finished_evaluation.extend(_episodes(returns, lengths, ended & evaluates))
            ended &= ~evaluates
        stats.episodes += int(np.count_nonzero(ended))
        stats.finished.extend(_episodes(returns, lengths, ended))

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
            if stream.ranks is not None:
                self._rounds += stream.num_envs / (self.connected_envs - self._evaluation_envs)
            if stream.cursor < len(buffer.records) or self._turn_over(stream):
                stream.pending = False
                answers.append(Answer(stream, stream.sequence - 1 & 0xFFFFFFFF, actions))
            else:
                self._blocked.append((stream, actions))
            start = stop
        return answers

    def _turn_over(self, stream: Stream) -> bool:
        """Hand on the full buffer and open the next; False where the arena has none."""
        if stream.ranks is None:
            # Where training streams wait for training, those that only evaluate must not take its cores.
            training = self.connected_envs > self._evaluation_envs
            if training and stream.records - (self._rounds - stream.begun) > self._stride:
                return False
            stream.cursor = 0  # nobody reads it
            return True
        following = self._arena.acquire(stream.num_envs)
        if following is None:
            return False
        following.carry_over(stream.buffer, self._stride)
        stream.buffer.state = stream.states.popleft()
        if stream.mended is not None:
            # `records` counts those of this unroll too.
            keep = stream.mended < stream.records - self._records
            stream.buffer.keep = keep
            self.stats.dropped_unrolls += int(np.count_nonzero(~keep))
            if keep.all():
                stream.buffer.keep = stream.mended = None
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
