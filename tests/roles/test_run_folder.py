"""A run's folder: its path, its lock, and which files are kept or removed."""

import contextlib
import errno
import fcntl
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from seedcli.config.sources import from_toml_file, load_config
from seedcli.errors import UsageError
from seedcli.roles.run_folder import ADDRESS, CONFIG, LOCK, RunFolder
from seedcli.telemetry.loggers.registry import LOGGERS
from tests.mounts import fill as full
from tests.mounts import read_only, tmpfs


def fill(folder: RunFolder) -> None:
    """Write the files of a run."""
    folder.write_config(load_config("cartpole_vtrace", environ={}))
    (folder.checkpoints / "640").mkdir(parents=True)
    (folder.checkpoints / "640" / "data").write_bytes(b"x")
    folder.metrics_path.write_text("{}\n")
    folder.log_path.write_text("line\n")
    for logger in LOGGERS:
        (folder.path / logger).mkdir()
    folder.actor_logs.mkdir()


def finished(path: Path) -> Path:
    with RunFolder.create(path, "cartpole_vtrace") as folder:
        fill(folder)
    return path


def test_the_default_folder_is_named_by_preset_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [RunFolder.create(None, "pong_vtrace") for _ in range(3)]
    assert len({folder.path for folder in folders}) == 3
    for folder in folders:
        assert folder.path.parent == Path("runs/pong_vtrace")
        assert re.fullmatch(r"\d{8}-\d{6}(-\d+)?", folder.path.name)
        folder.close()
    with RunFolder.create(None, "") as folder:
        assert folder.path.parent == Path("runs/custom")


def test_refused_start_removes_a_generated_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused, begun, logged, named = (RunFolder.create(path, "pong_vtrace") for path in (None, None, None, Path("mine")))
    fill(begun)
    logged.log_path.write_text("why")
    for folder in (refused, begun, logged, named):
        folder.close()
        folder.close()
    assert not refused.path.exists()
    assert begun.config_path.exists() and logged.log_path.exists() and named.path.is_dir()


def test_config_is_written_and_read_back(tmp_path: Path) -> None:
    resolved = load_config("pong_vtrace", environ={})
    with RunFolder.create(tmp_path / "a" / "b", "pong_vtrace") as folder:
        folder.write_config(resolved)
        assert from_toml_file(folder.config_path) == resolved.config
        assert not folder.resume


def test_folder_with_a_run_is_refused_without_flags(tmp_path: Path) -> None:
    path = finished(tmp_path / "run")
    with pytest.raises(UsageError, match=r"already holds a run.*--resume.*--overwrite"):
        RunFolder.create(path, "cartpole_vtrace")
    with RunFolder.create(path, "cartpole_vtrace", resume=True) as folder:
        assert folder.resume
        assert (folder.checkpoints / "640" / "data").read_bytes() == b"x"
        assert folder.metrics_path.read_text() == "{}\n"


def test_overwrite_removes_only_what_a_run_wrote(tmp_path: Path) -> None:
    path = finished(tmp_path / "run")
    (path / "notes.txt").write_text("mine")
    (path / "replay").mkdir()
    (path / "replay" / "000000000000-0123456789ab.seg").write_bytes(b"x")
    with RunFolder.create(path, "cartpole_vtrace", overwrite=True) as folder:
        folder.begin()
        assert sorted(entry.name for entry in path.iterdir()) == ["checkpoints", LOCK, "notes.txt"]
        assert list(folder.checkpoints.iterdir()) == []


