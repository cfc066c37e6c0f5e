"""The replay: unrolls, first in, first out, drawn by priority or uniformly, in a bounded ratio to insertion.

A row is one unroll. It has a *serial*, the number of rows inserted before it. The rows held are always the serials of
one range [oldest, next). Dropping the oldest row only advances `oldest`, and a serial alone shows whether its row is
still held. So a late priority never reaches the row that now has the same place in a ring.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from seedcli.config.sections import ReplayConfig
from seedcli.errors import UsageError
from seedcli.telemetry.logs import log_once_per
from seedcli.training.replay.blocks import BlockCodec
from seedcli.training.replay.data import Packed, Sample, Snapshot
from seedcli.training.replay.draws import MIN_PRIORITY, Draws, PrioritizedDraws, UniformDraws
from seedcli.training.replay.rate_limiter import RateLimiter
from seedcli.training.replay.storage import create_storage, max_rows

_FIRST_PLACES = 1024

_log = logging.getLogger(__name__)


class Replay:
    """Unrolls from which training batches are drawn.

    One thread inserts, one samples, one updates; compression happens outside the lock.

    Args:
        codec: packs one unroll.
        config: the section `replay`.
        batch_size: B, columns of a batch.
        seed: of the draws.
        sample_length: n, transitions of a column, drawn from unrolls of K = 0 and T transitions; None: whole unrolls.

    Attributes:
        insert_waited: seconds `insert` has waited for training so far.

    Raises:
        UsageError: `capacity_gb` has room for fewer than `min_size` unrolls, so training would never start.
        ValueError: short columns with prioritized draws, or a window that is too small.
    """

    def __init__(
        self, codec: BlockCodec, config: ReplayConfig, batch_size: int, seed: int, sample_length: int | None = None
    ) -> None:
        self.codec = codec
        self._config = config
        self._batch_size = batch_size
        transitions = next(field.shape[0] for field in codec.fields if field.per_record) - 1
        length = transitions if sample_length is None else sample_length
        self._records = length + 1
        self._share = length / transitions if transitions else 1.0  # fraction of an unroll that a column counts as
        self._limiter = RateLimiter.from_config(config, batch_size * self._share)
        self._max_bytes = config.capacity_gb * 1e9 or float("inf")
        self._limit = max_rows(codec, config)
        if self._limit < min(config.min_size, config.capacity):
            raise self._too_small(self._limit, config.min_size * codec.raw_bytes)
        self._storage = create_storage(codec, config)
        self._prioritized: PrioritizedDraws | None = None
        self._draws: Draws
        if config.sampling == "prioritized":
            if length < transitions:
                raise ValueError(f"columns of {length} of {transitions} transitions cannot be drawn by priority")
            self._draws = self._prioritized = PrioritizedDraws(min(_FIRST_PLACES, config.capacity), config)
        else:
            self._draws = UniformDraws(self._limit, transitions, length)
        self._rng = np.random.default_rng(seed)
        self._changed = threading.Condition()
        self._closed = False
        self._oldest = self._next = self._sampled = self._dropped = 0
        self._offset = 0.0  # correction of the sampled count, see `RateLimiter.offset`
        self.insert_waited = 0.0

    def _too_small(self, fit: int, needed: float) -> UsageError:
        """The error for a `capacity_gb` with room for `fit` unrolls where `min_size` unrolls take `needed` bytes."""
        return UsageError(
            f"replay.capacity_gb = {self._config.capacity_gb:g} holds {fit} unrolls, fewer than "
            f"replay.min_size = {self._config.min_size}, so training would never start: raise "
            f"replay.capacity_gb to {1.2 * needed / 1e9:.3g} or lower replay.min_size"
        )

    # ------------------------------------------------------------------ insertion

    def pack(self, arrays: dict[str, npt.NDArray[Any]]) -> Packed:
        """Unrolls side by side, as `BlockCodec` has them, in the form that `insert` takes; shares no memory with them.

        Raises:
            ValueError: an array is missing, or has another shape or dtype than its field.
        """
        content = self._storage.pack(arrays)
        field = self.codec.fields[0]
        return Packed(arrays[field.name].shape[int(field.per_record)], content, self._final(arrays))

    def _final(self, arrays: dict[str, npt.NDArray[Any]]) -> npt.NDArray[np.bool_] | None:
        if not self._draws.needs_final:
            return None
        return np.asarray((arrays["terminated"] | arrays["truncated"])[:-1].T != 0)

    def insert(
        self,
        unrolls: Packed,
        priorities: npt.NDArray[np.floating[Any]] | None = None,
        keep: npt.NDArray[np.bool_] | None = None,
        *,
        start: int = 0,
        wait: bool = True,
    ) -> int:
        """Insert finished unrolls in order, as far as the ratio allows.

        Args:
            unrolls: E unrolls.
            priorities: [E]; an unroll with a negative or non-finite priority is dropped and counted. None: the highest
                priority so far, or uniform draws, which have none.
            keep: [E] bool, False for unrolls with non-finite values (a NaN reward): dropped and counted too.
            start: index of the first unroll to insert.
            wait: block until training has caught up; otherwise stop at the first unroll that is not allowed yet.

        Returns:
            The next call's `start`: E if all are inserted or dropped, less if the ratio does not allow more or the
            replay was closed.

        Raises:
            UsageError: `capacity_gb` is full before `min_size` unrolls are in, so training would never start.
        """
        good = np.ones(unrolls.columns, np.bool_) if keep is None else keep
        if priorities is not None:
            priorities = np.asarray(priorities, np.float64)
            good = good & np.isfinite(priorities) & (priorities >= 0)
        column = start
        while column < unrolls.columns:
            bad = np.flatnonzero(~good[column:])
            if len(bad) and bad[0] == 0:
                if priorities is None or (keep is not None and not keep[column]):
                    self._drop("its values are non-finite")
                else:
                    self._drop(f"its initial priority is {priorities[column]}")
                column += 1
                continue
            stop = column + int(bad[0]) if len(bad) else unrolls.columns
            with self._changed:
                stop = column + self._wait_to_insert(stop - column, wait)
                if stop == column:
                    return column
                given = None if priorities is None else np.maximum(priorities[column:stop], MIN_PRIORITY)
                self._push(unrolls, column, stop, given)
                self._changed.notify_all()
            column = stop
        return column

    def _wait_to_insert(self, count: int, wait: bool) -> int:
        """How many of `count` unrolls may be inserted; 0: closed, or none yet and `wait` is false; the lock is held."""
        count = min(count, self._storage.rows_at_once)
        while not self._closed:
            allowed = self._limiter.insertable(self._next, self._sampled * self._share + self._offset, count)
            # If nothing can be drawn (every row was dropped), waiting for training would never end.
            if not allowed and not self._draws.possible:
                allowed = 1
            if allowed or not wait:
                return allowed
            begun = time.perf_counter()
            self._changed.wait()
            self.insert_waited += time.perf_counter() - begun
        return 0

    def _drop(self, reason: str) -> None:
        with self._changed:
            self._dropped += 1
        log_once_per(f"replay dropped {reason}", 60, _log, logging.WARNING, "an unroll was dropped: %s", reason)

    def _push(
        self, unrolls: Packed, start: int, stop: int, priorities: npt.NDArray[np.float64] | None, known: int = 0
    ) -> None:
        """Add rows and drop the oldest ones if they do not fit; the lock is held; `known`: rows counted before."""
        count, storage = stop - start, self._storage
        nbytes = storage.size_of(unrolls.content, start, stop)
        self._evict(max(0, self._next - self._oldest + count - self._limit))
        if storage.nbytes + nbytes > self._max_bytes and max(self._next, known) < self._config.min_size:
            fit = self._next - self._oldest
            raise self._too_small(fit, self._config.min_size * (storage.nbytes + nbytes) / (fit + 1))
        while self._next > self._oldest and storage.nbytes + nbytes > self._max_bytes:
            self._evict(1)
        self._draws.reserve(self._oldest, self._next, count)
        storage.put(self._next, unrolls.content, start, stop)
        serials = np.arange(self._next, self._next + count)
        self._next += count
        self._draws.add(serials, priorities, None if unrolls.final is None else unrolls.final[start:stop])

    def _evict(self, count: int) -> None:
        if count:
            self._draws.remove(np.arange(self._oldest, self._oldest + count))
            self._storage.evict(count)
            self._oldest += count

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
            while not self._closed and not (self._draws.possible and self._may_sample()):
                if not wait:
                    return None
                self._changed.wait()
            if self._closed:
                return None
            waited = time.perf_counter() - begun
            drawn = self._draws.draw(self._rng, batch, self._oldest, self._next)
            arrays = self._storage.read(drawn.serials, drawn.starts, self._records)
            self._sampled += batch
            self._changed.notify_all()
        return Sample(drawn.serials, drawn.starts, drawn.weights, arrays(), waited)

    def _may_sample(self) -> bool:
        sampled = self._sampled * self._share + self._offset
        return self._limiter.can_sample(self._next, sampled, self._batch_size * self._share)

    def update(self, serials: npt.NDArray[np.int64], priorities: npt.NDArray[np.floating[Any]]) -> None:
        """Set the new priorities [B] of sampled unrolls [B]; rows dropped in the meantime are ignored.

        A row with a negative or non-finite priority is dropped: never drawn again, and counted.

        Raises:
            ValueError: draws are uniform.
        """
        if self._prioritized is None:
            raise ValueError("uniform draws have no priorities")
        priorities = np.asarray(priorities, np.float64)
        good = np.isfinite(priorities) & (priorities >= 0)
        with self._changed:
            held = (serials >= self._oldest) & (serials < self._next)
            held[held] = self._prioritized.get(serials[held]) > 0  # dropped rows stay dropped
            changed = held & good
            self._prioritized.set(serials[changed], np.maximum(priorities[changed], MIN_PRIORITY))
            bad = np.unique(serials[held & ~good])
            self._prioritized.remove(bad)
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

    # ------------------------------------------------------------------ contents

    @property
    def size(self) -> int:
        """Unrolls held."""
        with self._changed:
            return self._next - self._oldest

    @property
    def nbytes(self) -> int:
        """Bytes of the unrolls held."""
        return self._storage.nbytes

    @property
    def inserted(self) -> int:
        """Unrolls inserted so far."""
        return self._next

    @property
    def sampled(self) -> int:
        """Columns sampled so far, B a batch."""
        return self._sampled

    @property
    def dropped(self) -> int:
        """Unrolls dropped so far because of non-finite values."""
        return self._dropped

    def stats(self) -> dict[str, float]:
        """Metrics by name; 0 if not defined yet."""
        with self._changed:
            size = self._next - self._oldest
            beyond = self._next - self._config.min_size
            return {
                "replay_size": float(size),
                "replay_mb": self.nbytes / 1e6,
                "replay_ratio": self._sampled * self._share / beyond if beyond > 0 else 0.0,
                **({} if self._prioritized is None else self._prioritized.stats()),
                "bytes_per_unroll": self.nbytes / size if size else 0.0,
            }

    def snapshot(self) -> Snapshot:
        """Take a snapshot; the rows are not copied."""
        with self._changed:
            prioritized = self._prioritized
            return Snapshot(
                oldest=self._oldest,
                next=self._next,
                sampled=self._sampled,
                dropped=self._dropped,
                places=self._draws.places,
                rng=dict(self._rng.bit_generator.state),
                priorities=None if prioritized is None else prioritized.get(np.arange(self._oldest, self._next)),
                highest=1.0 if prioritized is None else prioritized.highest,
                rows=self._storage.freeze(self._changed),
            )

    def restore(self, saved: Snapshot, blocks: Iterable[bytes]) -> None:
        """Restore a snapshot into an unused replay; a smaller capacity keeps the newest rows that fit.

        Args:
            saved: counters, priorities and random state; its `rows` are not read. Without priorities each row gets
                the highest one.
            blocks: the rows, oldest first, taken a few at a time.

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
            if self._prioritized is not None:
                places = min(saved.places, self._config.capacity)
                self._draws = self._prioritized = PrioritizedDraws(places, self._config)
                self._prioritized.highest = saved.highest
            self._oldest = self._next = saved.oldest
            rows = iter(blocks)
            while few := list(itertools.islice(rows, min(self.codec.chunk, self._storage.rows_at_once))):
                self._restore_rows(few, saved)
            if self._next != saved.next:
                raise ValueError(f"{self._next - saved.oldest} rows instead of {saved.next - saved.oldest}")
            self._rng = rng
            self._sampled, self._dropped = saved.sampled, saved.dropped
            self._offset = self._limiter.offset(self._next, self._sampled * self._share)
            self._changed.notify_all()

    def _restore_rows(self, blocks: list[bytes], saved: Snapshot) -> None:
        final = self._final(self.codec.unpacked(blocks)) if self._draws.needs_final else None
        priorities = None
        if saved.priorities is not None:
            first = self._next - saved.oldest
            priorities = saved.priorities[first : first + len(blocks)]
            if len(priorities) < len(blocks):
                raise ValueError(f"more rows than the {saved.next - saved.oldest} that have priorities")
        unrolls = Packed(len(blocks), self._storage.load(blocks), final)
        self._push(unrolls, 0, len(blocks), priorities, saved.next)
