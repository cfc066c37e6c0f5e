"""Sources of training batches: a queue that returns each unroll once, or a replay that draws them repeatedly.

Completed unrolls enter through `put`, batches leave through `next_batch`. `AlgorithmSpec.source` selects the kind.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from seedcli.agents.base import Agent, InitialPriorities, UnrollBatch
from seedcli.config.schema import Config
from seedcli.errors import UsageError
from seedcli.inference.arena import Arena, UnrollBuffer
from seedcli.specs import EnvSpec
from seedcli.telemetry.metrics import Profile
from seedcli.training.batches import TrainingBatch, UnrollQueue, assemble
from seedcli.training.devices import Devices
from seedcli.training.host_memory import available_memory
from seedcli.training.replay.blocks import BlockCodec
from seedcli.training.replay.buffer import Replay
from seedcli.training.replay.data import Packed
from seedcli.training.replay.requirements import check_replay
from seedcli.training.replay.storage import is_plain
from seedcli.training.replay.store import DamagedReplayError, ReplayStore
from seedcli.training.replay.unrolls import expected_bytes, stored_arrays, to_unrolls, unroll_fields

_log = logging.getLogger(__name__)

_GROWTH = 1.3
_BATCHES_HELD = 4  # uncompressed: one being unpacked, one waiting, one in training, and TensorFlow's copy


# Copies host arrays of a training batch to the training devices, see `training.devices.Devices.place`.
Place = Callable[[UnrollBatch], UnrollBatch]


class Source(Protocol):
    """Passes data from the inference service to the trainer.

    Attributes:
        profiles: time profile of each of its threads, by thread name.
    """

    profiles: dict[str, Profile]

    def put(self, buffer: UnrollBuffer) -> None:
        """Take ownership of a completed buffer; called by the inference thread, never blocks."""

    def workers(self) -> dict[str, Callable[[], None]]:
        """Thread functions by thread name; they return after `close`."""

    def next_batch(self, *, wait: bool) -> TrainingBatch | None:
        """Return the next batch, on its devices; None: closed, or `wait` is false and no batch can be formed."""

    def trained(self, batch: TrainingBatch, priorities: npt.NDArray[np.float32] | None) -> None:
        """Note that a batch has been trained on; `priorities`: [B] float32, the new priorities of its unrolls."""

    def close(self) -> None:
        """Wake waiting threads; nothing is returned or inserted from now on."""

    def stats(self) -> dict[str, float]:
        """Metrics by name."""

    @property
    def dropped(self) -> int:
        """Unrolls dropped because of non-finite values."""

    def capture(self) -> Callable[[Path], None] | None:
        """Take a snapshot; returns a function that writes it into a checkpoint's folder. None: nothing to store."""

    def prune(self, checkpoints: list[Path]) -> None:
        """Delete data that none of these checkpoints refers to."""

    def restore(self, checkpoint: Path) -> bool:
        """Restore the data of a checkpoint; returns False if it has none. Raises CheckpointError."""


class QueueSource:
    """A `Source` that returns each unroll once, first in, first out.

    Args:
        batch_size: columns of a batch on this host.
        arena: owner of the buffers.
        place: copies a batch to its devices.
    """

    def __init__(self, batch_size: int, arena: Arena, place: Place) -> None:
        self._batch_size = batch_size
        self._arena = arena
        self._place = place
        self._queue = UnrollQueue()
        self._profile = Profile()
        self.profiles = {"prefetch thread": self._profile}
        self.dropped = 0
        self.put = self._queue.put
        self.close = self._queue.close

    def workers(self) -> dict[str, Callable[[], None]]:
        return {}

    def next_batch(self, *, wait: bool) -> TrainingBatch | None:
        begun = time.perf_counter()
        pieces = self._queue.take(self._batch_size, wait=wait)
        taken = time.perf_counter()
        self._profile.add("waiting", taken - begun)
        if pieces is None:
            return None
        batch = assemble(pieces, self._arena)
        self._profile.add("batching", time.perf_counter() - taken)
        return _placed(batch, self._place, self._profile)

    def trained(self, batch: TrainingBatch, priorities: npt.NDArray[np.float32] | None) -> None:
        """Do nothing."""

    def stats(self) -> dict[str, float]:
        return {}

    def capture(self) -> Callable[[Path], None] | None:
        """Queued unrolls are not stored in checkpoints."""
        return None

    def prune(self, checkpoints: list[Path]) -> None:
        """Nothing to delete."""

    def restore(self, checkpoint: Path) -> bool:
        return False


