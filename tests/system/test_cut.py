"""The network between two hosts is cut and restored (network namespaces; `python -m tests.reliability cut`)."""

from __future__ import annotations

import pytest

from tests.reliability.cut import run_cut
from tests.reliability.hosts import why_not
from tests.system.harness import Fleet

TIMEOUT = 4.0
# TCP retries about 0.2, 0.6, 1.4 and 3.0 s after the cut: the first after the repair must be well before the timeout.
SHORT, LONG = 1.0, 6.0


@pytest.mark.parametrize("how", ["silent", "unplugged"])
def test_actors_step_again_soon_after_a_network_cut(fleet: Fleet, how: str) -> None:
    if reason := why_not():
        pytest.skip(reason)
    result = run_cut([SHORT, LONG], fleet, actors=4, timeout=TIMEOUT, how=how)
    assert not result["failures"]
    short, long = result["cuts"]
    assert short["sessions_ended"] == 0, "a session ended before its timeout"
    assert long["sessions_ended"] == 4
    for side in ("actors", "learner"):
        assert long[f"noticed_by_{side}"]["most"] < LONG + TIMEOUT
