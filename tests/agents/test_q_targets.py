"""Value rescaling, n-step returns and priorities against hand-computed numbers and float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from seedcli.agents import q_targets, targets
from tests.agents.helpers import VECTOR, random_records

Array = npt.NDArray[Any]

BOTH_SIGNS = np.concatenate([-np.geomspace(1e6, 1e-6, 97), [0.0], np.geomspace(1e-6, 1e6, 97)])


def reference_rescale(x: Array, epsilon: float) -> Array:
    """As printed; long doubles, because its subtraction loses digits."""
    x = x.astype(np.longdouble)
    rescaled: Array = np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + epsilon * x
    return rescaled


def reference_inverse(y: Array, epsilon: float) -> Array:
    """As printed in proposition A.2."""
    y = y.astype(np.longdouble)
    e = np.longdouble(epsilon)
    x: Array = np.sign(y) * (((np.sqrt(1 + 4 * e * (np.abs(y) + 1 + e)) - 1) / (2 * e)) ** 2 - 1)
    return x


def reference_returns(records: dict[str, Array], values: Array, discount: float, n: int) -> Array:
    """The definition, a sum for each record in float64; values themselves on final records."""
    length, columns = len(values) - 1, values.shape[1]
    final = records["terminated"] | records["truncated"]
    returns = values[:-1].astype(np.float64)
    for b in range(columns):
        for start in range(length):
            if final[start, b]:
                continue
            total, weight, t = 0.0, 1.0, start
            for _ in range(n):
                t += 1
                total += weight * float(records["reward"][t, b])
                weight *= discount
                if final[t, b] or t == length:
                    break
            if not records["terminated"][t, b]:
                total += weight * float(values[t, b])
            returns[start, b] = total
    return returns


def run(records: dict[str, Array], values: Array, discount: float, n: int) -> Array:
    r_t, discount_t, mask_tm1 = targets.transitions(
        tf.constant(records["reward"], tf.float32),
        tf.constant(records["terminated"]),
        tf.constant(records["truncated"]),
        discount,
    )
    values = tf.constant(values, tf.float32)
    result: Array = q_targets.n_step_returns(
        r_t=r_t, discount_t=discount_t, mask_tm1=mask_tm1, values=values, n=n
    ).numpy()
    return result


@pytest.mark.parametrize("epsilon", [1e-3, 1e-2, 1.0, 1e-6])
def test_rescaling_and_its_inverse_agree_with_the_printed_formulas(epsilon: float) -> None:
    x = BOTH_SIGNS.astype(np.float32)
    rescaled = q_targets.rescale(tf.constant(x), epsilon).numpy()
    np.testing.assert_allclose(rescaled, reference_rescale(x, epsilon).astype(np.float64), rtol=5e-7)
    np.testing.assert_allclose(q_targets.inverse_rescale(rescaled, epsilon), x, rtol=3e-6)
    # The smallest ε costs the printed inverse 12 digits even in long doubles.
    y = x if epsilon > 1e-6 else x[np.abs(x) > 1e-3]
    inverse = q_targets.inverse_rescale(tf.constant(y), epsilon).numpy()
    np.testing.assert_allclose(inverse, reference_inverse(y, epsilon).astype(np.float64), rtol=2e-6)
    assert q_targets.rescale(0.0, epsilon) == q_targets.inverse_rescale(0.0, epsilon) == 0.0


def test_rescaling_by_hand() -> None:
    np.testing.assert_allclose(q_targets.rescale(tf.constant([3.0, -8.0]), 0.5), [2.5, -6.0])
    np.testing.assert_allclose(q_targets.inverse_rescale(tf.constant([2.5, -6.0]), 0.5), [3.0, -8.0], rtol=1e-6)
    assert np.isnan(q_targets.rescale(np.nan, 1e-3)) and np.isnan(q_targets.inverse_rescale(np.nan, 1e-3))


def test_three_episodes_in_one_trace_by_hand() -> None:
    # Record 2 is terminated, record 5 truncated, record 8 the bootstrap record.
    reward = np.array([9, 1, 2, 0, 4, 2, 0, 8, 4], np.float32)[:, None]
    records: dict[str, Array] = {
        "reward": reward,
        "terminated": np.zeros((9, 1), bool),
        "truncated": np.zeros((9, 1), bool),
    }
    records["terminated"][2] = True
    records["truncated"][5] = True
    values = np.array([100, 16, 700, 24, 32, 40, 80, 48, 64], np.float32)[:, None]
    # One step: 0 → 1 + ½·16; 1 ends: 2; 2 final; 3 → 4 + ½·32; 4 → 2 + ½·40, the truncated record; 5 final; …
    np.testing.assert_array_equal(run(records, values, 0.5, 1)[:, 0], [9, 2, 700, 20, 22, 40, 32, 36])
    # Two: 0 → 1 + ½·2; 3 → 4 + ½·2 + ¼·40; 6 → 8 + ½·4 + ¼·64; 7 has only one step left.
    np.testing.assert_array_equal(run(records, values, 0.5, 2)[:, 0], [2, 2, 700, 15, 22, 40, 26, 36])
    # No episode here is longer.
    np.testing.assert_array_equal(run(records, values, 0.5, 7)[:, 0], [2, 2, 700, 15, 22, 40, 26, 36])


@pytest.mark.parametrize("length", [1, 2, 9, 40])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_returns_agree_with_the_definition(length: int, n: int) -> None:
    records = random_records(VECTOR, length + 1, 32, seed=length + n, ends=0.15)
    values = np.random.default_rng(n).normal(size=(length + 1, 32)).astype(np.float32) * 10.0
    np.testing.assert_allclose(
        run(records, values, 0.97, n), reference_returns(records, values, 0.97, n), rtol=1e-5, atol=1e-5
    )


def test_no_gradient_flows_through_returns() -> None:
    values = tf.Variable(tf.ones([4, 2]))
    ones = tf.ones([3, 2])
    with tf.GradientTape() as tape:
        returns = q_targets.n_step_returns(r_t=ones, discount_t=ones, mask_tm1=ones, values=values, n=2)
        total = tf.reduce_sum(returns)
    assert tape.gradient(total, values) is None


def test_priorities_by_hand() -> None:
    td_error = tf.constant([[1.0, 0.0, 0.0, 4.0], [-3.0, 0.0, 2.0, 0.0], [2.0, 0.0, 0.0, np.nan]])
    mask = tf.constant([[1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 1.0, 1.0]])
    result = q_targets.priorities(td_error, mask, 0.75).numpy()
    np.testing.assert_allclose(result[:3], [0.75 * 3 + 0.25 * 2, 0.0, 0.75 * 2 + 0.25 * 1])
    assert np.isnan(result[3])
    assert np.isnan(q_targets.priorities(td_error, mask, 1.0)[3])
    np.testing.assert_allclose(q_targets.priorities(td_error, mask, 0.0)[:3], [2.0, 0.0, 1.0])
