"""V-trace learns every kind of action from observations of several arrays; with hidden observations it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.system.harness import fleet_in, sets

SEED = 101  # not a seed that this was tuned on
LENGTH = 8  # steps of an episode: the best return
VALUES = (
    "environment.id=seedcli.envs.testing:Echo-v0",
    "agent.network.normalize_observations=true",
    "agent.discount=0",
    "agent.entropy_cost=0",
    "agent.initial_std=0.5",
    "training.unroll_length=8",
    "training.batch_size=16",
    "training.learning_rate=3e-3",
    "actors.envs=16",
)

pytestmark = [pytest.mark.learning, pytest.mark.slow, pytest.mark.timeout(900)]


def mean_reward(folder: Path, answer: str, hidden: bool) -> float:
    """Train, then play 50 episodes of the trained agent."""
    environment = f'environment.kwargs={{ answer = "{answer}", hidden = {str(hidden).lower()} }}'
    with fleet_in(folder) as fleet:
        fleet.start(
            "train", "--preset", "gymnasium_vtrace", "--seed", str(SEED), "--steps", "80000", "--logdir", "run",
            *sets(*VALUES, environment),
        ).ends_with(0, limit=600)  # fmt: skip
        played = fleet.start("eval", "run", "--episodes", "50", "--json")
        played.ends_with(0)
    return float(json.loads(played.stdout)["return_mean"]) / LENGTH


@pytest.mark.parametrize("answer", ["box", "multi_discrete"])
def test_echo_is_learned(tmp_path: Path, answer: str) -> None:
    assert mean_reward(tmp_path, answer, hidden=False) >= 0.9


@pytest.mark.parametrize(("answer", "most"), [("box", 0.6), ("multi_discrete", 0.45)])
def test_hidden_echo_is_not_learned(tmp_path: Path, answer: str, most: float) -> None:
    """The control: the best possible means are 1/2 and 1/3, and 400 answers of two parts are within 0.02 of them."""
    assert mean_reward(tmp_path, answer, hidden=True) < most
