"""A replay on disk: immutable segments, and a manifest of them in each checkpoint.

A segment holds rows of consecutive serials and is written once, with the first checkpoint that contains them. So a
checkpoint writes only the rows inserted since the last one. A segment is written under a temporary name, synced and
renamed. Its name ends in its checksum: a run that resumes from an older checkpoint, and assigns the same serials to
other rows, never overwrites a segment that a newer checkpoint names.

A segment is: magic, serial of the first row, rows, bytes of the signature (little-endian), the signature, the
length of each row's block as uint64, the blocks.

A checkpoint holds `replay.json`, the manifest (counters, random state, segments), and `replay_priorities.npy`, unless
draws are uniform. Blocks are those of `blocks.BlockCodec` in any case, so a replay can be restored into either storage.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from seedcli.errors import CheckpointError
from seedcli.files import sync
from seedcli.training.replay.buffer import Replay
from seedcli.training.replay.compressed import FrozenBlocks
from seedcli.training.replay.data import Snapshot

MANIFEST = "replay.json"
PRIORITIES = "replay_priorities.npy"
_FORMAT = 1
_MAGIC = b"SEEDRPL1"
_HEADER = struct.Struct("<8sQQI")
_WITHOUT = "resume without it: --set replay.save=false"


class DamagedReplayError(CheckpointError):
    """A segment is missing, cut short or damaged; the rest of the checkpoint is valid.

    Attributes:
        problem: the fault, as the beginning of a sentence.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}: use another checkpoint, or {_WITHOUT}")
        self.problem = problem


@dataclass(frozen=True)
class Segment:
    """One file of rows.

    Attributes:
        name: of the file.
        first: serial of its first row.
        last: serial of its last row.
        bytes: size of the file.
        blake2b: checksum of the file.
    """

    name: str
    first: int
    last: int
    bytes: int
    blake2b: str


