"""Recurrent networks: an encoder with policy and value heads, or with Q-value heads.

Axis conventions: N rows of an inference batch; L records of an unroll, B columns, time-major; A actions; F features;
P parameters of a policy's distribution. `step`, for acting, and `unroll`, for learning, compute the same function.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from seedcli.agents.base import State, UnrollBatch
from seedcli.agents.networks.encoder import Encoder
from seedcli.agents.networks.torsos import orthogonal
from seedcli.agents.value_scale import ValueScale
from seedcli.specs import EnvSpec, map_arrays


@contextlib.contextmanager
def default_seeds_from(seed: int) -> Iterator[None]:
    """Make Keras draw the seeds of initialisers that have none, such as those of a user's torso, from `seed`."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


class RecurrentNetwork(keras.layers.Layer):
    """An `Encoder` with the heads of a subclass; built, so that its variables exist.

    The same seed gives the same variables. A subclass makes its layers in `make_heads` and applies them in `heads`.
    """

    def __init__(self, config: Any, spec: EnvSpec, seed: int, precision: str = "float32") -> None:
        """Build the network; raises UsageError if its torso does not support the observations.

        Args:
            config: `config.network` describes the encoder; heads read other keys.
            spec: the environment.
            seed: seed of the initial variables.
            precision: precision of the encoder; the heads compute in float32.
        """
        super().__init__(name="network")
        rng = np.random.default_rng(seed)
        with default_seeds_from(seed):
            self.encoder = Encoder(config.network, spec, rng, precision, towers=self.towers(config))
            self.make_heads(config, spec, rng)
            observation = map_arrays(lambda array: tf.zeros([1, *array.shape], array.dtype), spec.observation)
            self.step(observation, tf.zeros([1]), self.initial_state(1))
        self.built = True

    def towers(self, config: Any) -> int:
        """Number of `Encoder.towers` that the heads need."""
        return 1

    def make_heads(self, config: Any, spec: EnvSpec, rng: np.random.Generator) -> None:
        """Make the layers of the heads; their initialisers draw seeds from `rng`."""
        raise NotImplementedError

    def heads(self, *features: tf.Tensor) -> Any:
        """The outputs, nested [M, ...], for features [M, F] of each tower; all but the first axis static."""
        raise NotImplementedError

    def initial_state(self, batch_size: int | tf.Tensor) -> State:
        """The state at the start of an episode; see `Encoder`."""
        return self.encoder.initial_state(batch_size)

    def step(self, observation: Any, reward: tf.Tensor, state: State) -> tuple[Any, State]:
        """Outputs [N, ...] of one record, and the next state without the action; arguments as for `Encoder.step`."""
        features, state = self.encoder.step(observation, reward, state)
        return self.heads(*features), state

    def remember(self, state: State, action: tf.Tensor) -> State:
        """The state with the action [N, ...] chosen on the record."""
        return self.encoder.remember(state, action)

    def unroll(
        self, observation: Any, reward: tf.Tensor, action: tf.Tensor, first: tf.Tensor, state: State
    ) -> tuple[Any, State]:
        """Outputs [L, B, ...] of every record, and the state after the last; arguments as for `Encoder.unroll`."""
        features, state = self.encoder.unroll(observation, reward, action, first, state)
        length, columns = tf.unstack(tf.shape(reward))
        outputs = tf.nest.map_structure(lambda x: tf.reshape(x, [length, columns, *x.shape[1:]]), self.heads(*features))
        return outputs, state


class GaussianHead(keras.layers.Layer):
    """Mean, linear in the features, and a state-independent log standard deviation: [M, F] → [M, 2·d].

    A state-independent standard deviation is common in policy-gradient implementations (Schulman et al., "Proximal
    Policy Optimization Algorithms", 2017; Andrychowicz et al., 2020, section 3.2).
    """

    def __init__(self, size: int, initial_std: float, initializer: keras.initializers.Initializer) -> None:
        super().__init__(name="policy")
        self.mean = keras.layers.Dense(size, kernel_initializer=initializer, name="mean")
        start = keras.initializers.Constant(math.log(initial_std))
        self.log_std = self.add_weight(shape=(size,), initializer=start, name="log_std")

    def call(self, features: tf.Tensor) -> tf.Tensor:
        """Parameters of `distributions.DiagonalGaussian` for features [M, F] float32."""
        mean = self.mean(features)
        return tf.concat([mean, tf.broadcast_to(self.log_std, tf.shape(mean))], axis=-1)


class PolicyValue(NamedTuple):
    """Outputs of a `PolicyValueNetwork`.

    Attributes:
        policy: [N, P] or [L, B, P] float32, parameters of the policy's distribution (`distributions`).
        value: [N] or [L, B] float32.
        features: [N, F] or [L, B, F] float32, the inputs of both heads, side by side where each has its own.
    """

    policy: tf.Tensor
    value: tf.Tensor
    features: tf.Tensor


