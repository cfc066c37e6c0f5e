"""An agent small enough to be trained by hand: two linear functions, each a parameter group with its own loss."""

from __future__ import annotations

import bisect
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from seedcli.agents.base import AlgorithmSpec, LossOutputs, ParameterGroup, UnrollBatch
from seedcli.agents.target_networks import polyak
from seedcli.agents.variables import named_variables
from seedcli.config.sections import TrainingConfig
from seedcli.training.batches import TrainingBatch

T, SIZE, TAU = 3, 2, 0.25


class Linear(keras.layers.Layer):
    """x·kernel, [..., SIZE] → [...]."""

    def __init__(self, start: list[float]) -> None:
        super().__init__()
        self.kernel = self.add_weight(shape=(SIZE,), initializer="zeros", name="kernel")
        self.kernel.assign(start)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return tf.linalg.matvec(x, tf.convert_to_tensor(self.kernel))


class Network(keras.layers.Layer):
    """An actor and a critic."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = Linear([0.5, -0.25])
        self.critic = Linear([-1.0, 0.75])
        self.built = True


class TinyAgent:
    """Both losses depend on both functions: actor (a·x + c·x − r)², critic (c·x − 0.3·a·x − y)² with targets y.

    After `stop_after` updates it stops, and the critic's loss is multiplied by `critic`. Numbers of updates, and the
    batches that it is given, are logged if it is trained on one device.
    """

    def __init__(
        self,
        config: TrainingConfig,
        rates: tuple[float, float] = (1.0, 0.1),
        stop_after: int | None = None,
        critic: float = 1.0,
        logs: bool = True,
    ) -> None:
        self.algorithm = AlgorithmSpec("tiny", 0, T, "queue", {})
        self.network = Network()
        self.average = Network()
        self._count = T * config.columns_per_update
        self._rates = rates
        self._stop_after = stop_after
        self._critic = critic
        self._logs = logs
        self._updates = tf.Variable(0, trainable=False, dtype=tf.int64)
        # TensorFlow keeps the order of operations on a variable, but not that of Python functions: one of the
        # first update may run in parallel with the loop of the others. So a variable gives each its place in the logs.
        self._places = tf.Variable(0, trainable=False, dtype=tf.int64)
        self._log: list[tuple[int, dict[str, npt.NDArray[Any]]]] = []
        self._numbers: list[tuple[int, int]] = []
        self.targets_made = 0

    @property
    def log(self) -> list[dict[str, npt.NDArray[Any]]]:
        return [fields for _, fields in self._log]

    @property
    def numbers(self) -> list[int]:
        return [number for _, number in self._numbers]

    def forget(self) -> None:
        """Clear the log."""
        self._log.clear()

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        return {
            "actor": ParameterGroup(self.network.actor.trainable_variables, self._rates[0]),
            "critic": ParameterGroup(self.network.critic.trainable_variables, self._rates[1]),
        }

    def observe(self, unrolls: UnrollBatch) -> None:
        """There are no statistics."""

    def targets(self, unrolls: UnrollBatch) -> dict[str, tf.Tensor]:
        """Twice the reward less the critic's prediction, so that they depend on when they are computed."""
        if self._logs:
            tf.numpy_function(self._count_targets, [], [])
        return {"y": 2.0 * unrolls.reward[:-1] - self.network.critic(unrolls.observation[:-1])}

    def loss(self, unrolls: UnrollBatch) -> LossOutputs:
        x, r, y = unrolls.observation[:-1], unrolls.reward[:-1], unrolls.targets["y"]
        actor, critic = self.network.actor(x), self.network.critic(x)
        losses = {
            "critic": self._critic * tf.square(critic - 0.3 * actor - y),
            "actor": tf.square(actor + critic - r),
        }
        if self._logs:
            fields = (unrolls.reward, unrolls.state["id"], unrolls.weights, y)
            tf.numpy_function(self._note, (self._places.assign_add(1), *fields), [])
        stop = None
        if self._stop_after is not None:
            # Replica 0 votes strongly and the others weakly against it, so that the mean decides.
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            vote = tf.where(tf.equal(replica, 0), 3.0, -0.5)
            stop = tf.where(self._updates >= self._stop_after, vote, -vote)
        sums = {name: tf.reduce_sum(each * unrolls.weights) / self._count for name, each in losses.items()}
        return LossOutputs(sums, None, {"actor_mean": tf.reduce_mean(actor)}, stop)

    def after_update(self, update: tf.Tensor) -> None:
        self._updates.assign(update)
        polyak(self.average, self.network, TAU)
        if self._logs:
            tf.numpy_function(self._note_number, [self._places.assign_add(1), update], [])

    def variables(self) -> dict[str, tf.Variable]:
        return named_variables(network=self.network, average=self.average)

    def _note(self, place: npt.NDArray[np.int64], *fields: npt.NDArray[Any]) -> None:
        named = dict(zip(("reward", "id", "weights", "y"), fields, strict=True))
        bisect.insort(self._log, (int(place), named), key=lambda entry: entry[0])

    def _note_number(self, place: npt.NDArray[np.int64], number: npt.NDArray[np.int64]) -> None:
        bisect.insort(self._numbers, (int(place), int(number)))

    def _count_targets(self) -> None:
        self.targets_made += 1


