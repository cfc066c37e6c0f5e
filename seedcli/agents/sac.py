"""Soft actor-critic: Haarnoja et al., arXiv 1801.01290 (2018), with the learned temperature of arXiv 1812.05905."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from seedcli.agents import noise, targets
from seedcli.agents.base import (
    ActInputs,
    ActOutputs,
    AlgorithmSpec,
    LossOutputs,
    ParameterGroup,
    State,
    UnrollBatch,
)
from seedcli.agents.distributions import SquashedGaussian
from seedcli.agents.network_agent import NetworkAgent
from seedcli.agents.networks.soft_actor_critic import GaussianPolicyNetwork, Temperature, TwinCritics
from seedcli.agents.replicas import assign
from seedcli.agents.sac_config import SACConfig
from seedcli.agents.target_networks import polyak
from seedcli.agents.variables import named_variables
from seedcli.config.sections import TrainingConfig
from seedcli.errors import UsageError
from seedcli.specs import EnvSpec, map_arrays


class SACAgent(NetworkAgent):
    """An `agents.base.Agent` for bounded Box actions that maximises reward and entropy, off-policy.

    Before training starts, after `replay.min_size` unrolls, the initial policy acts; it is almost uniform
    (`GaussianPolicyNetwork`), so no other exploration is needed.

    Attributes:
        algorithm: single transitions from a replay.
        network: the policy.
        critics: both Q functions; their inputs are normalized by the statistics of the policy's network.
        target_critics: a moving average of the critics, that targets bootstrap from.
        temperature: α; None if it is fixed.
    """

    Config = SACConfig
    Network = GaussianPolicyNetwork

    def __init__(
        self, config: SACConfig, training: TrainingConfig, spec: EnvSpec, seed: int, precision: str = "float32"
    ) -> None:
        """Build the agent; raises UsageError if it does not support the environment's observations or actions."""
        _check_actions(config.algorithm, spec)
        super().__init__(config, training, spec, seed, precision)
        self.distribution = SquashedGaussian(spec.action.size)
        self._target_entropy = -float(spec.action.size) if config.target_entropy == "auto" else config.target_entropy
        self.algorithm = AlgorithmSpec(
            name=config.algorithm,
            burn_in=0,
            unroll_length=training.unroll_length,
            source=config.source,
            recorded={},
            sample_length=config.sample_length,
        )
        zeros = map_arrays(lambda array: tf.zeros([1, *array.shape], array.dtype), spec.observation)
        inputs = self.network.encoder.inputs(zeros)
        self.critics, self.target_critics = (TwinCritics(config, spec, inputs, seed, precision) for _ in range(2))
        self.target_critics.trainable = False
        self.temperature = Temperature() if config.temperature == "auto" else None
        # The number of updates made, from which the random numbers of the next one are drawn.
        self._updates = tf.Variable(0, trainable=False, dtype=tf.int64, name="updates")

    def act(self, network: GaussianPolicyNetwork, inputs: ActInputs, state: State) -> tuple[ActOutputs, State]:
        """Sample an action of the policy for each row, or take its median; deterministic given the seed."""
        params, state = network.step(inputs.observation, inputs.reward, state)
        drawn = noise.normal(inputs.seed, tf.shape(params)[0], self._spec.action.size)
        greedy_action = self.distribution.median(params)
        action = greedy_action if inputs.greedy else self.distribution.sample(params, drawn)[0]
        return ActOutputs(action, {}, greedy_action, self.distribution.describe(params)), state

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        """The groups "actor", "critics" and, if it is learned, "temperature"."""
        groups = {
            "actor": ParameterGroup(self.network.trainable_variables),
            "critics": ParameterGroup(self.critics.trainable_variables, self.config.critic_rate),
        }
        if self.temperature is not None:
            rate = self.config.temperature_rate
            groups["temperature"] = ParameterGroup(self.temperature.trainable_variables, rate)
        return groups

    def loss(self, unrolls: UnrollBatch) -> LossOutputs:
        """The losses of arXiv 1812.05905, each summed over valid transitions and divided by T·B.

        With new actions ã of the current policy on both records of a transition, and α without gradient:

        - critics, equations 5 and 6: Σ_i ½·(Q_i(s, a) − y)² with y = r + γ·(min_i Q̄_i(s', ã') − α·log π(ã'|s')),
          where Q̄ are the target critics; no Q̄ where s' is terminated;
        - actor, equation 9: α·log π(ã|s) − min_i Q_i(s, ã);
        - temperature, equation 18: −α·(log π(ã|s) + target entropy), with gradient to α alone.

        T and B (`TrainingConfig.columns_per_update`) are those of the configuration, so the losses of parts of a batch
        add up to the loss of the batch. Final records, whose actions were ignored, are masked.

        Returns:
            The losses, no priorities, and metrics, which are means over valid transitions: "q" (of the actions taken,
            over both critics), "target" (y), "td_error" (absolute), "entropy" (−log π(ã|s), nats), and "temperature".
        """
        config = self.config
        reward = tf.ensure_shape(unrolls.reward, [self.algorithm.batch_records, None])
        reward = targets.scaled_rewards(reward, config.reward_scale, config.reward_clip)
        transitions = targets.transitions(reward, unrolls.terminated, unrolls.truncated, config.discount)
        r_t, discount_t, mask_tm1 = (tf.reshape(x, [-1]) for x in transitions)
        records_tm1 = tf.nest.map_structure(lambda x: _flat(x[:-1]), unrolls.observation)
        records_t = tf.nest.map_structure(lambda x: _flat(x[1:]), unrolls.observation)
        inputs_tm1, inputs_t = (self.network.encoder.inputs(records) for records in (records_tm1, records_t))
        noise_tm1, noise_t = tf.unstack(self._noise(tf.shape(reward)[1]))
        alpha: Any = config.temperature if self.temperature is None else self.temperature.value()
        fixed_alpha = tf.stop_gradient(alpha)

        action_t, log_pi_t = self._sample(records_t, noise_t)
        v_t = tf.reduce_min(self.target_critics(inputs_t, action_t), axis=0) - fixed_alpha * log_pi_t
        target_tm1 = tf.stop_gradient(r_t + discount_t * v_t)
        q_tm1 = self.critics(inputs_tm1, _flat(unrolls.action[:-1]))
        td_error_tm1 = q_tm1 - target_tm1

        action_tm1, log_pi_tm1 = self._sample(records_tm1, noise_tm1)
        best_q_tm1 = tf.reduce_min(self.critics(inputs_tm1, action_tm1), axis=0)
        fixed_log_pi = tf.stop_gradient(log_pi_tm1)
        each = {
            "actor": fixed_alpha * log_pi_tm1 - best_q_tm1,
            "critics": 0.5 * tf.reduce_sum(tf.square(td_error_tm1), axis=0),
        }
        if self.temperature is not None:
            each["temperature"] = -alpha * (fixed_log_pi + self._target_entropy)

        weights = tf.reshape(tf.reshape(mask_tm1, [self.algorithm.batch_length, -1]) * unrolls.weights, [-1])
        size = self.algorithm.batch_length * self._columns
        losses = {name: tf.reduce_sum(x * weights) / size for name, x in each.items()}
        count = tf.maximum(tf.reduce_sum(mask_tm1), 1.0)

        def mean(x: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(x * mask_tm1) / count

        metrics = {
            "q": mean(tf.reduce_mean(q_tm1, axis=0)),
            "target": mean(target_tm1),
            "td_error": mean(tf.reduce_mean(tf.abs(td_error_tm1), axis=0)),
            "entropy": mean(-fixed_log_pi),
            "temperature": tf.convert_to_tensor(fixed_alpha),
        }
        return LossOutputs(losses, None, tf.nest.map_structure(tf.stop_gradient, metrics))

    def after_update(self, update: tf.Tensor) -> None:
        """Move the target critics towards the critics."""
        polyak(self.target_critics, self.critics, self.config.tau)
        assign([self._updates], [update])

    def variables(self) -> dict[str, tf.Variable]:
        """The variables of the policy, the critics, their targets and the temperature, by name, and "updates"."""
        layers = {"network": self.network, "critics": self.critics, "target_critics": self.target_critics}
        if self.temperature is not None:
            layers["temperature"] = self.temperature
        return {**named_variables(**layers), "updates": self._updates}

    def _sample(self, observation: Any, noise: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Actions [N, d] of the policy for observations [N, ...] and noise [N, d], and their log-density [N]."""
        params, _ = self.network.step(observation, tf.zeros_like(noise[:, 0]), {})
        return self.distribution.sample(params, noise)

    def _noise(self, columns: tf.Tensor) -> tf.Tensor:
        """Standard normal numbers [2, T·columns, d] for the two ends of this device's transitions.

        Each device draws them for the columns of all devices and takes its own, so results do not depend on the number
        of devices.
        """
        seed = tf.stack([tf.constant(self._seed, tf.int64), tf.convert_to_tensor(self._updates)])
        length, size = self.algorithm.batch_length, self._spec.action.size
        noise = tf.random.stateless_normal([2, length, self._columns, size], seed)
        first = tf.distribute.get_replica_context().replica_id_in_sync_group * columns
        return tf.reshape(noise[:, :, first : first + columns], [2, -1, size])


def _flat(x: tf.Tensor) -> tf.Tensor:
    """[T, B, ...] → [T·B, ...]."""
    return tf.reshape(x, [-1, *x.shape[2:]])


def _check_actions(algorithm: str, spec: EnvSpec) -> None:
    """Raise UsageError unless an action is a Box with two bounds for each number."""
    action = spec.action
    if not action.size:
        raise UsageError(
            f"agent.algorithm {algorithm!r} needs actions that are real numbers, but an action of {spec.name} is one "
            f"of {' and one of '.join(map(str, action.categories))} categories: choose agent.algorithm vtrace"
        )
    if action.unbounded:
        raise UsageError(
            f"agent.algorithm {algorithm!r} needs actions with two bounds, because its policy is squashed into them, "
            f"but the action of {spec.name} lacks a bound for its numbers {list(action.unbounded)}: choose "
            "agent.algorithm vtrace, or give the environment's action space bounds"
        )
