"""Writes checkpoints and reads variables back.

A checkpoint (see `checkpoint_files`) is made under a temporary name, synced and renamed, with COMPLETE written last, so
that a reader sees all of it or nothing, whenever the writer is killed.
"""

from __future__ import annotations

import json
import logging
import queue
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import tensorflow as tf

from seedcli.errors import CheckpointError, SeedError
from seedcli.files import sync
from seedcli.specs import EnvSpec
from seedcli.training.checkpoint_files import (
    FORMAT,
    Checkpoint,
    clean,
    digest,
    find_checkpoint,
    list_checkpoints,
    open_checkpoint,
    put_back,
    take_checkpoint,
)

__all__ = [
    "FORMAT",
    "Attachment",
    "Checkpoint",
    "Checkpointer",
    "find_checkpoint",
    "list_checkpoints",
    "open_checkpoint",
    "restore",
    "take_checkpoint",
]

_SLOW_SECONDS = 600.0  # between two lines about a disk that is too slow
_log = logging.getLogger(__name__)


# Variables by group and by name within it: {"agent": {"network/policy/kernel": ...}, "optimizer": ...}.
Groups = Mapping[str, Mapping[str, tf.Variable]]


def _by_name(groups: Groups) -> dict[str, tf.Variable]:
    """Variables by the names they are stored under: "agent/network/policy/kernel"."""
    named = [
        (f"{group}/{name}", variable) for group, variables in groups.items() for name, variable in variables.items()
    ]
    assert len(dict(named)) == len(named), "two variables have the same name"
    return dict(named)


def restore(checkpoint: Checkpoint, groups: Groups) -> None:
    """Restore variables by name; on an error none is changed.

    Args:
        checkpoint: a verified checkpoint.
        groups: as for `Checkpointer`; a group left out is not read.

    Raises:
        CheckpointError: the checkpoint belongs to another agent (names, types or shapes of variables differ).
    """
    reader = tf.train.load_checkpoint(str(checkpoint.path / "variables"))
    shapes, types = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    stored = {name: _described(types[name], shapes[name]) for name in shapes if name.partition("/")[0] in groups}
    variables = _by_name(groups)
    wanted = {name: _described(variable.dtype, variable.shape) for name, variable in variables.items()}
    difference = _difference(stored, wanted)
    if difference is not None:
        raise CheckpointError(
            f"the checkpoint {checkpoint.path} belongs to another agent: {difference}; use the configuration and the "
            "version of seedcli that wrote it"
        )
    for name, variable in variables.items():
        variable.assign(reader.get_tensor(name))


def _described(dtype: tf.DType, shape: Sequence[int]) -> str:
    return f"{dtype.name} of shape {tuple(shape)}"


def _difference(stored: dict[str, str], wanted: dict[str, str]) -> str | None:
    """Describe the first variable that differs between a checkpoint and a configuration; None if none does."""
    for name in sorted(stored.keys() | wanted.keys()):
        if name not in stored:
            return f"it has no variable {name}, which this configuration has"
        if name not in wanted:
            return f"it has a variable {name}, which this configuration does not have"
        if stored[name] != wanted[name]:
            return f"its variable {name} is {stored[name]}, but this configuration has {wanted[name]}"
    return None


# A checkpoint's folder, its counters, and the function that writes its attachment.
_Write = tuple[Path, dict[str, Any], Callable[[Path], None] | None]


class Attachment(Protocol):
    """Data that a checkpoint stores besides variables and counters."""

    def capture(self) -> Callable[[Path], None] | None:
        """Take a snapshot; returns a function that writes it into the checkpoint's folder later. None: nothing."""

    def prune(self, checkpoints: list[Path]) -> None:
        """Delete data that none of these checkpoints refers to."""