class ReplaySource:
    """A `Source` that samples unrolls, or short columns of them, at a fixed ratio to insertion.

    Args:
        agent: of prioritized draws, computes the initial priorities if it has `agents.base.InitialPriorities`.
        spec: the environment.
        config: replay, batch size, seed.
        arena: owner of the buffers.
        folder: folder of the saved replay.
        place: copies a batch to its devices.

    Raises:
        UsageError: the machine has too little memory, or `replay.capacity_gb` is too small for `replay.min_size`.
    """

    def __init__(self, agent: Agent, spec: EnvSpec, config: Config, arena: Arena, folder: Path, place: Place) -> None:
        self._agent = agent
        self._spec = spec
        self._place = place
        self._arena = arena
        self._queue = UnrollQueue()
        self._config = config.replay
        self._prioritized = config.replay.sampling == "prioritized"
        algorithm, batch_size = agent.algorithm, config.training.batch_size
        fields = unroll_fields(agent, spec)
        codec = BlockCodec(fields)
        plain = is_plain(codec, config.replay)
        # Compressed unrolls are always unpacked whole.
        records = algorithm.batch_records if plain else algorithm.records
        self._batch_bytes = batch_size * sum(
            field.nbytes // field.shape[0] * records if field.per_record else field.nbytes for field in fields
        )
        expected = (codec.raw_bytes, "") if plain else (expected_bytes(fields), "about ")
        self._check_memory(expected[0] * config.replay.capacity, expected[1])
        self._projected = plain
        self.replay = Replay(codec, config.replay, batch_size, config.run.seed, algorithm.sample_length)
        self._store = ReplayStore(folder, codec.signature)
        # Unrolls, priorities, keep flags, and the index of the first unroll not yet inserted.
        self._partial: tuple[Packed, npt.NDArray[np.float32] | None, npt.NDArray[np.bool_] | None, int] | None = None
        self._prefetch, self._insertion = Profile(), Profile()
        self.profiles = {"prefetch thread": self._prefetch, "replay thread": self._insertion}
        self.put = self._queue.put

    def _check_memory(self, nbytes: float, how: str, held: int = 0) -> None:
        """Log the memory of a full replay; raise UsageError if the machine has less.

        Args:
            nbytes: bytes of `replay.capacity` unrolls.
            how: how this was estimated, before the number; "" if it is exact.
            held: bytes of it that are already in use.
        """
        config = self._config
        free = available_memory() + held - _BATCHES_HELD * self._batch_bytes
        taken = min(nbytes, config.capacity_gb * 1e9) if config.capacity_gb else nbytes
        if taken > free:
            fitting = int(0.9 * config.capacity * max(0.0, free) / nbytes)
            advice = f"lower replay.capacity to {fitting:,} or set replay.capacity_gb to {0.9 * free / 1e9:.3g}"
            if fitting < config.min_size:
                advice = f"use a machine with more, or lower replay.capacity and replay.min_size to {fitting:,}"
            raise UsageError(
                f"replay.capacity = {config.capacity:,} unrolls take {how}{_size(taken)}, and this machine has "
                f"{_size(max(0.0, free))} free: {advice}"
            )
        _log.info(
            "a replay of %s unrolls takes %s%s when full; %s are free",
            f"{config.capacity:,}",
            how,
            _size(taken),
            _size(free),
        )

    def _project_memory(self) -> None:
        """Once, as training starts: check the memory of a full replay, estimated from the unrolls in it."""
        size, held = self.replay.size, self.replay.nbytes
        if not self._projected and size >= min(self._config.min_size, self._config.capacity):
            self._projected = True
            # A better agent sees more of its game than the first unrolls contain.
            self._check_memory(_GROWTH * held / size * self._config.capacity, "up to an estimated ", held)

    # -- in ---------------------------------------------------------------------------------------------------

    def workers(self) -> dict[str, Callable[[], None]]:
        return {"replay": self._insert_loop}

    def _insert_loop(self) -> None:
        while self._insert(wait=True):
            pass

    def _insert(self, *, wait: bool) -> bool:
        """Insert the oldest buffer, or as much of it as the ratio allows; returns whether anything was inserted."""
        begun = time.perf_counter()
        if self._partial is None:
            buffer = self._queue.take_buffer(wait=wait)
            if buffer is None:
                return False
            taken = time.perf_counter()
            self._insertion.add("waiting", taken - begun)
            priorities = self._priorities(buffer)
            begun = time.perf_counter()
            self._insertion.add("priorities", begun - taken)
            unrolls = self.replay.pack(stored_arrays(buffer, self._spec))
            self._partial = (unrolls, priorities, buffer.keep, 0)
            # The packed unrolls copy the whole buffer, so it can be released before they are inserted.
            self._arena.release(buffer)
        unrolls, priorities, keep, start = self._partial
        waited = self.replay.insert_waited
        stop = self.replay.insert(unrolls, priorities, keep, start=start, wait=wait)
        waited = self.replay.insert_waited - waited
        self._insertion.add("waiting", waited)
        self._insertion.add("inserting", time.perf_counter() - begun - waited)
        if stop < unrolls.columns:
            self._partial = (unrolls, priorities, keep, stop)
            return stop > start  # closed, or (not waiting) training must come first
        self._partial = None
        self._project_memory()
        return True

    def _priorities(self, buffer: UnrollBuffer) -> npt.NDArray[np.float32] | None:
        """Initial priorities [E] computed by the agent; None: the replay chooses them, or draws are uniform."""
        agent, rows = self._agent, buffer.rows
        if not (self._prioritized and isinstance(agent, InitialPriorities)):
            return None
        # Too little work for an accelerator.
        with tf.device("CPU:0"):
            unrolls = UnrollBatch(
                observation=None,
                reward=rows.reward,
                terminated=rows.terminated.view(np.bool_),
                truncated=rows.truncated.view(np.bool_),
                action=buffer.action,
                recorded=buffer.recorded,
                state=None,
                weights=None,
            )
            return agent.initial_priorities(unrolls).numpy()

    # -- out --------------------------------------------------------------------------------------------------

    def next_batch(self, *, wait: bool) -> TrainingBatch | None:
        """Without `wait` there is no worker thread, so this call inserts queued buffers first."""
        if not wait:
            while self._insert(wait=False):
                pass
        begun = time.perf_counter()
        sample = self.replay.sample(wait=wait)
        if sample is None:
            return None
        batch = to_unrolls(sample, self._agent, self._spec)
        self._prefetch.add("sampling", time.perf_counter() - begun - sample.waited)
        self._prefetch.add("waiting", sample.waited)
        return _placed(batch, self._place, self._prefetch)

    def trained(self, batch: TrainingBatch, priorities: npt.NDArray[np.float32] | None) -> None:
        """See `Source`; raises UsageError if draws are prioritized and the agent's loss gives no priorities."""
        if not self._prioritized:
            return
        if priorities is None:
            raise UsageError(
                f'{type(self._agent).__name__}.loss returned no priorities, which replay.sampling = "prioritized" '
                'draws by: return them in LossOutputs.priorities, or set replay.sampling = "uniform"'
            )
        assert batch.serials is not None
        self.replay.update(batch.serials, priorities)

    # -- the rest ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        self._queue.close()
        self.replay.close()

    def stats(self) -> dict[str, float]:
        return self.replay.stats()

    @property
    def dropped(self) -> int:
        return self.replay.dropped

    def capture(self) -> Callable[[Path], None] | None:
        if not self._config.save or not self.replay.size:
            return None
        store, snapshot = self._store, self.replay.snapshot()
        return lambda directory: store.save(directory, snapshot)

    def prune(self, checkpoints: list[Path]) -> None:
        self._store.prune(checkpoints)

    def restore(self, checkpoint: Path) -> bool:
        why = f"{checkpoint} contains no replay"
        if not self._config.save:
            why = "the saved replay is ignored (replay.save = false)"
        else:
            try:
                if self._store.restore(checkpoint, self.replay):
                    return True
            except DamagedReplayError as error:
                # The weights are the expensive part; a replay refills by itself.
                why = f"{error.problem}, so the replay is ignored"
        _log.warning(
            "%s: it refills to replay.min_size = %s unrolls before training continues",
            why,
            f"{self._config.min_size:,}",
        )
        return False


def _size(nbytes: float) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"


def _placed(batch: TrainingBatch, place: Place, profile: Profile) -> TrainingBatch:
    """Copy a batch to its devices; the time is charged to "transfer"."""
    begun = time.perf_counter()
    batch = batch._replace(unrolls=place(batch.unrolls))
    profile.add("transfer", time.perf_counter() - begun)
    return batch


def create_source(
    agent: Agent,
    spec: EnvSpec,
    config: Config,
    arena: Arena,
    folder: Path,
    place: Place | None = None,
) -> Source:
    """Create the source that an algorithm requires.

    Args:
        agent: its `algorithm.source` selects the kind.
        spec, config: see `ReplaySource`; with several hosts, this host's share of batch and replay.
        arena: owner of the buffers.
        folder: folder of the saved replay.
        place: copies a batch to its devices, in the calling thread; None: to TensorFlow's default device.

    Raises:
        UsageError: see `check_replay` and `ReplaySource`.
    """
    place = Devices.default().place if place is None else place
    check_replay(agent, config)
    if agent.algorithm.source == "replay":
        return ReplaySource(agent, spec, config, arena, folder, place)
    return QueueSource(config.training.batch_size, arena, place)
