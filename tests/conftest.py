from __future__ import annotations

from collections.abc import Iterator

import pytest

from seedcli.telemetry import logs


@pytest.fixture(scope="session", autouse=True)
def _own_token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The token of whoever runs the tests is neither read nor made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        patch.delenv("SEED_TOKEN", raising=False)
        yield


@pytest.fixture(autouse=True)
def _lines_are_not_held_back() -> None:
    """What an earlier test has logged holds back no line of this one (`log_once_per`)."""
    with logs._limiter_lock:
        logs._limiter.clear()
