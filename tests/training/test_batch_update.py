"""Several updates on a batch: epochs, minibatches, early stop; traced one after the other and in a loop."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from seedcli.agents.ppo import PPOAgent
from seedcli.agents.registry import create_agent
from seedcli.config.sections import TrainingConfig
from seedcli.errors import UsageError
from seedcli.training import batch_update
from seedcli.training.batch_update import column_orders
from seedcli.training.batches import TrainingBatch
from seedcli.training.devices import columns_of
from seedcli.training.optimizer import clip_gradients, make_optimizer
from seedcli.training.trainer import Trainer
from tests.agents.helpers import VECTOR, random_records, training_config
from tests.configs import agent_config
from tests.training.tiny_agent import T, TinyAgent, tiny_batch

B = 8


def _config(**values: Any) -> TrainingConfig:
    return training_config(**{"unroll_length": T, "batch_size": B, "learning_rate": 0.05, **values})


def _trainer(config: TrainingConfig, seed: int = 5, **values: Any) -> tuple[TinyAgent, Trainer]:
    agent = TinyAgent(config, **values)
    return agent, Trainer(agent, config, 1000, seed=seed)


def _everything(agent: Any, trainer: Trainer) -> list[Any]:
    return [v.numpy() for v in (*agent.variables().values(), *trainer.variables().values())]


def _same(one: list[Any], other: list[Any]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(("epochs", "minibatches"), [(2, 2), (3, 4)])
def test_every_epoch_is_a_new_order_of_whole_columns(epochs: int, minibatches: int) -> None:
    agent, trainer = _trainer(_config(epochs=epochs, minibatches=minibatches))
    batch = tiny_batch(B)
    y = agent.targets(tf.nest.map_structure(tf.constant, batch.unrolls))["y"].numpy()
    agent.targets_made = 0
    trainer.update(batch, env_steps=0)
    assert len(agent.log) == epochs * minibatches and agent.targets_made == 1
    for part in agent.log:
        ids = part["id"]
        assert len(ids) == B // minibatches
        np.testing.assert_array_equal(part["weights"], batch.unrolls.weights[ids])
        np.testing.assert_array_equal(part["reward"], batch.unrolls.reward[:, ids])
        np.testing.assert_allclose(part["y"], y[:, ids], rtol=1e-6)
    orders = np.stack([part["id"] for part in agent.log]).reshape(epochs, B)
    np.testing.assert_array_equal(np.sort(orders), np.tile(np.arange(B), (epochs, 1)))
    assert len({tuple(order) for order in orders}) == epochs, "each epoch has its own order"


def test_an_agent_with_a_state_that_shuffles_transitions_is_refused() -> None:
    config = training_config(unroll_length=4, batch_size=B, minibatches=2)

    class Own(PPOAgent):
        record_states: Any = None

    agent = Own(agent_config(algorithm="ppo", lstm=4), config, VECTOR, 3)
    agent.algorithm = dataclasses.replace(agent.algorithm, shuffles=True)
    with pytest.raises(UsageError, match=r"Own has AlgorithmSpec.shuffles = True, but it also has a state"):
        Trainer(agent, config, 10**9)
    Trainer(agent, config.model_copy(update={"minibatches": 1}), 10**9)


def _orders(trainer: Trainer, agent: TinyAgent, batches: int) -> list[tuple[int, ...]]:
    agent.forget()
    for number in range(batches):
        trainer.update(tiny_batch(B, number), env_steps=0)
    return [tuple(part["id"].tolist()) for part in agent.log]


def test_a_resumed_run_continues_the_orders_of_its_seed() -> None:
    config = _config(epochs=2, minibatches=2)
    agent, trainer = _trainer(config)
    whole = _orders(trainer, agent, 4)
    assert len(set(whole)) > 12, "batches differ too"
    other, again = _trainer(config)
    assert _orders(again, other, 4) == whole
    resumed, rest = _trainer(config)
    rest.updates = 8  # two batches
    assert _orders(rest, resumed, 2) == whole[8:]
    agent, trainer = _trainer(config, seed=6)
    assert _orders(trainer, agent, 4) != whole


def test_orders_differ_between_seeds_batches_epochs_and_devices() -> None:
    def order(*numbers: int) -> tuple[int, ...]:
        seed, updates, epoch, replica = numbers
        found = column_orders(seed, tf.constant(updates, tf.int64), 2, replica, 32)[epoch].numpy()
        assert sorted(found) == list(range(32)) and found.dtype == np.int32
        return tuple(found.tolist())

    numbers = [(1, 0, 0, 0), (2, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 0, 0, 1), (1, 0, 1, 1), (1, 1, 1, 0)]
    assert len({order(*each) for each in numbers}) == len(numbers)
    assert order(*numbers[0]) == order(*numbers[0])
    # Every column is equally often in the first half.
    first = np.stack([column_orders(3, tf.constant(i, tf.int64), 1, 0, 4)[0].numpy()[:2] for i in range(400)])
    np.testing.assert_allclose(np.bincount(first.ravel()), 200, atol=50)


def _vtrace_batch(seed: int, columns: int, agent: Any) -> TrainingBatch:
    records = random_records(VECTOR, 5, columns, seed=seed)
    weights = np.linspace(0.5, 1.5, columns).astype(np.float32)
    state = tf.nest.map_structure(
        lambda leaf: np.random.default_rng(seed).normal(size=leaf.shape).astype(leaf.dtype.as_numpy_dtype),
        agent.initial_state(columns),
    )
    unrolls = batch_update.UnrollBatch(
        observation=records["observation"],
        reward=records["reward"],
        terminated=records["terminated"],
        truncated=records["truncated"],
        action=records["action"],
        recorded={"logits": records["logits"]},
        state=state,
        weights=weights,
    )
    return TrainingBatch.of(unrolls, np.zeros((5, columns), np.int64))


@pytest.mark.parametrize(("epochs", "minibatches"), [(1, 1), (4, 1), (5, 1), (1, 4), (3, 2)])
def test_updates_equal_a_plain_loop_of_optimizer_steps_to_the_bit(epochs: int, minibatches: int) -> None:
    """V-trace with an LSTM on the columns that `column_orders` gives."""
    config = training_config(
        unroll_length=4, batch_size=B, learning_rate=0.01, clip_norm=0.1, epochs=epochs, minibatches=minibatches
    )
    network = agent_config(hidden=(8,), lstm=4, policy_clip=0.2)
    agent, plain = (create_agent(network, config, VECTOR, 3) for _ in range(2))
    trainer = Trainer(agent, config, 10**9, seed=5)
    optimizer = make_optimizer(config)
    variables = plain.network.trainable_variables
    optimizer.build(variables)

    @tf.function(autograph=False)
    def step(unrolls: Any) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = plain.loss(unrolls).loss
        gradients, norm = clip_gradients(tape.gradient(loss, variables), config.clip_norm)
        optimizer.apply(gradients, variables)
        return norm

    clipped = 0
    for number in range(5):
        batch = _vtrace_batch(number, B, agent)
        result = trainer.update(batch, env_steps=0)
        assert result.applied and result.fault is None
        for epoch in range(epochs):
            order = column_orders(5, tf.constant(number * epochs * minibatches, tf.int64), epochs, 0, B)[epoch].numpy()
            for part in np.split(order, minibatches) if minibatches > 1 else [slice(None)]:
                unrolls = tf.nest.map_structure(tf.constant, columns_of(batch.unrolls, part))
                clipped += float(step(unrolls)) > config.clip_norm
    assert clipped > epochs * minibatches and trainer.updates == 5 * epochs * minibatches
    for mine, theirs in zip(agent.network.variables, plain.network.variables, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def _both(monkeypatch: pytest.MonkeyPatch, config: TrainingConfig, batches: list[TrainingBatch], **values: Any) -> Any:
    """The final state and the results of the two forms."""
    found = []
    for most in (1, 1000):
        monkeypatch.setattr(batch_update, "_MOST_UNROLLED", most)
        agent, trainer = _trainer(config, **values)
        results = [trainer.update(batch, env_steps=0) for batch in batches]
        graphs = [concrete.function.graph for concrete in trainer._update._concrete.values()]
        loops = {any("While" in op.type for op in graph.get_operations()) for graph in graphs}
        assert loops == {most == 1 and config.updates_per_batch > 1}
        found.append((_everything(agent, trainer), results, agent, trainer))
    return found


def test_the_loop_equals_the_unrolled_form(monkeypatch: pytest.MonkeyPatch) -> None:
    config = _config(epochs=3, minibatches=2, clip_norm=0.4)
    batches = [tiny_batch(B, number) for number in range(3)]
    batches[1].unrolls.reward[1, 3] = np.nan  # the minibatch with column 3 is dropped in every epoch
    (one, results, agent, trainer), (other, others, _, _) = _both(monkeypatch, config, batches)
    assert _same(one, other)
    assert [result.applied for result in results] == [True] * 3
    assert [result.fault for result in results] == [None, "the loss", None]
    assert (trainer.updates, trainer.dropped) == (6 + 3 + 6, 3)
    assert agent.numbers == list(range(1, 16)), "dropped updates have no number"
    for mine, theirs in zip(results, others, strict=True):
        assert mine.metrics == pytest.approx(theirs.metrics, rel=1e-5, nan_ok=True)
        assert (mine.loss, mine.grad_norm) == pytest.approx((theirs.loss, theirs.grad_norm), rel=1e-5, nan_ok=True)
        assert (mine.applied, mine.fault) == (theirs.applied, theirs.fault)


@pytest.mark.parametrize("stop_after", [0, 4, 8, 100])
def test_stop_skips_exactly_the_remaining_updates(monkeypatch: pytest.MonkeyPatch, stop_after: int) -> None:
    config = _config(epochs=3, minibatches=2)
    batches = [tiny_batch(B, number) for number in range(2)]
    forms = _both(monkeypatch, config, batches, stop_after=stop_after)
    used = min(6, stop_after)
    for _, results, agent, trainer in forms:
        first, second = results
        assert first.applied == (used > 0) and first.fault is None
        assert first.metrics["updates_used"] == pytest.approx(used / 6)
        rest = min(6, max(0, stop_after - 6))
        assert second.metrics["updates_used"] == pytest.approx(rest / 6) and second.applied == (rest > 0)
        assert trainer.updates == used + rest and trainer.dropped == 0
        assert agent.numbers == list(range(1, used + rest + 1))
        assert trainer.trained_steps == T * B * ((used > 0) + (rest > 0))
    assert _same(forms[0][0], forms[1][0])
    # The update that stops is evaluated, and none after it in the loop.
    assert len(forms[0][2].log) == min(6, used + 1) + min(6, rest + 1)
    if stop_after == 100:
        agent, trainer = _trainer(config)  # never stops
        for batch in batches:
            assert "updates_used" not in trainer.update(batch, env_steps=0).metrics
        assert _same(forms[0][0], _everything(agent, trainer))


def test_metrics_are_means_over_the_evaluated_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    config = _config(epochs=6)
    agent, trainer = _trainer(config, stop_after=3)
    batch = tiny_batch(B)
    result = trainer.update(batch, env_steps=0)
    values = []
    single = TinyAgent(_config())
    one = Trainer(single, _config(), 1000)
    unrolls = tf.nest.map_structure(tf.constant, batch.unrolls)
    unrolls = unrolls._replace(targets=single.targets(unrolls))
    monkeypatch.setattr(single, "targets", lambda _: unrolls.targets)
    for _ in range(4):
        values.append(float(single.loss(unrolls).metrics["actor_mean"]))
        one.update(batch, env_steps=0)
    assert result.metrics["actor_mean"] == pytest.approx(np.mean(values), rel=1e-4)
    assert np.std(values) > 0.01


def test_hundreds_of_updates_are_traced_in_seconds() -> None:
    operations = []
    for epochs in (2, 10):
        config = training_config(unroll_length=4, batch_size=64, epochs=epochs, minibatches=32)
        agent = create_agent(agent_config(hidden=(64, 64)), config, VECTOR, 3)
        trainer = Trainer(agent, config, 10**9)
        begun = time.process_time()
        result = trainer.update(_vtrace_batch(1, 64, agent), env_steps=0)
        assert time.process_time() - begun < 30.0
        assert result.applied and trainer.updates == 32 * epochs
        (concrete,) = trainer._update._concrete.values()
        graph = concrete.function.graph
        operations.append(sum(len(f.node_def) for f in graph.as_graph_def().library.function))
    assert operations[0] == operations[1]