class ReplayStore:
    """The segments of one run.

    Args:
        folder: their folder, e.g. the run's folder / "replay"; created when the first is written.
        signature: `BlockCodec.signature` of the rows.
    """

    def __init__(self, folder: Path, signature: str) -> None:
        self._folder = folder
        self._signature = signature
        self._segments: list[Segment] = []  # without gaps between them, oldest first
        for partial in folder.glob(".*.partial"):  # of a learner that was killed while writing
            partial.unlink(missing_ok=True)

    def write(self, snapshot: Snapshot) -> dict[str, Any]:
        """Write the rows that no segment holds yet, as one new segment.

        Returns:
            The manifest, JSON-serialisable.

        Raises:
            OSError: it could not be written; nothing is changed.
        """
        # Drop segments whose rows are all evicted. If rows in between were never written, no segment remains.
        segments = [s for s in self._segments if s.last >= snapshot.oldest]
        first = segments[-1].last + 1 if segments else snapshot.oldest
        if first < snapshot.next:
            segments.append(self._write_segment(first, snapshot))
        self._segments = segments
        return {
            "format": _FORMAT,
            "signature": self._signature,
            "oldest": snapshot.oldest,
            "next": snapshot.next,
            "sampled": snapshot.sampled,
            "dropped": snapshot.dropped,
            "places": snapshot.places,
            "rng": snapshot.rng,
            "prioritized": snapshot.priorities is not None,
            "highest_priority": snapshot.highest,
            "segments": [asdict(segment) for segment in segments],
        }

    def save(self, directory: Path, snapshot: Snapshot) -> None:
        """Write segments, then manifest and priorities into a checkpoint's folder, which the caller syncs.

        Raises:
            OSError: it could not be written.
        """
        manifest = self.write(snapshot)
        if snapshot.priorities is not None:
            np.save(directory / PRIORITIES, snapshot.priorities, allow_pickle=False)
        (directory / MANIFEST).write_text(json.dumps(manifest) + "\n")

    def _write_segment(self, first: int, snapshot: Snapshot) -> Segment:
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = self._folder / f".{first:012d}.partial"
        signature = self._signature.encode()
        rows = snapshot.next - first
        head = _HEADER.pack(_MAGIC, first, rows, len(signature)) + signature
        try:
            with partial.open("wb+") as file:
                # Block lengths are known only after writing: a storage packs its rows as they are read.
                file.write(head + bytes(8 * rows))
                lengths = np.array([file.write(block) for block in snapshot.rows.blocks(first)], "<u8")
                size = file.tell()
                file.seek(len(head))
                file.write(lengths.tobytes())
                file.flush()
                file.seek(0)
                digest = hashlib.file_digest(file, "blake2b")
                os.fsync(file.fileno())
            name = f"{first:012d}-{digest.hexdigest()[:12]}.seg"
            partial.replace(self._folder / name)
        finally:
            partial.unlink(missing_ok=True)
        sync(self._folder)
        return Segment(name, first, snapshot.next - 1, size, digest.hexdigest())

    def prune(self, checkpoints: list[Path]) -> None:
        """Delete segments that neither these checkpoints nor the next one name."""
        named = {segment.name for segment in self._segments}
        for checkpoint in checkpoints:
            try:
                named |= {
                    str(segment["name"]) for segment in json.loads((checkpoint / MANIFEST).read_text())["segments"]
                }
            except FileNotFoundError:
                continue  # a checkpoint without a replay
            except (OSError, ValueError, KeyError, TypeError):
                return  # an unreadable manifest may name any segment: delete nothing
        for path in self._folder.glob("*.seg"):
            if path.name not in named:
                path.unlink(missing_ok=True)

    def restore(self, checkpoint: Path, replay: Replay) -> bool:
        """Restore an unused replay from a checkpoint: contents, counters, priorities, random state.

        All files are verified first; then rows are read a few at a time, so that memory holds them once. A replay of
        smaller capacity keeps the newest rows that fit.

        Returns:
            False if the checkpoint has no replay.

        Raises:
            DamagedReplayError: a segment is missing, cut short or damaged; the replay is still unused.
            CheckpointError: the manifest cannot be used, or it belongs to other unrolls.
        """
        if not (checkpoint / MANIFEST).exists():
            return False
        saved, segments = self._read_manifest(checkpoint)
        rows = [self._verify(segment, saved) for segment in segments]
        try:
            replay.restore(saved, (block for read in rows for block in read()))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"the replay of {checkpoint} cannot be read ({error}): {_WITHOUT}") from error
        self._segments = segments
        return True

    def _read_manifest(self, checkpoint: Path) -> tuple[Snapshot, list[Segment]]:
        path = checkpoint / MANIFEST
        try:
            manifest = json.loads(path.read_text())
            if manifest["format"] != _FORMAT:
                raise CheckpointError(
                    f"{path} has format {manifest['format']}, this version reads {_FORMAT}: use the seedcli version "
                    f"that wrote it, or {_WITHOUT}"
                )
            if manifest["signature"] != self._signature:
                raise _foreign_error(path)
            segments = [Segment(**segment) for segment in manifest["segments"]]
            oldest, upto = int(manifest["oldest"]), int(manifest["next"])
            priorities, highest = None, 1.0
            if manifest.get("prioritized", True):
                path = checkpoint / PRIORITIES
                priorities = _read_priorities(path, upto - oldest)
                highest = float(manifest.get("highest_priority", priorities.max(initial=1.0)))
            path = checkpoint / MANIFEST
            expected = segments[0].first if segments else oldest
            if expected > oldest or (segments[-1].last + 1 if segments else oldest) != upto:
                raise ValueError(f"its segments do not hold unrolls {oldest} to {upto - 1}")
            for segment in segments:
                if segment.first != expected or Path(segment.name).name != segment.name:
                    raise ValueError(f"segment {segment.name} is out of place")
                expected = segment.last + 1
            counters = {name: int(manifest[name]) for name in ("sampled", "dropped", "places")}
            if min(oldest, *counters.values()) < 0 or counters["places"] < 1:
                raise ValueError("a counter in it is negative")
            if not 1.0 <= highest < float("inf"):
                raise ValueError(f"its highest priority is {highest}")
            saved = Snapshot(
                oldest=oldest,
                next=upto,
                rng=manifest["rng"],
                priorities=priorities,
                highest=highest,
                rows=FrozenBlocks(oldest, []),
                **counters,
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
            raise CheckpointError(f"{path} cannot be read ({error}): use another checkpoint, or {_WITHOUT}") from error
        return saved, segments

    def _verify(self, segment: Segment, saved: Snapshot) -> Callable[[], Iterator[bytes]]:
        """Check a whole segment; returns a function that iterates over its rows that are still held."""
        path = self._folder / segment.name
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size != segment.bytes:
                    raise DamagedReplayError(
                        f"the replay segment {path} is cut short or too long ({size} bytes instead of {segment.bytes})"
                    )
                if hashlib.file_digest(file, "blake2b").hexdigest() != segment.blake2b:
                    raise DamagedReplayError(f"the replay segment {path} is damaged (its checksum is wrong)")
                file.seek(0)
                lengths = self._read_head(file, path, segment)
                start = file.tell()
        except OSError as error:
            raise DamagedReplayError(f"the replay segment {path} cannot be read ({error.strerror})") from error
        gone = max(0, saved.oldest - segment.first)

        def read() -> Iterator[bytes]:
            with path.open("rb") as file:
                file.seek(start + sum(lengths[:gone]))
                for length in lengths[gone:]:
                    yield file.read(length)

        return read

    def _read_head(self, file: BinaryIO, path: Path, segment: Segment) -> list[int]:
        """The lengths of a segment's blocks; leaves the file at the first one."""
        head = file.read(_HEADER.size)
        if len(head) == _HEADER.size:
            magic, first, rows, signature_bytes = _HEADER.unpack(head)
            if magic == _MAGIC and (first, first + rows - 1) == (segment.first, segment.last):
                if file.read(signature_bytes) != self._signature.encode():
                    raise _foreign_error(path)
                table = file.read(8 * rows)
                if len(table) == 8 * rows:
                    lengths: list[int] = np.frombuffer(table, "<u8").tolist()
                    if file.tell() + sum(lengths) == segment.bytes:
                        return lengths
        raise DamagedReplayError(f"the replay segment {path} does not hold unrolls {segment.first} to {segment.last}")


def _read_priorities(path: Path, rows: int) -> npt.NDArray[np.float64]:
    """The priorities [rows] of a checkpoint; raises OSError, ValueError or EOFError."""
    priorities = np.load(path, allow_pickle=False)
    if priorities.dtype != np.float64 or priorities.shape != (rows,):
        raise ValueError(f"it holds {priorities.dtype} {priorities.shape} for {rows} unrolls")
    if not (np.isfinite(priorities).all() and (priorities >= 0).all()):
        raise ValueError("a priority in it is negative or non-finite")
    return priorities


def _foreign_error(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path} holds unrolls of other shapes or fields than this configuration makes: use the configuration it was "
        f"made with, or {_WITHOUT}"
    )
