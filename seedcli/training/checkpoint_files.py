"""Checkpoint folders: verify, list, find, and clean up after a killed writer. Does not import TensorFlow.

A checkpoint is a folder `<env_steps>/` that holds the variables by name (in TensorFlow's format), `config.toml`,
`state.json` (format, environment specification, counters) and `COMPLETE` with a checksum of every file. Names that
begin with a dot belong to folders that are being written, replaced or removed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seedcli.errors import CheckpointError
from seedcli.specs import EnvSpec

FORMAT = 2  # in format 1, variables had no names
_FILES = {"config.toml", "state.json", "variables.index"}  # besides the variables' data
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk, its checksums verified.

    Attributes:
        path: its folder.
        env_steps: environment steps at which it was saved.
        counters: the learner's counters by name.
        spec: the environment.
        config_path: the configuration of the run.
    """

    path: Path
    env_steps: int
    counters: dict[str, Any]
    spec: EnvSpec
    config_path: Path


class _UnusableError(Exception):
    """A fault of a checkpoint; its text is the beginning of a sentence."""


def digest(path: Path) -> str:
    """The checksum of a file, as COMPLETE names it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _read(path: Path) -> Checkpoint:
    """Verify and describe a checkpoint folder.

    Raises:
        _UnusableError: incomplete or damaged.
        CheckpointError: of another format.
    """
    complete = path / "COMPLETE"
    if not complete.is_file():
        raise _UnusableError(f"the checkpoint {path} is incomplete (it has no file COMPLETE)")
    try:
        sums = dict(json.loads(complete.read_text())["blake2b"])
        if not (sums.keys() >= _FILES and any(name.startswith("variables.data-") for name in sums)):
            raise _UnusableError(f"the checkpoint {path} is damaged (its file COMPLETE does not name all of it)")
        for name, expected in sums.items():
            if Path(name).name != name:
                raise _UnusableError(f"the checkpoint {path} is damaged (COMPLETE names {name!r:.80}, outside of it)")
            if digest(path / name) != expected:
                raise _UnusableError(f"the checkpoint {path} is damaged (checksum of {name})")
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
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise _UnusableError(f"the checkpoint {path} cannot be read ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{Path(error.filename).name}: {error.strerror}"
    return str(error)


def open_checkpoint(path: Path) -> Checkpoint:
    """Verify and describe a checkpoint folder.

    Raises:
        CheckpointError: not a checkpoint, incomplete, damaged, or of another format.
    """
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a checkpoint folder: give a run folder or one of its checkpoints")
    try:
        return _read(path)
    except _UnusableError as error:
        raise CheckpointError(f"{error}: use another one") from error


def _numbered(folder: Path) -> list[Path]:
    """Paths named like checkpoints under `folder`, oldest first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if path.name.isascii() and path.name.isdecimal()]
    return sorted(found, key=lambda path: int(path.name))


def list_checkpoints(folder: Path) -> list[Path]:
    """Folders of complete checkpoints under `folder`, oldest first; checksums are not verified."""
    return [path for path in _numbered(folder) if (path / "COMPLETE").is_file()]


def _newest(candidates: list[Path]) -> tuple[Checkpoint | None, dict[Path, str]]:
    """Return the newest valid candidate, and the faults of those after it, newest first; candidates: oldest first."""
    faults: dict[Path, str] = {}
    for candidate in reversed(candidates):
        try:
            return _read(candidate), faults
        except _UnusableError as error:
            faults[candidate] = str(error)
    return None, faults


def _none_good(path: Path, faults: dict[Path, str]) -> CheckpointError:
    newest = next(iter(faults.values()))
    return CheckpointError(
        f"{path} cannot be used: none of its {len(faults)} checkpoints can be read ({newest}); give a run folder or "
        "one of its checkpoints"
    )


def find_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint at `path`, or the newest valid one if `path` is a run folder.

    Raises:
        CheckpointError: there is none.
    """
    if (path / "state.json").exists() or (path / "COMPLETE").exists():
        return open_checkpoint(path)
    checkpoint, faults = _newest(_numbered(path / "checkpoints" if (path / "checkpoints").is_dir() else path))
    if checkpoint is None and faults:
        raise _none_good(path, faults)
    if checkpoint is None:
        what = "it holds no complete checkpoint" if path.exists() else "it does not exist"
        raise CheckpointError(f"{path} cannot be used: {what}; give a run folder or one of its checkpoints")
    for fault in faults.values():
        _log.warning("%s: %s is used instead", fault, checkpoint.path)
    return checkpoint


def check_environment(checkpoint: Checkpoint, expected: EnvSpec, found: EnvSpec) -> None:
    """Check that an environment is the one of a checkpoint.

    Args:
        checkpoint: named in the error.
        expected: its environment.
        found: the environment built here.

    Raises:
        CheckpointError: they differ.
    """
    difference = expected.difference(found)
    if difference is not None:
        raise CheckpointError(
            f"the checkpoint {checkpoint.path} does not fit the environment here: {difference}; "
            "install the versions it was trained with"
        )


def take_checkpoint(run: Path) -> Checkpoint | None:
    """Return the checkpoint to resume from, or None if the run has none; the caller must hold the run's lock.

    Newer ones that cannot be read are renamed to `damaged-<env_steps>`: new checkpoints get smaller numbers and must
    not rank behind them.

    Raises:
        CheckpointError: there are checkpoints, but none is valid; nothing is changed.
    """
    folder = run / "checkpoints"
    put_back(folder)
    checkpoint, faults = _newest(_numbered(folder))
    if checkpoint is None and faults:
        raise CheckpointError(
            f"{run} cannot be resumed: none of its {len(faults)} checkpoints can be read "
            f"({next(iter(faults.values()))}); restore one of them, or start over with --overwrite"
        )
    for path, fault in faults.items():
        aside = path.with_name(f"damaged-{path.name}")
        try:
            shutil.rmtree(aside, ignore_errors=True)  # an earlier one of the same number
            path.rename(aside)
        except OSError as error:
            raise CheckpointError(f"{fault} and cannot be set aside ({error.strerror}): move it away") from error
        assert checkpoint is not None
        _log.warning("%s: it is set aside as %s, and the run resumes from %s", fault, aside.name, checkpoint.path)
    return checkpoint


def put_back(folder: Path) -> None:
    """Undo replacements of checkpoints that a killed writer did not finish."""
    for replaced in folder.glob(".*.replaced"):
        path = folder / replaced.name.removeprefix(".").removesuffix(".replaced")
        if not path.exists():
            replaced.rename(path)


def clean(folder: Path) -> None:
    """Remove leftovers of killed or failed writers; the caller must hold the run's lock."""
    put_back(folder)
    for pattern in (".*.partial", ".*.replaced", ".*.removed"):
        for leftover in folder.glob(pattern):
            shutil.rmtree(leftover, ignore_errors=True)
