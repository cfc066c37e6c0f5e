"""Checkpoints: atomic, checksummed, self-contained folders `<env_steps>/`.

A checkpoint holds the variables (TensorFlow's checkpoint format), `config.toml`, `state.json` (format, agent,
environment specification, counters) and `COMPLETE` with a checksum of every file, written last. It is made
under a temporary name, synced and renamed, so that a reader sees all of it or nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import tensorflow as tf

from seedcli.errors import CheckpointError, SeedError
from seedcli.specs import EnvSpec

FORMAT = 1
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk, its checksums verified.

    Attributes:
        path: its folder.
        env_steps: environment steps at which it was made.
        counters: what the learner counts, by name.
        spec: the environment.
        config_path: the configuration of the run.
    """

    path: Path
    env_steps: int
    counters: dict[str, Any]
    spec: EnvSpec
    config_path: Path


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_checkpoint(path: Path) -> Checkpoint:
    """Verify and describe a checkpoint folder.

    Raises:
        CheckpointError: not a checkpoint, incomplete, damaged, or of another format.
    """
    complete = path / "COMPLETE"
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a checkpoint folder: give a run folder or one of its checkpoints")
    if not complete.is_file():
        raise CheckpointError(f"the checkpoint {path} is incomplete (it has no file COMPLETE): use another one")
    try:
        sums = json.loads(complete.read_text())["blake2b"]
        for name, digest in sums.items():
            if _digest(path / name) != digest:
                raise CheckpointError(f"the checkpoint {path} is damaged (checksum of {name}): use another one")
        state = json.loads((path / "state.json").read_text())
        if state["format"] != FORMAT:
            raise CheckpointError(
                f"the checkpoint {path} has format {state['format']}, this version reads {FORMAT}: "
                "use the seedcli version that wrote it"
            )
        return Checkpoint(
            path=path,
            env_steps=int(state["counters"]["env_steps"]),
            counters=dict(state["counters"]),
            spec=EnvSpec.from_dict(state["spec"]),
            config_path=path / "config.toml",
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"the checkpoint {path} cannot be read ({error}): use another one") from error


def list_checkpoints(folder: Path) -> list[Path]:
    """Folders of complete checkpoints under `folder`, oldest first; damaged ones are found on opening."""
    if not folder.is_dir():
        return []
    found = [p for p in folder.iterdir() if p.name.isdigit() and (p / "COMPLETE").is_file()]
    return sorted(found, key=lambda p: int(p.name))


def find_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint `path` names: itself, or the newest good one of a run folder.

    Raises:
        CheckpointError: there is none.
    """
    if (path / "state.json").exists() or (path / "COMPLETE").exists():
        return open_checkpoint(path)
    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    candidates = list_checkpoints(folder)
    for candidate in reversed(candidates):
        try:
            return open_checkpoint(candidate)
        except CheckpointError as error:
            _log.warning("%s; trying the one before it", error)
    what = f"none of its {len(candidates)} checkpoints can be read" if candidates else "it holds no complete checkpoint"
    if not path.exists():
        what = "it does not exist"
    raise CheckpointError(f"{path} cannot be used: {what}; give a run folder or one of its checkpoints")


def restore(checkpoint: Checkpoint, groups: dict[str, Sequence[tf.Variable]]) -> None:
    """Read variables back, by group name and position.

    Args:
        checkpoint: a verified checkpoint.
        groups: e.g. {"agent": [...], "optimizer": [...]}; a group left out is not read.

    Raises:
        CheckpointError: the checkpoint is of another agent (number or shapes of variables differ).
    """
    reader = tf.train.load_checkpoint(str(checkpoint.path / "variables"))
    shapes = reader.get_variable_to_shape_map()
    for group, variables in groups.items():
        stored = [name for name in shapes if name.startswith(f"{group}/") and name.endswith("VARIABLE_VALUE")]
        if len(stored) != len(variables):
            raise CheckpointError(
                f"the checkpoint {checkpoint.path} is of another agent: it holds {len(stored)} {group} variables "
                f"where this configuration has {len(variables)}"
            )
        for i, variable in enumerate(variables):
            key = f"{group}/{i}/.ATTRIBUTES/VARIABLE_VALUE"
            if tuple(shapes[key]) != tuple(variable.shape):
                raise CheckpointError(
                    f"the checkpoint {checkpoint.path} is of another agent: {group} variable {i} has shape "
                    f"{tuple(shapes[key])} where this configuration has {tuple(variable.shape)}"
                )
            variable.assign(reader.get_tensor(key))


class Attachment(Protocol):
    """What a checkpoint keeps besides variables and counters."""

    def capture(self) -> Callable[[Path], None] | None:
        """Take a picture now; the function writes it into the checkpoint's folder later. None: nothing to keep."""

    def prune(self, checkpoints: list[Path]) -> None:
        """Delete what none of these checkpoints keeps any more."""


