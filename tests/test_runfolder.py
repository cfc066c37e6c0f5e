"""A run's folder: where it lies, who may write to it, what is kept and what is removed."""

import json
import os
import re
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from seedcli.errors import UsageError
from seedcli.layering import from_toml_file, load_config
from seedcli.roles.runfolder import LOCK, RunFolder


def fill(folder: RunFolder) -> None:
    """Write what a run writes."""
    folder.write_config(load_config("cartpole_vtrace", environ={}))
    (folder.checkpoints / "640").mkdir(parents=True)
    (folder.checkpoints / "640" / "data").write_bytes(b"x")
    folder.metrics_path.write_text("{}\n")
    folder.log_path.write_text("line\n")
    folder.tensorboard.mkdir()
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


def test_config_is_written_and_read_back(tmp_path: Path) -> None:
    resolved = load_config("pong_vtrace", environ={})
    with RunFolder.create(tmp_path / "a" / "b", "pong_vtrace") as folder:
        folder.write_config(resolved)
        assert from_toml_file(folder.config_path) == resolved.config
        assert not folder.resume


def test_a_folder_with_a_run_is_refused_unless_told(tmp_path: Path) -> None:
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
        assert sorted(entry.name for entry in path.iterdir()) == ["checkpoints", LOCK, "notes.txt"]
        assert list(folder.checkpoints.iterdir()) == []


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


def test_flags_that_contradict(tmp_path: Path) -> None:
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


def test_two_learners_cannot_share_a_folder(tmp_path: Path) -> None:
    path = finished(tmp_path / "run")
    holding = f"""
import sys
from pathlib import Path
from seedcli.roles.runfolder import RunFolder
folder = RunFolder.create(Path({str(path)!r}), "x", resume=True)
print("held", flush=True)
sys.stdin.read()
"""
    holder = subprocess.Popen([sys.executable, "-c", holding], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert select.select([holder.stdout], [], [], 30)[0], "the holder did not start"
        assert holder.stdout.readline() == "held\n"
        for flags in ({"resume": True}, {"overwrite": True}, {}):
            with pytest.raises(UsageError) as caught:
                RunFolder.create(path, "x", **flags)
            assert f"process {holder.pid} on {socket.gethostname()}" in str(caught.value)
        assert (path / "config.toml").is_file()
    finally:
        holder.kill()
        holder.communicate(timeout=30)
    with RunFolder.create(path, "x", resume=True):  # a killed learner leaves no lock behind
        assert json.loads((path / LOCK).read_text())["pid"] == os.getpid()
