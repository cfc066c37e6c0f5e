"""The V-trace actor-critic: Espeholt et al., "IMPALA" (2018), as SEED RL trains it (Espeholt et al., 2020)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from seedcli.agents import targets
from seedcli.agents.base import ActInputs, ActOutputs, AlgorithmSpec, LossOutputs, Role, State, UnrollBatch
from seedcli.agents.distributions import make_distribution
from seedcli.agents.networks import PolicyValueNetwork, evaluate, observe
from seedcli.config import AgentConfig, TrainingConfig
from seedcli.specs import ArraySpec, EnvSpec


class VTraceAgent:
    """An `agents.base.Agent` that samples from its policy and learns it with V-trace.

    Actions are of any kind. Every record keeps the parameters of the distribution that acted, [P] float32, under their
    name in `agents.distributions`: "logits", or "mean_log_std" for a Box.

    Attributes:
        algorithm: no burn-in, T transitions, each unroll used once.
        network: the trained network; `network.trainable_variables` are what is learned.
    """

    def __init__(
        self, config: AgentConfig, training: TrainingConfig, spec: EnvSpec, seed: int, precision: str = "float32"
    ) -> None:
        """Build the agent; raises UsageError where the network cannot take the environment's observations."""
        self._config = config
        self._spec = spec
        self._seed = seed
        self._precision = precision
        self._distribution = make_distribution(spec.action)
        self._batch_size = training.batch_size
        self.algorithm = AlgorithmSpec(
            name="vtrace",
            burn_in=0,
            unroll_length=training.unroll_length,
            source="queue",
            recorded={self._distribution.name: ArraySpec((self._distribution.size,), "float32")},
        )
        self.network = self.make_network()

    def make_network(self) -> PolicyValueNetwork:
        """Another network of the same architecture with the initial variables, built."""
        return PolicyValueNetwork(self._config, self._spec, self._seed, self._precision)

    def initial_state(self, batch_size: int) -> State:
        """The state at the start of an episode, [batch_size, ...]; an empty dict for a network without memory."""
        return self.network.initial_state(batch_size)

    def exploration(self, role: Role, index: npt.NDArray[np.int64], total: int) -> npt.NDArray[np.float32]:
        """Zeros [E]: the policy's own randomness is all its exploration."""
        return np.zeros(len(index), np.float32)

    def act(self, network: PolicyValueNetwork, inputs: ActInputs, state: State) -> tuple[ActOutputs, State]:
        """Sample an action of the policy for each row; the arguments and the seed decide it entirely."""
        outputs, state = network.step(inputs.observation, inputs.reward, state)
        action = self._distribution.sample(outputs.policy, inputs.seed)
        greedy_action = self._distribution.mode(outputs.policy)
        recorded = {self._distribution.name: outputs.policy}
        return ActOutputs(action, recorded, greedy_action), network.remember(state, action)

    def observe(self, unrolls: UnrollBatch) -> None:
        """See `agents.base.Agent.observe`."""
        observe(self.network, unrolls, self.algorithm.burn_in)

    def loss(self, unrolls: UnrollBatch) -> LossOutputs:
        """−log π(a)·advantage + baseline_cost·½(v_s − V)² − entropy_cost·H(π), summed and divided by T·B.

        T and B are those of the configuration, whatever part of a batch is given: losses of its parts add up to the
        loss of the whole. What is chosen on final records counts nowhere.

        Returns:
            The loss, no priorities, and as metrics means over the valid transitions given: "policy_loss",
            "value_loss" and "entropy" without their costs, "value", "advantage", "rho" (clipped importance weights)
            and "explained_variance" (the share of the targets' variance that the values explain: at most 1).
        """
        config, algorithm = self._config, self.algorithm
        burn_in = algorithm.burn_in
        reward = tf.ensure_shape(unrolls.reward, [algorithm.records, None])
        outputs = evaluate(self.network, unrolls._replace(reward=reward), burn_in)
        reward = targets.scaled_rewards(reward, config.reward_scale, config.reward_clip)
        r_t, discount_t, mask_tm1 = targets.transitions(
            reward[burn_in:], unrolls.terminated[burn_in:], unrolls.truncated[burn_in:], config.discount
        )

        action, policy = unrolls.action[burn_in:-1], outputs.policy[:-1]
        behaviour = unrolls.recorded[self._distribution.name][burn_in:-1]
        log_pi = self._distribution.log_prob(policy, action)
        log_mu = self._distribution.log_prob(behaviour, action)
        v_tm1 = outputs.value[:-1]
        target = targets.vtrace(
            log_rho_tm1=log_pi - log_mu,
            r_t=r_t,
            discount_t=discount_t,
            mask_tm1=mask_tm1,
            values=outputs.value,
            rho_clip=config.rho_clip,
            c_clip=config.c_clip,
            lambda_=config.lambda_,
        )

        policy_loss = -log_pi * target.pg_advantages
        value_loss = 0.5 * tf.square(target.vs_tm1 - v_tm1) * mask_tm1
        entropy = self._distribution.entropy(policy) * mask_tm1
        each = policy_loss + config.baseline_cost * value_loss - config.entropy_cost * entropy
        loss = tf.reduce_sum(each * unrolls.weights) / (algorithm.unroll_length * self._batch_size)

        count = tf.maximum(tf.reduce_sum(mask_tm1), 1.0)

        def mean(x: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(x * mask_tm1) / count

        variance = mean(tf.square(target.vs_tm1 - mean(target.vs_tm1)))
        error = target.vs_tm1 - v_tm1
        unexplained = mean(tf.square(error - mean(error)))
        metrics = {
            "policy_loss": mean(policy_loss),
            "value_loss": mean(value_loss),
            "entropy": mean(entropy),
            "value": mean(v_tm1),
            "advantage": mean(target.pg_advantages),
            "rho": mean(target.rho_tm1),
            "explained_variance": 1.0 - unexplained / tf.maximum(variance, 1e-8),
        }
        return LossOutputs(loss, None, tf.nest.map_structure(tf.stop_gradient, metrics))

    def after_update(self, update: int) -> None:
        """Nothing follows an update: there is no target network."""

    def variables(self) -> Sequence[tf.Variable]:
        """The variables of the network, in the order of `network.variables`."""
        return [variable.value for variable in self.network.variables]