def test_a_start_that_fails_before_its_first_step_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (None, Path("a/b"), tmp_path / "c"):
        with pytest.raises(KeyError), RunFolder.create(path, "cartpole_vtrace") as folder:
            fill(folder)
            raise KeyError
        assert list(tmp_path.iterdir()) == [], "parent folders are removed too"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(KeyError), RunFolder.create(Path("mine"), "cartpole_vtrace") as folder:
        fill(folder)
        raise KeyError
    assert [entry.name for entry in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_a_failed_start_leaves_an_earlier_run_unchanged(tmp_path: Path) -> None:
    path = finished(tmp_path / "run")
    before = {entry: entry.read_bytes() for entry in path.rglob("*") if entry.is_file() and entry.name != LOCK}

    def now() -> dict[Path, bytes]:
        return {entry: entry.read_bytes() for entry in path.rglob("*") if entry.is_file() and entry.name != LOCK}

    for options in ({"overwrite": True}, {"resume": True}, {"resume": None}):
        with pytest.raises(KeyError), RunFolder.create(path, "cartpole_vtrace", **options) as folder:
            if "overwrite" in options:
                fill(folder)
                folder.log_path.write_text("of the new one")
            raise KeyError
        assert now() == before
    # A start that is killed cannot restore the earlier run; the next start does.
    lost = RunFolder.create(path, "cartpole_vtrace", overwrite=True)
    lost.log_path.write_text("of the new one")
    lost.close()
    with RunFolder.create(path, "cartpole_vtrace", resume=None) as folder:
        assert folder.resume and now() == before


def test_a_run_that_has_begun_stays(tmp_path: Path) -> None:
    with pytest.raises(KeyError), RunFolder.create(tmp_path / "run", "cartpole_vtrace") as folder:
        fill(folder)
        folder.begin()
        raise KeyError
    assert folder.config_path.exists()


def test_overwrite_does_not_follow_a_link(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "640").mkdir()
    (path / "checkpoints").symlink_to(elsewhere)
    with RunFolder.create(path, "cartpole_vtrace", overwrite=True):
        assert (elsewhere / "640").is_dir()
        assert not (path / "checkpoints").is_symlink()


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    with pytest.raises(UsageError, match="holds no run to resume"):
        RunFolder.create(path, "cartpole_vtrace", resume=True)
    assert not path.exists()
    path.mkdir()
    (path / "notes.txt").write_text("mine")
    RunFolder.create(path, "cartpole_vtrace").close()
    RunFolder.create(path, "cartpole_vtrace").close()  # a start that wrote nothing leaves no run


def test_contradictory_flags_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot both"):
        RunFolder.create(tmp_path, "cartpole_vtrace", resume=True, overwrite=True)
    with pytest.raises(UsageError, match="--resume needs --logdir"):
        RunFolder.create(None, "cartpole_vtrace", resume=True)


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_path_that_cannot_be_a_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot be used as a run's folder \(.+\): give another --logdir"):
        RunFolder.create(tmp_path / name, "cartpole_vtrace")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="cannot be used as a run's folder"):
        RunFolder.create(tmp_path / "run", "cartpole_vtrace")


