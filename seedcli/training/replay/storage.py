"""Storage of a replay's rows in memory: the protocol that `buffer.Replay` requires, and how one is chosen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from seedcli.config.sections import ReplayConfig
from seedcli.training.replay.blocks import BlockCodec
from seedcli.training.replay.compressed import CompressedStorage
from seedcli.training.replay.plain import PlainStorage

_SMALL = 4096  # largest record, bytes, for which "auto" is "plain"


class Frozen(Protocol):
    """The rows of a storage at one moment, unaffected by later insertions."""

    def blocks(self, first: int) -> Iterator[bytes]:
        """The rows of serials `first` and above in ascending order, each as a block of `blocks.BlockCodec`.

        May be called once, by any thread, without the lock.
        """


class Storage(Protocol):
    """Rows of consecutive serials, first in, first out.

    A row is one unroll. Every method except `pack`, `load` and `size_of` is called with the replay's lock held.

    Attributes:
        max_rows: the largest number of rows that may be held.
        rows_at_once: the largest number of rows of a `put`.
        nbytes: bytes of the rows held.
    """

    max_rows: int
    rows_at_once: int
    nbytes: int

    def pack(self, arrays: dict[str, npt.NDArray[Any]]) -> Any:
        """N unrolls side by side, as `BlockCodec` has them, in the form that `put` takes; shares no memory with them.

        Raises:
            ValueError: an array is missing, or has another shape or dtype than its field.
        """

    def load(self, blocks: Sequence[bytes]) -> Any:
        """N blocks of `BlockCodec` in the form that `put` takes.

        Raises:
            ValueError: a block is damaged or has other fields.
        """

    def size_of(self, packed: Any, start: int, stop: int) -> int:
        """Bytes by which rows [start, stop) of `packed` increase `nbytes`."""

    def put(self, serial: int, packed: Any, start: int, stop: int) -> None:
        """Add rows [start, stop) of `packed` with the serials `serial`…; there is room for them."""

    def evict(self, count: int) -> None:
        """Drop the `count` oldest rows."""

    def read(
        self, serials: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], records: int
    ) -> Callable[[], dict[str, npt.NDArray[Any]]]:
        """Read B columns: `records` records of each row of `serials` [B], starting at record `starts` [B].

        Returns:
            A function that does the work that needs no lock and returns the arrays, see `blocks.batch_arrays`.
        """

    def freeze(self, lock: threading.Condition) -> Frozen:
        """The rows held now.

        Args:
            lock: the replay's; `Frozen.blocks` takes it to read.
        """


def is_plain(codec: BlockCodec, config: ReplayConfig) -> bool:
    """Whether `replay.storage` selects plain arrays; "auto" does if a record has at most 4 KiB."""
    if config.storage != "auto":
        return config.storage == "plain"
    return sum(field.nbytes // field.shape[0] for field in codec.fields if field.per_record) <= _SMALL


def max_rows(codec: BlockCodec, config: ReplayConfig) -> int:
    """Maximum number of unrolls in a replay: `capacity`, or fewer if plain ones fill `capacity_gb` first."""
    if not config.capacity_gb or not is_plain(codec, config):
        return config.capacity
    return min(config.capacity, int(config.capacity_gb * 1e9 // codec.raw_bytes))


def create_storage(codec: BlockCodec, config: ReplayConfig) -> Storage:
    """Create the storage that the section `replay` requires."""
    return (PlainStorage if is_plain(codec, config) else CompressedStorage)(codec, max_rows(codec, config))
