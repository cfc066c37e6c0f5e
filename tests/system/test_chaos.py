"""Short versions of `python -m tests.reliability chaos` and `restart`, and tests of the ledger that they use."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from seedcli.envs.testing import Counter
from tests.reliability.chaos import run_chaos
from tests.reliability.ledger import Ledger
from tests.reliability.plan import Plan
from tests.reliability.restart import run_restart
from tests.system.harness import Fleet
from tests.system.records import Column, marks

RECORDS = 9  # per unroll


@pytest.mark.slow
def test_chaos_loses_no_record(fleet: Fleet) -> None:
    plan = Plan(
        seconds=13, every=1.0, learner_every=9, timeout=3, checkpoint_seconds=1, records=True, finish_steps=5_000
    )
    result = run_chaos(plan, fleet)
    assert not result["failures"]
    assert result["events"].keys() >= {"actor kill", "actor stop", "actor stall", "actor reset", "learner kill"}
    assert result["checkpoints_resumed_from"] and result["learner_statuses"] == {"-9": 1, "0": 1, "143": 1}
    assert result["actor_statuses"]["0"] == plan.actors
    assert result["records"]["sessions"] > plan.actors * plan.envs


@pytest.mark.slow
def test_fifty_actors_reconnect_after_learner_restart(fleet: Fleet) -> None:
    result = run_restart(50, fleet)
    assert not result["failures"]
    assert result["seconds_from_serving_until_all_step_again"] < 10


class _Play:
    """An environment and its unrolls as a learner makes them: consecutive ones share a record."""

    def __init__(self) -> None:
        self._env = Counter()
        self._records: list[tuple[np.ndarray, float, bool, bool, int]] = []
        self._before = np.zeros(4, np.float32)
        self._random = np.random.default_rng(1)
        self._over = True

    def restart(self) -> None:
        """Begin a new session: discard the partial unroll and reset the environment."""
        self._records, self._over = [], True

    def unroll(self) -> Column:
        """Return the next unroll."""
        first = self._records[-1:]
        before = self._before if first else np.zeros(4, np.float32)
        led_by = self._led_by if first else 0
        self._records = first
        while len(self._records) < RECORDS:
            action = int(self._random.integers(4))
            if self._over:
                observation, reward, ended, cut = self._env.reset(seed=None)[0], 0.0, False, False
            else:
                self._before = self._records[-1][0] if self._records else self._before
                observation, reward, ended, cut, _ = self._env.step(np.int64(self._action))
            if self._over:
                self._before = np.zeros(4, np.float32)
            self._led_by = 0 if self._over else self._action + 1
            self._over, self._action = ended or cut, action
            self._records.append((observation, reward, ended, cut, action))
        observation, reward, ended, cut, action = (np.array(part) for part in zip(*self._records, strict=True))
        return Column(
            observation=observation,
            reward=reward.astype(np.float32),
            terminated=ended,
            truncated=cut,
            action=action.astype(np.int32),
            logits=marks(observation),
            frames=before[None],
            previous_action=led_by,
            version=np.zeros(RECORDS, np.int64),
        )


def test_the_ledger_follows_sessions_over_learner_restarts(tmp_path: Path) -> None:
    ledger, play, other = Ledger(tmp_path), _Play(), _Play()
    columns = [play.unroll() for _ in range(20)]
    ledger.add(columns)
    ledger.add([other.unroll()])
    ledger.take(columns[:7])
    play.restart()
    ledger.add([play.unroll(), play.unroll()])
    assert ledger.verdict.records == 20 * (RECORDS - 1) + 1 + RECORDS + 2 * RECORDS - 1
    assert (ledger.verdict.sessions, ledger.verdict.environments, ledger.verdict.trained) == (3, 2, 7)
    after = Ledger(tmp_path)
    play.restart()
    after.add([play.unroll()])
    with pytest.raises(AssertionError, match="came again"):
        Ledger(tmp_path).add(columns[:1])
    with pytest.raises(AssertionError, match="inside episode"):
        after.add([next(column for column in columns if column.observation[0, 2] > 0)])


def _skip_one(columns: list[Column]) -> None:
    inside = next(i for i, column in enumerate(columns) if i and columns[i + 1].observation[0, 2] > 0)
    del columns[inside]


def _repeat_one(columns: list[Column]) -> None:
    columns.insert(4, copy.deepcopy(columns[3]))


def _begin_again(columns: list[Column]) -> None:
    columns.append(copy.deepcopy(columns[0]))


def _reward_of_another(columns: list[Column]) -> None:
    columns[2].reward = np.roll(columns[2].reward, 1)


def _action_of_another(columns: list[Column]) -> None:
    columns[2].action = columns[2].action[::-1].copy()


def _state_of_another(columns: list[Column]) -> None:
    columns[2].frames = columns[2].frames + 1


@pytest.mark.parametrize(
    "fault",
    [_skip_one, _repeat_one, _begin_again, _reward_of_another, _action_of_another, _state_of_another],
)
def test_the_ledger_detects_every_kind_of_wrong_record(tmp_path: Path, fault: Callable[[list[Column]], None]) -> None:
    play = _Play()
    columns = [play.unroll() for _ in range(12)]
    Ledger(tmp_path / "right").add(copy.deepcopy(columns))
    fault(columns)
    with pytest.raises(AssertionError):
        Ledger(tmp_path / "wrong").add(columns)


def test_the_ledger_detects_columns_that_are_trained_on_twice_or_changed(tmp_path: Path) -> None:
    play, ledger = _Play(), Ledger(tmp_path)
    columns = [play.unroll() for _ in range(3)]
    ledger.add(columns)
    ledger.take(columns[:1])
    with pytest.raises(AssertionError, match="twice"):
        ledger.take(columns[:1])
    changed = copy.deepcopy(columns[1])
    changed.logits = changed.logits.copy()
    changed.action = changed.action.copy()
    changed.action[-1] = (changed.action[-1] + 1) % 4
    with pytest.raises(AssertionError, match="differs from the finished one"):
        ledger.take([changed])
