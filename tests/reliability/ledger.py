"""The check of `tests.system.records` for long runs whose learner is killed: immediate, and in bounded memory.

Each learner process appends the position of every environment to its own file, and reads those of the processes before
it: records that they have counted must not appear again.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seedcli.agents.base import UnrollBatch
from seedcli.inference.arena import UnrollBuffer
from tests.reliability.verdict import WRONG, Verdict
from tests.system.records import EPISODE, STEP, Column, columns_of, columns_of_batch

_DIGEST_BYTES = 16
_PLACE = struct.Struct(f"<fii{_DIGEST_BYTES}s")  # number, episode, step, digest of the environment's first unroll
_WRITE_SECONDS = 0.5
_UNTRAINED = 20_000  # columns that may wait to be trained on: far more than any arena holds


@dataclass
class _Known:
    """An environment up to its newest finished unroll; `newest` is None if another process has seen that."""

    episode: int
    step: int
    first: bytes  # digest of its first unroll
    newest: Column | None = None


def digest(column: Column) -> bytes:
    """A digest that identifies a column."""
    return hashlib.blake2b(column.key(), digest_size=_DIGEST_BYTES).digest()


class Ledger:
    """Checks every finished and every trained column immediately.

    Args:
        folder: of the ledgers of all processes of a run.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.verdict = Verdict()
        self._known: dict[float, _Known] = {}
        life = len(list(folder.glob("*.places")))
        for earlier in range(life):
            data = (folder / f"{earlier}.places").read_bytes()
            # The last entry may be torn.
            for number, *place in _PLACE.iter_unpack(data[: len(data) // _PLACE.size * _PLACE.size]):
                self._known[number] = _Known(*place)
        self._places = (folder / f"{life}.places").open("xb", buffering=0)
        self._path = folder / f"{life}.json"
        self._untrained: set[bytes] = set()
        self._lock = threading.Lock()
        self._next_write = 0.0

    def finish(self, buffer: UnrollBuffer) -> None:
        """Check a finished buffer."""
        self._checked(self.add, columns_of(buffer))

    def train(self, unrolls: UnrollBatch) -> None:
        """Check an assembled batch."""
        self._checked(self.take, columns_of_batch(unrolls))

    def _checked(self, check: Any, columns: list[Column]) -> None:
        try:
            with self._lock:
                check(columns)
                if time.monotonic() >= self._next_write:
                    self._next_write = time.monotonic() + _WRITE_SECONDS
                    self.write()
        except AssertionError as error:
            # Exit at once, so that nothing can hide it.
            self.verdict.violation = str(error) or "an assertion without a message"
            self.write()
            os._exit(WRONG)

    def write(self) -> None:
        """Write the verdict so far, atomically."""
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(self.verdict)))
        temporary.replace(self._path)

    def add(self, columns: list[Column]) -> None:
        """Check finished columns, in the order in which they were finished.

        Raises:
            AssertionError: a record is wrong, missing or duplicated.
        """
        places = b""
        for column in columns:
            column.check()
            self._place(column)
            name = digest(column)
            assert name not in self._untrained, "an unroll was finished twice"
            self._untrained.add(name)
            end = column.observation[-1]
            first = self._known[column.number].first
            places += _PLACE.pack(column.number, int(end[EPISODE]), int(end[STEP]), first)
        assert len(self._untrained) <= _UNTRAINED, "finished unrolls are never trained on"
        self._places.write(places)

    def _place(self, column: Column) -> None:
        """Check that a column continues its environment, or begins a later episode in a new session."""
        verdict, count = self.verdict, len(column.observation)
        known = self._known.get(column.number)
        episode, step = map(int, column.observation[0, [EPISODE, STEP]])
        first = known.first if known is not None else digest(column)
        verdict.unrolls += 1
        if known is not None and known.newest is not None and _overlap(known.newest, column):
            count -= 1
        else:
            verdict.sessions += 1
            verdict.environments += known is None or known.newest is None
            assert step == 0, f"environment {column.number!r} begins a session inside episode {episode}, step {step}"
            if known is not None and episode <= known.episode:
                # Of random numbers of 24 bits two environments sometimes draw the same.
                assert episode == 0 and digest(column) != first, (
                    f"records of environment {column.number!r} from episode {episode} on came again, after those up "
                    f"to step {known.step} of episode {known.episode}"
                )
                first = digest(column)
                verdict.twins += 1
                assert verdict.twins <= 2, "too many environments with the number of another"
        verdict.records += count
        end = column.observation[-1]
        self._known[column.number] = _Known(int(end[EPISODE]), int(end[STEP]), first, column)

    def take(self, columns: list[Column]) -> None:
        """Check the columns of a training batch.

        Raises:
            AssertionError: a column differs from the finished one, or is trained on for the second time.
        """
        for column in columns:
            column.check()
            name = digest(column)
            assert name in self._untrained, "a column was trained on twice, or differs from the finished one"
            self._untrained.remove(name)
        self.verdict.trained += len(columns)


def _overlap(before: Column, after: Column) -> bool:
    """Whether `after` begins with the last record of `before`, including its action."""
    arrays = ("observation", "reward", "terminated", "truncated", "action", "logits", "version")
    return all(np.array_equal(getattr(before, name)[-1], getattr(after, name)[0]) for name in arrays)
