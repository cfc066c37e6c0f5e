"""Checkpoints on disks that are full, broken or slow."""

from __future__ import annotations

import errno
import os
import resource
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from seedcli.config.sources import load_config
from seedcli.errors import SeedError
from seedcli.net.inprocess import InProcessServer
from seedcli.roles.learner.threads import Learner
from seedcli.roles.run_folder import RunFolder
from seedcli.training import checkpoint as module
from seedcli.training.checkpoint import (
    Checkpointer,
    find_checkpoint,
    list_checkpoints,
)
from tests.mounts import fill, tmpfs
from tests.training.helpers import LIMIT
from tests.training.tiny_writer import holds, make_writer, names, save

# -------------------------------------------------------------------------------------- failing disks


def _refuse_with(number: int) -> Callable[..., None]:
    def refuse(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


def test_a_full_disk_loses_only_the_checkpoints_that_do_not_fit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    size = 50_000
    with tmpfs(tmp_path / "disk", "size=2m") as disk:
        folder = disk / "checkpoints"
        writer, variable = make_writer(folder, size)
        first = save(writer, variable, 1)
        ballast = fill(disk, spare=100_000)
        for env_steps in (2, 3):
            writer.save({"env_steps": env_steps})
            writer.wait()
            assert writer.error is not None and names(folder) == ["1"], "no partial checkpoint takes space"
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == 2 and f"{folder / '2'} could not be written: " in lines[0] and "\n" not in lines[0]
        with pytest.raises(SeedError, match=r"checkpoints/3 could not be written \(.*free disk space"):
            save(writer, variable, 3)
        holds(first, size, 1)
        # The same number again: the old one is not touched before the new one is complete.
        with pytest.raises(SeedError, match="could not be written"):
            save(writer, variable, 1)
        holds(find_checkpoint(folder).path, size, 1)
        ballast.unlink()
        holds(save(writer, variable, 4), size, 4)
        assert writer.error is None and names(folder) == ["1", "4"]


def test_a_disk_error_loses_only_one_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, variable = make_writer(tmp_path)
    save(writer, variable, 1)
    for name in ("fsync", "open"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, _refuse_with(errno.EIO))
            with pytest.raises(SeedError, match="Input/output error"):
                save(writer, variable, 2)
        assert [p.name for p in list_checkpoints(tmp_path)] == ["1"]
    holds(save(writer, variable, 2), 6, 2)
    assert names(tmp_path) == ["1", "2"], "remains of the failed write are removed"


def test_a_failing_rename_restores_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, variable = make_writer(tmp_path)
    save(writer, variable, 1)
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if self.name.endswith(".partial"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        variable.assign(tf.fill(variable.shape, 9.0))
        writer.save({"env_steps": 1})
        writer.wait()
    assert writer.error is not None and names(tmp_path) == ["1"]
    holds(tmp_path / "1", 6, 1)


def test_too_few_file_descriptors_lose_only_one_checkpoint(tmp_path: Path) -> None:
    writer, variable = make_writer(tmp_path)
    save(writer, variable, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        writer.save({"env_steps": 2})
        writer.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert isinstance(writer.error, OSError) and writer.error.errno == errno.EMFILE
    assert [p.name for p in list_checkpoints(tmp_path)] == ["1"]
    holds(save(writer, variable, 3), 6, 3)
    assert names(tmp_path) == ["1", "3"], "remains of the failed write are removed"


def test_a_thread_that_cannot_start_loses_only_one_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, variable = make_writer(tmp_path)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        writer.save({"env_steps": 1})
    assert isinstance(writer.error, RuntimeError) and not writer.busy
    holds(save(writer, variable, 2), 6, 2)


def test_older_checkpoints_that_cannot_be_removed_do_not_fail_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer, variable = make_writer(tmp_path, keep=1)
    save(writer, variable, 1)
    monkeypatch.setattr(writer, "_prune", _refuse_with(errno.EIO))
    holds(save(writer, variable, 2), 6, 2)
    assert "older checkpoints" in caplog.text and "Input/output error" in caplog.text


# ------------------------------------------------------------------------------------------- slow disks


class _Held:
    """A disk whose writes block until `release`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.release = threading.Semaphore(0), threading.Semaphore(0)
        write = module._write_variables

        def held(*args: Any) -> None:
            self.begun.release()
            assert self.release.acquire(timeout=LIMIT)
            write(*args)

        monkeypatch.setattr(module, "_write_variables", held)


def test_a_slow_write_postpones_the_next_one_and_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer, _ = make_writer(tmp_path)
    disk = _Held(monkeypatch)
    now = time.monotonic()
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    assert not writer.due(60)
    now += 61
    assert writer.due(60) and not writer.busy
    writer.save({"env_steps": 1})
    assert writer.busy and not writer.due(60) and not caplog.records
    for minutes, lines in ((2, 1), (5, 1), (4, 1), (2, 2), (5, 2), (6, 3)):
        now += 60 * minutes
        assert not writer.due(60)
        assert len(caplog.records) == lines
    assert "has taken 120 s so far" in caplog.records[0].getMessage()
    assert "training.checkpoint_seconds = 60" in caplog.records[0].getMessage()
    disk.release.release()
    writer.wait()
    assert not writer.busy and writer.due(60)


class _Core:
    """The parts of a learner's core that its training thread calls."""

    def __init__(self, checkpointer: Checkpointer, variable: tf.Variable) -> None:
        self.checkpointer = checkpointer
        self.finished = False
        self.updates = 0
        self._variable = variable

    def train(self, batch: object) -> object:
        self.updates += 1
        self._variable.assign(tf.fill(self._variable.shape, float(self.updates)))
        return batch

    def counters(self) -> dict[str, int]:
        return {"env_steps": self.updates}


@pytest.fixture
def learner(tmp_path: Path) -> Iterator[Learner]:
    resolved = load_config("cartpole_vtrace", environ={}, sets=("training.checkpoint_seconds=0.05",))
    with RunFolder.create(tmp_path / "run", "x") as folder:
        learner = Learner(resolved, folder, [InProcessServer()], None)
        learner.training.results = deque(maxlen=10)
        yield learner


def test_training_continues_during_a_slow_checkpoint(
    learner: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer, variable = make_writer(tmp_path / "checkpoints")
    disk = _Held(monkeypatch)
    core = _Core(writer, variable)
    learner.core = core  # type: ignore[assignment]
    learner._built.set()
    failed: list[BaseException] = []

    def train() -> None:
        try:
            learner._train()
        except BaseException as error:
            failed.append(error)

    def batch(updates: int = 1) -> None:
        for _ in range(updates):
            learner.training.batches.put(SimpleNamespace(), timeout=LIMIT)  # type: ignore[arg-type]

    def writers() -> int:
        return sum(thread.name == "checkpoint" for thread in threading.enumerate())

    before = writers()
    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    try:
        while not disk.begun.acquire(timeout=0.01):
            batch()
        held_at, begun = core.updates, time.monotonic()
        while time.monotonic() - begun < 0.5:
            batch()
        assert core.updates > held_at + 20, "training does not wait for the disk"
        assert not disk.begun.acquire(blocking=False), "nor do writes pile up"
        assert writers() == before + 1
        disk.release.release(2)
        while not disk.begun.acquire(timeout=0.01):
            batch()
    finally:
        core.finished = True
        batch()
        thread.join(LIMIT)
    writer.wait()
    assert not failed and not thread.is_alive()
    assert len([r for r in caplog.records if "longer than training.checkpoint_seconds = 0.05" in r.getMessage()]) == 1
    one, two = list_checkpoints(tmp_path / "checkpoints")
    holds(one, 6, int(one.name))  # variables and counters agree, although training continued
    holds(two, 6, int(two.name))
    stalled = learner.training.profile.seconds()["checkpoint"]
    assert stalled < 0.25, f"two copies of 6 numbers stalled training for {stalled:.2f} s"
