"""V-trace and GAE against hand-computed numbers, independent sums in float64, and n-step returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from seedcli.agents import targets
from tests.agents.helpers import VECTOR, random_records

Array = npt.NDArray[Any]


def run(records: dict[str, Array], values: Array, log_rho: Array, discount: float, **clips: float) -> list[Array]:
    r_t, discount_t, mask_tm1 = targets.transitions(
        tf.constant(records["reward"], tf.float32),
        tf.constant(records["terminated"]),
        tf.constant(records["truncated"]),
        discount,
    )
    result = targets.vtrace(
        log_rho_tm1=tf.constant(log_rho, tf.float32),
        r_t=r_t,
        discount_t=discount_t,
        mask_tm1=mask_tm1,
        values=tf.constant(values, tf.float32),
        **clips,
    )
    return [x.numpy() for x in result]


def test_three_episodes_in_one_trace_by_hand() -> None:
    # One trace in two columns; the second one's policy has moved. Record 1 is terminated, record 3 truncated.
    column = np.ones((7, 2))
    records: dict[str, Array] = {
        "reward": column * np.array([[9], [3], [0], [3], [0], [2], [10]]),
        "terminated": np.zeros((7, 2), bool),
        "truncated": np.zeros((7, 2), bool),
    }
    records["terminated"][1] = True
    records["truncated"][3] = True
    values = column * np.array([[1], [2], [4], [8], [16], [32], [64]])
    log_rho = np.log(np.array([[1, 1], [5, 5], [1, 1], [5, 5], [1, 0.5], [1, 2]]))
    vs, advantages, rho = run(records, values, log_rho, discount=0.5)
    # 0→1 ends: 3. 2→3 is cut off: 3 + 0.5·8. 5→6: 10 + 0.5·64. 4→5: 2 + 0.5·42, with ρ = ½: 16 + ½·2 + ½·½·10.
    np.testing.assert_array_equal(vs, [[3, 3], [2, 2], [7, 7], [8, 8], [23, 19.5], [42, 42]])
    np.testing.assert_array_equal(advantages, [[2, 2], [0, 0], [3, 3], [0, 0], [7, 3.5], [10, 10]])
    np.testing.assert_allclose(rho, np.array([[1, 1], [0, 0], [1, 1], [0, 0], [1, 0.5], [1, 1]]), rtol=1e-6)


def reference_gae(records: dict[str, Array], values: Array, discount: float, lam: float) -> tuple[Array, Array]:
    """Equation 16 as printed, a sum of discounted TD errors in float64, separately for each episode."""
    length, columns = values.shape[0] - 1, values.shape[1]
    advantages = np.zeros((length, columns))
    final = records["terminated"] | records["truncated"]
    for b in range(columns):
        for s in range(length):
            t = s
            while t < length and not final[t, b]:
                bootstrap = 0.0 if records["terminated"][t + 1, b] else float(values[t + 1, b])
                delta = float(records["reward"][t + 1, b]) + discount * bootstrap - float(values[t, b])
                advantages[s, b] += (discount * lam) ** (t - s) * delta
                t += 1
    return advantages, advantages + values[:-1]


def run_gae(records: dict[str, Array], values: Array, discount: float, lam: float) -> list[Array]:
    transitions = targets.transitions(
        tf.constant(records["reward"], tf.float32),
        tf.constant(records["terminated"]),
        tf.constant(records["truncated"]),
        discount,
    )
    found = targets.gae(**transitions._asdict(), values=tf.constant(values, tf.float32), lambda_=lam)
    return [x.numpy() for x in found]


@pytest.mark.parametrize("length", [1, 2, 7, 33])
@pytest.mark.parametrize("lam", [0.0, 0.9, 1.0])
def test_gae_agrees_with_the_printed_sum(length: int, lam: float) -> None:
    records = random_records(VECTOR, length + 1, 16, seed=length, ends=0.15)
    values = np.random.default_rng(length).normal(size=(length + 1, 16))
    found = run_gae(records, values, 0.97, lam)
    for mine, expected in zip(found, reference_gae(records, values, 0.97, lam), strict=True):
        np.testing.assert_allclose(mine, expected, atol=2e-5)


def test_gae_by_hand_bootstraps_from_the_last_observation_of_truncated_episodes_alone() -> None:
    records: dict[str, Array] = {
        "reward": np.array([[9.0], [3.0], [0.0], [3.0], [0.0], [2.0], [10.0]]),
        "terminated": np.zeros((7, 1), bool),
        "truncated": np.zeros((7, 1), bool),
    }
    records["terminated"][1] = records["truncated"][3] = True
    values = np.array([[1.0], [2.0], [4.0], [8.0], [16.0], [32.0], [64.0]])
    advantages, returns = run_gae(records, values, discount=0.5, lam=0.5)
    # 0→1 ends: 3 − 1. 2→3 is cut off: 3 + ½·8 − 4. 5→6: 10 + ½·64 − 32. 4→5: 2 + ½·32 − 16, and ½·½ of the next.
    np.testing.assert_array_equal(advantages[:, 0], [2, 0, 3, 0, 4.5, 10])
    np.testing.assert_array_equal(returns[:, 0], [3, 2, 7, 8, 20.5, 42])


def test_no_gradient_flows_through_gae() -> None:
    values, ones = tf.Variable(tf.ones([4, 2])), tf.ones([3, 2])
    with tf.GradientTape() as tape:
        found = targets.gae(r_t=ones, discount_t=ones, mask_tm1=ones, values=values, lambda_=0.9)
        total = sum(tf.reduce_sum(x) for x in found)
    assert tape.gradient(total, values) is None


def test_transitions_keep_termination_and_truncation_apart() -> None:
    terminated = tf.constant([[False, True], [True, False], [False, False], [False, False]])
    truncated = tf.constant([[False, False], [False, False], [False, True], [False, False]])
    reward = tf.constant([[1.0, 2.0], [3.0, 0.0], [0.0, 4.0], [5.0, 0.0]])
    r_t, discount_t, mask_tm1 = targets.transitions(reward, terminated, truncated, 0.5)
    np.testing.assert_array_equal(r_t, [[3, 0], [0, 4], [5, 0]])
    np.testing.assert_array_equal(discount_t, [[0, 0], [0, 0.5], [0.5, 0]])
    np.testing.assert_array_equal(mask_tm1, [[1, 0], [0, 1], [1, 0]])


def reference_vtrace(
    records: dict[str, Array],
    values: Array,
    log_rho: Array,
    discount: float,
    rho_clip: float,
    c_clip: float,
    lam: float,
) -> tuple[Array, Array]:
    """Equation 1 as printed, a double sum in float64, separately for each episode's part of the trace."""
    length, columns = log_rho.shape
    vs = values[:-1].astype(np.float64)
    advantages = np.zeros((length, columns))
    final = records["terminated"] | records["truncated"]
    for b in range(columns):
        start = 0
        while start < length:
            end = next((t for t in range(start, length) if final[t, b]), length)  # last record of the part
            rho = np.exp(log_rho[start:end, b].astype(np.float64))
            gamma = np.full(end - start, discount)
            if end > start and records["terminated"][end, b]:
                gamma[-1] = 0.0
            reward = records["reward"][start + 1 : end + 1, b].astype(np.float64)
            value = values[start : end + 1, b].astype(np.float64)
            delta = np.minimum(rho_clip, rho) * (reward + gamma * value[1:] - value[:-1])
            c = lam * np.minimum(c_clip, rho)
            piece = value.copy()
            for s in range(end - start):
                for t in range(s, end - start):
                    piece[s] += np.prod(gamma[s:t]) * np.prod(c[s:t]) * delta[t]
            vs[start:end, b] = piece[:-1]
            bootstrap = lam * piece[1:] + (1 - lam) * value[1:]
            advantages[start:end, b] = np.minimum(rho_clip, rho) * (reward + gamma * bootstrap - value[:-1])
            start = end + 1
    return vs, advantages