class Checkpointer:
    """Writes the checkpoints of a run in a background thread.

    Args:
        folder: folder of the checkpoints.
        config_text: the resolved configuration as TOML.
        spec: the environment.
        groups: variables by group and name; names are the same in every process that builds this agent.
        keep: number of newest checkpoints to keep.
        keep_every_hours: interval in hours at which one checkpoint is kept permanently; 0: none.
        attachment: further data to store.
    """

    def __init__(
        self,
        folder: Path,
        config_text: str,
        spec: EnvSpec,
        groups: Groups,
        *,
        keep: int,
        keep_every_hours: float,
        attachment: Attachment | None = None,
    ) -> None:
        self._folder = folder
        self._config_text = config_text
        self._spec = spec
        self._variables = _by_name(groups)
        self._keep = keep
        self._attachment = attachment
        self._keep_every = keep_every_hours * 3600
        # Host copies, so that training can change the variables while a write is in progress.
        with tf.device("/CPU:0"):
            self._copies = {
                name: tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False)
                for name, variable in self._variables.items()
            }
        clean(folder)
        self._writer: threading.Thread | None = None
        self._work: queue.SimpleQueue[_Write] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._saved = time.monotonic()
        self._warned = -_SLOW_SECONDS
        self.error: Exception | None = None

    @property
    def busy(self) -> bool:
        """Whether a write is in progress, for which `save` would wait."""
        return not self._idle.is_set()

    def due(self, seconds: float) -> bool:
        """Whether to save now: `seconds` after the last save, but never while a write is in progress.

        A disk too slow for that interval is logged at most every ten minutes.
        """
        now = time.monotonic()
        if now - self._saved < seconds:
            return False
        if not self.busy:
            return True
        if now - self._warned >= _SLOW_SECONDS:
            self._warned = now
            _log.warning(
                "writing a checkpoint has taken %.0f s so far, longer than training.checkpoint_seconds = %g: the next "
                "one waits for it; use a faster disk or a longer interval",
                now - self._saved,
                seconds,
            )
        return False

    def save(self, counters: dict[str, Any], *, wait: bool = False) -> Path:
        """Copy the variables now and write them in the background; waits for an earlier write first.

        Args:
            counters: JSON-serialisable; must contain "env_steps".
            wait: return only when the checkpoint is on disk.

        Raises:
            SeedError: `wait` is true, and the checkpoint could not be written.
        """
        self.wait()
        self._saved = time.monotonic()
        for name, variable in self._variables.items():
            self._copies[name].assign(variable)
        path = self._folder / str(counters["env_steps"])
        attach = self._attachment.capture() if self._attachment is not None else None
        try:
            self._start_writer()
        except RuntimeError as error:  # the system's thread limit
            self._failed(path, error)
        else:
            self._idle.clear()
            self._work.put((path, dict(counters), attach))
        if wait:
            self.wait()
            if self.error is not None:
                raise SeedError(
                    f"the checkpoint {path} could not be written ({_line(self.error)}): free disk space or fix the "
                    "disk, then resume from the one before it with --resume"
                ) from self.error
        return path

    def wait(self) -> None:
        """Wait for the current write."""
        self._idle.wait()

    def _start_writer(self) -> None:
        """Start one thread for all writes: memory freed by a thread is not reused by later threads."""
        if self._writer is None or not self._writer.is_alive():
            writer = threading.Thread(target=self._write_all, name="checkpoint", daemon=True)
            writer.start()
            self._writer = writer

    def _write_all(self) -> None:
        while True:
            work = self._work.get()
            try:
                self._write(*work)
            finally:
                self._idle.set()

    def _write(self, path: Path, counters: dict[str, Any], attach: Callable[[Path], None] | None) -> None:
        try:
            clean(self._folder)
            self._write_files(path, counters, attach)
            self.error = None
        except Exception as error:
            self._failed(path, error)
            return
        try:
            self._prune()
        except Exception as error:
            _log.error("older checkpoints in %s could not be removed: %s", self._folder, _line(error))

    def _failed(self, path: Path, error: Exception) -> None:
        # Training continues: the previous checkpoint is intact, and the next one may succeed.
        self.error = error
        shutil.rmtree(self._partial(path), ignore_errors=True)
        _log.error("the checkpoint %s could not be written: %s", path, _line(error))

    def _partial(self, path: Path) -> Path:
        return self._folder / f".{path.name}.partial"

    def _write_files(self, path: Path, counters: dict[str, Any], attach: Callable[[Path], None] | None) -> None:
        temporary = self._partial(path)
        temporary.mkdir(parents=True)
        if attach is not None:
            try:
                attach(temporary)
            except OSError as error:
                # The variables are much smaller than the replay and may still fit.
                _log.error(
                    "the checkpoint %s is written without the replay, which could not be written: %s",
                    path,
                    _line(error),
                )
                shutil.rmtree(temporary)
                temporary.mkdir()
        _write_variables(temporary / "variables", self._copies)
        (temporary / "config.toml").write_text(self._config_text)
        state = {"format": FORMAT, "time": time.time(), "spec": self._spec.to_dict(), "counters": counters}
        (temporary / "state.json").write_text(json.dumps(state, indent=1) + "\n")
        files = sorted(p for p in temporary.iterdir())
        for file in files:
            sync(file)
        sums = {file.name: digest(file) for file in files}
        (temporary / "COMPLETE").write_text(json.dumps({"blake2b": sums}, indent=1) + "\n")
        sync(temporary / "COMPLETE")
        sync(temporary)
        replaced = self._folder / f".{path.name}.replaced"
        if path.exists():
            path.rename(replaced)
        try:
            temporary.rename(path)
        except OSError:
            put_back(self._folder)
            raise
        shutil.rmtree(replaced, ignore_errors=True)
        sync(self._folder)

    def _prune(self) -> None:
        """Keep the newest `keep` checkpoints, and one of the others per `keep_every_hours`."""
        found = list_checkpoints(self._folder)
        kept_time: float | None = None
        for path in found[: -self._keep]:
            try:
                made = float(json.loads((path / "state.json").read_text())["time"])
            except (OSError, ValueError, KeyError):
                continue
            if self._keep_every and (kept_time is None or made - kept_time >= self._keep_every):
                kept_time = made
            else:
                # Rename it first: if removal stops halfway, a damaged checkpoint would remain.
                removed = self._folder / f".{path.name}.removed"
                path.rename(removed)
                shutil.rmtree(removed, ignore_errors=True)
        if self._attachment is not None:
            # Permanent checkpoints are for evaluation, not for resuming, so they keep no replay.
            self._attachment.prune(list_checkpoints(self._folder)[-self._keep :])


def _write_variables(prefix: Path, variables: Mapping[str, tf.Variable]) -> None:
    """Write variables by name in TensorFlow's format."""
    with tf.device("/CPU:0"):
        tensors = [variable.read_value() for variable in variables.values()]
        tf.raw_ops.SaveV2(
            prefix=str(prefix), tensor_names=list(variables), shape_and_slices=[""] * len(tensors), tensors=tensors
        )


def _line(error: Exception) -> str:
    """An error's text on one line; TensorFlow's texts have several."""
    return " ".join(str(error).split())
