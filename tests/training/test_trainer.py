"""Updates: applied, clipped after aggregation, dropped and named where something is not finite."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from seedcli.agents import create_agent
from seedcli.agents.base import UnrollBatch
from seedcli.config import AgentConfig, TrainingConfig
from seedcli.specs import ArraySpec, EnvSpec
from seedcli.training.batches import PreparedBatch
from seedcli.training.trainer import Trainer

SPEC = EnvSpec("test/env", ArraySpec((3,), "float32"), 2)
TRAINING = TrainingConfig(unroll_length=4, batch_size=2, learning_rate=0.01)


def _batch(reward: float = 1.0, version: int = 0) -> PreparedBatch:
    rng = np.random.default_rng(1)
    shape = (5, 2)
    unrolls = UnrollBatch(
        observation=tf.constant(rng.normal(size=(*shape, 3)), tf.float32),
        reward=tf.fill(shape, tf.constant(reward, tf.float32)),
        terminated=tf.zeros(shape, tf.bool),
        truncated=tf.zeros(shape, tf.bool),
        action=tf.zeros(shape, tf.int32),
        recorded={"logits": tf.zeros((*shape, 2))},
        state={},
        weights=tf.ones(2),
    )
    return PreparedBatch(unrolls, np.full(shape, version, np.int64), np.zeros(shape, np.bool_))


def _weights(trainer_agent) -> list[np.ndarray]:
    return [v.numpy() for v in trainer_agent.network.trainable_variables]


def test_an_update_changes_the_weights_and_is_counted():
    agent = create_agent(AgentConfig(hidden=(8,)), TRAINING, SPEC, 1)
    trainer = Trainer(agent, TRAINING, total_steps=100)
    before = _weights(agent)
    result = trainer.update(_batch(), env_steps=50)
    assert result.applied and result.fault is None
    assert any((a != b).any() for a, b in zip(before, _weights(agent), strict=True))
    assert (trainer.updates, trainer.trained_steps, trainer.dropped) == (1, 8, 0)
    assert result.learning_rate == pytest.approx(0.005), "half of the steps are done"
    assert np.isfinite(result.loss) and {"policy_loss", "entropy"} <= result.metrics.keys()


def test_policy_lag_is_counted_in_updates():
    agent = create_agent(AgentConfig(hidden=(8,)), TRAINING, SPEC, 1)
    trainer = Trainer(agent, TRAINING, total_steps=100)
    trainer.updates = 7
    batch = _batch(version=5)
    batch.versions[0, :] = 3
    batch.versions[-1, :] = 0  # the bootstrap record is not trained on
    result = trainer.update(batch, env_steps=0)
    assert result.policy_lag_max == 4
    assert result.policy_lag == pytest.approx((4 + 3 * 2) / 4)


@pytest.mark.parametrize("reward", [np.nan, np.inf])
def test_an_update_that_is_not_finite_is_dropped_counted_and_named(reward):
    agent = create_agent(AgentConfig(hidden=(8,)), TRAINING, SPEC, 1)
    trainer = Trainer(agent, TRAINING, total_steps=100)
    trainer.update(_batch(), env_steps=0)
    before = _weights(agent), [v.numpy() for v in trainer.variables()]
    result = trainer.update(_batch(reward=reward), env_steps=0)
    assert not result.applied and result.fault in ("the loss", "a gradient")
    assert (trainer.updates, trainer.dropped) == (1, 1)
    for kept, now in zip(before[0], _weights(agent), strict=True):
        np.testing.assert_array_equal(kept, now)
    rate_and_state = [v.numpy() for v in trainer.variables()]
    for kept, now in zip(before[1], rate_and_state, strict=True):
        np.testing.assert_array_equal(kept, now)
    assert trainer.update(_batch(), env_steps=0).applied, "training goes on"


def test_clipping_bounds_the_step_by_the_global_norm():
    training = TRAINING.model_copy(
        update={"clip_norm": 1e-3, "optimizer": "rmsprop", "epsilon": 1.0, "learning_rate_schedule": "constant"}
    )
    # With ε so much larger than the gradients RMSProp is plain descent, so the step shows the gradient's norm.
    agent = create_agent(AgentConfig(hidden=(8,)), training, SPEC, 1)
    trainer = Trainer(agent, training, total_steps=100)
    before = _weights(agent)
    result = trainer.update(_batch(reward=10.0), env_steps=0)
    step = np.sqrt(sum(((a - b) ** 2).sum() for a, b in zip(before, _weights(agent), strict=True)))
    assert result.grad_norm > 0.1, "the norm told is that before clipping"
    assert step == pytest.approx(1e-3 * training.learning_rate, rel=0.05)
