"""`seed build`: refused requests, and the files left when it fails or is stopped."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from seedcli.build.contents import Contents
from seedcli.build.request import Request
from seedcli.build.run import run_build
from seedcli.cli.main import main
from seedcli.errors import SeedError
from tests.system.harness import wait_for

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").touch()
    (tmp_path / "folder").mkdir()


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The error message of a refused build, which must write nothing."""
    before = sorted(Path().rglob("*"))
    assert main(["build", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("seed: ") and captured.err.count("\n") == 1, captured
    assert sorted(Path().rglob("*")) == before
    return captured.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["learner", "out"], ("'learner'", "actor", "all")),
        (["actor"], ("OUT",)),
        (["actor", "there"], ("there exists", "--overwrite")),
        (["actor", "folder", "--overwrite"], ("folder is a folder", "name the file")),
        (["actor", "nowhere/out"], ("nowhere/out cannot be written", "create it first")),
        (["actor", "out", "--with", "no-such-package"], ("--with 'no-such-package'", "football, mujoco", "pip list")),
        (["all", "out", "--with", "mujoco,"], ("--with ''", "leave it out")),
    ],
)
def test_a_wrong_request_is_one_sentence(
    arguments: list[str], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mujoco", reason="the extra mujoco is not installed")
    sentence = refusal(capsys, *arguments)
    for word in words:
        assert word in sentence


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Hides an installed module."""
    found = importlib.util.find_spec

    def lack(module: str) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else found(name))

    return lack


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        ("pex", "seed build needs pex, not installed here: pip install 'seedcli[build]'"),
        ("envpool", "--with football needs envpool, not installed here: pip install 'seedcli[football]'"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    module: str, sentence: str, lacking: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    lacking(module)
    assert sentence in refusal(capsys, "actor", "out", "--with", "football")


@pytest.mark.parametrize(
    ("command", "package"),
    [
        ("train --preset cartpole_vtrace", "tensorflow"),
        ("learner --continue", "tensorflow"),
        ("bench inference", "tensorflow"),
        ("runs folder", "msgspec"),
    ],
)
def test_a_command_names_the_package_that_an_actor_file_lacks(command: str, package: str) -> None:
    script = "import sys; sys.modules[sys.argv.pop(1)] = None; import seedcli.__main__ as seed; sys.exit(seed.run())"
    arguments = [sys.executable, "-c", script, package, *command.split()]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(arguments, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith(f"seed: this command needs {package}, not installed here: pip install seedcli, or")


def test_seed_outside_a_virtual_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    sentence = refusal(capsys, "actor", "out")
    assert f"{sys.base_prefix} is not one: create one" in sentence and "python3 -m venv" in sentence


def test_a_package_that_cannot_be_packed_is_named_and_leaves_nothing() -> None:
    request = Request("actor", Path("out"), Contents(("no-such-package",), ()))
    before = sorted(Path().rglob("*"))
    with pytest.raises(SeedError, match="pex cannot pack out: .*no-such-package") as caught:
        run_build(request, json_output=False)
    assert "\n" not in str(caught.value)
    assert sorted(Path().rglob("*")) == before


def test_a_stopped_build_leaves_nothing() -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    before = sorted(Path().rglob("*"))
    with subprocess.Popen(
        [sys.executable, "-m", "seedcli", "build", "actor", "out"], env=environ, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_for(lambda: list(Path().glob(".build-*/cache")), "pex has begun", limit=60)
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 143
    assert error == "packing out: some seconds\n"
    assert sorted(Path().rglob("*")) == before
