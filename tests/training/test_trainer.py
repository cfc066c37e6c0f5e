"""Updates: applied, clipped after aggregation, dropped and named if non-finite."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from seedcli.agents.base import UnrollBatch
from seedcli.agents.registry import create_agent
from seedcli.agents.vtrace import VTraceAgent
from seedcli.config.sections import TrainingConfig
from seedcli.config.topology import Plan
from seedcli.errors import SeedError, UsageError
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec
from seedcli.training.batches import TrainingBatch, zero_unrolls
from seedcli.training.devices import Devices
from seedcli.training.trainer import Trainer
from tests.configs import agent_config

SPEC = EnvSpec("test/env", ArraySpec((3,), "float32"), ActionSpec((2,)))
TRAINING = TrainingConfig(unroll_length=4, batch_size=2, learning_rate=0.01)


def _batch(reward: float = 1.0, version: int = 0) -> TrainingBatch:
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
    return TrainingBatch.of(unrolls, np.full(shape, version, np.int64))


def _weights(trainer_agent) -> list[np.ndarray]:
    return [v.numpy() for v in trainer_agent.network.trainable_variables]


def test_an_update_changes_the_weights_and_is_counted():
    agent = create_agent(agent_config(hidden=(8,)), TRAINING, SPEC, 1)
    trainer = Trainer(agent, TRAINING, total_steps=100)
    before = _weights(agent)
    result = trainer.update(_batch(), env_steps=50)
    assert result.applied and result.fault is None
    assert any((a != b).any() for a, b in zip(before, _weights(agent), strict=True))
    assert (trainer.updates, trainer.trained_steps, trainer.dropped) == (1, 8, 0)
    assert result.learning_rate == pytest.approx(0.005), "half of the steps are done"
    assert np.isfinite(result.loss) and {"policy_loss", "entropy"} <= result.metrics.keys()


def test_policy_lag_is_counted_in_updates():
    agent = create_agent(agent_config(hidden=(8,)), TRAINING, SPEC, 1)
    trainer = Trainer(agent, TRAINING, total_steps=100)
    trainer.updates = 7
    batch = _batch(version=5)
    batch.versions[0, :] = 3
    batch.versions[-1, :] = 0  # the bootstrap record is not trained on
    result = trainer.update(batch, env_steps=0)
    assert result.policy_lag_max == 4
    assert result.policy_lag == pytest.approx((4 + 3 * 2) / 4)


@pytest.mark.parametrize("reward", [np.nan, np.inf])
def test_a_non_finite_update_is_dropped_counted_and_named(reward):
    agent = create_agent(agent_config(hidden=(8,)), TRAINING, SPEC, 1)
    trainer = Trainer(agent, TRAINING, total_steps=100)
    trainer.update(_batch(), env_steps=0)
    before = _weights(agent), [v.numpy() for v in trainer.variables().values()]
    result = trainer.update(_batch(reward=reward), env_steps=0)
    assert not result.applied and result.fault in ("the loss", "a gradient")
    assert (trainer.updates, trainer.dropped) == (1, 1)
    for kept, now in zip(before[0], _weights(agent), strict=True):
        np.testing.assert_array_equal(kept, now)
    rate_and_state = [v.numpy() for v in trainer.variables().values()]
    for kept, now in zip(before[1], rate_and_state, strict=True):
        np.testing.assert_array_equal(kept, now)
    assert trainer.update(_batch(), env_steps=0).applied, "training continues"


def test_tracing_for_zeros_is_the_trace_of_the_first_update(monkeypatch):
    traced = []
    loss = VTraceAgent.loss
    monkeypatch.setattr(VTraceAgent, "loss", lambda agent, unrolls: traced.append(unrolls) or loss(agent, unrolls))
    agent = create_agent(agent_config(hidden=(8,), lstm=3), TRAINING, SPEC, 1)
    trainer = Trainer(agent, TRAINING, total_steps=100)
    before = _weights(agent)
    trainer.trace(zero_unrolls(agent, SPEC, 2))
    assert len(traced) == 1 and trainer.updates == 0
    for kept, now in zip(before, _weights(agent), strict=True):
        np.testing.assert_array_equal(kept, now)
    unrolls = zero_unrolls(agent, SPEC, 2)._replace(reward=np.ones((5, 2), np.float32))
    assert trainer.update(TrainingBatch.of(unrolls, np.zeros((5, 2), np.int64)), env_steps=0).applied
    assert len(traced) == 1


def test_tracing_refuses_a_loss_of_another_dtype(monkeypatch):
    loss = VTraceAgent.loss

    def doubled(agent, unrolls):
        outputs = loss(agent, unrolls)
        return outputs._replace(loss=tf.cast(outputs.loss, tf.float64))

    monkeypatch.setattr(VTraceAgent, "loss", doubled)
    agent = create_agent(agent_config(hidden=(8,)), TRAINING, SPEC, 1)
    with pytest.raises(UsageError, match="float64 of shape .* it must be a scalar float32 tensor"):
        Trainer(agent, TRAINING, total_steps=100).trace(zero_unrolls(agent, SPEC, 2))


def test_clipping_bounds_the_step_by_the_global_norm():
    training = TRAINING.model_copy(
        update={"clip_norm": 1e-3, "optimizer": "rmsprop", "epsilon": 1.0, "learning_rate_schedule": "constant"}
    )
    # With ε so much larger than the gradients RMSProp is plain descent, so the step shows the gradient's norm.
    agent = create_agent(agent_config(hidden=(8,)), training, SPEC, 1)
    trainer = Trainer(agent, training, total_steps=100)
    before = _weights(agent)
    result = trainer.update(_batch(reward=10.0), env_steps=0)
    step = np.sqrt(sum(((a - b) ** 2).sum() for a, b in zip(before, _weights(agent), strict=True)))
    assert result.grad_norm > 0.1, "the reported norm is that before clipping"
    assert step == pytest.approx(1e-3 * training.learning_rate, rel=0.05)


@pytest.mark.parametrize("algorithm", ["vtrace", "r2d2"])
def test_columns_of_weight_0_change_nothing(algorithm):
    """The content of unrolls that must not be trained on does not affect the update."""
    steps = []
    for reward in (1.0, 50.0):
        agent = create_agent(agent_config(algorithm=algorithm, hidden=(8,), n_step=2), TRAINING, SPEC, 1)
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
    config = agent_config(algorithm="r2d2", hidden=(8,), n_step=2, value_rescaling=False, **values)
    agent = create_agent(config, TRAINING, SPEC, 1)
    return agent, Trainer(agent, TRAINING, total_steps=100)


def _q_batch(reward: float = 1.0) -> TrainingBatch:
    batch = _batch(reward)
    recorded = {"q_taken": tf.zeros((5, 2)), "q_max": tf.zeros((5, 2))}
    return batch._replace(unrolls=batch.unrolls._replace(recorded=recorded), serials=np.array([3, 4]))


def test_an_update_returns_the_priorities_of_its_unrolls():
    agent, trainer = _q_trainer()
    batch = _q_batch()
    expected = agent.loss(batch.unrolls).priorities.numpy()
    result = trainer.update(batch, env_steps=0)
    assert result.priorities is not None and result.priorities.shape == (2,)
    np.testing.assert_allclose(result.priorities, expected, rtol=1e-5)  # of the weights before the update
    plain = create_agent(agent_config(hidden=(8,)), TRAINING, SPEC, 1)
    assert Trainer(plain, TRAINING, total_steps=100).update(_batch(), env_steps=0).priorities is None


def test_a_dropped_update_returns_non_finite_priorities():
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


def _half_precision_trainer() -> Trainer:
    plan = Plan("cpu", 1, (0,), (0,), columns=2, precision="mixed_float16")
    agent = create_agent(agent_config(hidden=(8,)), TRAINING, SPEC, 1)
    return Trainer(agent, TRAINING, 100, Devices(plan))


def test_a_scaled_loss_gives_the_same_update():
    trainer = _half_precision_trainer()
    plain = Trainer(create_agent(agent_config(hidden=(8,)), TRAINING, SPEC, 1), TRAINING, 100)
    for _ in range(3):
        scaled, exact = trainer.update(_batch(), env_steps=0), plain.update(_batch(), env_steps=0)
        assert scaled.loss == pytest.approx(exact.loss, rel=1e-6), "the reported loss is not scaled"
        assert scaled.grad_norm == pytest.approx(exact.grad_norm, rel=1e-6)
    assert scaled.metrics.pop("loss_scale") == 2.0**15 and scaled.metrics.keys() == exact.metrics.keys()
    for one, other in zip(_weights(trainer._agent), _weights(plain._agent), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_a_too_large_loss_scale_is_halved_without_a_fault():
    trainer = _half_precision_trainer()
    trainer.loss_scale = 2.0**127  # overflows float32, as 2^15 may overflow float16
    before = _weights(trainer._agent)
    big = _batch(reward=1000.0)
    result = trainer.update(big, env_steps=0)
    assert np.isfinite(result.loss) and not np.isfinite(result.grad_norm)
    assert (result.applied, result.fault, result.metrics["loss_scale"]) == (False, None, 2.0**127)
    assert (trainer.loss_scale, trainer.dropped, trainer.updates) == (2.0**126, 0, 0)
    for kept, now in zip(before, _weights(trainer._agent), strict=True):
        np.testing.assert_array_equal(kept, now)
    for _ in range(20):
        if trainer.update(big, env_steps=0).applied:
            break
    assert trainer.updates == 1 and trainer.dropped == 0


def test_a_non_finite_update_at_scale_1_is_a_fault():
    trainer = _half_precision_trainer()
    assert trainer.update(_batch(reward=np.nan), env_steps=0).fault == "the loss"
    assert (trainer.dropped, trainer.loss_scale) == (1, 2.0**15)
    trainer.loss_scale = 1.0
    assert trainer._count(0, 1, 0.5, _batch()) == "a gradient"
    assert (trainer.dropped, trainer.loss_scale) == (2, 1.0)


def test_the_loss_scale_grows_after_many_good_updates_in_a_row():
    trainer = _half_precision_trainer()
    for _ in range(1999):
        trainer._count(1, 0, 0.5, _batch())
    assert trainer.loss_scale == 2.0**15
    trainer._count(0, 1, 0.5, _batch())
    assert trainer.loss_scale == 2.0**14, "a dropped update resets the count"
    for _ in range(2000):
        trainer._count(1, 0, 0.5, _batch())
    assert trainer.loss_scale == 2.0**15
    trainer.loss_scale = 2.0**24
    for _ in range(2000):
        trainer._count(1, 0, 0.5, _batch())
    assert trainer.loss_scale == 2.0**24, "the largest scale"


def test_update_out_of_memory_names_contents_and_settings(monkeypatch):
    agent = create_agent(agent_config(hidden=(8,)), TRAINING, SPEC, 1)
    trainer = Trainer(agent, TRAINING, total_steps=100)

    def exhausted(*_):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    # 3 numbers, 8 units, 2 actions and the value.
    assert agent.network.count_params() == 3 * 8 + 8 + 8 * 2 + 2 + 8 + 1
    weights = sum(v.numpy().nbytes for v in [*agent.variables().values(), *trainer.variables().values()])
    batch = 2 * 5 * (3 * 4 + 4 + 1 + 1 + 4 + 2 * 4) + 2 * 4

    def check():
        with pytest.raises(SeedError) as raised:
            trainer.update(_batch(), env_steps=0)
        sentence = str(raised.value)
        assert sentence.startswith("the training device ran out of memory during an update: it must hold ")
        assert f"a batch of 2 unrolls ({batch / 1e3:.1f} kB)" in sentence
        assert f"59 parameters and the optimizer's state ({weights / 1e3:.1f} kB)" in sentence
        assert "the activations of 10 records" in sentence and "training.batch_size = 2" in sentence
        for setting in ("training.unroll_length = 4", "inference.max_envs", "topology.precision"):
            assert setting in sentence

    update = trainer._update
    monkeypatch.setattr(trainer, "_update", exhausted)
    check()

    class Unread:
        numpy = exhausted

    def unread(*args):
        return update(*args)._replace(scalars=Unread())

    # An accelerator may report it only when its results are read.
    monkeypatch.setattr(trainer, "_update", unread)
    check()


@pytest.mark.skipif(not tf.config.list_physical_devices("GPU"), reason="there is no GPU")
@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_a_gpu_learns_in_any_precision(precision):
    """The action with the larger reward becomes more likely."""
    devices = Devices(Plan("gpu", 1, (0,), (0,), columns=2, precision=precision))
    with devices.scope():
        agent = create_agent(agent_config(hidden=(64,), lstm=16), TRAINING, SPEC, 1, precision=precision)
    trainer = Trainer(agent, TRAINING, 10**6, devices)
    batch = _batch()
    action = np.tile([[0, 1]], (5, 1)).astype(np.int32)
    reward = np.where(action == 1, 1.0, -1.0).astype(np.float32)
    state = tf.nest.map_structure(lambda leaf: leaf.numpy(), agent.initial_state(2))
    host = tf.nest.map_structure(lambda leaf: leaf.numpy(), batch.unrolls._replace(state={}))
    unrolls = devices.place(host._replace(action=action, reward=reward, state=state))
    assert unrolls.observation.device.endswith("GPU:0")
    for _ in range(100):
        trainer.update(batch._replace(unrolls=unrolls), env_steps=0)
    assert trainer.updates > 90 and trainer.dropped == 0
    logits = agent.network.step(unrolls.observation[0], unrolls.reward[0], agent.initial_state(2))[0].policy
    assert (logits[:, 1] > logits[:, 0] + 1.0).numpy().all()


@pytest.mark.skipif(not tf.config.list_physical_devices("GPU"), reason="there is no GPU")
def test_a_gpu_allocates_memory_as_needed():
    code = (
        "import tensorflow as tf;"
        "from seedcli.config.topology import Plan; from seedcli.training.devices import prepare;"
        "prepare(Plan('gpu', 1, (0,), (0,), columns=2)); tf.zeros([1]);"
        "assert all(tf.config.experimental.get_memory_growth(gpu) for gpu in tf.config.list_physical_devices('GPU'))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=100).returncode == 0