@pytest.mark.parametrize("length", [1, 2, 7, 20, 33])
@pytest.mark.parametrize(("rho_clip", "c_clip", "lam"), [(1.0, 1.0, 1.0), (2.0, 1.3, 0.9), (1.0, 0.7, 0.0)])
def test_agrees_with_the_printed_sum(length: int, rho_clip: float, c_clip: float, lam: float) -> None:
    rng = np.random.default_rng(length)
    records = random_records(VECTOR, length + 1, 16, seed=length, ends=0.15)
    values = rng.normal(size=(length + 1, 16))
    log_rho = rng.normal(size=(length, 16))
    vs, advantages, _ = run(records, values, log_rho, 0.97, rho_clip=rho_clip, c_clip=c_clip, lambda_=lam)
    expected = reference_vtrace(records, values, log_rho, 0.97, rho_clip, c_clip, lam)
    np.testing.assert_allclose(vs, expected[0], atol=2e-5)
    np.testing.assert_allclose(advantages, expected[1], atol=2e-5)


def test_on_policy_advantages_are_generalized_advantage_estimates() -> None:
    length, columns, discount, lam = 25, 8, 0.9, 0.8
    records = random_records(VECTOR, length + 1, columns, seed=5, ends=0.1)
    values = np.random.default_rng(6).normal(size=(length + 1, columns))
    _, advantages, _ = run(records, values, np.zeros((length, columns)), discount, lambda_=lam)
    final = records["terminated"] | records["truncated"]
    following = np.zeros(columns)
    for t in reversed(range(length)):
        bootstrap = np.where(records["terminated"][t + 1], 0.0, values[t + 1])
        error = records["reward"][t + 1] + discount * bootstrap - values[t]
        following = np.where(final[t], 0.0, error + discount * lam * np.where(final[t + 1], 0.0, following))
        np.testing.assert_allclose(advantages[t], following, atol=2e-5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [(1.3, 1.0, False), (1.3, -1.0, True), (0.7, 1.0, True), (0.7, -1.0, False), (1.1, 1.0, True), (0.9, -1.0, True)],
)
def test_the_policy_stops_at_the_edge_of_its_trust_region(ratio: float, advantage: float, moves: bool) -> None:
    inside = targets.inside_trust_region(tf.constant([[np.log(ratio)]], tf.float32), tf.constant([[advantage]]), 0.2)
    assert inside.numpy().tolist() == [[float(moves)]]


