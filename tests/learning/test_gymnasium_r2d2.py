"""The general R2D2 preset, unchanged, learns two of Gymnasium's classic tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.harness import Fleet, fleet_in

SEED = 101  # not a seed that the preset was tuned on

pytestmark = [pytest.mark.learning, pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with fleet_in(tmp_path) as fleet:
        yield fleet


@pytest.mark.parametrize(("env", "reached"), [("CartPole-v1", 475.0), ("Acrobot-v1", -100.0)])
def test_a_classic_task_is_learned(fleet: Fleet, env: str, reached: float) -> None:
    options = ["--preset", "gymnasium_r2d2", "--env", env, "--seed", str(SEED), "--logdir", "run"]
    fleet.start("train", *options).ends_with(0, limit=2000)
    played = fleet.start("eval", "run", "--episodes", "20", "--json")
    played.ends_with(0)
    assert json.loads(played.stdout)["return_mean"] >= reached
