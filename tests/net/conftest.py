from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.net.harness import KINDS, Actor, Learner, make_server, security_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session", autouse=True)
def _temporary_folder() -> Iterator[None]:
    """Put all sockets of this run, those of killed processes included, into one folder that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="seed-test-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def learner(kind: str) -> Iterator[Learner]:
    learner = Learner(make_server(kind), [1000, 500]).start()
    yield learner
    learner.close()


@pytest.fixture
def join(request: pytest.FixtureRequest) -> Iterator[Callable[..., Actor]]:
    """Connect actors, and close them at the end."""
    actors: list[Actor] = []

    def join(learner: Learner | str, name: str = "actor") -> Actor:
        if isinstance(learner, str):  # address of a learner in another process
            actors.append(Actor(learner, name, security_of(request.getfixturevalue("kind"))))
        else:
            actors.append(Actor(learner.server.address, name, learner.security))
        return actors[-1]

    yield join
    for actor in actors:
        actor.client.close()


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start Python processes that print a line when they are ready, and kill them at the end."""
    processes: list[subprocess.Popen[str]] = []

    def spawn(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
        )
        processes.append(process)
        return process

    yield spawn
    for process in processes:
        process.kill()
        process.communicate(timeout=10)
