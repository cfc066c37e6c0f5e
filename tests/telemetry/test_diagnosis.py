"""Training warnings: when they begin and end, and which of several is shown."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest

from seedcli.agents.actor_critic import symptoms
from seedcli.agents.base import Symptom
from seedcli.config.known_keys import all_keys
from seedcli.config.schema import make_config
from seedcli.telemetry.diagnosis import Diagnosis
from tests.configs import agent_config

STUCK = Symptom(metric="stuck", above=0.9, sentence="{:.0%} of it is stuck", settings=("agent.discount", "run.seed"))
FLAT = Symptom(metric="flat", below=0.1, sentence="it is flat, {:.2f}", settings=("agent.lambda",), patience=0.2)
VALUES = make_config().model_dump(mode="json", by_alias=True)
STUCK_WARNING = "98% of it is stuck (stuck is above 0.9): look at agent.discount (0.99), run.seed (1)"
FLAT_WARNING = "it is flat, 0.05 (flat is below 0.1): look at agent.lambda (1.0)"


def diagnosis(*symptoms: Symptom) -> Diagnosis:
    return Diagnosis(symptoms or (STUCK,), 10_000, VALUES)


def lines(
    diagnosis: Diagnosis, steps: Iterable[int], updates_per_step: float = 1.0, **metrics: float
) -> list[tuple[int, str]]:
    """The warnings, with the steps at which they are issued."""
    updates = [(step, diagnosis.update(step, round(step * updates_per_step), metrics)) for step in steps]
    return [(step, text) for step, text in updates if text]


def test_a_warning_is_issued_once_its_symptom_has_lasted_5_percent_of_the_run() -> None:
    look = diagnosis()
    assert not lines(look, range(0, 500, 100), stuck=0.98)
    assert look.warning == ""
    assert lines(look, range(500, 3000, 100), stuck=0.98) == [(500, STUCK_WARNING)]
    assert look.warning == STUCK_WARNING


def test_a_symptom_must_last_three_lines_and_200_updates() -> None:
    assert lines(diagnosis(), (0, 5000, 10_000), stuck=0.98) == [(10_000, STUCK_WARNING)]
    assert lines(diagnosis(), range(0, 10_000, 100), updates_per_step=0.05, stuck=0.98) == [(4000, STUCK_WARNING)]


@pytest.mark.parametrize("value", [0.9, 0.1, math.nan])
def test_one_line_without_the_symptom_resets_the_count(value: float) -> None:
    look = diagnosis()
    for start in range(0, 5000, 500):
        assert not lines(look, range(start, start + 400, 100), stuck=0.98)
        assert not lines(look, (start + 400,), stuck=value)
    assert lines(look, range(5000, 6000, 100), stuck=0.98) == [(5500, STUCK_WARNING)]


def test_lines_without_the_metric_are_ignored() -> None:
    look = diagnosis()
    lines(look, range(0, 500, 100), stuck=0.98)
    assert not lines(look, range(500, 1000, 100))
    assert lines(look, (1000,), stuck=0.98) == [(1000, STUCK_WARNING)]


def test_a_warning_ends_with_its_symptom_and_is_issued_again_when_it_returns() -> None:
    look = diagnosis()
    lines(look, range(0, 1000, 100), stuck=0.98)
    assert not lines(look, (1000, 1100), stuck=0.5)
    assert look.warning == STUCK_WARNING, "the warning keeps its last figure"
    assert not lines(look, range(1200, 1500, 100), stuck=0.98), "too short an interruption to end it"
    assert not lines(look, range(1500, 2100, 100), stuck=0.5)
    assert look.warning == ""
    assert lines(look, range(3000, 4000, 100), stuck=0.98) == [(3500, STUCK_WARNING)]


def test_patience_is_a_share_of_the_run() -> None:
    look = diagnosis(FLAT)
    assert lines(look, range(0, 10_000, 100), flat=0.05) == [(2500, FLAT_WARNING)]


def test_the_first_declared_of_several_warnings_is_shown() -> None:
    look = diagnosis(STUCK, FLAT)
    assert lines(look, range(0, 4000, 100), stuck=0.98, flat=0.05) == [(500, STUCK_WARNING)]
    # The hidden warning is issued when the first one ends.
    assert lines(look, range(4000, 6000, 100), stuck=0.5, flat=0.05) == [(4500, FLAT_WARNING)]
    # The first one returns; the other was issued before and has not ended.
    assert lines(look, range(6000, 7000, 100), stuck=0.98, flat=0.05) == [(6500, STUCK_WARNING)]
    assert not lines(look, range(7000, 8000, 100), stuck=0.5, flat=0.05)
    assert look.warning == FLAT_WARNING


def test_an_algorithm_without_symptoms_has_no_warnings() -> None:
    look = Diagnosis((), 10_000, VALUES)
    assert not lines(look, range(0, 10_000, 100), stuck=0.98)


def test_a_resumed_run_starts_without_history() -> None:
    assert lines(diagnosis(FLAT), range(6000, 10_000, 100), flat=0.05) == [(6500, FLAT_WARNING)]


@pytest.mark.parametrize("bounds", [{}, {"above": 1.0, "below": 0.0}])
def test_a_symptom_has_one_bound_and_a_setting(bounds: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must have one of above and below"):
        Symptom(metric="x", sentence="", settings=("run.seed",), **bounds)
    with pytest.raises(ValueError, match="must name a setting"):
        Symptom(metric="x", above=1.0, sentence="", settings=())


def test_a_warning_shows_settings_of_nested_tables() -> None:
    flat = Symptom(metric="flat", above=0.0, sentence="flat", settings=("agent.network.normalize_observations",))
    ((_, warning),) = lines(diagnosis(flat), range(0, 1000, 100), flat=1.0)
    assert warning == "flat (flat is above 0): look at agent.network.normalize_observations (false)"


@pytest.mark.parametrize("good", [False, True])
def test_symptoms_of_actor_critics_name_only_settings_that_can_be_improved(good: bool) -> None:
    config = agent_config(normalize_values=good, separate_value=good, normalize_observations=good)
    declared = symptoms(config)
    metrics = [symptom.metric for symptom in declared]
    assert metrics == ["saturated_units", "means_outside", "value_spread", "policy_spread"]
    named = {key for symptom in declared for key in symptom.settings}
    assert named <= all_keys()
    assert ("agent.normalize_values" in named) is not good
    for symptom in declared:
        assert "{" not in symptom.sentence.format(0.5)