def test_on_policy_targets_are_n_step_returns() -> None:
    length, columns, discount = 25, 8, 0.9
    records = random_records(VECTOR, length + 1, columns, seed=5, ends=0.1)
    values = np.random.default_rng(6).normal(size=(length + 1, columns))
    vs, advantages, _ = run(records, values, np.zeros((length, columns)), discount)
    final = records["terminated"] | records["truncated"]
    for b in range(columns):
        for s in range(length):
            if final[s, b]:
                assert advantages[s, b] == 0
                continue
            total, weight, t = 0.0, 1.0, s
            while t < length and not final[t, b]:
                t += 1
                total += weight * records["reward"][t, b]
                weight *= discount
            if not records["terminated"][t, b]:
                total += weight * values[t, b]
            assert vs[s, b] == pytest.approx(total, abs=2e-5)
            assert records["terminated"][t, b] or t == length or records["truncated"][t, b]


def test_ratios_of_ignored_actions_may_be_anything() -> None:
    records = random_records(VECTOR, 9, 4, seed=1, ends=0.5)
    final = (records["terminated"] | records["truncated"])[:-1]
    assert final.any()
    values = np.random.default_rng(2).normal(size=(9, 4))
    calm = run(records, values, np.zeros((8, 4)), 0.9)
    for odd in (np.inf, np.nan, 1e9):
        for mine, expected in zip(run(records, values, np.where(final, odd, 0.0), 0.9), calm, strict=True):
            np.testing.assert_array_equal(mine, expected)


def test_no_gradient_flows_through_targets() -> None:
    values = tf.Variable(tf.ones([4, 2]))
    log_rho = tf.Variable(tf.zeros([3, 2]))
    with tf.GradientTape() as tape:
        ones = tf.ones([3, 2])
        result = targets.vtrace(log_rho_tm1=log_rho, r_t=ones, discount_t=ones, mask_tm1=ones, values=values)
        total = sum(tf.reduce_sum(x) for x in result)
    assert tape.gradient(total, [values, log_rho]) == [None, None]
