"""The loss of R2D2 and its priorities against float64, and inputs that must not affect them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from seedcli.agents.base import UnrollBatch
from seedcli.agents.networks.models import evaluate
from seedcli.agents.r2d2 import R2D2Agent
from tests.agents.helpers import VECTOR, random_records, unroll_batch
from tests.agents.test_q_targets import reference_inverse, reference_rescale, reference_returns
from tests.agents.test_r2d2 import FIELDS, B, T, batch, make


def with_other_target(agent: R2D2Agent) -> R2D2Agent:
    """The agent with a target network that disagrees with the trained one."""
    rng = np.random.default_rng(0)
    for variable in agent.target_network.variables:
        variable.assign(variable + 0.3 * rng.normal(size=variable.shape))
    return agent


def loss_and_gradients(agent: R2D2Agent, unrolls: UnrollBatch) -> tuple[float, list[Any]]:
    with tf.GradientTape() as tape:
        loss = agent.loss(unrolls).loss
    gradients = tape.gradient(loss, agent.network.trainable_variables)
    assert all(g is not None for g in gradients)
    return float(loss), [g.numpy() for g in gradients]


def reference_loss(
    agent: R2D2Agent, unrolls: UnrollBatch, reward: npt.NDArray[Any], burn_in: int
) -> dict[str, npt.NDArray[Any]]:
    """Errors, targets and validity in float64, with the agent's discount 0.95, n = 3, ε = 0.01 and η = 0.8."""
    q, target_q = (
        evaluate(n, unrolls, burn_in).numpy().astype(np.float64) for n in (agent.network, agent.target_network)
    )
    best = q.argmax(-1)
    assert (best != target_q.argmax(-1)).mean() > 0.2
    values = reference_inverse(np.take_along_axis(target_q, best[..., None], -1)[..., 0], 0.01)
    records = {name: getattr(unrolls, name).numpy()[burn_in:] for name in ("terminated", "truncated")}
    returns = reference_returns({**records, "reward": reward[burn_in:]}, values, 0.95, 3)
    target = reference_rescale(returns, 0.01).astype(np.float64)
    taken = np.take_along_axis(q[:-1], unrolls.action.numpy()[burn_in:-1, :, None], -1)[..., 0]
    valid = ~(records["terminated"] | records["truncated"])[:-1]
    error = np.where(valid, target - taken, 0.0)
    count = np.maximum(valid.sum(0), 1)
    priorities = 0.8 * np.abs(error).max(0) + 0.2 * np.abs(error).sum(0) / count
    return {"error": error, "target": target, "valid": valid, "q": q[:-1], "taken": taken, "priorities": priorities}


@pytest.mark.parametrize(("lstm", "burn_in"), [(0, 0), (5, 0), (5, 4)])
def test_the_loss_agrees_with_float64(lstm: int, burn_in: int) -> None:
    values: dict[str, Any] = {"discount": 0.95, "n_step": 3, "value_rescaling_epsilon": 0.01}
    agent = with_other_target(make(burn_in=burn_in, lstm=lstm, priority_max_weight=0.8, reward_clip=1.5, **values))
    records = random_records(VECTOR, burn_in + T + 1, B, seed=11)
    weights = np.linspace(0.5, 1.5, B).astype(np.float32)
    unrolls = batch(agent, records)._replace(weights=tf.constant(weights))
    result = agent.loss(unrolls)
    expected = reference_loss(agent, unrolls, np.clip(records["reward"], -1.5, 1.5), burn_in)
    error, valid = expected["error"], expected["valid"]
    assert float(result.loss) == pytest.approx((weights * 0.5 * error**2).sum() / (T * B), rel=1e-5)
    assert result.priorities is not None
    np.testing.assert_allclose(result.priorities, expected["priorities"], rtol=1e-5)
    means = {
        "q_mean": expected["taken"][valid].mean(),
        "q_max": expected["q"].max(-1)[valid].mean(),
        "target_mean": expected["target"][valid].mean(),
        "td_error": np.abs(error[valid]).mean(),
    }
    assert {name: float(x) for name, x in result.metrics.items()} == pytest.approx(means, rel=1e-4)


def test_values_may_stay_as_they_are() -> None:
    agent = make(value_rescaling=False, n_step=2, discount=0.9, hidden=(), dueling_hidden=0)
    for variable in agent.network.variables:
        variable.assign(tf.zeros_like(variable))
    agent.network.advantage_head[-1].bias.assign([-30.0, 60.0, -30.0])
    agent.after_update(agent.config.target_period)
    nothing = np.zeros((T + 1, 1), bool)
    records = {
        **random_records(VECTOR, T + 1, 1),
        "reward": np.full((T + 1, 1), 10.0, np.float32),
        "action": np.ones((T + 1, 1), np.int32),
        "terminated": nothing,
        "truncated": nothing,
    }
    # Two steps 10 + 0.9·10 + 0.81·60, and one at the tail, 10 + 0.9·60.
    errors = np.array([19 + 48.6 - 60.0] * (T - 1) + [64.0 - 60.0])
    result = agent.loss(batch(agent, records))
    assert float(result.loss) == pytest.approx((0.5 * errors**2).sum() / (T * B), rel=1e-5)
    assert result.priorities is not None
    assert float(result.priorities[0]) == pytest.approx(0.9 * errors.max() + 0.1 * errors.mean(), rel=1e-5)