class PolicyValueNetwork(RecurrentNetwork):
    """A `RecurrentNetwork` with a policy head and a value head: outputs are `PolicyValue`.

    With `agent.separate_value` each head has its own tower.
    """

    def towers(self, config: Any) -> int:
        return 2 if config.separate_value else 1

    def make_heads(self, config: Any, spec: EnvSpec, rng: np.random.Generator) -> None:
        # An initial policy that is nearly uniform, or centred on 0, explores regardless of the features.
        initializer = orthogonal(rng, 0.01)
        if spec.action.size:
            self.policy = GaussianHead(spec.action.size, config.initial_std, initializer)
        else:
            self.policy = keras.layers.Dense(sum(spec.action.categories), kernel_initializer=initializer, name="policy")
        # Normalised values start near 0, regardless of the scale of rewards. Values of exactly 0 would leave the policy
        # without any gradient until the first reward, so only random actions would explore.
        initializer = orthogonal(rng, 1e-6 if config.normalize_values else 1.0)
        self.value = keras.layers.Dense(1, kernel_initializer=initializer, name="value")
        self.value_scale = ValueScale() if config.normalize_values else None

    def heads(self, *features: tf.Tensor) -> PolicyValue:
        value = self.value(features[-1])[:, 0]
        if self.value_scale is not None:
            value = self.value_scale(value)
        return PolicyValue(self.policy(features[0]), value, tf.concat(features, axis=-1))


class DuelingQNetwork(RecurrentNetwork):
    """A `RecurrentNetwork` with the dueling heads of Wang et al., "Dueling Network Architectures" (2016), equation 9.

    Q(s, a) = V(s) + A(s, a) − mean_a' A(s, a'): outputs are Q values [N, A] or [L, B, A] float32. Each head is a
    hidden layer of `agent.dueling_hidden` units with ReLU and a linear layer, or only the latter if that is 0.
    """

    def make_heads(self, config: Any, spec: EnvSpec, rng: np.random.Generator) -> None:
        def head(name: str, units: int, gain: float) -> list[keras.layers.Layer]:
            layers = []
            if config.dueling_hidden:
                initializer = orthogonal(rng, math.sqrt(2.0))
                layers.append(
                    keras.layers.Dense(
                        config.dueling_hidden, activation="relu", kernel_initializer=initializer, name=f"{name}_hidden"
                    )
                )
            layers.append(keras.layers.Dense(units, kernel_initializer=orthogonal(rng, gain), name=name))
            return layers

        self.value_head = head("value", 1, 1.0)
        # Nearly equal initial advantages keep the maximisation bias of the first targets small.
        self.advantage_head = head("advantage", spec.action.categories[0], 0.1)

    def heads(self, *features: tf.Tensor) -> tf.Tensor:
        value = advantage = features[0]
        for layer in self.value_head:
            value = layer(value)
        for layer in self.advantage_head:
            advantage = layer(advantage)
        return value + advantage - tf.reduce_mean(advantage, axis=-1, keepdims=True)


def _reset_mask(unrolls: UnrollBatch) -> tf.Tensor:
    """Where the state is reset before the record, [K+T+1, B] bool.

    The stored state is already reset where record 0 is the first of its episode.
    """
    final = tf.logical_or(unrolls.terminated, unrolls.truncated)
    return tf.pad(final[:-1], [[1, 0], [0, 0]])


def evaluate(network: Any, unrolls: UnrollBatch, burn_in: int) -> Any:
    """A network's outputs on the records after the burn-in, [T+1, B, ...], with states reset as in acting.

    The first K = `burn_in` records (Kapturowski et al., "R2D2", 2019) only update the stored state: no gradient flows
    into them.

    Args:
        network: any network with the `unroll` of `RecurrentNetwork`.
        unrolls: records [K+T+1, B, ...]; the length of `reward` must be static for a network with an LSTM.
        burn_in: K.
    """
    records = (unrolls.observation, unrolls.reward, unrolls.action, _reset_mask(unrolls))
    state = unrolls.state
    if burn_in:
        _, state = network.unroll(*tf.nest.map_structure(lambda x: x[:burn_in], records), state)
        state = tf.nest.map_structure(tf.stop_gradient, state)
    outputs, _ = network.unroll(*tf.nest.map_structure(lambda x: x[burn_in:], records), state)
    return outputs


def record_states(network: RecurrentNetwork, unrolls: UnrollBatch, index: tf.Tensor) -> State:
    """The states [N, ...] before records of a training batch, of a network without LSTM.

    Args:
        network: the network; it is not evaluated.
        unrolls: records [T+1, B, ...].
        index: [N] int32, t·B + b for record t of column b.
    """
    return network.encoder.states(unrolls.observation, unrolls.action, _reset_mask(unrolls), unrolls.state, index)


def observe(network: RecurrentNetwork, unrolls: UnrollBatch, burn_in: int) -> None:
    """Update a network's observation statistics with a training batch.

    Uses the T records after the burn-in: the others are also part of the previous or the next unroll. Columns of
    weight 0 are ignored.

    Args:
        network: the network; unchanged if it has no normalizers.
        unrolls: records [K+T+1, B, ...].
        burn_in: K.
    """
    records = tf.nest.map_structure(lambda x: x[burn_in:-1], unrolls.observation)
    network.encoder.observe(records, unrolls.weights > 0.0)
