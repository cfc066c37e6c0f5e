"""R2D2: recurrent Q-learning from a replay (Kapturowski et al., 2019), as SEED RL trains it (Espeholt et al., 2020)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from seedcli.agents import noise, q_targets, targets
from seedcli.agents.base import (
    ActInputs,
    ActOutputs,
    AlgorithmSpec,
    LossOutputs,
    Role,
    State,
    UnrollBatch,
)
from seedcli.agents.calls import traced
from seedcli.agents.network_agent import NetworkAgent
from seedcli.agents.networks.models import DuelingQNetwork, evaluate
from seedcli.agents.r2d2_config import R2D2Config
from seedcli.agents.replicas import assign
from seedcli.agents.target_networks import copy_every
from seedcli.agents.variables import named_variables
from seedcli.config.sections import TrainingConfig
from seedcli.errors import UsageError
from seedcli.specs import ArraySpec, EnvSpec


class _Errors(NamedTuple):
    """Targets and TD errors of transitions, [T, B] float32; the errors are 0 where `mask_tm1` is."""

    target_tm1: tf.Tensor
    td_error_tm1: tf.Tensor
    mask_tm1: tf.Tensor


class R2D2Agent(NetworkAgent):
    """An agent with `agents.base.InitialPriorities`: ε-greedy actions, n-step double Q-learning.

    With `agent.value_rescaling` Q values are rescaled by h(x) (`q_targets.rescale`).

    Every record stores "q_taken" and "q_max" [] float32: the Q value of the action taken and the largest Q value.

    Attributes:
        algorithm: K burn-in records, T transitions, unrolls from a replay.
        target_network: a periodic copy of the trained network that targets bootstrap from.
    """

    Config = R2D2Config
    Network = DuelingQNetwork

    def __init__(
        self, config: R2D2Config, training: TrainingConfig, spec: EnvSpec, seed: int, precision: str = "float32"
    ) -> None:
        """Build the agent; raises UsageError if it does not support the environment's observations or actions."""
        if spec.action.size or spec.action.array.shape:
            found = f"{spec.action.size} numbers" if spec.action.size else f"{len(spec.action.categories)} categories"
            raise UsageError(
                f"agent.algorithm 'r2d2' chooses one of several actions, but an action of {spec.name} is a vector of "
                f"{found}: choose agent.algorithm vtrace"
            )
        super().__init__(config, training, spec, seed, precision)
        self._num_actions = spec.action.categories[0]
        self.algorithm = AlgorithmSpec(
            name=config.algorithm,
            burn_in=training.burn_in,
            unroll_length=training.unroll_length,
            source=config.source,
            recorded={"q_taken": ArraySpec((), "float32"), "q_max": ArraySpec((), "float32")},
            roles=("training", "evaluation"),
            samples_actions=False,
        )
        self.target_network = self.make_network()
        self.target_network.trainable = False
        records = [self.algorithm.records, None]
        self._initial_priorities = traced(
            self._initial_priorities_impl,
            input_signature=[
                tf.TensorSpec(records, tf.float32),
                tf.TensorSpec(records, tf.bool),
                tf.TensorSpec(records, tf.bool),
                tf.TensorSpec(records, tf.float32),
                tf.TensorSpec(records, tf.float32),
            ],
        )

    def exploration(self, role: Role, index: npt.NDArray[np.int64], total: int) -> npt.NDArray[np.float32]:
        """ε of each environment: ε_i = base^(1 + exponent·i/(N-1)) (Horgan et al., "Ape-X", 2018, section 4.1).

        The index wraps at the configured N. A single environment (N = 1) uses i/(N-1) = ½, the geometric mean of a
        fleet. Evaluation environments use `agent.evaluation_epsilon`.
        """
        config = self.config
        if role == "evaluation":
            return np.full(len(index), config.evaluation_epsilon, np.float32)
        part = (index % total) / (total - 1) if total > 1 else np.full(len(index), 0.5)
        return np.power(config.epsilon_base, 1.0 + config.epsilon_exponent * part).astype(np.float32)

    def act(self, network: DuelingQNetwork, inputs: ActInputs, state: State) -> tuple[ActOutputs, State]:
        """The action of the largest Q value, or a uniform one with probability ε; deterministic given the seed."""
        q, state = network.step(inputs.observation, inputs.reward, state)
        greedy_action = tf.argmax(q, axis=-1, output_type=tf.int32)
        rows = tf.shape(greedy_action)[0]
        for_action, for_exploring = noise.split(inputs.seed, 2)
        any_action = noise.integers(for_action, rows, self._num_actions)
        explores = noise.uniform(for_exploring, rows) < inputs.exploration
        action = greedy_action if inputs.greedy else tf.where(explores, any_action, greedy_action)
        recorded = {"q_taken": self._values_of_actions(q, action), "q_max": tf.reduce_max(q, axis=-1)}
        return ActOutputs(action, recorded, greedy_action, {"q_values": q}), network.remember(state, action)

    def observe(self, unrolls: UnrollBatch) -> None:
        """Update the observation statistics, which both networks share."""
        super().observe(unrolls)
        targets, trained = (
            [variable.value for normalizer in network.encoder.normalizers for variable in normalizer.variables]
            for network in (self.target_network, self.network)
        )
        assign(targets, [tf.convert_to_tensor(variable) for variable in trained])

    def loss(self, unrolls: UnrollBatch) -> LossOutputs:
        """weight·½(h(G) − Q(s, a))² with G of `q_targets.n_step_returns`, summed and divided by T·B.

        G bootstraps from h⁻¹ of the target network's Q value of the trained network's best action (van Hasselt et
        al., "Double Q-learning", 2016). T and B (`TrainingConfig.columns_per_update`) are those of the configuration,
        so the losses of parts of a batch add up to the loss of the batch. Actions on final records are masked.

        Returns:
            The loss, the priorities, and metrics, which are means over valid transitions on the scale of Q: "q_mean"
            (of the actions taken), "q_max" (of the best actions), "target_mean", "td_error" (absolute).
        """
        algorithm = self.algorithm
        burn_in = algorithm.burn_in
        unrolls = unrolls._replace(reward=tf.ensure_shape(unrolls.reward, [algorithm.batch_records, None]))
        q = evaluate(self.network, unrolls, burn_in)
        target_q = tf.stop_gradient(evaluate(self.target_network, unrolls, burn_in))
        best_q = self._values_of_actions(target_q, tf.argmax(q, axis=-1, output_type=tf.int32))
        q_tm1 = self._values_of_actions(q[:-1], unrolls.action[burn_in:-1])
        errors = self._errors(unrolls.reward, unrolls.terminated, unrolls.truncated, q_tm1, best_q)
        each = 0.5 * tf.square(errors.td_error_tm1)
        loss = tf.reduce_sum(each * unrolls.weights) / (algorithm.batch_length * self._columns)

        size = tf.abs(errors.td_error_tm1)
        priorities = q_targets.priorities(size, errors.mask_tm1, self.config.priority_max_weight)
        count = tf.maximum(tf.reduce_sum(errors.mask_tm1), 1.0)

        def mean(x: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(x * errors.mask_tm1) / count

        metrics = {
            "q_mean": mean(q_tm1),
            "q_max": mean(tf.reduce_max(q[:-1], axis=-1)),
            "target_mean": mean(errors.target_tm1),
            "td_error": mean(size),
        }
        return LossOutputs(loss, tf.stop_gradient(priorities), tf.nest.map_structure(tf.stop_gradient, metrics))

    def initial_priorities(self, unrolls: UnrollBatch) -> tf.Tensor:
        """Priorities [B] float32, as `loss` would return them if both networks were the one that acted.

        Reads only rewards, ends of episodes and recorded fields; bootstraps from "q_max".
        """
        recorded = unrolls.recorded
        return self._initial_priorities(
            unrolls.reward, unrolls.terminated, unrolls.truncated, recorded["q_taken"], recorded["q_max"]
        )

    def after_update(self, update: tf.Tensor) -> None:
        """Copy the trained network to the target network after every `agent.target_period` updates."""
        copy_every(self.config.target_period, update, self.target_network, self.network)

    def variables(self) -> dict[str, tf.Variable]:
        """The variables of the network and of the target network, by name."""
        return named_variables(network=self.network, target_network=self.target_network)

    def _initial_priorities_impl(
        self, reward: tf.Tensor, terminated: tf.Tensor, truncated: tf.Tensor, q_taken: tf.Tensor, q_max: tf.Tensor
    ) -> tf.Tensor:
        burn_in = self.algorithm.burn_in
        errors = self._errors(reward, terminated, truncated, q_taken[burn_in:-1], q_max[burn_in:])
        return q_targets.priorities(errors.td_error_tm1, errors.mask_tm1, self.config.priority_max_weight)

    def _values_of_actions(self, q: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        """The values [...] of actions [...] int32 among q [..., A]."""
        return tf.reduce_sum(q * tf.one_hot(action, self._num_actions), axis=-1)

    def _errors(
        self, reward: tf.Tensor, terminated: tf.Tensor, truncated: tf.Tensor, q_tm1: tf.Tensor, best_q: tf.Tensor
    ) -> _Errors:
        """Targets and TD errors.

        Args:
            reward: [K+T+1, B] float32, raw.
            terminated: [K+T+1, B] bool.
            truncated: [K+T+1, B] bool.
            q_tm1: [T, B] float32, Q values of the actions taken on the records after the burn-in.
            best_q: [T+1, B] float32, Q values to bootstrap from, of the same records and the next one.
        """
        config, burn_in = self.config, self.algorithm.burn_in
        reward = targets.scaled_rewards(reward, config.reward_scale, config.reward_clip)
        r_t, discount_t, mask_tm1 = targets.transitions(
            reward[burn_in:], terminated[burn_in:], truncated[burn_in:], config.discount
        )
        epsilon = config.value_rescaling_epsilon
        values = q_targets.inverse_rescale(best_q, epsilon) if config.value_rescaling else best_q
        target_tm1 = q_targets.n_step_returns(
            r_t=r_t, discount_t=discount_t, mask_tm1=mask_tm1, values=values, n=config.n_step
        )
        if config.value_rescaling:
            target_tm1 = q_targets.rescale(target_tm1, epsilon)
        td_error_tm1 = tf.where(mask_tm1 > 0.0, target_tm1 - q_tm1, 0.0)
        return _Errors(target_tm1, td_error_tm1, mask_tm1)