def tiny_batch(columns: int, seed: int = 0) -> TrainingBatch:
    """A random batch; column i has the state i and the weight 1 + i/columns."""
    rng = np.random.default_rng(seed)
    shape = (T + 1, columns)
    ids = np.arange(columns, dtype=np.int32)
    unrolls = UnrollBatch(
        observation=rng.normal(size=(*shape, SIZE)).astype(np.float32),
        reward=rng.normal(size=shape).astype(np.float32),
        terminated=np.zeros(shape, np.bool_),
        truncated=np.zeros(shape, np.bool_),
        action=np.zeros(shape, np.int32),
        recorded={},
        state={"id": ids},
        weights=(1.0 + ids / columns).astype(np.float32),
    )
    return TrainingBatch.of(unrolls, np.zeros(shape, np.int64))


def train_by_hand(
    config: TrainingConfig, batches: list[TrainingBatch], rates: tuple[float, float] = (1.0, 0.1), critic: float = 1.0
) -> tuple[dict[str, npt.NDArray[np.float64]], list[dict[str, float]]]:
    """The same in float64 NumPy: Adam on whole batches, each `config.epochs` times, every group clipped separately.

    Returns:
        The kernels of actor, critic and their averages, and of each update the losses and the norms of the gradients.
    """
    kernels = {"actor": np.array([0.5, -0.25]), "critic": np.array([-1.0, 0.75])}
    averages = {name: kernel.copy() for name, kernel in kernels.items()}
    moments = {name: (np.zeros(SIZE), np.zeros(SIZE)) for name in kernels}
    results = []
    step = 0
    for batch in batches:
        unrolls = batch.unrolls
        x, r = unrolls.observation[:-1].astype(np.float64), unrolls.reward[:-1].astype(np.float64)
        weights = unrolls.weights.astype(np.float64)
        y = 2.0 * r - x @ kernels["critic"]
        for _ in range(config.epochs):
            step += 1
            a, c = x @ kernels["actor"], x @ kernels["critic"]
            errors = {"actor": (a + c - r, 1.0), "critic": (c - 0.3 * a - y, critic)}
            result = {}
            for rate, (name, (error, factor)) in zip(rates, errors.items(), strict=True):
                count = T * config.batch_size
                result[f"loss/{name}"] = factor * (weights * error**2).sum() / count
                gradient = factor * 2.0 * (weights * error)[..., None] * x / count
                gradient = gradient.sum(axis=(0, 1))
                norm = np.linalg.norm(gradient)
                result[f"grad_norm/{name}"] = norm
                if config.clip_norm:
                    gradient = gradient * min(1.0, config.clip_norm / norm)
                m, v = moments[name]
                m = config.adam_beta1 * m + (1.0 - config.adam_beta1) * gradient
                v = config.adam_beta2 * v + (1.0 - config.adam_beta2) * gradient**2
                moments[name] = m, v
                corrected = m / (1.0 - config.adam_beta1**step)
                root = np.sqrt(v / (1.0 - config.adam_beta2**step))
                # Keras adds ε before the correction of v, and so changes it by that factor.
                epsilon = config.epsilon / np.sqrt(1.0 - config.adam_beta2**step)
                kernels[name] = kernels[name] - rate * config.learning_rate * corrected / (root + epsilon)
            for name, kernel in kernels.items():
                averages[name] = (1.0 - TAU) * averages[name] + TAU * kernel
            results.append(result)
    return {**kernels, **{f"average_{name}": kernel for name, kernel in averages.items()}}, results
