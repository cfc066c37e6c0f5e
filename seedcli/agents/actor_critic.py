"""Base of agents that train a policy and a value on sampled actions; subclasses add targets and the policy's loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from seedcli.agents import targets
from seedcli.agents.action_noise import make_action_noise
from seedcli.agents.actor_critic_config import ActorCriticConfig
from seedcli.agents.base import (
    ActInputs,
    ActOutputs,
    AlgorithmSpec,
    LossOutputs,
    State,
    Symptom,
    UnrollBatch,
)
from seedcli.agents.distributions import make_distribution
from seedcli.agents.network_agent import NetworkAgent
from seedcli.agents.networks.encoder import RECORDED_STATES
from seedcli.agents.networks.models import PolicyValueNetwork, evaluate, record_states
from seedcli.agents.variables import named_variables
from seedcli.config.sections import TrainingConfig
from seedcli.errors import UsageError
from seedcli.specs import ArraySpec, EnvSpec

# Means beyond this count as outside the bounds ±1: the means of a policy with extreme actions lie slightly beyond them.
_FAR = 1.5
# Bound of log π/μ. Infinite ratios would give NaN gradients, even where they are clipped.
_MOST = 20.0
_RATE = "training.learning_rate"
_NOISE = "action_noise"  # name of the noise of an `ActionNoise`, as a state and as a recorded field


def symptoms(config: ActorCriticConfig) -> tuple[Symptom, ...]:
    """Symptoms of typical problems of a policy and a value; each suggests settings that are not yet enabled."""
    values = () if config.normalize_values else ("agent.normalize_values",)
    apart = () if config.separate_value else ("agent.separate_value",)
    scale = () if config.normalize_values else ("agent.reward_scale",)  # no effect with normalised values
    observations = () if config.network.normalize_observations else ("agent.network.normalize_observations",)
    saturation = Symptom(
        metric="saturated_units",
        above=0.9,  # a ReLU network that starts to learn Pong has up to 0.87 inactive units in a batch
        sentence="{:.0%} of the hidden units are saturated, so the network hardly learns any more",
        settings=(*values, *apart, *scale, _RATE),
    )
    outside = Symptom(
        metric="means_outside",
        above=0.5,
        sentence="{:.0%} of the policy's means lie far beyond the bounds of actions, where they have no effect",
        settings=("agent.bound_cost", _RATE),
    )
    # Needs patience: initial values and policies are nearly the same for all observations.
    value = Symptom(
        metric="value_spread",
        below=0.02,
        sentence="the value is the same for every observation: it varies {:.1%} as much as its targets",
        settings=(*values, *observations, _RATE),
        patience=0.2,
    )
    policy = Symptom(
        metric="policy_spread",
        below=0.003,
        sentence="the policy is the same for every observation, to {:z.4f} nats",
        settings=(*values, *apart, *observations, "agent.entropy_cost", _RATE),
        patience=0.2,
    )
    return saturation, outside, value, policy


class Evaluation(NamedTuple):
    """A training batch under the trained network; gradients flow through the network's outputs.

    Attributes:
        policy: [T, B, P] float32, parameters of the policy on the records with an action.
        log_pi: [T, B] float32, log-probability of the actions taken under this policy, with `agent.noise_correlation`
            given the noise of the previous actions.
        log_mu: [T, B] float32, the same under the recorded behaviour policy.
        values: [T+1, B] float32, V of every record; [T, B] without the last.
        features: [T+1, B, F] float32, inputs of the heads; [T, B, F] without the last.
        r_t, discount_t, mask_tm1: see `targets.Transitions`.
    """

    policy: tf.Tensor
    log_pi: tf.Tensor
    log_mu: tf.Tensor
    values: tf.Tensor
    features: tf.Tensor
    r_t: tf.Tensor
    discount_t: tf.Tensor
    mask_tm1: tf.Tensor

    @property
    def v_tm1(self) -> tf.Tensor:
        """V of the records with an action, [T, B] float32."""
        return self.values[: tf.shape(self.mask_tm1)[0]]

    @property
    def log_ratio(self) -> tf.Tensor:
        """The logarithm of π/μ for the actions taken, within ±20, [T, B] float32; 0 where masked."""
        log_ratio = tf.where(self.mask_tm1 > 0.0, self.log_pi - self.log_mu, 0.0)
        return tf.clip_by_value(log_ratio, -_MOST, _MOST)

    @property
    def divergence(self) -> tf.Tensor:
        """Estimates of KL(μ, π), r − 1 − log r ≥ 0 with r = π/μ, [T, B] float32; 0 where masked.

        Schulman, "Approximating KL Divergence" (2020).
        """
        log_ratio = self.log_ratio
        return tf.math.expm1(log_ratio) - log_ratio

    def mean(self, x: tf.Tensor) -> tf.Tensor:
        """The mean of x [T, B] over valid transitions, a scalar."""
        return tf.reduce_sum(x * self.mask_tm1) / tf.maximum(tf.reduce_sum(self.mask_tm1), 1.0)

    def variance(self, x: tf.Tensor) -> tf.Tensor:
        """The variance of x [T, B] over valid transitions, a scalar."""
        return self.mean(tf.square(x - self.mean(x)))


class ActorCriticAgent(NetworkAgent):
    """An `agents.base.Agent` that samples actions from its policy; a subclass has `Config` and `loss`.

    Supports all kinds of actions. Every record stores the parameters of the behaviour policy, [P] float32, under their
    name in `agents.distributions`: "logits", or "mean_log_std" for a Box. If `records_values` it also stores the
    predicted "value" [] float32; with `agent.normalize_values` the scales of values and advantages need it. With
    `agent.noise_correlation` and Box actions it stores the noise of the previous action, "action_noise" [d] float32.

    Attributes:
        algorithm: no burn-in, T transitions, unrolls from a queue.
        distribution: that of the actions; its methods take the policy's parameters [..., P].
    """

    Network = PolicyValueNetwork

    @staticmethod
    def records_values(config: Any, training: TrainingConfig) -> bool:
        """Whether every record stores the value that was predicted when its action was chosen."""
        return bool(config.normalize_values)

    @staticmethod
    def fixes_targets(config: Any) -> bool:
        """Whether `targets` computes what `loss` needs from other records, so that it can train on single transitions.

        The transitions of an unroll are similar, so minibatches of whole unrolls have noisier gradients. An LSTM needs
        whole unrolls.
        """
        return False

    def __init__(
        self, config: ActorCriticConfig, training: TrainingConfig, spec: EnvSpec, seed: int, precision: str = "float32"
    ) -> None:
        """Build the agent; raises UsageError if the network does not support the environment's observations."""
        super().__init__(config, training, spec, seed, precision)
        self.distribution = make_distribution(spec.action)
        self._noise = make_action_noise(config, self.distribution)
        # 1 for each number of a Box action with two bounds, [d] float32.
        self._bounded = None
        if len(spec.action.unbounded) < spec.action.size:
            self._bounded = tf.constant([i not in spec.action.unbounded for i in range(spec.action.size)], tf.float32)
        self.algorithm = AlgorithmSpec(
            name=config.algorithm,
            burn_in=0,
            unroll_length=training.unroll_length,
            source=config.source,
            recorded={
                self.distribution.name: ArraySpec((self.distribution.size,), "float32"),
                **({"value": ArraySpec((), "float32")} if self.records_values(config, training) else {}),
                **({_NOISE: ArraySpec((self._noise.size,), "float32")} if self._noise and self._noise.recorded else {}),
            },
            symptoms=self.symptoms(config),
            shuffles=self.fixes_targets(config) and not self._unrecorded(),
        )

    def _unrecorded(self) -> str:
        """Parts of the state before a record that do not follow from earlier records, in words; "" if all do."""
        state = self.initial_state(1)
        if not tf.nest.flatten(state):
            return ""
        if not isinstance(state, Mapping):
            return "a state of its own"
        return ", ".join(sorted({*state} - {*RECORDED_STATES, _NOISE}))

    def record_states(self, unrolls: UnrollBatch, index: tf.Tensor) -> State:
        """The network's states before records (`agents.base.RecordStates`).

        Raises:
            UsageError: the states do not follow from the records, as with an LSTM.
        """
        if missing := self._unrecorded():
            raise UsageError(
                f"{type(self).__name__} has AlgorithmSpec.shuffles = True, but its state holds {missing}, which "
                "cannot be computed from the records of an unroll: leave shuffles out, or write a record_states that "
                "returns it"
            )
        return record_states(self.network, unrolls, index)

    def symptoms(self, config: Any) -> tuple[Symptom, ...]:
        """Signs of training problems; the first may be the cause of the others."""
        if not config.normalize_values:
            return symptoms(config)
        unrewarded = Symptom(
            metric="reward_found",
            below=0.5,
            sentence="no reward has been found yet, so there is nothing to learn from",
            settings=("agent.noise_correlation" if self._spec.action.size else "agent.noise_persistence",),
            patience=0.05,
        )
        return unrewarded, *symptoms(config)

    def initial_state(self, batch_size: int) -> State:
        """The network's state and, with an `ActionNoise`, its z as "action_noise" [batch_size, size] float32."""
        state = super().initial_state(batch_size)
        return {**state, _NOISE: tf.zeros([batch_size, self._noise.size])} if self._noise else state

    def act(self, network: PolicyValueNetwork, inputs: ActInputs, state: State) -> tuple[ActOutputs, State]:
        """Sample an action of the policy for each row, or take its mode; deterministic given the seed."""
        outputs, state = network.step(inputs.observation, inputs.reward, state)
        action = greedy_action = self.distribution.mode(outputs.policy)
        recorded = {self.distribution.name: outputs.policy}
        if "value" in self.algorithm.recorded:
            recorded["value"] = outputs.value
        if _NOISE in self.algorithm.recorded:
            recorded[_NOISE] = state[_NOISE]
        if self._noise:
            # Noise of greedy actions does not depend on earlier noise, so an exported greedy policy has no such state.
            drawn = tf.zeros([tf.shape(outputs.policy)[0], self._noise.size])
            if not inputs.greedy:
                action, drawn = self._noise.sample(outputs.policy, state[_NOISE], inputs.seed)
            state = {**state, _NOISE: drawn}
        elif not inputs.greedy:
            action = self.distribution.sample(outputs.policy, inputs.seed)
        details = {"value": outputs.value, **self.distribution.describe(outputs.policy)}
        return ActOutputs(action, recorded, greedy_action, details), network.remember(state, action)

    def _conditioned(self, policy: tf.Tensor, recorded: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """The policy [..., P] whose densities training uses, given the recorded fields."""
        if self._noise is None or not self._noise.recorded:
            return policy
        return self._noise.conditioned(policy, recorded[_NOISE])

    def observe(self, unrolls: UnrollBatch) -> None:
        """Update the statistics of observations, and those of value targets if values are normalised."""
        super().observe(unrolls)
        scale = self.network.value_scale
        if scale is None:
            return
        reward = tf.ensure_shape(unrolls.reward, [self.algorithm.records, None])
        r_t, discount_t, mask_tm1 = self._transitions(reward, unrolls)
        mask_tm1 *= tf.cast(unrolls.weights > 0.0, tf.float32)
        # Uses the values predicted when acting: another evaluation would cost a third of an update.
        advantages_tm1, returns_tm1 = targets.gae(
            r_t=r_t,
            discount_t=discount_t,
            mask_tm1=mask_tm1,
            values=unrolls.recorded["value"],
            lambda_=self.config.lambda_,
        )
        scale.update(returns_tm1, advantages_tm1, r_t, mask_tm1, self.network.value)

    def _transitions(self, reward: tf.Tensor, unrolls: UnrollBatch) -> targets.Transitions:
        """The transitions of an unroll whose raw rewards are [T+1, B]."""
        config = self.config
        reward = targets.scaled_rewards(reward, config.reward_scale, config.reward_clip)
        return targets.transitions(reward, unrolls.terminated, unrolls.truncated, config.discount)

    def evaluate(self, unrolls: UnrollBatch, *, last: bool = True) -> Evaluation:
        """Evaluate the trained network on a batch [T+1, B, ...].

        Raises an error for another T, unless `AlgorithmSpec.shuffles`.

        Args:
            unrolls: the batch.
            last: also evaluate the last record, whose value targets bootstrap from.
        """
        records = None if self.algorithm.shuffles else self.algorithm.records
        unrolls = unrolls._replace(reward=tf.ensure_shape(unrolls.reward, [records, None]))
        evaluated = unrolls if last else unrolls.map_columns(lambda array, axis: array[:-1] if axis else array)
        outputs = evaluate(self.network, evaluated, self.algorithm.burn_in)
        action, policy = unrolls.action[:-1], outputs.policy[:-1] if last else outputs.policy
        recorded = {name: values[:-1] for name, values in unrolls.recorded.items()}
        behaviour = recorded[self.distribution.name]
        return Evaluation(
            policy,
            self.distribution.log_prob(self._conditioned(policy, recorded), action),
            self.distribution.log_prob(self._conditioned(behaviour, recorded), action),
            outputs.value,
            outputs.features,
            *self._transitions(unrolls.reward, unrolls),
        )

    def loss_outputs(
        self,
        batch: Evaluation,
        unrolls: UnrollBatch,
        policy_loss: tf.Tensor,
        squared_error: tf.Tensor,
        metrics: dict[str, tf.Tensor],
        stop: tf.Tensor | None = None,
    ) -> LossOutputs:
        """The loss: policy_loss + baseline_cost·½squared_error − entropy_cost·H(π) + kl_cost·D + the cost of means out
        of bounds, where D is the divergence from the behaviour policy.

        Args:
            batch: of `evaluate`.
            unrolls: the batch; its columns are weighted.
            policy_loss: [T, B] float32; 0 where masked.
            squared_error: [T, B] float32, of the values in units of `units`.
            metrics: of the algorithm, scalars.
            stop: see `LossOutputs`.

        Returns:
            The sum divided by T·B, or 0 until the statistics of images can be trained on (`Encoder.settled`); no
            priorities; and metrics: the given ones, "policy_loss", "value_loss", "entropy", "approx_kl" (D; all without
            their costs) and those of `_state_of_policy`.
        """
        config, mask_tm1, divergence = self.config, batch.mask_tm1, batch.divergence
        value_loss = 0.5 * squared_error * mask_tm1
        entropy = self.distribution.entropy(batch.policy) * mask_tm1
        each = policy_loss + config.baseline_cost * value_loss - config.entropy_cost * entropy
        if config.kl_cost:
            each += config.kl_cost * divergence
        if self._bounded is not None:
            excess = tf.nn.relu(tf.abs(self.distribution.mode(batch.policy)) - 1.0) * self._bounded
            each += config.bound_cost * tf.reduce_sum(tf.square(excess), axis=-1) * mask_tm1
        loss = tf.reduce_sum(each * unrolls.weights) / (self.algorithm.unroll_length * self._columns)
        # The first images deviate little from their mean, so inputs would be large, and the first updates would make
        # units die.
        loss *= self.network.encoder.settled()
        metrics = {
            "policy_loss": batch.mean(policy_loss),
            "value_loss": batch.mean(value_loss),
            "entropy": batch.mean(entropy),
            "approx_kl": batch.mean(divergence),
            **metrics,
            **self._state_of_policy(batch),
        }
        return LossOutputs(loss, None, tf.nest.map_structure(tf.stop_gradient, metrics), stop)

    def value_metrics(self, batch: Evaluation, target_tm1: tf.Tensor) -> dict[str, tf.Tensor]:
        """How well values fit their targets [T, B].

        Returns:
            "value" (mean), "explained_variance" (fraction of the targets' variance explained by the values: at most
            1), "value_scale" (divisor of value errors) and "value_spread" (deviation of the values over that of their
            targets).
        """
        v_tm1, (unit, _) = batch.v_tm1, self.units()
        target_variance = tf.maximum(batch.variance(target_tm1), 1e-8 * tf.square(unit))
        return {
            "value": batch.mean(v_tm1),
            "explained_variance": 1.0 - batch.variance(target_tm1 - v_tm1) / target_variance,
            "value_scale": unit,
            "value_spread": tf.sqrt(batch.variance(v_tm1) / target_variance),
        }

    def _state_of_policy(self, batch: Evaluation) -> dict[str, tf.Tensor]:
        """The "policy_spread" (`Distribution.spread`), "saturated_units" (`Encoder.saturation`) and, for Box actions,
        "means_outside" (fraction of means beyond ±1.5); with normalised values "reward_found", 1 after a reward."""
        mask_tm1, features = batch.mask_tm1, batch.features
        count = tf.maximum(tf.reduce_sum(mask_tm1), 1.0)
        metrics = {
            "policy_spread": self.distribution.spread(
                tf.reshape(batch.policy, [-1, self.distribution.size]), tf.reshape(mask_tm1, [-1]) / count
            ),
            "saturated_units": self.network.encoder.saturation(tf.reshape(features, [-1, features.shape[-1]])),
        }
        if self.network.value_scale is not None:
            metrics["reward_found"] = tf.cast(self.network.value_scale.known(), tf.float32)
        if self._bounded is not None:
            outside = tf.cast(tf.abs(self.distribution.mode(batch.policy)) > _FAR, tf.float32) * self._bounded
            metrics["means_outside"] = batch.mean(tf.reduce_sum(outside, axis=-1)) / tf.reduce_sum(self._bounded)
        return metrics

    def units(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Divisors of value errors and of advantages, scalars float32."""
        scale = self.network.value_scale
        if scale is None:
            return tf.constant(1.0), tf.constant(1.0)
        return tf.cast(scale.moments()[1], tf.float32), scale.advantage_scale()

    def after_update(self, update: tf.Tensor) -> None:
        """Do nothing: there is no target network."""

    def variables(self) -> dict[str, tf.Variable]:
        """The variables of the network, by name."""
        return named_variables(network=self.network)
