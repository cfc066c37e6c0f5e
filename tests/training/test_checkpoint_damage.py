"""Damaged checkpoints: detected, logged, skipped, and no obstacle for later ones."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from seedcli.config.sources import load_config
from seedcli.errors import EXIT_USAGE, CheckpointError
from seedcli.roles.resuming import resume_point
from seedcli.roles.run_folder import RunFolder
from seedcli.training import checkpoint as module
from seedcli.training.checkpoint import (
    find_checkpoint,
    open_checkpoint,
    take_checkpoint,
)
from tests.training.tiny_writer import holds, make_writer, names, save


def _rewrite(path: Path, change: Callable[[dict[str, str]], None]) -> None:
    complete = json.loads((path / "COMPLETE").read_text())
    change(complete["blake2b"])
    (path / "COMPLETE").write_text(json.dumps(complete))


def _flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at % len(content)] ^= 4
    path.write_bytes(content)


def _outside(path: Path) -> None:
    secret = path.parent.parent / "outside"
    secret.write_text("x")
    _rewrite(path, lambda sums: sums.update({"../../outside": module.digest(secret)}))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda p: os.truncate(p / "variables.data-00000-of-00001", 10), r"checksum of variables.data"),
    "emptied": (lambda p: os.truncate(p / "variables.index", 0), "checksum of variables.index"),
    "flipped": (lambda p: _flip(p / "variables.data-00000-of-00001", 7), "checksum of variables.data"),
    "missing": (lambda p: (p / "variables.index").unlink(), "variables.index: No such file"),
    "no COMPLETE": (lambda p: (p / "COMPLETE").unlink(), "incomplete"),
    "empty COMPLETE": (lambda p: (p / "COMPLETE").write_text(""), "cannot be read"),
    "torn COMPLETE": (lambda p: os.truncate(p / "COMPLETE", 60), "cannot be read"),
    "list": (lambda p: (p / "COMPLETE").write_text('{"blake2b": ["state.json"]}'), "cannot be read"),
    "number": (lambda p: (p / "COMPLETE").write_text("7"), "cannot be read"),
    "binary": (lambda p: (p / "COMPLETE").write_bytes(b"\xff\x00"), "cannot be read"),
    "names nothing": (lambda p: _rewrite(p, dict.clear), "does not name all of it"),
    "leaves out": (lambda p: _rewrite(p, lambda sums: sums.pop("variables.index")), "does not name all of it"),
    "outside": (_outside, "'../../outside', outside of it"),
    "state": (lambda p: (p / "state.json").write_text("{}garbage"), "checksum of state.json"),
    "config": (lambda p: _flip(p / "config.toml", 1), "checksum of config.toml"),
    "gone but for the folder": (lambda p: (shutil.rmtree(p), p.mkdir()), "incomplete"),
    "a file": (lambda p: (shutil.rmtree(p), p.write_text("")), "incomplete"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_logged_and_the_previous_checkpoint_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    harm, what = DAMAGE[damage]
    writer, variable = make_writer(tmp_path / "checkpoints")
    older, newer = save(writer, variable, 1), save(writer, variable, 2)
    harm(newer)
    with pytest.raises(CheckpointError, match=what if newer.is_dir() else "not a checkpoint folder"):
        open_checkpoint(newer)
    assert find_checkpoint(tmp_path).path == older
    (line,) = [record.getMessage() for record in caplog.records]
    assert str(newer) in line and line.endswith(f": {older} is used instead") and "\n" not in line
    with pytest.raises(CheckpointError, match=what):
        (tmp_path / "checkpoints" / "1").rename(tmp_path / "away")
        find_checkpoint(tmp_path)


@pytest.mark.parametrize("content", ['{"format": 2}', "[]", "null", '{"format": 2, "counters": {"env_steps": "many"}}'])
def test_garbage_in_state_is_refused_even_with_a_valid_checksum(tmp_path: Path, content: str) -> None:
    writer, variable = make_writer(tmp_path)
    path = save(writer, variable, 1)
    (path / "state.json").write_text(content)
    _rewrite(path, lambda sums: sums.update({"state.json": module.digest(path / "state.json")}))
    with pytest.raises(CheckpointError, match="cannot be read"):
        open_checkpoint(path)


def test_a_newer_format_is_an_error(tmp_path: Path) -> None:
    writer, variable = make_writer(tmp_path / "checkpoints")
    save(writer, variable, 1)
    path = save(writer, variable, 2)
    (path / "state.json").write_text((path / "state.json").read_text().replace('"format": 2', '"format": 3'))
    _rewrite(path, lambda sums: sums.update({"state.json": module.digest(path / "state.json")}))
    for find in (find_checkpoint, take_checkpoint):
        with pytest.raises(CheckpointError, match="has format 3, this version reads 2"):
            find(tmp_path)
    assert names(tmp_path / "checkpoints") == ["1", "2"]


def test_a_run_resumed_before_the_damage_keeps_its_new_checkpoints(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Their numbers are smaller than those of the damaged ones, which must not be kept instead."""
    folder = tmp_path / "checkpoints"
    writer, variable = make_writer(folder, keep=2)
    for env_steps in (100, 200, 300):
        save(writer, variable, env_steps)
    shutil.copytree(folder / "300", folder / "400")
    for env_steps in (300, 400):
        os.truncate(folder / str(env_steps) / "state.json", 3)
    checkpoint = take_checkpoint(tmp_path)
    assert checkpoint is not None and checkpoint.env_steps == 200
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and all(line.endswith(f"and the run resumes from {folder / '200'}") for line in said)
    assert "it is set aside as damaged-400" in said[0]
    writer, variable = make_writer(folder, keep=2)
    for env_steps in (210, 220, 300):
        holds(save(writer, variable, env_steps), 6, env_steps)
        assert find_checkpoint(tmp_path).env_steps == env_steps
    assert names(folder) == ["220", "300", "damaged-300", "damaged-400"]


def test_nothing_is_changed_if_all_checkpoints_are_damaged(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", "x") as folder:
        folder.write_config(load_config("cartpole_vtrace", environ={}))
        writer, variable = make_writer(folder.checkpoints)
        for env_steps in (1, 2):
            os.truncate(save(writer, variable, env_steps) / "COMPLETE", 0)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "checkpoints").rglob("*")}
    with RunFolder.create(tmp_path / "run", "x", resume=None) as folder:
        assert folder.resume
        with pytest.raises(CheckpointError, match="none of its 2 checkpoints can be read") as caught:
            resume_point(folder)
    assert caught.value.exit_status == EXIT_USAGE and "\n" not in str(caught.value)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "checkpoints").rglob("*")} == before


def test_a_run_without_checkpoints_resumes_from_its_beginning(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", "x") as folder:
        folder.write_config(load_config("cartpole_vtrace", environ={}))
        assert resume_point(folder) is None
        (folder.checkpoints / ".5.partial").mkdir()
    with RunFolder.create(tmp_path / "run", "x", resume=True) as folder:
        assert resume_point(folder) is None
        # A run whose only checkpoint is damaged must not count as a run without checkpoints.
        (folder.checkpoints / "5").mkdir()
        with pytest.raises(CheckpointError, match="none of its 1 checkpoints can be read"):
            resume_point(folder)