class Checkpointer:
    """Writes checkpoints of a run from a thread of its own.

    Args:
        folder: where checkpoints go.
        config_text: the resolved configuration as TOML.
        spec: the environment.
        groups: variables by group name.
        keep: newest checkpoints kept.
        keep_every_hours: one checkpoint in so many hours is kept for good; 0: none.
        attachment: what else they keep, if anything.
    """

    def __init__(
        self,
        folder: Path,
        config_text: str,
        spec: EnvSpec,
        groups: dict[str, Sequence[tf.Variable]],
        *,
        keep: int,
        keep_every_hours: float,
        attachment: Attachment | None = None,
    ) -> None:
        self._folder = folder
        self._config_text = config_text
        self._spec = spec
        self._groups = groups
        self._keep = keep
        self._attachment = attachment
        self._keep_every = keep_every_hours * 3600
        # Host copies, so that writing takes its time while training goes on changing the variables.
        with tf.device("/CPU:0"):
            self._copies = {
                group: [tf.Variable(tf.zeros(v.shape, v.dtype), trainable=False) for v in variables]
                for group, variables in groups.items()
            }
        self._tensors = tf.train.Checkpoint(**self._copies)
        for partial in folder.glob(".*.partial"):  # of a learner that was killed while writing
            shutil.rmtree(partial, ignore_errors=True)
        self._thread: threading.Thread | None = None
        self.error: Exception | None = None

    def save(self, counters: dict[str, Any], *, wait: bool = False) -> Path:
        """Copy the variables now, write them in the background; waits for a write still under way.

        Args:
            counters: JSON-serialisable; must hold "env_steps".
            wait: return only when it is on disk.

        Raises:
            SeedError: waited for, and it could not be written.
        """
        self.wait()
        for group, variables in self._groups.items():
            for copy, variable in zip(self._copies[group], variables, strict=True):
                copy.assign(variable)
        path = self._folder / str(counters["env_steps"])
        attach = self._attachment.capture() if self._attachment is not None else None
        self._thread = threading.Thread(
            target=self._write, args=(path, dict(counters), attach), name="checkpoint", daemon=True
        )
        self._thread.start()
        if wait:
            self.wait()
            if self.error is not None:
                raise SeedError(
                    f"the checkpoint {path} could not be written ({self.error}): make room or mend the disk, then "
                    "go on from the one before it with --resume"
                ) from self.error
        return path

    def wait(self) -> None:
        """Wait for a write under way."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, path: Path, counters: dict[str, Any], attach: Callable[[Path], None] | None) -> None:
        try:
            self._write_files(path, counters, attach)
            self._prune()
            self.error = None
        except Exception as error:
            # Training goes on: the previous checkpoint still stands, and the next one may succeed.
            self.error = error
            shutil.rmtree(self._partial(path), ignore_errors=True)
            _log.error("the checkpoint %s could not be written: %s", path, error)

    def _partial(self, path: Path) -> Path:
        return self._folder / f".{path.name}.partial"

    def _write_files(self, path: Path, counters: dict[str, Any], attach: Callable[[Path], None] | None) -> None:
        temporary = self._partial(path)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        if attach is not None:
            try:
                attach(temporary)
            except OSError as error:
                # The weights are small beside it, and may still find room.
                _log.error("the checkpoint %s goes without the replay, which could not be written: %s", path, error)
                shutil.rmtree(temporary)
                temporary.mkdir()
        self._tensors.write(str(temporary / "variables"))
        (temporary / "config.toml").write_text(self._config_text)
        state = {"format": FORMAT, "time": time.time(), "spec": self._spec.to_dict(), "counters": counters}
        (temporary / "state.json").write_text(json.dumps(state, indent=1) + "\n")
        files = sorted(p for p in temporary.iterdir())
        for file in files:
            _sync(file)
        sums = {file.name: _digest(file) for file in files}
        (temporary / "COMPLETE").write_text(json.dumps({"blake2b": sums}, indent=1) + "\n")
        _sync(temporary / "COMPLETE")
        _sync(temporary)
        replaced = self._folder / f".{path.name}.replaced"
        shutil.rmtree(replaced, ignore_errors=True)
        if path.exists():
            path.rename(replaced)
        temporary.rename(path)
        shutil.rmtree(replaced, ignore_errors=True)
        _sync(self._folder)

    def _prune(self) -> None:
        """Keep the newest `keep`, and of the others one every so many hours."""
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
                shutil.rmtree(path, ignore_errors=True)
        if self._attachment is not None:
            # What is kept for good is kept to be played, not to go on from.
            self._attachment.prune(list_checkpoints(self._folder)[-self._keep :])
