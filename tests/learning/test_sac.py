"""SAC swings up a pendulum, and without learned values it does not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.harness import Fleet, fleet_in

SEED = 104  # not a seed that the preset was tuned on
STEPS = 20_000
SOLVED, FAILED = -250.0, -600.0  # mean returns of 20 episodes; a random policy has about -1,200

pytestmark = [pytest.mark.learning, pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with fleet_in(tmp_path) as fleet:
        yield fleet


def mean_return(fleet: Fleet, *values: str) -> float:
    options = ["--preset", "gymnasium_sac", "--steps", str(STEPS), "--seed", str(SEED), "--logdir", "run", *values]
    fleet.start("train", *options).ends_with(0, limit=2000)
    played = fleet.start("eval", "run", "--episodes", "20", "--json")
    played.ends_with(0)
    return float(json.loads(played.stdout)["return_mean"])


def test_pendulum_is_learned(fleet: Fleet) -> None:
    assert mean_return(fleet) >= SOLVED


def test_critics_that_do_not_learn_teach_nothing(fleet: Fleet) -> None:
    assert mean_return(fleet, "--set", "agent.critic_rate=1e-9") < FAILED
