"""The policy on the device: states by slot, exact versions, padding without effect."""

from __future__ import annotations

import numpy as np
import pytest

from seedcli.agents.registry import create_agent
from seedcli.config.sections import TrainingConfig
from seedcli.inference.policy import AgentPolicy, spread
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec
from tests.configs import agent_config

SPEC = EnvSpec("test/env", ArraySpec((4,), "float32"), ActionSpec((3,)))


def _policy(**kwargs) -> AgentPolicy:
    agent = create_agent(agent_config(hidden=(8,), lstm=5), TrainingConfig(), SPEC, 3)
    return AgentPolicy(agent, SPEC, max_slots=6, seed=9, **kwargs)


def _act(policy: AgentPolicy, slots: list[int], first: bool, value: float = 0.5):
    n = len(slots)
    observation = np.full((n, 4), value, np.float32) * np.arange(1, n + 1, dtype=np.float32)[:, None]
    return policy.devices[0].act(observation, np.zeros(n, np.float32), np.full(n, first), np.array(slots, np.int32))


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
    before = policy.devices[0].snapshot(slots, np.array([True, True]))
    assert all((part == 0).all() for part in before.values())
    _act(policy, [2, 3], True)
    after = policy.devices[0].snapshot(slots, np.array([False, True]))
    assert any(part[0].any() for part in after.values())
    assert not any(part[1].any() for part in after.values())


def test_padding_does_not_change_answers():
    plain, padded = _policy(), _policy(pad_to=(4, 8))
    for first in (True, False, False):
        a, b = _act(plain, [1, 4, 5], first), _act(padded, [1, 4, 5], first)
        np.testing.assert_allclose(a.recorded["logits"], b.recorded["logits"], atol=1e-6)
        assert b.action.shape == (3,)


def test_publish_changes_weights_and_version_together():
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


def test_a_detailed_policy_also_says_what_else_is_known():
    plain, detailed = _policy(greedy=True, pad_to=(4,)), _policy(greedy=True, pad_to=(4,), detailed=True)
    before, found = _act(plain, [0, 3], True), _act(detailed, [0, 3], True)
    assert before.details == {}
    assert sorted(found.details) == ["greedy_action", "logits", "probabilities", "value"]
    np.testing.assert_array_equal(found.action, before.action)
    np.testing.assert_array_equal(found.details["greedy_action"], found.action)
    np.testing.assert_array_equal(found.details["logits"], found.recorded["logits"])
    assert found.details["value"].shape == (2,) and found.details["value"].any()


@pytest.mark.parametrize("batches", [50])
def test_actions_are_sampled_by_seed_and_batch(batches):
    one, two = _policy(), _policy()
    actions = [[_act(p, [0, 1, 2], True).action.tolist() for _ in range(batches)] for p in (one, two)]
    assert actions[0] == actions[1]
    assert len({tuple(a) for a in actions[0]}) > 3, "actions differ from batch to batch"


def _q_policy(training_envs: int) -> AgentPolicy:
    config = agent_config(algorithm="r2d2", hidden=(8,), lstm=5, evaluation_epsilon=0.125)
    agent = create_agent(config, TrainingConfig(), SPEC, 3)
    return AgentPolicy(agent, SPEC, max_slots=12, seed=9, training_envs=training_envs)


def test_epsilon_is_spread_over_training_environments_by_slot():
    """ε_i = 0.4^(1 + 7i/(N-1)) with N training environments, in any slots (Horgan et al., 2018).

    The first environments are spread over the whole range.
    """
    policy = _q_policy(training_envs=5)
    assert not policy.exploration.any()
    policy.devices[0].assign(np.array([7, 2, 4], np.int32), "training", np.array([0, 1, 2]))
    policy.devices[0].assign(np.array([0, 1], np.int32), "evaluation", np.array([0, 1]))
    policy.devices[0].assign(np.array([9, 3], np.int32), "training", np.array([3, 4]))
    expected = np.zeros(13)
    for rank, slot in zip((0, 4, 2, 1, 3), (7, 2, 4, 9, 3), strict=True):
        expected[slot] = 0.4 ** (1 + 7 * rank / 4)
    expected[:2] = 0.125
    np.testing.assert_allclose(policy.exploration, expected, rtol=1e-6)
    policy.devices[0].assign(np.array([7], np.int32), "evaluation", np.array([0]))
    assert policy.exploration[7] == 0.125, "a new role sets a new ε"


