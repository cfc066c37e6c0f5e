"""The command of the README solves CartPole; an agent that cannot learn fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.harness import Fleet, fleet_in, sets

SEED = 101  # not a seed that the preset was tuned on
SOLVED = 475.0  # mean return of 100 episodes, the environment's own threshold (Gymnasium, CartPole-v1)

pytestmark = [pytest.mark.learning, pytest.mark.timeout(900)]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with fleet_in(tmp_path) as fleet:
        yield fleet


def mean_return(fleet: Fleet, *values: str, steps: int | None = None) -> float:
    """Train, then play 100 episodes of the trained agent."""
    options = ["--preset", "cartpole_vtrace", "--seed", str(SEED), "--logdir", "run"]
    options += [] if steps is None else ["--steps", str(steps)]
    fleet.start("train", *options, *sets(*values)).ends_with(0, limit=600)
    played = fleet.start("eval", "run", "--episodes", "100", "--json")
    played.ends_with(0)
    evaluation = json.loads(played.stdout)
    assert evaluation["episodes"] == len(evaluation["returns"]) == 100
    return float(evaluation["return_mean"])


def test_cartpole_is_solved(fleet: Fleet) -> None:
    assert mean_return(fleet) >= SOLVED


def test_cartpole_is_not_solved_without_learning(fleet: Fleet) -> None:
    """The control: the same run with constant weights."""
    assert mean_return(fleet, "training.learning_rate=1e-9", steps=20_000) < 100
