"""The policy on the device: states by slot, exact versions, padding that changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from seedcli.agents import create_agent
from seedcli.config import AgentConfig, TrainingConfig
from seedcli.inference.policy import AgentPolicy
from seedcli.specs import ArraySpec, EnvSpec

SPEC = EnvSpec("test/env", ArraySpec((4,), "float32"), 3)


def _policy(**kwargs) -> AgentPolicy:
    agent = create_agent(AgentConfig(hidden=(8,), lstm=5), TrainingConfig(), SPEC, 3)
    return AgentPolicy(agent, SPEC, max_slots=6, seed=9, **kwargs)


def _act(policy: AgentPolicy, slots: list[int], first: bool, value: float = 0.5):
    n = len(slots)
    observation = np.full((n, 4), value, np.float32) * np.arange(1, n + 1, dtype=np.float32)[:, None]
    return policy.act(observation, np.zeros(n, np.float32), np.full(n, first), np.array(slots, np.int32))


def test_states_are_kept_by_slot_and_reset_on_a_first_record():
    policy = _policy()
    fresh = _act(policy, [0, 1], True).recorded["logits"]
    later = _act(policy, [0, 1], False).recorded["logits"]
    assert not np.allclose(fresh, later), "the state after one record differs from the initial one"
    other = _act(policy, [4, 5], True).recorded["logits"]
    np.testing.assert_allclose(other, fresh, atol=1e-6)
    again = _act(policy, [0, 1], True).recorded["logits"]
    np.testing.assert_allclose(again, fresh, atol=1e-6)


def test_a_snapshot_is_the_state_before_the_record_after_any_reset():
    policy = _policy()
    slots = np.array([2, 3], np.int32)
    before = policy.snapshot(slots, np.array([True, True]))
    assert all((part == 0).all() for part in before.values())
    _act(policy, [2, 3], True)
    after = policy.snapshot(slots, np.array([False, True]))
    assert any(part[0].any() for part in after.values())
    assert not any(part[1].any() for part in after.values())


def test_padding_changes_no_answer():
    plain, padded = _policy(), _policy(pad_to=(4, 8))
    for first in (True, False, False):
        a, b = _act(plain, [1, 4, 5], first), _act(padded, [1, 4, 5], first)
        np.testing.assert_allclose(a.recorded["logits"], b.recorded["logits"], atol=1e-6)
        assert b.action.shape == (3,)


def test_weights_change_only_when_they_are_published_and_the_version_with_them():
    policy = _policy(greedy=True)
    agent = policy._agent
    before = _act(policy, [0], True)
    for variable in agent.network.trainable_variables:
        variable.assign(variable.numpy() + 1.0)
    same = _act(policy, [0], True)
    np.testing.assert_array_equal(same.recorded["logits"], before.recorded["logits"])
    assert same.version == 0
    policy.publish(17)
    changed = _act(policy, [0], True)
    assert changed.version == 17
    assert not np.allclose(changed.recorded["logits"], before.recorded["logits"])
    assert changed.action[0] == changed.recorded["logits"][0].argmax()


@pytest.mark.parametrize("batches", [50])
def test_actions_are_sampled_by_seed_and_batch(batches):
    one, two = _policy(), _policy()
    actions = [[_act(p, [0, 1, 2], True).action.tolist() for _ in range(batches)] for p in (one, two)]
    assert actions[0] == actions[1]
    assert len({tuple(a) for a in actions[0]}) > 3, "actions differ from batch to batch"
