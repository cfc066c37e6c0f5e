"""The R2D2 presets solve tasks that need memory; the same agents without memory do not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.harness import Fleet, fleet_in, sets

SEED = 101  # not a seed that the presets were tuned on
# Without a state a burn-in has no effect.
NO_MEMORY = ("agent.network.lstm=0", "training.burn_in=0")

pytestmark = [pytest.mark.learning, pytest.mark.timeout(1800)]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with fleet_in(tmp_path) as fleet:
        yield fleet


def mean_return(fleet: Fleet, preset: str, *values: str, seed: int = SEED) -> float:
    """Train, then play 100 episodes of the trained agent."""
    folder = f"run-{seed}"
    fleet.start("train", "--preset", preset, "--seed", str(seed), "--logdir", folder, *sets(*values)).ends_with(
        0, limit=1200
    )
    played = fleet.start("eval", folder, "--episodes", "100", "--json")
    played.ends_with(0)
    evaluation = json.loads(played.stdout)
    assert evaluation["episodes"] == len(evaluation["returns"]) == 100
    return float(evaluation["return_mean"])


@pytest.mark.parametrize("precision", ["float32", pytest.param("mixed_bfloat16", marks=pytest.mark.slow)])
def test_a_cue_is_recalled(fleet: Fleet, precision: str) -> None:
    assert mean_return(fleet, "recall_r2d2", f"topology.precision={precision}") >= 0.95


def test_a_cue_is_not_recalled_without_memory(fleet: Fleet) -> None:
    """The control: any policy is right half of the time; 0.75 is five standard deviations of 100 episodes away."""
    assert mean_return(fleet, "recall_r2d2", *NO_MEMORY) < 0.75


@pytest.mark.slow
@pytest.mark.parametrize("seed", [101, 102, 103])
def test_cartpole_with_hidden_velocities_is_balanced(fleet: Fleet, seed: int) -> None:
    assert mean_return(fleet, "cartpole_memory_r2d2", seed=seed) >= 400.0


@pytest.mark.slow
def test_cartpole_with_hidden_velocities_is_not_balanced_without_memory(fleet: Fleet) -> None:
    """The control: the best policy found without memory reaches 48 (docs/memory.md)."""
    assert mean_return(fleet, "cartpole_memory_r2d2", *NO_MEMORY) < 100.0
