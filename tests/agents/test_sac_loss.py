"""The losses of SAC and their gradients against float64, and inputs that must not affect them."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from seedcli.agents.base import UnrollBatch
from seedcli.agents.sac import SACAgent
from tests.agents.helpers import CONTINUOUS, Records
from tests.agents.test_sac import B, batch, make, transitions

Values = dict[str, npt.NDArray[np.float64]]
D = CONTINUOUS.action.size
GAMMA, SCALE = 0.9, 0.5


def disturbed(agent: SACAgent) -> SACAgent:
    """The agent with all networks far from their initial variables, the targets far from the critics, and α = 0.4."""
    rng = np.random.default_rng(0)
    for network in (agent.network, agent.critics, agent.target_critics):
        for variable in network.trainable_variables or network.variables:
            variable.assign(variable + 0.4 * rng.normal(size=variable.shape))
    if agent.temperature is not None:
        agent.temperature.log.assign(math.log(0.4))
    return agent


def values(agent: SACAgent) -> Values:
    return {name: variable.numpy().astype(np.float64) for name, variable in agent.variables().items()}


def layers(x: npt.NDArray[Any], given: Values, torso: str, head: str) -> npt.NDArray[Any]:
    """One hidden layer with tanh, and a linear one."""
    hidden = np.tanh(x @ given[f"{torso}/stages/0/kernel"] + given[f"{torso}/stages/0/bias"])
    return hidden @ given[f"{head}/kernel"] + given[f"{head}/bias"]


def policy(x: npt.NDArray[Any], noise: npt.NDArray[Any], given: Values) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Actions, and their log-density by the change of variables, with the slope as 1/cosh²."""
    mean, log_std = np.split(layers(x, given, "network/encoder/torsos/0", "network/policy"), 2, -1)
    std = np.exp(np.clip(log_std, -20.0, 2.0))
    u = mean + std * noise
    normal = np.exp(-(((u - mean) / std) ** 2) / 2) / (std * np.sqrt(2 * np.pi))
    return np.tanh(u), np.log(normal * np.cosh(u) ** 2).sum(-1)


def smallest_q(x: npt.NDArray[Any], action: npt.NDArray[Any], given: Values, which: str) -> npt.NDArray[Any]:
    return np.minimum(*q_values(x, action, given, which))


def q_values(x: npt.NDArray[Any], action: npt.NDArray[Any], given: Values, which: str) -> list[npt.NDArray[Any]]:
    both = np.concatenate([action, x], -1)
    return [layers(both, given, f"{which}/torsos/{i}/mlp", f"{which}/heads/{i}")[..., 0] for i in (0, 1)]


def reference(
    agent: SACAgent, records: Records, weights: npt.NDArray[Any], given: Values, fixed: Values
) -> dict[str, float]:
    """The losses, column by column; every value that a loss does not differentiate is computed from `fixed`."""
    noise = agent._noise(tf.constant(B)).numpy().astype(np.float64)
    sums = {"actor": 0.0, "critics": 0.0, "temperature": 0.0}
    alpha, trained_alpha = np.exp(fixed["temperature/log"]), np.exp(given["temperature/log"])
    for b in range(B):
        if records["terminated"][0, b] or records["truncated"][0, b]:
            continue
        s, after = records["observation"][:, b].astype(np.float64)
        y = SCALE * float(records["reward"][1, b])
        if not records["terminated"][1, b]:
            action, log_pi = policy(after, noise[1, b], fixed)
            y += GAMMA * (smallest_q(after, action, fixed, "target_critics") - alpha * log_pi)
        taken = records["action"][0, b].astype(np.float64)
        sums["critics"] += weights[b] * sum(0.5 * (q - y) ** 2 for q in q_values(s, taken, given, "critics"))
        action, log_pi = policy(s, noise[0, b], given)
        sums["actor"] += weights[b] * (alpha * log_pi - smallest_q(s, action, fixed, "critics"))
        _, log_pi = policy(s, noise[0, b], fixed)
        sums["temperature"] += weights[b] * -trained_alpha * (log_pi - D)
    return {name: float(total) / B for name, total in sums.items()}


def losses_and_gradients(agent: SACAgent, unrolls: UnrollBatch) -> tuple[dict[str, float], dict[str, list[Any]]]:
    groups = agent.parameter_groups()
    with tf.GradientTape(persistent=True) as tape:
        losses: Any = agent.loss(unrolls).loss
    gradients = {
        name: [g.numpy() for g in tape.gradient(losses[name], [v.value for v in group.variables])]
        for name, group in groups.items()
    }
    return {name: float(loss) for name, loss in losses.items()}, gradients


def test_losses_and_gradients_agree_with_float64() -> None:
    agent = disturbed(make(hidden=(7,), activation="tanh", discount=GAMMA, reward_scale=SCALE))
    records = transitions()
    weights = np.linspace(0.5, 1.5, B).astype(np.float32)
    unrolls = batch(agent, records)._replace(weights=tf.constant(weights))
    losses, gradients = losses_and_gradients(agent, unrolls)
    fixed = values(agent)
    expected = reference(agent, records, weights, fixed, fixed)
    assert losses == pytest.approx(expected, rel=1e-5)
    names = {id(variable): name for name, variable in agent.variables().items()}
    rng = np.random.default_rng(5)
    for group, (variables, _) in agent.parameter_groups().items():
        # The derivative along random directions through all variables of the group.
        for _ in range(3):
            directions = {names[id(v.value)]: rng.normal(size=v.shape) for v in variables}
            step = 1e-5
            ends = [
                reference(
                    agent, records, weights, {**fixed, **{k: fixed[k] + h * d for k, d in directions.items()}}, fixed
                )[group]
                for h in (step, -step)
            ]
            along = zip(gradients[group], directions.values(), strict=True)
            slope = sum((gradient * direction).sum() for gradient, direction in along)
            assert slope == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4, abs=1e-5)


