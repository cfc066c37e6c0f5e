"""Updates: applied, clipped after aggregation, dropped and named where something is not finite."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from seedcli.agents import create_agent
from seedcli.agents.base import UnrollBatch
from seedcli.config import AgentConfig, TrainingConfig
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec
from seedcli.training.batches import PreparedBatch
from seedcli.training.trainer import Trainer

SPEC = EnvSpec("test/env", ArraySpec((3,), "float32"), ActionSpec((2,)))
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


@pytest.mark.parametrize("algorithm", ["vtrace", "r2d2"])
def test_columns_of_weight_0_change_nothing(algorithm):
    """What an unroll that must not be trained on holds makes no difference to the update."""
    steps = []
    for reward in (1.0, 50.0):
        agent = create_agent(AgentConfig(algorithm=algorithm, hidden=(8,), n_step=2), TRAINING, SPEC, 1)
        before = _weights(agent)
        batch = _batch()
        unrolls = batch.unrolls._replace(
            reward=tf.constant([[1.0, reward]] * 5),
            weights=tf.constant([1.0, 0.0]),
            recorded={"logits": tf.zeros((5, 2, 2)), "q_taken": tf.zeros((5, 2)), "q_max": tf.zeros((5, 2))},
        )
        assert Trainer(agent, TRAINING, total_steps=100).update(batch._replace(unrolls=unrolls), env_steps=0).applied
        steps.append([now - then for then, now in zip(before, _weights(agent), strict=True)])
    for one, other in zip(*steps, strict=True):
        np.testing.assert_array_equal(one, other)
    assert any(step.any() for step in steps[0])


def _q_trainer(**values):
    config = AgentConfig(algorithm="r2d2", hidden=(8,), n_step=2, value_rescaling=False, **values)
    agent = create_agent(config, TRAINING, SPEC, 1)
    return agent, Trainer(agent, TRAINING, total_steps=100)


def _q_batch(reward: float = 1.0) -> PreparedBatch:
    batch = _batch(reward)
    recorded = {"q_taken": tf.zeros((5, 2)), "q_max": tf.zeros((5, 2))}
    return batch._replace(unrolls=batch.unrolls._replace(recorded=recorded), serials=np.array([3, 4]))


def test_an_update_gives_the_priorities_of_its_unrolls():
    agent, trainer = _q_trainer()
    batch = _q_batch()
    expected = agent.loss(batch.unrolls).priorities.numpy()
    result = trainer.update(batch, env_steps=0)
    assert result.priorities is not None and result.priorities.shape == (2,)
    np.testing.assert_allclose(result.priorities, expected, rtol=1e-5)  # of the weights before the update
    plain = create_agent(AgentConfig(hidden=(8,)), TRAINING, SPEC, 1)
    assert Trainer(plain, TRAINING, total_steps=100).update(_batch(), env_steps=0).priorities is None


def test_an_update_that_is_dropped_still_says_which_unrolls_are_to_blame():
    agent, trainer = _q_trainer()
    batch = _q_batch()
    reward = batch.unrolls.reward.numpy()
    reward[2, 1] = np.nan
    before = _weights(agent)
    result = trainer.update(batch._replace(unrolls=batch.unrolls._replace(reward=tf.constant(reward))), env_steps=0)
    assert not result.applied and trainer.updates == 0
    assert np.isfinite(result.priorities[0]) and np.isnan(result.priorities[1])
    for kept, now in zip(before, _weights(agent), strict=True):
        np.testing.assert_array_equal(kept, now)


def test_the_target_network_follows_after_as_many_applied_updates():
    agent, trainer = _q_trainer(target_period=3)
    targets = [v.numpy() for v in agent.target_network.variables]

    def moved() -> bool:
        return any((a != b.numpy()).any() for a, b in zip(targets, agent.target_network.variables, strict=True))

    for update in (1, 2):
        trainer.update(_q_batch(), env_steps=0)
        trainer.update(_q_batch(np.nan), env_steps=0)
        assert not moved(), f"after {update} applied updates"
    trainer.update(_q_batch(), env_steps=0)
    assert trainer.updates == 3 and trainer.dropped == 2 and moved()
