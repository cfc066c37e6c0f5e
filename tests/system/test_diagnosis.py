"""A run that cannot learn logs a warning, a run that learns does not."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.system.harness import Fleet, sets

# The minimum for a warning: a fifth of a run, and 200 updates of 32 steps each.
STEPS = 12_000


@dataclass(frozen=True)
class Fault:
    """Settings that break training, and the expected warning."""

    environment: str
    values: tuple[str, ...]
    sentence: str
    look_at: str


SATURATED = Fault(
    "CartPole-v1",
    (
        "agent.normalize_values=false",
        "agent.separate_value=false",
        "agent.reward_scale=1000",
        "agent.policy_clip=0",
        "training.learning_rate=0.05",
    ),
    "% of the hidden units are saturated, so the network hardly learns any more (saturated_units is above 0.9)",
    "agent.normalize_values (false), agent.separate_value (false), agent.reward_scale (1000.0)",
)
OUTSIDE = Fault(
    "Pendulum-v1",
    ("agent.bound_cost=0", "agent.entropy_cost=0", "agent.policy_clip=0", "training.learning_rate=0.05"),
    "of the policy's means lie far beyond the bounds of actions",
    "agent.bound_cost (0.0), training.learning_rate (0.05)",
)
CONSTANT = Fault(
    "CartPole-v1",
    ("agent.entropy_cost=100",),
    "the policy is the same for every observation, to 0.00",
    "agent.entropy_cost (100.0), training.learning_rate (0.001)",
)


def train(fleet: Fleet, environment: str, *values: str) -> str:
    """Train deterministically; returns stderr."""
    options = ["--preset", "gymnasium_vtrace", "--env", environment, "--steps", str(STEPS), "--logdir", "run"]
    process = fleet.start("train", "--deterministic", *options, *sets("telemetry.loggers=[]", *values))
    process.ends_with(0)
    return process.stderr


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(SATURATED, id="saturated"),
        pytest.param(OUTSIDE, id="means outside", marks=pytest.mark.slow),
        pytest.param(CONSTANT, id="constant policy", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_cannot_learn_names_the_settings_to_look_at(fleet: Fleet, fault: Fault) -> None:
    stderr = train(fleet, fault.environment, *fault.values)
    warnings = [line for line in stderr.splitlines() if "warning: " in line and "look at" in line]
    assert len(warnings) == 2, stderr  # during the run, and in the summary
    for line in warnings:
        assert fault.sentence in line and f"look at {fault.look_at}" in line
    log = (fleet.folder / "run" / "learner.log").read_text()
    assert log.count(fault.sentence) == 2, log  # the same two


@pytest.mark.parametrize("environment", ["CartPole-v1", pytest.param("Pendulum-v1", marks=pytest.mark.slow)])
def test_a_run_that_learns_has_no_warning(fleet: Fleet, environment: str) -> None:
    """The control: the unchanged preset."""
    assert "look at" not in train(fleet, environment)