def test_metrics_are_means_over_valid_transitions() -> None:
    agent = disturbed(make(hidden=(7,), activation="tanh", temperature=0.3, discount=GAMMA))
    records = transitions()
    valid = ~(records["terminated"] | records["truncated"])[0]
    assert 0 < valid.sum() < B
    given = values(agent)
    noise = agent._noise(tf.constant(B)).numpy()
    s, after = records["observation"].astype(np.float64)
    action, log_pi = policy(after, noise[1], given)
    bootstrap = smallest_q(after, action, given, "target_critics") - 0.3 * log_pi
    target = records["reward"][1] + np.where(records["terminated"][1], 0.0, GAMMA * bootstrap)
    q = np.stack(q_values(s, records["action"][0], given, "critics"))
    expected = {
        "q": q.mean(0)[valid].mean(),
        "target": target[valid].mean(),
        "td_error": np.abs(q - target).mean(0)[valid].mean(),
        "entropy": -policy(s, noise[0], given)[1][valid].mean(),
        "temperature": 0.3,
    }
    result = agent.loss(batch(agent, records))
    assert {name: float(x) for name, x in result.metrics.items()} == pytest.approx(expected, rel=1e-4)
    assert result.priorities is None and set(result.loss) == {"actor", "critics"}  # type: ignore[arg-type]


def test_truncated_transitions_bootstrap_and_terminated_ones_do_not() -> None:
    agent = disturbed(make())
    records = transitions()
    nothing = np.zeros((2, B), bool)
    last = np.array([[False] * B, [True] * B])

    def target(terminated: npt.NDArray[Any], truncated: npt.NDArray[Any]) -> float:
        ends = {"terminated": terminated, "truncated": truncated}
        return float(agent.loss(batch(agent, {**records, **ends})).metrics["target"])

    assert target(nothing, last) == target(nothing, nothing)
    assert target(last, nothing) == pytest.approx(records["reward"][1].mean(), rel=1e-5)
    assert abs(target(last, nothing) - target(nothing, last)) > 0.05


def test_what_follows_a_final_record_changes_nothing() -> None:
    agent = disturbed(make())
    records = transitions()
    masked = (records["terminated"] | records["truncated"])[0]
    changed = {name: array.copy() for name, array in records.items()}
    changed["action"][0, masked] = 0.77
    changed["reward"][1, masked] = 1e6
    changed["observation"][1, masked] = 50.0
    before, after = (losses_and_gradients(agent, batch(agent, r)) for r in (records, changed))
    assert before[0] == after[0]
    for old, new in zip(tf.nest.flatten(before[1]), tf.nest.flatten(after[1]), strict=True):
        np.testing.assert_array_equal(old, new)


def test_a_loss_has_no_gradient_for_the_other_groups() -> None:
    agent = disturbed(make())
    groups = {name: [v.value for v in group.variables] for name, group in agent.parameter_groups().items()}
    with tf.GradientTape(persistent=True) as tape:
        losses: Any = agent.loss(batch(agent, transitions())).loss
    for loss, others in {"critics": ("actor", "temperature"), "temperature": ("actor", "critics")}.items():
        for other in others:
            assert tape.gradient(losses[loss], groups[other]) == [None] * len(groups[other])
    # The actor's loss depends on the critics, which the trainer leaves as they are.
    assert tape.gradient(losses["actor"], groups["temperature"]) == [None]
    assert all(g is not None for g in tape.gradient(losses["actor"], groups["critics"]))
    targets = [v.value for v in agent.target_critics.variables]
    assert tape.gradient(losses["critics"], targets) == [None] * len(targets)


@pytest.mark.parametrize("log_pi_above_target", [True, False])
def test_the_temperature_moves_entropy_towards_its_target(log_pi_above_target: bool) -> None:
    # -α·(log π + target): too little entropy raises α, too much lowers it.
    agent = make(target_entropy=50.0 if log_pi_above_target else -50.0)
    _, gradients = losses_and_gradients(agent, batch(agent, transitions()))
    assert (gradients["temperature"][0] < 0) == log_pi_above_target


def test_losses_of_two_devices_add_up_to_that_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = disturbed(make())
    whole = batch(agent, transitions())
    expected = losses_and_gradients(agent, whole)
    halves = []
    for replica in (0, 1):
        context = SimpleNamespace(replica_id_in_sync_group=replica)
        monkeypatch.setattr(tf.distribute, "get_replica_context", lambda context=context: context)
        columns = slice(replica * B // 2, (replica + 1) * B // 2)
        part = whole.map_columns(lambda x, axis, columns=columns: x[columns] if axis == 0 else x[:, columns])
        halves.append(losses_and_gradients(agent, part))
    for name, loss in expected[0].items():
        assert sum(half[0][name] for half in halves) == pytest.approx(loss, rel=1e-5)
    for both, *parts in zip(*(tf.nest.flatten(x[1]) for x in (expected, *halves)), strict=True):
        np.testing.assert_allclose(sum(parts), both, rtol=1e-4, atol=1e-6)