HOLDING = """
import sys
from pathlib import Path
from seedcli.roles.run_folder import RunFolder
folder = RunFolder.create(Path(sys.argv[1]), "x", resume=None)
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def held(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start another process that holds a run's folder."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert select.select([holder.stdout], [], [], 30)[0], "the holder did not start"
        assert holder.stdout.readline() == "held\n"
        yield holder
    finally:
        holder.kill()
        holder.communicate(timeout=30)


def test_two_learners_cannot_share_a_folder(tmp_path: Path) -> None:
    path = finished(tmp_path / "run")
    with held(path) as holder:
        for flags in ({"resume": True}, {"resume": None}, {"overwrite": True}, {}):
            with pytest.raises(UsageError) as caught:
                RunFolder.create(path, "x", **flags)
            assert f"process {holder.pid} on {socket.gethostname()}" in str(caught.value)
        assert (path / "config.toml").is_file()
    with RunFolder.create(path, "x", resume=True):  # a killed learner leaves no lock behind
        assert json.loads((path / LOCK).read_text())["pid"] == os.getpid()


def test_continue_resumes_a_run_or_starts_one(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RunFolder.create(path, "x", resume=None) as folder:
        assert not folder.resume
        folder.log_path.write_text("it died before it wrote config.toml\n")
        (path / "notes.txt").write_text("mine")
    with RunFolder.create(path, "x", resume=None) as folder:
        assert not folder.resume, "there is nothing to resume"
        assert sorted(entry.name for entry in path.iterdir()) == ["checkpoints", LOCK, "notes.txt"]
        fill(folder)
    with RunFolder.create(path, "x", resume=None) as folder:
        assert folder.resume
        assert (folder.checkpoints / "640" / "data").read_bytes() == b"x"
        assert folder.metrics_path.read_text() == "{}\n"


def test_continue_never_removes_a_checkpoint(tmp_path: Path) -> None:
    path = finished(tmp_path / "run")
    (path / CONFIG).unlink()
    with pytest.raises(UsageError, match=r"holds checkpoints and no config.toml: copy .* or replace .* --overwrite"):
        RunFolder.create(path, "x", resume=None)
    assert (path / "checkpoints" / "640" / "data").exists() and (path / "metrics.jsonl").exists()


def test_continue_contradicts_overwrite_and_needs_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--continue and --overwrite cannot both"):
        RunFolder.create(tmp_path, "x", resume=None, overwrite=True)
    with pytest.raises(UsageError, match="--continue needs --logdir"):
        RunFolder.create(None, "x", resume=None)


def test_a_standby_waits_until_the_holder_dies(tmp_path: Path) -> None:
    path = finished(tmp_path / "run")
    with held(path) as holder:
        sentences: list[str] = []

        def wait(sentence: str) -> None:
            sentences.append(sentence)
            threading.Timer(1.0, holder.kill).start()

        begun = time.monotonic()
        with RunFolder.create(path, "x", resume=None, wait=wait) as folder:
            assert 1.0 <= time.monotonic() - begun < 15 and folder.resume
            assert sentences == [
                f"{path} belongs to a running learner (process {holder.pid} on {socket.gethostname()})"
            ]
            assert json.loads((path / LOCK).read_text())["pid"] == os.getpid()
    with RunFolder.create(path, "x", resume=None, wait=sentences.append):
        assert len(sentences) == 1, "no wait for a free folder"


def test_waiting_for_a_folder_ends_with_a_signal(tmp_path: Path) -> None:
    path = finished(tmp_path / "run")

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with held(path), pytest.raises(KeyboardInterrupt):
            RunFolder.create(
                path,
                "x",
                resume=None,
                wait=lambda sentence: threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1)).start(),
            )
    finally:
        signal.signal(signal.SIGUSR1, before)
    RunFolder.create(path, "x", resume=True).close()  # the wait has left no lock


def test_the_lock_of_a_moved_folder_does_not_count(tmp_path: Path) -> None:
    path = finished(tmp_path / "run")
    with held(path):
        shutil.move(path, tmp_path / "moved")
        with RunFolder.create(path, "x", resume=None, wait=lambda sentence: pytest.fail(sentence)) as folder:
            assert not folder.resume


@pytest.mark.parametrize("resume", [True, None])
def test_a_run_on_a_read_only_file_system(tmp_path: Path, resume: bool | None) -> None:
    with tmpfs(tmp_path / "mounted", "size=1m") as mounted:
        path = finished(mounted / "run")
        read_only(mounted)
        for where in (path, mounted / "new"):
            with pytest.raises(
                UsageError, match=r"Read-only file system\): give another --logdir|no run to resume"
            ) as e:
                RunFolder.create(where, "x", resume=resume)
            assert str(where) in str(e.value) and "\n" not in str(e.value)


def test_a_lock_that_cannot_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "run"
    (path / LOCK).mkdir(parents=True)
    with pytest.raises(UsageError, match=rf"run's folder \({LOCK}: Is a directory\): give another --logdir"):
        RunFolder.create(path, "x")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(UsageError, match="cannot lock files .* give a --logdir on another"):
        RunFolder.create(tmp_path / "run", "x", wait=lambda sentence: pytest.fail(sentence))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_configuration_is_written_atomically(tmp_path: Path) -> None:
    small, other = load_config("cartpole_vtrace", environ={}), load_config("pong_vtrace", environ={})
    with tmpfs(tmp_path / "mounted", "size=64k") as mounted:
        with RunFolder.create(mounted / "run", "x") as folder:
            folder.write_config(small)
            text = folder.config_path.read_bytes()
            full(mounted)
            with pytest.raises(
                UsageError, match=r"config.toml cannot be written \(No space left on device\): make room"
            ):
                folder.write_config(other)
            assert folder.config_path.read_bytes() == text
            assert not list((mounted / "run").glob("*.tmp"))


def test_a_configuration_is_synced_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def noted_sync(descriptor: int) -> None:
        done.append("sync " + Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        sync(descriptor)

    def noted_replace(source: Path, target: Path) -> None:
        done.append(f"rename {Path(target).name}")
        replace(source, target)

    with RunFolder.create(tmp_path / "run", "x") as folder:
        monkeypatch.setattr(os, "fsync", noted_sync)
        monkeypatch.setattr(os, "replace", noted_replace)
        folder.write_config(load_config("cartpole_vtrace", environ={}))
    assert done == ["sync config.tmp", "rename config.toml", "sync run"]


def test_an_address_is_written_read_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    assert RunFolder.read_address(path) is None
    address = {"hosts": ["node1", "10.0.0.1"], "grpc": 8686, "zmq": -1}
    with RunFolder.create(path, "x") as folder:
        assert RunFolder.read_address(path) is None
        folder.write_address({"hosts": ["old"]})
        folder.write_address(address)
        assert RunFolder.read_address(path) == address
        assert sorted(p.name for p in path.iterdir()) == [ADDRESS, "checkpoints", LOCK]
        fill(folder)
    with RunFolder.create(path, "x", resume=True) as folder:
        folder.remove_address()
        folder.remove_address()
        assert RunFolder.read_address(path) is None
        folder.write_address(address)
    with RunFolder.create(path, "x", overwrite=True):
        assert RunFolder.read_address(path) is None, "overwriting a run removes its address"


@pytest.mark.parametrize("torn", [b"", b'{"grpc": 86', b"[1]", b"\xff\xfe", b"null"])
def test_a_torn_address_file_is_ignored(tmp_path: Path, torn: bytes) -> None:
    (tmp_path / ADDRESS).write_bytes(torn)
    assert RunFolder.read_address(tmp_path) is None


def test_an_address_that_cannot_be_written_leaves_the_earlier_one(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "mounted", "size=64k") as mounted, RunFolder.create(mounted / "run", "x") as folder:
        folder.write_address({"grpc": 1})
        full(mounted)
        with pytest.raises(UsageError, match="No space left"):
            folder.write_address({"grpc": 2})
        assert RunFolder.read_address(folder.path) == {"grpc": 1}
        assert not list(folder.path.glob(".*"))
