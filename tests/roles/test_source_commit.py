"""The commit that a run records."""

from __future__ import annotations

import json
import subprocess
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

import seedcli
from seedcli.roles.source_commit import source_commit


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """seedcli, imported from a separate folder."""
    folder = tmp_path / "seedcli"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    monkeypatch.setattr(seedcli, "__file__", str(folder / "__init__.py"))
    return tmp_path


def test_a_checkout_has_its_commit_and_says_whether_it_was_changed(package: Path) -> None:
    git(package, "init", "-q")
    git(package, "add", ".")
    git(package, "commit", "-qm", "first")
    git(package, "tag", "-am", "a tag", "v1")
    head = git(package, "rev-parse", "HEAD")
    assert source_commit() == head[:10]
    (package / "untracked").write_text("")
    assert source_commit() == head[:10]
    (package / "seedcli" / "__init__.py").write_text("changed = 1")
    assert source_commit() == f"{head[:10]}-dirty"


@pytest.mark.parametrize(
    ("recorded", "commit"),
    [
        (
            json.dumps({"url": "git+ssh://host/seed", "vcs_info": {"vcs": "git", "commit_id": "0123456789abcdef"}}),
            "0123456789",
        ),
        (json.dumps({"url": "file:///seed", "dir_info": {}}), ""),
        (None, ""),
        ("{", ""),
    ],
)
def test_an_installation_has_the_commit_that_pip_recorded(
    package: Path, monkeypatch: pytest.MonkeyPatch, recorded: str | None, commit: str
) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda name: SimpleNamespace(read_text=lambda file: recorded))
    assert source_commit() == commit


def test_a_folder_that_is_no_repository_or_a_machine_without_git_gives_none(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (package / ".git").mkdir()
    assert source_commit() == ""
    monkeypatch.setenv("PATH", "")
    assert source_commit() == ""
