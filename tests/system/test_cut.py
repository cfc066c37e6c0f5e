"""A network between two hosts is cut and heals (network namespaces; `python -m tests.reliability cut`)."""

from __future__ import annotations

import pytest

from tests.reliability.cut import run_cut
from tests.reliability.hosts import why_not
from tests.system.harness import Fleet

TIMEOUT = 4.0
# TCP tries again some 0.2, 0.6, 1.4, 3.0 s after the cut: the first after healing must come well before the time-out.
SHORT, LONG = 1.0, 6.0


@pytest.mark.parametrize("how", ["silent", "unplugged"])
def test_actors_step_again_soon_after_a_cut_heals(fleet: Fleet, how: str) -> None:
    if reason := why_not():
        pytest.skip(reason)
    result = run_cut([SHORT, LONG], fleet, actors=4, timeout=TIMEOUT, how=how)
    assert not result["failures"]
    short, long = result["cuts"]
    assert short["sessions_ended"] == 0, "a session ends before its time-out"
    assert long["sessions_ended"] == 4
    for side in ("actors", "learner"):
        assert long[f"noticed_by_{side}"]["most"] < LONG + TIMEOUT