def test_loss_is_linear_in_the_weights_and_priorities_ignore_them() -> None:
    agent = with_other_target(make(lstm=5))
    unrolls = batch(agent, random_records(VECTOR, T + 1, B, seed=3))
    each = []
    for b in range(B):
        one = unrolls._replace(weights=tf.one_hot(b, B))
        each.append(loss_and_gradients(agent, one))
        np.testing.assert_array_equal(agent.loss(one).priorities, agent.loss(unrolls).priorities)
    weights = np.linspace(0.0, 2.0, B).astype(np.float32)
    loss, gradients = loss_and_gradients(agent, unrolls._replace(weights=tf.constant(weights)))
    assert loss == pytest.approx(sum(w * x for w, (x, _) in zip(weights, each, strict=True)), rel=1e-5)
    for whole, *parts in zip(gradients, *(g for _, g in each), strict=True):
        np.testing.assert_allclose(sum(w * g for w, g in zip(weights, parts, strict=True)), whole, atol=1e-6)


def test_losses_of_half_batches_add_up() -> None:
    agent = with_other_target(make(lstm=5))
    records = random_records(VECTOR, T + 1, B, seed=3)
    loss, _ = loss_and_gradients(agent, batch(agent, records))
    halves = [
        loss_and_gradients(agent, batch(agent, {k: x[:, columns] for k, x in records.items()}))[0]
        for columns in (slice(0, B // 2), slice(B // 2, B))
    ]
    assert sum(halves) == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("memory", [{}, {"lstm": 5, "frame_stack": 2, "previous_action_reward": True}])
def test_actions_on_final_records_are_masked(memory: dict[str, Any]) -> None:
    agent = with_other_target(make(**memory))
    records = random_records(VECTOR, T + 1, B, seed=2)
    final = records["terminated"] | records["truncated"]
    assert final[:-1].any(axis=1).sum() > 3
    before, gradients = loss_and_gradients(agent, batch(agent, records))

    changed = {**records, "action": np.where(final, (records["action"] + 1) % 3, records["action"])}
    if not memory:  # with memory, the reward of a first record, 0, is an input of the network
        changed["reward"] = records["reward"] + 100.0 * records["first"].astype(np.float32)
        # The value after a termination is 0.
        changed["observation"] = records["observation"] + 3.0 * records["terminated"][..., None].astype(np.float32)
    after, new_gradients = loss_and_gradients(agent, batch(agent, changed))
    assert after == before
    for old, new in zip(gradients, new_gradients, strict=True):
        np.testing.assert_array_equal(old, new)

    # The same changes elsewhere affect the loss, and so does the last observation of a truncated episode.
    other = {**records, "action": np.where(final, records["action"], (records["action"] + 1) % 3)}
    assert loss_and_gradients(agent, batch(agent, other))[0] != before
    cut = {**records}
    cut["observation"] = records["observation"] + 3.0 * records["truncated"][..., None].astype(np.float32)
    assert loss_and_gradients(agent, batch(agent, cut))[0] != before


def test_an_unroll_without_a_transition_has_no_loss_and_no_priority() -> None:
    agent = with_other_target(make())
    records = random_records(VECTOR, T + 1, B, seed=2, ends=0.0)
    records["terminated"][:, 1] = True
    loss, gradients = loss_and_gradients(agent, batch(agent, records)._replace(weights=tf.one_hot(1, B)))
    assert loss == 0.0 and not any(g.any() for g in gradients)
    priorities = agent.loss(batch(agent, records)).priorities
    assert priorities is not None and priorities[1] == 0.0 and np.count_nonzero(priorities) == B - 1


@pytest.mark.parametrize("burn_in", [0, 3])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_rewards_reach_loss_and_priorities(burn_in: int, bad: float) -> None:
    agent = make(burn_in=burn_in, lstm=5)
    records = random_records(VECTOR, burn_in + T + 1, B, seed=2, ends=0.0)
    records.update({name: np.zeros_like(records["reward"]) for name in FIELDS})
    records["reward"][burn_in + 4, 2] = bad
    unrolls = unroll_batch(records, agent.initial_state(B), FIELDS)
    result = agent.loss(unrolls)
    others = np.arange(B) != 2
    assert result.priorities is not None and not np.isfinite(result.loss)
    for priorities in (result.priorities.numpy(), agent.initial_priorities(unrolls).numpy()):
        assert not np.isfinite(priorities[2]) and np.isfinite(priorities[others]).all()

    if burn_in:  # in the burn-in, a reward has no use but as an input
        agent = make(burn_in=burn_in, lstm=5, previous_action_reward=True, reward_input_clip=0.0)
        records["reward"][burn_in + 4, 2] = 0.0
        records["reward"][1, 2] = np.nan
        result = agent.loss(unroll_batch(records, agent.initial_state(B), FIELDS))
        assert result.priorities is not None and not np.isfinite(result.loss)
        assert np.isnan(result.priorities[2]) and np.isfinite(result.priorities.numpy()[others]).all()


def test_an_unroll_of_another_length_is_refused() -> None:
    agent = make(burn_in=2, lstm=4)
    with pytest.raises(tf.errors.InvalidArgumentError):
        agent.loss(batch(agent, random_records(VECTOR, T + 1, B)))
