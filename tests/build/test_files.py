"""Built files, started in an empty environment: a Python without packages, a new home, and no other variables.

`.ci/release` names the folder of its files in RELEASE; otherwise they are built here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.system.harness import TINY, Fleet, fleet_in, sets

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

SECONDS = 300.0  # for an actor that unpacks itself on a busy machine

# A task in the working folder of an actor, whose first step never returns: the actor has to replace its process.
MINE = """
import time
from pathlib import Path
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Mine(CartPoleEnv):
    def step(self, action):
        try:
            Path("stalled").touch(exist_ok=False)
        except FileExistsError:
            return super().step(action)
        time.sleep(1000)

gymnasium.register("Mine-v0", entry_point=Mine, max_episode_steps=500)
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with fleet_in(tmp_path / "learner") as fleet:
        yield fleet


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Returns a function that gives a built file: that of a release, or one built now."""
    folder = Path(os.environ["RELEASE"]) if "RELEASE" in os.environ else tmp_path_factory.mktemp("files")

    def build(name: str, kind: str, *options: str) -> Path:
        file = folder.absolute() / name
        if not file.exists():
            command = [sys.executable, "-m", "seedcli", "build", kind, str(file), *options]
            done = subprocess.run(command, capture_output=True, text=True, timeout=1000)
            assert done.returncode == 0, done.stderr
            assert f"{file}: " in done.stdout and " MB, for Python " in done.stdout
        return file

    return build


class Node:
    """Looks like a separate machine to its processes: a home, and a PATH with only Python.

    Attributes:
        home: also the working folder of its processes.
    """

    def __init__(self, folder: Path) -> None:
        self.home = folder
        binaries = folder / "bin"
        binaries.mkdir(parents=True)
        name = f"python{sys.version_info.major}.{sys.version_info.minor}"
        (binaries / name).symlink_to(Path(sys.base_prefix) / "bin" / name)
        self.environ = {"HOME": str(folder), "PATH": f"{binaries}:/usr/bin:/bin"}
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, file: Path, *arguments: str) -> subprocess.Popen[str]:
        """Start a file with its output in pipes."""
        process = subprocess.Popen(
            [file, *arguments],
            env=self.environ, cwd=self.home, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._processes.append(process)
        return process

    def close(self) -> None:
        """Kill running processes and remove the home: files unpack up to 3 GB, which pytest would keep."""
        for process in self._processes:
            process.kill()
            process.wait()
        shutil.rmtree(self.home)

    def unpacked(self) -> set[str]:
        """Names and versions of the packages that files have unpacked."""
        return {path.name.lower() for path in (self.home / ".cache" / "pex" / "venvs").rglob("*.dist-info")}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "node")
    yield node
    node.close()


def end_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit status and stderr of a process."""
    try:
        _, errors = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"{process.args} still runs:\n{process.communicate()[1]}") from None
    return process.returncode, errors


def play(fleet: Fleet, node: Node, file: Path, *options: str, transports: Sequence[str] = ("grpc", "zmq")) -> list[str]:
    """Train with one actor of the file over each transport, to the end; returns the stderr of each actor."""
    learner = fleet.learner("--logdir", "run", "--no-live", *options)
    served = learner.wait_until_it_serves()
    addresses = [served[name] for name in transports]
    token = fleet.folder / "config" / "seed" / "token"
    actors = [
        node.start(file, "actor", "--connect", address, "--envs", "2", "--token-file", str(token))
        for address in addresses
    ]
    ends = [end_of(actor) for actor in actors]
    for (status, errors), address in zip(ends, addresses, strict=True):
        assert status == 0 and f"connected to {address} with 2 environments" in errors, errors
    learner.ends_with(0)
    return [errors for _, errors in ends]


def test_an_actor_file_plays_an_environment_of_the_working_folder(
    fleet: Fleet, node: Node, built: Callable[..., Path]
) -> None:
    file = built("seed-actor", "actor")
    assert file.stat().st_size < 150e6
    (node.home / "mine.py").write_text(MINE)
    task = sets("environment.family=gymnasium", "environment.id=mine:Mine-v0", "environment.step_timeout=5")
    options = ("--preset", "cartpole_vtrace", "--steps", "3000", *sets(*TINY), *task)
    # One actor: another could take all steps while this one replaces its process.
    (errors,) = play(fleet, node, file, *options, transports=["zmq"])
    assert "has not returned for" in errors and errors.count("connected to") == 2, errors
    assert any(name.startswith("numpy-") for name in node.unpacked())
    unwanted = ("tensorflow", "keras", "tensorboard", "matplotlib", "imageio", "envpool", "mujoco")
    assert not [name for name in node.unpacked() if name.startswith(unwanted)]


def test_an_actor_file_refuses_to_learn(node: Node, built: Callable[..., Path]) -> None:
    status, errors = end_of(node.start(built("seed-actor", "actor"), "train", "--preset", "cartpole_vtrace"))
    assert status == 2 and errors.count("\n") == 1
    assert errors.startswith("seed: this command needs tensorflow") and "seed build all" in errors


def other_python() -> str:
    """A Python of a different version; "" if there is none."""
    for minor in range(9, 20):
        name = shutil.which(f"python3.{minor}")
        if not name or minor == sys.version_info.minor:
            continue
        if subprocess.run([name, "-c", ""], capture_output=True).returncode == 0:
            return name
    return ""


def test_a_file_started_with_another_python_is_refused(built: Callable[..., Path]) -> None:
    if not (python := other_python()):
        pytest.skip("no Python of another version is on PATH")
    command = [python, built("seed-actor", "actor"), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith(
        f"seed: this file needs Python {sys.version_info.major}.{sys.version_info.minor}, and"
    )


@pytest.mark.parametrize("preset", ["football_academy_vtrace", "mujoco_vtrace"])
def test_an_actor_file_holds_simulators(fleet: Fleet, node: Node, built: Callable[..., Path], preset: str) -> None:
    for module in ("envpool", "mujoco"):
        pytest.importorskip(module, reason="an extra is not installed")
    file = built("seed-actor-simulators", "actor", "--with", "football,mujoco")
    play(fleet, node, file, "--preset", preset, "--steps", "500", "--set", "telemetry.loggers=[]")
    assert not [name for name in node.unpacked() if name.startswith("tensorflow")]


def test_a_file_of_everything_trains(node: Node, built: Callable[..., Path]) -> None:
    file = built("seed-all", "all")
    options = ("--preset", "cartpole_vtrace", "--steps", "2000", "--logdir", "run", "--no-live")
    status, errors = end_of(node.start(file, "train", *options, *sets(*TINY)))
    assert status == 0, errors
    assert (node.home / "run" / "config.toml").is_file() and list((node.home / "run" / "checkpoints").iterdir())
