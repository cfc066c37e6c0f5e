"""The step engine: rows in, actions and unrolls out. All bookkeeping is per stream and per batch.

It knows nothing of connections. One thread owns it (only `Arena.release` may be called from others). Streams are spread
over lanes, one per inference device; each lane has its own batches, and all batches that are due run at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from seedcli.agents.base import AlgorithmSpec, Role
from seedcli.inference.arena import Arena, UnrollBuffer
from seedcli.inference.device_policy import Decision
from seedcli.inference.episodes import Episodes
from seedcli.inference.inspection import Inspector
from seedcli.inference.lane import InferenceBatch, Lane, share
from seedcli.inference.pace import Pace
from seedcli.inference.policy import Policy
from seedcli.inference.streams import Answer, EngineStats, SlotAllocator, Stream
from seedcli.specs import EnvSpec
from seedcli.telemetry.metrics import Profile


class StepEngine:
    """Forms batches of rows, runs the policy, completes unrolls.

    Args:
        algorithm: burn-in, length and recorded fields.
        spec: the environment.
        policies: one per inference device; each gets a lane.
        arena: holds the records.
        max_envs: slots over all lanes.
        batch_size: environments that a batch waits for, over all lanes; 0: half of those connected.
        deadline: longest wait of a row for others, in seconds.
        on_unroll: called with a completed buffer, which it owns until `arena.release`.
        on_fault: called with (stream, sentence) when a stream's data is unusable; must close the stream.
        pace: holds streams back after an unroll; None: a stream waits for training only if the arena has no buffer.
    """

    def __init__(
        self,
        algorithm: AlgorithmSpec,
        spec: EnvSpec,
        policies: Sequence[Policy],
        arena: Arena,
        *,
        max_envs: int,
        batch_size: int,
        deadline: float,
        on_unroll: Callable[[UnrollBuffer], None],
        on_fault: Callable[[Stream, str], None],
        pace: Pace | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        target = share(batch_size, len(policies))
        self._lanes = [Lane(each, spec, max_envs, target) for each in policies]
        self._arena = arena
        self._records = algorithm.records
        # Unrolls begin with every T-th record of a stream.
        self._stride = algorithm.unroll_length
        self._deadline = deadline
        self._on_unroll = on_unroll
        self._on_fault = on_fault
        self._pace = pace
        self._clock = clock
        self._allocator = SlotAllocator(max_envs)
        self._ranks = SlotAllocator(max_envs)
        self._inspector = Inspector(spec)
        self._blocked: list[tuple[Stream, npt.NDArray[Any]]] = []
        self.connected_envs = 0
        # Records played by the average training environment; evaluation is paced by it.
        self._rounds = 0.0
        self.stats = EngineStats()
        self._episodes = Episodes(max_envs, self.stats)
        self.profile = Profile()

    def open_stream(self, owner: Any, index: int, num_envs: int, role: Role = "training") -> Stream | None:
        """Open a stream with new slots in the lane with the fewest environments; None if too few slots are free."""
        slots = self._allocator.take(num_envs)
        if slots is None:
            return None
        lane = min(self._lanes, key=lambda lane: lane.envs)
        if role == "training":
            self._arena.admit(num_envs)
            buffer = self._arena.acquire(num_envs)
            assert buffer is not None, "admit makes a buffer for every stream"
            ranks = self._ranks.take(num_envs)
            assert ranks is not None, "there are as many ranks as slots"
            stream = Stream(owner, index, role, slots, ranks, buffer, lane)
            lane.policy.assign(slots, role, ranks.astype(np.int64))
        else:
            buffer = self._arena.unpooled(num_envs)
            stream = Stream(owner, index, role, slots, None, buffer, lane)
            lane.policy.assign(slots, role, np.arange(num_envs))
        stream.begun = self._rounds
        self._episodes.open(slots, role)
        lane.connect(num_envs)
        self.connected_envs += num_envs
        return stream

    def close_stream(self, stream: Stream) -> None:
        """Free a stream's slots and discard its partial unroll; safe to call twice."""
        if stream.closed:
            return
        stream.closed = True
        lane: Lane = stream.lane
        if stream.pending:
            stream.pending = False
            lane.forget(stream)
        # A full buffer whose successor is not yet available is released too: handing it on would violate the bound
        # that keeps a buffer free for the next stream.
        self._blocked = [item for item in self._blocked if item[0] is not stream]
        if stream.ranks is not None:
            self._arena.release(stream.buffer)
            self._arena.retire(stream.num_envs)
            self._ranks.give(stream.ranks)
        self._episodes.close(stream.slots, stream.role)
        self._allocator.give(stream.slots)
        lane.connect(-stream.num_envs)
        self.connected_envs -= stream.num_envs

    def destination(self, stream: Stream) -> memoryview:
        """Return the memory for the stream's next row."""
        return stream.buffer.destinations[stream.cursor]

    def arrived(self, stream: Stream) -> None:
        """Note that the row has been written to its destination."""
        stream.pending = True
        stream.sequence = (stream.sequence + 1) & 0xFFFFFFFF
        stream.arrived = self._clock()
        stream.lane.arrived(stream)

    @property
    def training_slots(self) -> npt.NDArray[np.bool_]:
        """The slots of training environments, bool [max_envs]; a copy, safe to read from any thread."""
        return self._episodes.trains.copy()

    @property
    def lane_envs(self) -> list[int]:
        """Environments of each lane."""
        return [lane.envs for lane in self._lanes]

    @property
    def full(self) -> bool:
        """Whether every lane with environments has enough pending rows for a batch, so that reading can stop.

        Reading continues while a lane can still fill, so that all devices work at the same time.
        """
        full = False
        for lane in self._lanes:
            if lane.target:
                if lane.pending_envs < lane.target:
                    return False
                full = True
        return full

    def wait(self) -> float | None:
        """Seconds until a batch is due; None if nothing is pending."""
        oldest: float | None = None
        for lane in self._lanes:
            if lane.pending:
                if lane.pending_envs >= lane.target:
                    return 0.0
                arrived = lane.pending[0].arrived
                oldest = arrived if oldest is None else min(oldest, arrived)
        return None if oldest is None else max(0.0, oldest + self._deadline - self._clock())

    def answer(self, send: Callable[[Answer], None]) -> int:
        """Run the batches that are due and send their answers; if none is due, run all that are not empty.

        Answers are sent as soon as the actions are known, so that environments step while this thread records them.

        Args:
            send: called with each answer; must not call the engine.

        Returns:
            The number of answers.
        """
        begun = self._clock()
        batches = self._batches(self._due(begun))
        under_way = []
        acting, done = 0.0, begun
        # Start every device before waiting for any result.
        for batch in batches:
            first = self._episodes.final[batch.slot_index]
            self._capture_states(batch, first)
            started = self._clock()
            promise = batch.lane.policy.begin(batch.observation, batch.reward, first, batch.slots)
            done = self._clock()
            acting += done - started
            under_way.append((batch, first, promise))
        sending, answered = 0.0, 0
        for batch, first, promise in under_way:
            decision = batch.lane.policy.finish(promise)
            acted = self._clock()
            acting += acted - done
            answered += self._send(batch.streams, decision.action, send)
            sent = self._clock()
            sending += sent - acted
            self._measure(batch, sent)
            self._episodes.count(batch.slot_index, batch.reward, first, batch.final)
            answered += self._record(batch.streams, decision, send)
            done = self._clock()
        self.profile.add("inference", acting)
        self.profile.add("wire", sending)
        self.profile.add("batching", done - begun - acting - sending)
        return answered

    def _due(self, now: float) -> list[Lane]:
        if len(self._lanes) == 1:
            return self._lanes if self._lanes[0].pending else []
        pending = [lane for lane in self._lanes if lane.pending]
        overdue = now - self._deadline
        due = [lane for lane in pending if lane.pending_envs >= lane.target or lane.pending[0].arrived <= overdue]
        return due or pending

    def _batches(self, lanes: list[Lane]) -> list[InferenceBatch]:
        """Close the lanes' batches and remove streams whose data is unusable."""
        batches, suspicious = [], []
        for lane in lanes:
            batches.append(batch := lane.close())
            if self._inspector.suspicious(batch):
                suspicious.append(batch)
        if not suspicious:
            return batches
        # Streams are inspected one by one only if the whole batch is suspicious.
        for batch in suspicious:
            for stream in batch.streams:
                sentence = self._inspector.inspect(stream) if not stream.closed else None
                if sentence is not None:
                    self._on_fault(stream, sentence)
        # A fault may have closed other streams of the same owner, in any lane.
        remaining = [(batch.lane, [stream for stream in batch.streams if not stream.closed]) for batch in batches]
        return [lane.batch(streams) for lane, streams in remaining if streams]

    def _measure(self, batch: InferenceBatch, done: float) -> None:
        stats, streams = self.stats, batch.streams
        stats.batches += 1
        stats.batch_rows += len(batch.slots)
        if len(streams) == 1:
            stats.latency.add(done - streams[0].arrived)
        else:
            stats.latency.add_many(done - np.array([stream.arrived for stream in streams]))

    def _capture_states(self, batch: InferenceBatch, first: npt.NDArray[np.bool_]) -> None:
        """Save the agent states before this record for streams where an unroll begins with it."""
        start = 0
        for stream in batch.streams:
            stop = start + stream.num_envs
            if stream.ranks is not None and stream.records % self._stride == 0:
                stream.states.append(batch.lane.policy.snapshot(batch.slots[start:stop], first[start:stop]))
            start = stop

    def _send(self, streams: list[Stream], action: Any, send: Callable[[Answer], None]) -> int:
        """Answer the streams whose buffer takes another row; returns how many."""
        count = start = 0
        for stream in streams:
            stop = start + stream.num_envs
            if stream.cursor + 1 < len(stream.buffer.row):
                self._answer(stream, action[start:stop], send)
                count += 1
            start = stop
        return count

    def _answer(self, stream: Stream, actions: Any, send: Callable[[Answer], None]) -> None:
        stream.pending = False
        send(Answer(stream, stream.sequence - 1 & 0xFFFFFFFF, actions))

    def _record(self, streams: list[Stream], decision: Decision, send: Callable[[Answer], None]) -> int:
        """Complete the streams' records, and answer those with a full buffer if they may continue; returns how many."""
        count = start = 0
        training_envs = self.connected_envs - self._episodes.evaluation_envs
        for stream in streams:
            stop = start + stream.num_envs
            buffer, t = stream.buffer, stream.cursor
            actions = decision.action[start:stop]
            buffer.action[t] = actions
            for name, values in decision.recorded.items():
                buffer.recorded[name][t] = values[start:stop]
            buffer.version[t] = decision.version
            stream.cursor = t + 1
            stream.records += 1
            if stream.ranks is not None:
                self._rounds += stream.num_envs / training_envs
            if stream.cursor == len(buffer.row):
                if self._continues(stream):
                    self._answer(stream, actions, send)
                    count += 1
                else:
                    self._blocked.append((stream, actions))
            start = stop
        return count

    def _continues(self, stream: Stream) -> bool:
        """Turn over the stream's buffer if it is full; False if the stream must wait for a buffer or for training."""
        if stream.cursor == len(stream.buffer.row) and not self._turn_over(stream):
            return False
        envs = self.connected_envs - self._episodes.evaluation_envs
        return self._pace is None or not self._pace.holds(stream, envs)

    def _turn_over(self, stream: Stream) -> bool:
        """Hand on the full buffer and open the next; False if the arena has none."""
        if stream.ranks is None:
            # While training streams wait for the trainer, evaluation streams must not take its cores.
            training = self.connected_envs > self._episodes.evaluation_envs
            if training and stream.records - (self._rounds - stream.begun) > self._stride:
                return False
            stream.cursor = 0  # its records are not read
            return True
        following = self._arena.acquire(stream.num_envs)
        if following is None:
            return False
        following.carry_over(stream.buffer, self._stride)
        stream.buffer.state = stream.states.popleft()
        if stream.last_bad_reward is not None:
            # `records` includes this unroll.
            keep = stream.last_bad_reward < stream.records - self._records
            stream.buffer.keep = keep
            self.stats.dropped_unrolls += int(np.count_nonzero(~keep))
            if keep.all():
                stream.buffer.keep = stream.last_bad_reward = None
        self._on_unroll(stream.buffer)
        if self._pace is not None:
            self._pace.handed_on(stream)
        stream.buffer = following
        stream.cursor = self._records - self._stride
        return True

    def unblock(self, send: Callable[[Answer], None]) -> int:
        """Send the answers that waited for a buffer or for training, and may be sent now; returns their number."""
        if not self._blocked:
            return 0
        count = 0
        blocked, self._blocked = self._blocked, []
        for stream, actions in blocked:
            # Streams of other sizes use other pools, so a blocked stream does not imply that the next is blocked.
            if self._continues(stream):
                self._answer(stream, actions, send)
                count += 1
            else:
                self._blocked.append((stream, actions))
        return count
