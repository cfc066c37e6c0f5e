"""Two learner hosts solve CartPole together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.learning.test_cartpole import SEED, SOLVED
from tests.system.harness import Fleet, fleet_in
from tests.system.hosts import learners

pytestmark = [pytest.mark.learning, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with fleet_in(tmp_path) as fleet:
        yield fleet


def test_two_hosts_solve_cartpole(fleet: Fleet) -> None:
    hosts = learners(fleet, 2, "--preset", "cartpole_vtrace", "--seed", str(SEED), "--logdir", "run")
    actors = [fleet.actor(str(fleet.folder / "run"), "--envs", "16") for _ in range(2)]
    for process in (*hosts, *actors):
        process.ends_with(0, limit=600)
    played = fleet.start("eval", "run", "--episodes", "100", "--json")
    played.ends_with(0)
    evaluation = json.loads(played.stdout)
    assert len(evaluation["returns"]) == 100 and evaluation["return_mean"] >= SOLVED
