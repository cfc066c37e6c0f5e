"""Mutations of valid frames: no crash, no hang, bounded memory and log, training continues, full branch coverage.

Long runs: `python -m tests.reliability fuzz`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reliability.fuzz_coverage import fuzz_with_coverage
from tests.reliability.fuzz_network import fuzz_network


def test_mutations_reach_every_branch_of_the_parsers_and_are_only_refused() -> None:
    result, missing = fuzz_with_coverage(30_000, seed=1)
    assert result["failures"] == [] and missing == []
    outcomes = result["outcomes"]
    # The control: each stage accepts some of the mutations and refuses others.
    for stage in ("unauthenticated: challenge", "proof: configure", "specification: ready", "session: action"):
        assert outcomes[stage] > 0
    for stage in (
        "unauthenticated: dropped",
        "proof: dropped",
        "proof: refused",
        "specification: dropped",
        "session: dropped",
    ):
        assert outcomes[stage] > 0


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["zmq", "grpc", "shm"])
def test_mutations_over_a_connection_do_not_disturb_training(tmp_path: Path, transport: str) -> None:
    result = fuzz_network(400, 1, transport, tmp_path / "processes")
    assert result["failures"] == [] and result["mutations"] >= 400
    assert result["protocol_errors"] > 50
    assert result["training_steps_per_second"]["with"] > 0.2 * result["training_steps_per_second"]["without"]
