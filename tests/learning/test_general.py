"""The general preset, unchanged, learns tasks with returns in the hundreds; without normalisation it does not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.harness import Fleet, fleet_in, sets

SEED = 104  # not a seed that the preset was tuned on, nor one in the table of docs/presets.md
# V-trace as published: one network for policy and value, raw rewards, each batch used once.
PUBLISHED = (
    "agent.normalize_values=false",
    "agent.separate_value=false",
    "agent.policy_clip=0",
    "agent.kl_cost=0",
    "agent.bound_cost=0",
    "agent.noise_correlation=0",
    "training.epochs=1",
    "training.minibatches=1",
    "training.synchronous=false",
    "training.batch_size=32",
    "training.unroll_length=20",
)

pytestmark = [pytest.mark.learning, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with fleet_in(tmp_path) as fleet:
        yield fleet


def mean_return(fleet: Fleet, environment: str, steps: int, *values: str) -> float:
    """Train, then play 20 episodes of the trained agent."""
    fleet.start(
        "train", "--preset", "gymnasium_vtrace", "--env", environment, "--seed", str(SEED), "--steps", str(steps),
        "--logdir", "run", *sets(*values),
    ).ends_with(0, limit=1200)  # fmt: skip
    played = fleet.start("eval", "run", "--episodes", "20", "--json")
    played.ends_with(0)
    return float(json.loads(played.stdout)["return_mean"])


def test_acrobot_is_solved(fleet: Fleet) -> None:
    assert mean_return(fleet, "Acrobot-v1", 500_000) >= -100


def test_pendulum_is_solved(fleet: Fleet) -> None:
    assert mean_return(fleet, "Pendulum-v1", 500_000) >= -250


@pytest.mark.parametrize(("environment", "most"), [("Acrobot-v1", -300), ("Pendulum-v1", -700)])
def test_published_vtrace_fails(fleet: Fleet, environment: str, most: float) -> None:
    """The control: unscaled returns drive the layers that policy and value share into saturation."""
    assert mean_return(fleet, environment, 300_000, *PUBLISHED) < most
