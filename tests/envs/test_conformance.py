"""The rules of vector environments, for every family."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import pytest

from seedcli.config.sections import EnvironmentConfig
from seedcli.envs.conformance import check_environment
from seedcli.envs.playing import driving
from seedcli.envs.registry import create_env
from seedcli.errors import EnvironmentFailed
from tests.envs.dmlab.lab_double import lab_config
from tests.envs.football.test_double import football_config
from tests.envs.helpers import (
    COUNTER,
    MIXED,
    POSITIONS,
    PUSHED,
    RECALL,
    Played,
    assert_same,
    atari_config,
    gymnasium_config,
    play,
)

pytestmark = pytest.mark.usefixtures("lab")  # DeepMind Lab's module, or a double if it is not installed


class Case(NamedTuple):
    config: EnvironmentConfig
    steps: int  # enough for several episodes to end


# Limits are short, so that episodes end in every case.
CASES = {
    "CartPole": Case(gymnasium_config("CartPole-v1", max_episode_steps=12), 80),
    "FrozenLake": Case(gymnasium_config("FrozenLake-v1", max_episode_steps=12), 80),
    "Counter": Case(gymnasium_config(COUNTER), 120),
    "CartPolePositions": Case(gymnasium_config(POSITIONS, max_episode_steps=12), 80),
    "Recall": Case(gymnasium_config(RECALL), 40),
    "HalfCheetah": Case(gymnasium_config("HalfCheetah-v5", max_episode_steps=12), 80),
    "Mixed": Case(gymnasium_config(MIXED), 80),
    "Pushed": Case(gymnasium_config(PUSHED), 80),
    "pong": Case(atari_config("pong", max_frames=60), 60),
    "breakout": Case(atari_config("breakout", max_frames=100, repeat_action_probability=0.25), 80),
    "DMLab": Case(lab_config(), 80),
    "football": Case(football_config(rewards="scoring,checkpoints"), 40),
}
PLAYED_SEPARATELY = {name: case for name, case in CASES.items() if name != "Counter"}
E = 3


@pytest.fixture(params=CASES.values(), ids=CASES)
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Case:
    return _prepared(request.param, monkeypatch)


@pytest.fixture(params=PLAYED_SEPARATELY.values(), ids=PLAYED_SEPARATELY)
def repeatable(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Case:
    """All cases but Counter: it draws a number that does not depend on the seed, and has its own test."""
    return _prepared(request.param, monkeypatch)


def _prepared(case: Case, monkeypatch: pytest.MonkeyPatch) -> Case:
    if case.config.family == "football":
        envpool = pytest.importorskip("envpool", reason="envpool, which carries the football engine, is not installed")
        monkeypatch.setattr(envpool, "make", partial(envpool.make, max_episode_steps=12))
    return case


def test_the_conformance_suite(case: Case) -> None:
    with driving(lambda envs: create_env(case.config, envs), 1) as driver:
        assert driver.env.num_envs == 1
        assert driver.env.spec.name == f"{case.config.family}/{case.config.id}"
    found = check_environment(lambda envs: create_env(case.config, envs), seconds=0.3, least=min(case.steps, 100))
    findings = {f.name: f for f in found}
    failed = {name: f.detail for name, f in findings.items() if f.status == "failure"}
    skipped = {name for name, f in findings.items() if f.status == "skipped"}
    if case.config.id == COUNTER:
        # Its observation holds a number that does not depend on the seed.
        assert "after two resets" in failed.pop("seeding")
        skipped -= {"isolation"}
    assert not failed
    assert not skipped, "episodes must end"


def test_the_same_seed_gives_the_same_records(repeatable: Case) -> None:
    """For a whole vector over several episodes; the conformance suite repeats a single environment."""
    with Played(repeatable.config, E) as played:
        one = played.run(5, repeatable.steps)
        again = played.run(5, repeatable.steps)
    final = (one.terminated | one.truncated) != 0
    assert final[:-1].sum(axis=0).min() >= 2, "every environment must end twice"
    assert_same(one, again)
    assert_same(one, play(repeatable.config, E, seed=5, steps=repeatable.steps))


@pytest.mark.parametrize("seed", [0, 2**31 - 2, 2**31 + 5, 2**40])
def test_any_seed_is_accepted(repeatable: Case, seed: int) -> None:
    with Played(repeatable.config, E) as played:
        one = played.run(seed, 5)
        again = played.run(seed, 5)
    assert_same(one, again)


def test_written_rows_never_change(case: Case) -> None:
    """No row aliases a simulator's buffer."""
    with Played(case.config, E) as played:
        rows = np.zeros((6, played.layout.nbytes), np.uint8)
        played.env.reset(1, played.layout.views(rows[0]))
        copies = [rows[0].copy()]
        array = played.env.spec.action.array
        for t in range(1, 6):
            played.env.step(np.zeros((E, *array.shape), array.dtype), played.layout.views(rows[t]))
            copies.append(rows[t].copy())
        np.testing.assert_array_equal(rows, np.stack(copies))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("offset", [-1, 0, 81])
def test_an_action_out_of_range_is_refused_and_the_environment_continues(case: Case, offset: int) -> None:
    """ale-py itself would hang."""
    with Played(case.config, E) as played:
        played.reset(1)
        action = played.env.spec.action
        actions = np.zeros((E, *action.array.shape), action.array.dtype)
        if action.size:
            bad: float = np.nan
            message = "^action nan for environment 1 of .* is not finite$"
        else:
            bad = -1 if offset < 0 else action.categories[-1] + offset
            message = rf"action {bad} for environment 1 of .* is not one of 0 to \d+$"
        actions.reshape(E, -1)[1, -1] = bad
        with pytest.raises(EnvironmentFailed, match=message):
            played.step(actions)
        played.step(0)


def test_actions_of_the_wrong_shape_or_type_are_refused(case: Case) -> None:
    with Played(case.config, E) as played:
        played.reset(1)
        array = played.env.spec.action.array
        wrong = np.float32 if array.dtype == "int32" else np.int32
        for shape, dtype in (
            ((E + 1, *array.shape), array.dtype),
            ((E, *array.shape, 1), array.dtype),
            ((E, *array.shape), wrong),
        ):
            with pytest.raises(
                EnvironmentFailed, match=r"must be \[3.*\] (signed integers|floating-point numbers), not"
            ):
                played.env.step(np.zeros(shape, dtype), played.out)


def test_closing_twice_is_safe(case: Case) -> None:
    env = create_env(case.config, 1)
    env.close()
    env.close()


# Several CartPoles without rendering use Gymnasium's vector environment, which has one random generator for all.
@pytest.mark.parametrize(("name", "envs"), [("CartPole", 1), ("pong", 2), ("DMLab", 2), ("football", 2)])
def test_rendering_shows_the_first_environment_and_changes_nothing(
    name: str, envs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, steps = _prepared(CASES[name], monkeypatch)
    plain = play(config, envs, seed=11, steps=steps)
    with Played(config, envs, render=True) as played:
        rendered = played.run(11, steps)
        before = played.env.render().copy()
        played.step(1)
        after = played.env.render()
    assert_same(plain, rendered)
    assert before.dtype == np.uint8 and before.ndim == 3 and before.shape[2] == 3
    assert before.std() > 0 and (before != after).any()
    with Played(config, 1) as blind:
        blind.reset(1)
        with pytest.raises(EnvironmentFailed, match="render=True"):
            blind.env.render()