@pytest.mark.parametrize("count", [1, 2, 3, 16, 610])
def test_spread_is_a_permutation_with_evenly_spread_prefixes(count):
    ranks = spread(count)
    assert sorted(ranks) == list(range(count))
    for n in range(2, count + 1):
        gaps = np.diff(np.sort(ranks[:n]))
        assert gaps.max() <= 4 * count / n, f"the first {n} leave a gap"


def test_actions_explore_with_the_epsilon_of_their_slot():
    policy = _q_policy(training_envs=2)
    policy.devices[0].assign(np.array([3, 5], np.int32), "training", np.array([0, 1]))  # ε 0.4 and 0.00066
    observation = np.ones((2, 4), np.float32)
    explored = np.zeros(2)
    for _ in range(600):
        decision = policy.devices[0].act(
            observation, np.zeros(2, np.float32), np.ones(2, np.bool_), np.array([3, 5], np.int32)
        )
        explored += decision.recorded["q_taken"] != decision.recorded["q_max"]
    # One third of the explored actions is the greedy one: 160 of 600 expected, standard deviation 11.
    assert 110 < explored[0] < 210 and explored[1] <= 5


def test_hosts_split_ranks_and_use_different_seeds():
    """Environment i of host h of H has rank i·H + h; a single host is unaffected."""
    config = agent_config(algorithm="r2d2", hidden=(8,), lstm=5)
    agent = create_agent(config, TrainingConfig(), SPEC, 3)
    hosts = [AgentPolicy(agent, SPEC, max_slots=4, seed=9, training_envs=8, host=(h, 2)) for h in range(2)]
    alone = AgentPolicy(agent, SPEC, max_slots=8, seed=9, training_envs=8)
    for policy in hosts:
        policy.devices[0].assign(np.arange(4, dtype=np.int32), "training", np.arange(4))
    alone.devices[0].assign(np.arange(8, dtype=np.int32), "training", np.arange(8))
    np.testing.assert_array_equal(
        np.stack([policy.exploration[:4] for policy in hosts], axis=1).ravel(), alone.exploration[:8]
    )
    plain = create_agent(agent_config(hidden=(8,)), TrainingConfig(), SPEC, 3)
    policies = [AgentPolicy(plain, SPEC, max_slots=6, seed=9, host=host) for host in ((0, 1), (0, 2), (1, 2))]
    actions = [[_act(policy, [0, 1, 2], True).action.tolist() for _ in range(20)] for policy in policies]
    assert actions[0] == actions[1] != actions[2]


def test_xla_compiles_four_batch_sizes_with_the_same_answers():
    plain, compiled = _policy(), _policy(xla="all")
    assert compiled.devices[0]._pad_to == [1, 3, 6], "of 6 environments: all, half, a quarter, a sixteenth"
    for first in (True, False):
        a, b = _act(plain, [1, 4], first), _act(compiled, [1, 4], first)
        np.testing.assert_allclose(a.recorded["logits"], b.recorded["logits"], atol=1e-5)
        assert b.action.shape == (2,)


def test_a_meter_counts_batches_and_rows():
    policy = _policy(pad_to=(4, 8))
    for n in (1, 3):
        _act(policy, list(range(n)), True)
    meter = policy.devices[0].meter
    assert (meter.device, meter.role, meter.batches, meter.rows) == ("CPU:0", "inference", 2, 4)
    assert meter.busy > 0 and meter.transfer_bytes == 0, "a CPU needs no transfer"


@pytest.mark.parametrize(
    ("every", "offered", "taken"),
    [
        (1, [0, 4, 8], [0, 4, 8]),
        (3, [0, 4, 8, 12, 13], [0, 4, 8, 12, 12]),
        # After a dropped update no version may be a multiple of `publish_every`.
        (2, [0, 3, 7, 11], [0, 3, 7, 11]),
        (8, [1, 5, 9, 13, 17], [1, 1, 9, 9, 17]),
    ],
)
def test_the_first_version_after_a_skipped_multiple_is_taken(every: int, offered: list[int], taken: list[int]):
    policy = _policy(publish_every=every)
    versions = []
    for version in offered:
        policy.publish(version)
        versions.append(policy.version)
    assert versions == taken
