from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.harness import LIMIT, Fleet, fleet_in


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(3 * LIMIT))


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with fleet_in(tmp_path / "processes") as fleet:
        yield fleet
