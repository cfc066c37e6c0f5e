"""Parameter groups: one loss, optimizer and clipping each; applied together or not at all; invalid ones are named."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from seedcli.agents.base import LossOutputs, ParameterGroup
from seedcli.agents.registry import create_agent
from seedcli.errors import UsageError
from seedcli.training.trainer import Trainer
from tests.agents.helpers import VECTOR, training_config
from tests.configs import agent_config
from tests.training.tiny_agent import TinyAgent, tiny_batch, train_by_hand

B = 4
CONSTANT = {"unroll_length": 3, "batch_size": B, "learning_rate": 0.05, "learning_rate_schedule": "constant"}


def _kernels(agent: TinyAgent) -> dict[str, Any]:
    return {
        "actor": agent.network.actor.kernel.numpy(),
        "critic": agent.network.critic.kernel.numpy(),
        "average_actor": agent.average.actor.kernel.numpy(),
        "average_critic": agent.average.critic.kernel.numpy(),
    }


def _everything(agent: Any, trainer: Trainer) -> list[Any]:
    return [v.numpy() for v in (*agent.variables().values(), *trainer.variables().values())]


@pytest.mark.parametrize("epochs", [1, 3, 6])
@pytest.mark.parametrize("clip_norm", [0.0, 0.4])
def test_every_group_has_its_loss_rate_and_clipping(clip_norm: float, epochs: int) -> None:
    config = training_config(**CONSTANT, clip_norm=clip_norm, epochs=epochs)
    agent = TinyAgent(config)
    trainer = Trainer(agent, config, 1000)
    batches = [tiny_batch(B, seed) for seed in range(4)]
    expected, updates = train_by_hand(config, batches)
    for number, batch in enumerate(batches):
        result = trainer.update(batch, env_steps=0)
        assert result.applied and result.learning_rate == 0.05
        mine = updates[number * epochs : (number + 1) * epochs]
        means = {name: np.mean([update[name] for update in mine]) for name in mine[0]}
        assert result.metrics.keys() == {"actor_mean", *means}
        assert {name: result.metrics[name] for name in means} == pytest.approx(means, rel=1e-4)
        assert result.loss == pytest.approx(means["loss/actor"] + means["loss/critic"], rel=1e-4)
        norms = [np.hypot(update["grad_norm/actor"], update["grad_norm/critic"]) for update in mine]
        assert result.grad_norm == pytest.approx(np.mean(norms), rel=1e-4)
    if clip_norm:
        clipped = {name: [u[f"grad_norm/{name}"] > clip_norm for u in updates] for name in ("actor", "critic")}
        assert any(clipped["actor"]) and any(clipped["critic"])
    for name, kernel in _kernels(agent).items():
        np.testing.assert_allclose(kernel, expected[name], rtol=2e-5, atol=1e-6)
    assert trainer.updates == 4 * epochs and agent.numbers == list(range(1, 4 * epochs + 1))
    assert agent.targets_made == 4, "targets are computed once per batch"


def test_a_loss_changes_only_the_variables_of_its_group() -> None:
    config = training_config(**CONSTANT)
    agent = TinyAgent(config, critic=0.0)
    before = _kernels(agent)
    result = Trainer(agent, config, 1000).update(tiny_batch(B), env_steps=0)
    assert result.metrics["grad_norm/actor"] > 0.1 and result.metrics["grad_norm/critic"] == 0.0
    np.testing.assert_array_equal(agent.network.critic.kernel, before["critic"])
    assert (agent.network.actor.kernel.numpy() != before["actor"]).all()


def test_a_variable_without_a_gradient_stays() -> None:
    class Unconnected(TinyAgent):
        def loss(self, unrolls: Any) -> LossOutputs:
            outputs = super().loss(unrolls)
            assert isinstance(outputs.loss, Mapping)
            return outputs._replace(loss={**outputs.loss, "critic": tf.constant(1.0)})

    config = training_config(**CONSTANT)
    agent = Unconnected(config)
    before = _kernels(agent)
    assert Trainer(agent, config, 1000).update(tiny_batch(B), env_steps=0).applied
    np.testing.assert_array_equal(agent.network.critic.kernel, before["critic"])


@pytest.mark.parametrize("bad", ["loss", "gradient"])
@pytest.mark.parametrize("epochs", [1, 2, 6])
def test_what_is_non_finite_in_one_group_leaves_all_unchanged(bad: str, epochs: int) -> None:
    class Faulty(TinyAgent):
        faulty = tf.Variable(0.0, trainable=False)

        def loss(self, unrolls: Any) -> LossOutputs:
            outputs = super().loss(unrolls)
            assert isinstance(outputs.loss, Mapping)
            critic = outputs.loss["critic"]
            if bad == "loss":
                critic += tf.math.log(1.0 - 2.0 * self.faulty)
            else:  # √0 is finite and its derivative is not
                critic += self.faulty * tf.sqrt(0.0 * self.network.critic.kernel[0])
            return outputs._replace(loss={**outputs.loss, "critic": critic})

    config = training_config(**CONSTANT, epochs=epochs)
    agent = Faulty(config)
    trainer = Trainer(agent, config, 1000)
    assert trainer.update(tiny_batch(B), env_steps=0).applied
    agent.faulty.assign(1.0)
    before, updates, numbers = _everything(agent, trainer), trainer.updates, list(agent.numbers)
    dropped = trainer.dropped
    result = trainer.update(tiny_batch(B, 1), env_steps=0)
    assert not result.applied and result.fault == ("the loss" if bad == "loss" else "a gradient")
    assert np.isfinite(result.metrics["loss/actor"])
    assert (trainer.updates, trainer.dropped - dropped, agent.numbers) == (updates, epochs, numbers)
    for kept, now in zip(before, _everything(agent, trainer), strict=True):
        np.testing.assert_array_equal(kept, now)


def test_optimizers_are_named_by_their_group() -> None:
    config = training_config(**CONSTANT)
    agent = TinyAgent(config)
    trainer = Trainer(agent, config, 1000)
    names = {
        f"{group}/{name}"
        for group in ("actor", "critic")
        for kind in ("momentums", "velocities")
        for name in ("iterations", "learning_rate", f"{kind}/network/{group}/kernel")
    }
    assert trainer.variables().keys() == names
    assert list(trainer.variables()) == list(Trainer(TinyAgent(config), config, 1000).variables())
    trainer.update(tiny_batch(B), env_steps=0)
    rates = [float(trainer.variables()[f"{group}/learning_rate"]) for group in ("actor", "critic")]
    assert rates == pytest.approx([0.05, 0.005])


def _grouped(**groups: Any) -> type[TinyAgent]:
    class MyAgent(TinyAgent):
        def parameter_groups(self) -> dict[str, ParameterGroup]:
            return {name: ParameterGroup(choose(self.network)) for name, choose in groups.items()}

    return MyAgent


@pytest.mark.parametrize(
    ("groups", "sentence"),
    [
        ({}, "MyAgent.parameter_groups() returns no group: return at least one"),
        (
            {"actor": lambda network: network.actor.variables, "temperature": lambda network: []},
            'MyAgent.parameter_groups() returns the group "temperature" without variables: remove the group',
        ),
        (
            {"actor": lambda network: network.actor.variables, "both": lambda network: network.variables},
            'in two groups, "actor" and "both": every variable must have one optimizer',
        ),
    ],
)
def test_invalid_groups_are_refused(groups: dict[str, Any], sentence: str) -> None:
    config = training_config(**CONSTANT)
    with pytest.raises(UsageError) as raised:
        Trainer(_grouped(**groups)(config), config, 1000)
    assert sentence in str(raised.value)


ONE = tf.constant(1.0)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"loss": ONE}, "MyAgent.loss returns one loss for 2 parameter groups: return a dict with a loss for each of"),
        ({"loss": {"actor": ONE}}, 'MyAgent.loss returns no loss for the parameter group "critic": add one'),
        (
            {"loss": {"actor": ONE, "critic": ONE, "alpha": ONE}},
            'returns a loss "alpha", but MyAgent.parameter_groups() has no such group: the groups are actor, critic',
        ),
        (
            {"loss": {"actor": ONE, "critic": tf.ones([4])}},
            'MyAgent.loss returns for the group "critic" float32 of shape (4,): it must be a scalar float32 tensor',
        ),
        (
            {"loss": {"actor": tf.constant(1.0, tf.float64), "critic": ONE}},
            'MyAgent.loss returns for the group "actor" float64 of shape (): it must be a scalar float32 tensor',
        ),
        ({"loss": {"actor": 0.0, "critic": ONE}}, 'for the group "actor" a float: it must be a scalar float32 tensor'),
        ({"metrics": {"env_steps": ONE}}, 'the metric "env_steps" has the name of a built-in one, which every line'),
        ({"metrics": {"replay_size": ONE}}, 'MyAgent.loss: the metric "replay_size" has the name of a built-in one'),
        (
            {"metrics": {"kl": tf.ones([3, 2])}},
            'the metric "kl" is float32 [3, 2]: it must be a scalar, such as a mean',
        ),
        ({"metrics": {"kl": None}}, 'the metric "kl" is a NoneType: it must be a scalar'),
        ({"metrics": None}, "MyAgent.loss returns metrics as a NoneType: return a dict of scalars by name"),
        ({"stop": tf.ones([2])}, "MyAgent.loss returns as `stop` float32 of shape (2,): it must be a scalar float32"),
    ],
)
def test_invalid_losses_are_refused(values: dict[str, Any], sentence: str) -> None:
    class MyAgent(TinyAgent):
        def loss(self, unrolls: Any) -> LossOutputs:
            return super().loss(unrolls)._replace(**values)

    config = training_config(**CONSTANT)
    with pytest.raises(UsageError) as raised:
        Trainer(MyAgent(config), config, 1000).update(tiny_batch(B), env_steps=0)
    assert sentence in str(raised.value)


@pytest.mark.parametrize("forgotten", [True, False])
def test_a_loss_without_outputs_is_refused(forgotten: bool) -> None:
    class MyAgent(TinyAgent):
        def loss(self, unrolls: Any) -> Any:
            return None if forgotten else tf.constant(1.0)

    config = training_config(**CONSTANT)
    with pytest.raises(UsageError) as raised:
        Trainer(MyAgent(config), config, 1000).update(tiny_batch(B), env_steps=0)
    found = (
        "returns None: it must return LossOutputs(loss, priorities, metrics); look for" if forgotten else "returns a "
    )
    assert f"MyAgent.loss {found}" in str(raised.value)
    assert ("loss (test_groups.py:" in str(raised.value)) == forgotten


@pytest.mark.parametrize(
    ("targets", "sentence"),
    [
        (tf.ones([3, 4]), "MyAgent.targets returns a EagerTensor: return a dict"),
        ({"v": tf.ones([4, 3])}, 'returns "v" of shape (4, 3): the second axis must be the 4 columns of the batch'),
        ({"v": tf.ones([4])}, 'returns "v" of shape (4,): the second axis must be the 4 columns of the batch'),
    ],
)
def test_invalid_targets_are_refused(targets: Any, sentence: str) -> None:
    class MyAgent(TinyAgent):
        def targets(self, unrolls: Any) -> Any:
            return targets

    config = training_config(**CONSTANT)
    with pytest.raises(UsageError) as raised:
        Trainer(MyAgent(config), config, 1000).update(tiny_batch(B), env_steps=0)
    assert sentence in str(raised.value)


def test_targets_that_transitions_cannot_be_cut_from_are_refused() -> None:
    class MyAgent(TinyAgent):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.algorithm = dataclasses.replace(self.algorithm, shuffles=True)

        def initial_state(self, batch_size: int) -> Any:
            return {}

        def targets(self, unrolls: Any) -> Any:
            return {**super().targets(unrolls), "v": tf.ones([1, 4])}

    config = training_config(**CONSTANT)
    assert Trainer(MyAgent(config), config, 1000).update(tiny_batch(B), env_steps=0).applied
    config = training_config(**CONSTANT, minibatches=2)
    with pytest.raises(UsageError, match=r"shuffles the first axis must be the 3 transitions of an unroll"):
        Trainer(MyAgent(config), config, 1000).update(tiny_batch(B), env_steps=0)


def test_trained_variables_must_be_in_checkpoints() -> None:
    class MyAgent(TinyAgent):
        def variables(self) -> dict[str, tf.Variable]:
            return {"actor": self.network.actor.kernel.value}

    config = training_config(**CONSTANT)
    trainer = Trainer(MyAgent(config), config, 1000)
    with pytest.raises(UsageError, match='of the parameter group "critic": checkpoints must hold every trained'):
        trainer.variables()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"minibatches": 2}, "training.epochs = 1 and training.minibatches = 2 must be 1 with R2D2Agent"),
        ({"synchronous": True}, "training.synchronous = true must be false with R2D2Agent"),
    ],
)
def test_several_updates_on_a_batch_and_waiting_are_not_for_a_replay(values: dict[str, Any], message: str) -> None:
    config = training_config(unroll_length=4, batch_size=B, **values)
    agent = create_agent(agent_config(algorithm="r2d2", hidden=(4,), n_step=1), config, VECTOR, 1)
    with pytest.raises(UsageError, match=message):
        Trainer(agent, config, 1000)
