"""What every family promises, for each of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from seedcli.config import EnvironmentConfig
from seedcli.envs import create_env
from seedcli.errors import EnvironmentFailed
from tests.envs.helpers import COUNTER, FIELDS, POSITIONS, RECALL, Played, atari_config, gymnasium_config, play


class Case(NamedTuple):
    config: EnvironmentConfig
    steps: int  # enough for several episodes to end


# Limits are short, so that every case sees episodes end.
CASES = {
    "CartPole": Case(gymnasium_config("CartPole-v1", max_episode_steps=12), 80),
    "FrozenLake": Case(gymnasium_config("FrozenLake-v1", max_episode_steps=12), 80),
    "Counter": Case(gymnasium_config(COUNTER), 120),
    "CartPolePositions": Case(gymnasium_config(POSITIONS, max_episode_steps=12), 80),
    "Recall": Case(gymnasium_config(RECALL), 40),
    "pong": Case(atari_config("pong", max_frames=60), 60),
    "breakout": Case(atari_config("breakout", max_frames=100, repeat_action_probability=0.25), 80),
}
PLAYED_SEPARATELY = {name: case for name, case in CASES.items() if name != "Counter"}
E = 3


@pytest.fixture(params=CASES.values(), ids=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture(params=PLAYED_SEPARATELY.values(), ids=PLAYED_SEPARATELY)
def repeatable(request: pytest.FixtureRequest) -> Case:
    """Counter's own number differs from instance to instance; its own test covers its seeding."""
    return request.param


def test_spec_describes_the_records(case: Case) -> None:
    with Played(case.config, E) as played:
        spec = played.env.spec
        assert played.env.num_envs == E
        assert spec.name == f"{case.config.family}/{case.config.id}"
        first = played.reset(1)
        assert first.observation.shape == (E, *spec.observation.shape)
        assert first.observation.dtype == spec.observation.dtype
        if spec.observation.categories:
            assert (first.observation < spec.observation.categories).all()
        for actions in (0, spec.num_actions - 1):
            played.step(actions)


def test_next_step_autoreset(case: Case) -> None:
    """A final record, then a first one with reward 0 and no flags, then the episode goes on."""
    run = play(case.config, E, seed=7, steps=case.steps)
    final = (run.terminated | run.truncated) != 0
    assert set(np.unique(run.terminated)) <= {0, 1} and set(np.unique(run.truncated)) <= {0, 1}
    assert not final[0].any() and not run.reward[0].any()
    assert final[:-1].sum(axis=0).min() >= 2, "every environment must have ended twice for this test to mean anything"
    first = np.roll(final, 1, axis=0)
    first[0] = True
    assert not run.reward[first].any()
    assert not final[first].any()


def test_action_on_a_final_record_is_ignored(repeatable: Case) -> None:
    with Played(repeatable.config, 1) as one, Played(repeatable.config, 1) as other:
        one.reset(3), other.reset(3)
        for _ in range(repeatable.steps):
            record = one.step(0)
            other.step(0)
            if record.terminated[0] or record.truncated[0]:
                break
        else:
            pytest.fail("no episode ended")
        after = one.step(0), other.step(one.env.spec.num_actions - 1)
        then = one.step(0), other.step(0)
        for mine, theirs in (after, then):
            np.testing.assert_array_equal(mine.observation, theirs.observation)
            np.testing.assert_array_equal(mine.reward, theirs.reward)


def test_the_same_seed_gives_the_same_records(repeatable: Case) -> None:
    with Played(repeatable.config, E) as played:
        one = played.run(5, repeatable.steps)
        again = played.run(5, repeatable.steps)  # the same object, seeded anew
    other = play(repeatable.config, E, seed=5, steps=repeatable.steps)
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(one, name), getattr(again, name))
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_seeds_are_consecutive(repeatable: Case) -> None:
    """Environment i of seed s is environment 0 of seed s + i; its neighbours do not touch it."""
    with Played(repeatable.config, E) as many, Played(repeatable.config, 1) as one:
        expected, alone = many.reset(40), one.reset(42)
        for step in range(30):
            np.testing.assert_array_equal(alone.observation[0], expected.observation[2])
            action = step % many.env.spec.num_actions
            expected, alone = many.step([0, 0, action]), one.step(action)


@pytest.mark.parametrize("seed", [0, 2**31 - 2, 2**31 + 5, 2**40])
def test_any_seed_is_taken(repeatable: Case, seed: int) -> None:
    with Played(repeatable.config, E) as played:
        one = played.run(seed, 5)
        again = played.run(seed, 5)
    np.testing.assert_array_equal(one.observation, again.observation)


def test_records_stay_what_they_were(case: Case) -> None:
    """Rows written earlier never change: nothing aliases a simulator's buffer."""
    with Played(case.config, E) as played:
        rows = np.zeros((6, played.layout.nbytes), np.uint8)
        played.env.reset(1, played.layout.views(rows[0]))
        copies = [rows[0].copy()]
        for t in range(1, 6):
            played.env.step(np.zeros(E, np.int32), played.layout.views(rows[t]))
            copies.append(rows[t].copy())
        np.testing.assert_array_equal(rows, np.stack(copies))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("offset", [-1, 0, 81])
def test_an_action_out_of_range_is_named_and_harms_nothing(case: Case, offset: int) -> None:
    """ale-py would wait for ever."""
    with Played(case.config, E) as played:
        played.reset(1)
        bad = -1 if offset < 0 else played.env.spec.num_actions + offset
        with pytest.raises(EnvironmentFailed, match=rf"^action {bad} for environment 1 of .* is not one of 0 to \d+$"):
            played.step([0, bad, 0])
        played.step(0)


def test_actions_of_the_wrong_shape_or_type_are_refused(case: Case) -> None:
    with Played(case.config, E) as played:
        played.reset(1)
        for actions in (np.zeros(E + 1, np.int32), np.zeros((E, 1), np.int32), np.zeros(E, np.float32)):
            with pytest.raises(EnvironmentFailed, match=r"must be \[3\] signed integers"):
                played.env.step(actions, played.out)


def test_close_twice(case: Case) -> None:
    env = create_env(case.config, 1)
    env.close()
    env.close()


@pytest.mark.parametrize("name", ["CartPole", "pong"])
def test_rendering_shows_the_first_environment_and_changes_nothing(name: str) -> None:
    config, steps = CASES[name]
    plain = play(config, 2, seed=11, steps=steps)
    with Played(config, 2, render=True) as played:
        rendered = played.run(11, steps)
        before = played.env.render().copy()
        played.step(1)
        after = played.env.render()
    for field in FIELDS:
        np.testing.assert_array_equal(getattr(plain, field), getattr(rendered, field))
    assert before.dtype == np.uint8 and before.ndim == 3 and before.shape[2] == 3
    assert before.std() > 0 and (before != after).any()
    with Played(config, 1) as blind:
        blind.reset(1)
        with pytest.raises(EnvironmentFailed, match="render=True"):
            blind.env.render()
