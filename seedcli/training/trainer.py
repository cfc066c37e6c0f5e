"""One update: loss, gradients, global-norm clip, apply; what is not finite is dropped, counted and named."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from seedcli.agents.base import Agent, UnrollBatch
from seedcli.agents.optimizer import apply_gradients, learning_rate, make_optimizer
from seedcli.config import TrainingConfig
from seedcli.training.batches import PreparedBatch


class UpdateResult(NamedTuple):
    """What an update tells.

    Attributes:
        applied: whether the weights changed.
        loss: the loss, possibly not finite.
        grad_norm: global norm before clipping.
        learning_rate: what was used.
        policy_lag: mean over trained records of (updates made before this one − the record's policy version).
        policy_lag_max: the largest.
        metrics: the algorithm's own scalars.
        fault: what was not finite, where `applied` is false.
        priorities: [B] float32, the unrolls' new priorities in a replay; None where the algorithm gives none.
    """

    applied: bool
    loss: float
    grad_norm: float
    learning_rate: float
    policy_lag: float
    policy_lag_max: int
    metrics: dict[str, float]
    fault: str | None
    priorities: npt.NDArray[np.float32] | None = None


class Trainer:
    """Owns the optimizer and the traced update of an agent.

    Args:
        agent: what is trained.
        config: optimizer, schedule, clipping.
        total_steps: environment steps at which the learning-rate schedule ends.

    Attributes:
        updates: updates applied; also the policy version of the weights.
        trained_steps: environment steps trained on: T·B an applied update, less the resets among them.
        dropped: updates dropped because something was not finite.
    """

    def __init__(self, agent: Agent, config: TrainingConfig, total_steps: int) -> None:
        self._agent = agent
        self._config = config
        self._total_steps = total_steps
        self.optimizer = make_optimizer(config)
        self.optimizer.build(agent.network.trainable_variables)
        self._update = tf.function(self._update_impl, autograph=False, reduce_retracing=True)
        self.updates = 0
        self.trained_steps = 0
        self.dropped = 0

    def _update_impl(self, unrolls: UnrollBatch) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, Any, Any]:
        variables = self._agent.network.trainable_variables
        self._agent.observe(unrolls)
        with tf.GradientTape() as tape:
            outputs = self._agent.loss(unrolls)
        gradients = tape.gradient(outputs.loss, variables)
        norm = apply_gradients(self.optimizer, gradients, variables, self._config.clip_norm, outputs.loss)
        # The norm is finite exactly where every element of every gradient is.
        applied = tf.math.is_finite(outputs.loss) & tf.math.is_finite(norm)
        return applied, outputs.loss, norm, dict(outputs.metrics), outputs.priorities

    def update(self, batch: PreparedBatch, env_steps: int) -> UpdateResult:
        """Train on a batch; `env_steps` places the learning rate on its schedule."""
        rate = learning_rate(self._config, env_steps, self._total_steps)
        self.optimizer.learning_rate.assign(rate)
        lag = self.updates - batch.versions[self._agent.algorithm.burn_in : -1]
        applied, loss, norm, metrics, priorities = self._update(batch.unrolls)
        loss_value, norm_value = float(loss), float(norm)
        fault = None
        if bool(applied):
            self.updates += 1
            counts = ~batch.final[self._agent.algorithm.burn_in : -1] & (batch.unrolls.weights.numpy() > 0)
            self.trained_steps += int(np.count_nonzero(counts))
            self._agent.after_update(self.updates)
        else:
            self.dropped += 1
            fault = "the loss" if not np.isfinite(loss_value) else "a gradient"
        return UpdateResult(
            applied=bool(applied),
            loss=loss_value,
            grad_norm=norm_value,
            learning_rate=rate,
            policy_lag=float(lag.mean()),
            policy_lag_max=int(lag.max()),
            metrics={name: float(value) for name, value in metrics.items()},
            fault=fault,
            priorities=None if priorities is None else priorities.numpy(),
        )

    def variables(self) -> list[tf.Variable]:
        """The optimizer's variables, in a fixed order."""
        return [variable.value for variable in self.optimizer.variables]
