"""The replay: compressed unrolls, first in, first out, drawn by priority, in a bounded ratio to insertion.

A row has a *serial*, the number of rows inserted before it. The rows held are always the serials of one range
[oldest, next), and a row's place is serial mod (places). Dropping the oldest row only advances `oldest`, and a serial
alone tells whether its row is still held. So a late priority never reaches the row that now has the same place.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seedcli.config.sections import ReplayConfig
from seedcli.errors import UsageError
from seedcli.specs import aligned_empty
from seedcli.telemetry.logs import log_once_per
from seedcli.training.replay.blocks import BlockCodec
from seedcli.training.replay.rate_limiter import RateLimiter
from seedcli.training.replay.sum_tree import SumTree

# A TD error of exactly 0 must not keep an unroll from ever being drawn again.
MIN_PRIORITY = 1e-6
# Bounds of a weight in the tree, priority to the power of the exponent: sums of them neither overflow nor vanish.
_WEIGHTS = (1e-280, 1e280)
_FIRST_PLACES = 1024

_log = logging.getLogger(__name__)


class Sample(NamedTuple):
    """A batch drawn from the replay.

    Attributes:
        serials: int64 [B]; an unroll may be drawn twice.
        weights: float32 [B], importance weights in (0, 1].
        arrays: name → [R, B, ...] of per-record fields, [B, ...] of the others; contiguous, 64-byte aligned.
        waited: seconds spent waiting for insertion, as the ratio requires.
    """

    serials: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]
    arrays: dict[str, npt.NDArray[Any]]
    waited: float


class Snapshot(NamedTuple):
    """Immutable snapshot of a replay.

    Attributes:
        oldest: serial of the first row.
        next: serial the next row gets: rows inserted so far.
        sampled: unrolls sampled so far.
        dropped: unrolls dropped so far.
        places: places of the ring; with the priorities they determine the next draws.
        rng: state of the random generator, JSON-serialisable.
        priorities: float64 [next - oldest], 0 for rows that are never drawn again.
        blocks: the rows, [next - oldest].
    """

    oldest: int
    next: int
    sampled: int
    dropped: int
    places: int
    rng: dict[str, Any]
    priorities: npt.NDArray[np.float64]
    blocks: list[bytes]


class Replay:
    """Unrolls as compressed blocks with priorities (Schaul et al., arXiv 1511.05952, proportional variant).

    Unroll i is drawn with probability P(i) = p_i^α / Σ p^α and weighs (N · P(i))^−β, divided by the largest weight
    of its batch. One thread inserts, one samples, one updates; packing and unpacking happen outside the lock.

    Args:
        codec: packs one unroll.
        config: the section `replay`.
        batch_size: B.
        seed: of the draws.

    Attributes:
        insert_waited: seconds `insert` has waited for training so far.
    """

    def __init__(self, codec: BlockCodec, config: ReplayConfig, batch_size: int, seed: int) -> None:
        self.codec = codec
        self._config = config
        self._batch_size = batch_size
        self._limiter = RateLimiter.from_config(config, batch_size)
        self._max_bytes = config.capacity_gb * 1e9 or float("inf")
        self._rng = np.random.default_rng(seed)
        self._changed = threading.Condition()
        self._closed = False
        self._oldest = self._next = self._sampled = self._dropped = self._nbytes = 0
        self._offset = 0.0  # correction of the sampled count, see `RateLimiter.offset`
        self.insert_waited = 0.0
        self._allocate(min(_FIRST_PLACES, config.capacity))

    def _allocate(self, places: int) -> None:
        self._tree = SumTree(places)
        self._places = self._tree.size
        self._priorities = np.zeros(self._places, np.float64)
        self._blocks: list[bytes] = [b""] * self._places

    # ------------------------------------------------------------------ insertion

    def insert(
        self,
        blocks: Sequence[bytes],
        priorities: npt.NDArray[np.floating[Any]],
        keep: npt.NDArray[np.bool_] | None = None,
        *,
        start: int = 0,
        wait: bool = True,
    ) -> int:
        """Insert finished unrolls, one after the other, each when the ratio allows it.

        Args:
            blocks: E unrolls from `codec.pack`.
            priorities: [E]; an unroll with a negative or non-finite priority is dropped and counted.
            keep: [E] bool, False for unrolls with non-finite values (a NaN reward): dropped and counted too.
            start: index of the first unroll to insert.
            wait: block until training has caught up; otherwise stop at the first unroll that is not allowed yet.

        Returns:
            The next call's `start`: E if all are inserted or dropped, less if the ratio does not allow more or the
            replay was closed.

        Raises:
            UsageError: `capacity_gb` is full before `min_size` unrolls are in, so training would never start.
        """
        for column in range(start, len(priorities)):
            priority = float(priorities[column])
            if keep is not None and not keep[column]:
                self._drop("its values are non-finite")
            elif not (np.isfinite(priority) and priority >= 0):
                self._drop(f"its initial priority is {priority}")
            elif self._may_insert(wait):
                with self._changed:
                    self._push(blocks[column], priority)
                    self._changed.notify_all()
            else:
                return column
        return len(priorities)

    def _may_insert(self, wait: bool) -> bool:
        with self._changed:
            # If nothing can be drawn (every row was dropped), waiting for training would never end.
            while not self._closed and not (
                self._limiter.can_insert(self._next, self._sampled + self._offset) or self._tree.total == 0
            ):
                if not wait:
                    return False
                begun = time.perf_counter()
                self._changed.wait()
                self.insert_waited += time.perf_counter() - begun
            return not self._closed

    def _drop(self, reason: str) -> None:
        with self._changed:
            self._dropped += 1
        log_once_per(f"replay dropped {reason}", 60, _log, logging.WARNING, "an unroll was dropped: %s", reason)

    def _push(self, block: bytes, priority: float, known: int = 0) -> None:
        """Add a row and drop the oldest ones if it does not fit; the lock is held; `known`: rows counted before."""
        if self._nbytes + len(block) > self._max_bytes and max(self._next, known) < self._config.min_size:
            fit = self._next - self._oldest
            needed = self._config.min_size * (self._nbytes + len(block)) / (fit + 1) / 1e9
            raise UsageError(
                f"replay.capacity_gb = {self._config.capacity_gb:g} holds {fit} unrolls, fewer than "
                f"replay.min_size = {self._config.min_size}, so training would never start: raise "
                f"replay.capacity_gb to {1.2 * needed:.3g} or lower replay.min_size"
            )
        while self._next > self._oldest and (
            self._next - self._oldest >= self._config.capacity or self._nbytes + len(block) > self._max_bytes
        ):
            self._evict()
        if self._next - self._oldest == self._places:
            self._grow(2 * self._places)
        place = self._next % self._places
        self._blocks[place] = block
        self._nbytes += len(block)
        self._next += 1
        self._set_priorities(np.array([place]), np.array([max(priority, MIN_PRIORITY)]))

    def _evict(self) -> None:
        place = self._oldest % self._places
        self._nbytes -= len(self._blocks[place])
        self._blocks[place] = b""
        self._set_priorities(np.array([place]), np.zeros(1))
        self._oldest += 1

    def _grow(self, places: int) -> None:
        """Move the rows to a larger ring."""
        serials = np.arange(self._oldest, self._next)
        priorities, blocks = self._priorities[serials % self._places], self._row_blocks()
        self._allocate(places)
        for serial, block in zip(serials.tolist(), blocks, strict=True):
            self._blocks[serial % self._places] = block
        self._set_priorities(serials % self._places, priorities)

    def _set_priorities(self, places: npt.NDArray[np.int64], priorities: npt.NDArray[np.float64]) -> None:
        """Priorities are 0 (never drawn) or at least MIN_PRIORITY."""
        self._priorities[places] = priorities
        with np.errstate(over="ignore", under="ignore"):
            weights = np.clip(priorities**self._config.priority_exponent, *_WEIGHTS)
        self._tree.set(places, np.where(priorities > 0, weights, 0.0))

    def _row_blocks(self) -> list[bytes]:
        return [self._blocks[serial % self._places] for serial in range(self._oldest, self._next)]

    # ------------------------------------------------------------------ training

    def sample(self, *, wait: bool = True) -> Sample | None:
        """Draw a batch if the ratio allows it.

        Args:
            wait: block until the ratio allows it.

        Returns:
            The batch, or None: closed, or not allowed yet and `wait` is false.
        """
        batch = self._batch_size
        begun = time.perf_counter()
        with self._changed:
            while not self._closed and not (
                self._limiter.can_sample(self._next, self._sampled + self._offset, batch) and self._tree.total > 0
            ):
                if not wait:
                    return None
                self._changed.wait()
            if self._closed:
                return None
            waited = time.perf_counter() - begun
            places = self._tree.sample(self._rng, batch)
            weights = self._tree.get(places)
            serials = self._oldest + (places - self._oldest) % self._places
            blocks = [self._blocks[place] for place in places.tolist()]
            self._sampled += batch
            self._changed.notify_all()
        arrays = {}
        for field in self.codec.fields:
            shape = (field.shape[0], batch, *field.shape[1:]) if field.per_record else (batch, *field.shape)
            arrays[field.name] = aligned_empty(batch * field.nbytes).view(field.dtype).reshape(shape)
        self.codec.unpack(blocks, arrays)
        # N and the total cancel, because weights are divided by the largest of the batch (its least probable row).
        importance = (weights / weights.min()) ** -self._config.importance_exponent
        return Sample(serials, importance.astype(np.float32), arrays, waited)

    def update(self, serials: npt.NDArray[np.int64], priorities: npt.NDArray[np.floating[Any]]) -> None:
        """Set the new priorities [B] of sampled unrolls [B]; rows dropped in the meantime are ignored.

        A row with a negative or non-finite priority is dropped: never drawn again, and counted.
        """
        priorities = np.asarray(priorities, np.float64)
        good = np.isfinite(priorities) & (priorities >= 0)
        with self._changed:
            held = (serials >= self._oldest) & (serials < self._next)
            held[held] = self._priorities[serials[held] % self._places] > 0  # what was dropped stays dropped
            changed = held & good
            self._set_priorities(serials[changed] % self._places, np.maximum(priorities[changed], MIN_PRIORITY))
            bad = np.unique(serials[held & ~good])
            self._set_priorities(bad % self._places, np.zeros(len(bad)))
            self._dropped += len(bad)
            self._changed.notify_all()
        if len(bad):
            log_once_per(
                "replay dropped by update",
                60,
                _log,
                logging.WARNING,
                "%d unrolls of the replay were dropped: their new priorities are non-finite (the first is unroll %d)",
                len(bad),
                bad[0],
            )

    def close(self) -> None:
        """Wake waiting threads: nothing is inserted or sampled from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # ------------------------------------------------------------------ what it holds

    @property
    def size(self) -> int:
        """Unrolls held."""
        with self._changed:
            return self._next - self._oldest

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks held."""
        return self._nbytes

    @property
    def inserted(self) -> int:
        """Unrolls inserted so far."""
        return self._next

    @property
    def sampled(self) -> int:
        """Unrolls sampled so far, B a batch."""
        return self._sampled

    @property
    def dropped(self) -> int:
        """Unrolls dropped so far because of non-finite values."""
        return self._dropped

    def stats(self) -> dict[str, float]:
        """Metrics by name; 0 if not defined yet."""
        with self._changed:
            priorities = self._priorities[self._priorities > 0]
            size = self._next - self._oldest
            beyond = self._next - self._config.min_size
            return {
                "replay_size": float(size),
                "replay_mb": self._nbytes / 1e6,
                "replay_ratio": self._sampled / beyond if beyond > 0 else 0.0,
                "priority_mean": float(priorities.mean()) if len(priorities) else 0.0,
                "priority_max": float(priorities.max()) if len(priorities) else 0.0,
                "bytes_per_unroll": self._nbytes / size if size else 0.0,
            }

    def snapshot(self) -> Snapshot:
        """Take a snapshot; the blocks are shared, not copied."""
        with self._changed:
            serials = np.arange(self._oldest, self._next)
            return Snapshot(
                oldest=self._oldest,
                next=self._next,
                sampled=self._sampled,
                dropped=self._dropped,
                places=self._places,
                rng=dict(self._rng.bit_generator.state),
                priorities=self._priorities[serials % self._places],
                blocks=self._row_blocks(),
            )

    def restore(self, saved: Snapshot, blocks: Iterable[bytes]) -> None:
        """Restore a snapshot into an unused replay; a smaller capacity keeps the newest rows that fit.

        Args:
            saved: counters, priorities and random state; its `blocks` are not read.
            blocks: the rows, oldest first, taken one at a time.

        Raises:
            ValueError: `saved` contradicts itself, or there are not as many blocks as rows.
            UsageError: see `insert`.
        """
        rng = np.random.default_rng()
        try:
            rng.bit_generator.state = saved.rng
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"no state of the random generator: {error!r}") from error
        with self._changed:
            if self._next:
                raise ValueError("only a replay into which nothing was inserted can be restored")
            self._allocate(min(saved.places, self._config.capacity))
            self._oldest = self._next = saved.oldest
            for priority, block in zip(saved.priorities.tolist(), blocks, strict=True):
                self._push(block, priority, saved.next)
                if priority == 0:
                    self._set_priorities(np.array([(self._next - 1) % self._places]), np.zeros(1))
            if self._next != saved.next:
                raise ValueError(f"{self._next - saved.oldest} rows instead of {saved.next - saved.oldest}")
            self._rng = rng
            self._sampled, self._dropped = saved.sampled, saved.dropped
            self._offset = self._limiter.offset(self._next, self._sampled)
            self._changed.notify_all()
