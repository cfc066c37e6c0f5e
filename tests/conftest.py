from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from hypothesis import settings

from seedcli.telemetry import logs

# The time of an example depends mostly on other load on the machine.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# Folders with files that take minutes. They start first, so that none still runs when all others are done.
LONG = ("slurm", "system", "training", "own_code", "learning", "api")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folders = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: folders.get(item.path.parent.name, len(LONG)))


def pytest_collection_finish() -> None:
    """Exclude all modules from garbage collection: full collections would scan TensorFlow's objects each time."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _own_token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Isolate the tests from the user's token."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        patch.delenv("SEED_TOKEN", raising=False)
        yield


@pytest.fixture(autouse=True)
def _reset_rate_limit_of_logs() -> None:
    """Lines that an earlier test has logged do not suppress those of this one (`log_once_per`)."""
    with logs._limiter_lock:
        logs._limiter.clear()
