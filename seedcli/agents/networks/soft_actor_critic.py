"""The networks of soft actor-critic: a Gaussian policy, two critics of observation and action, a temperature.

Axis conventions: N rows; d numbers of a Box action. None of them has a memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from seedcli.agents.networks.encoder import layers_computing_in
from seedcli.agents.networks.models import RecurrentNetwork, default_seeds_from
from seedcli.agents.networks.torsos import MlpTorso, apply, make_torso, orthogonal, takes_images
from seedcli.specs import EnvSpec

# Haarnoja et al. clip here: exp(2) is far wider than the bounds, and exp(-20) is deterministic.
_LEAST_LOG_STD, _MOST_LOG_STD = -20.0, 2.0

# Name of the action among the arrays of an observation, whose names cannot begin with a slash.
_ACTION = "/action"


class GaussianPolicyNetwork(RecurrentNetwork):
    """A `RecurrentNetwork` with means and log standard deviations that both depend on the observation.

    Outputs are parameters [N, 2·d] float32 of `distributions.SquashedGaussian`. Initially all means are near 0 and all
    standard deviations near 1, so squashed actions are spread over their range almost uniformly: their standard
    deviation is 0.63, and that of a uniform distribution 0.58.
    """

    def make_heads(self, config: Any, spec: EnvSpec, rng: np.random.Generator) -> None:
        self.policy = keras.layers.Dense(2 * spec.action.size, kernel_initializer=orthogonal(rng, 0.01), name="policy")

    def heads(self, *features: tf.Tensor) -> tf.Tensor:
        mean, log_std = tf.split(self.policy(features[0]), 2, axis=-1)
        return tf.concat([mean, tf.clip_by_value(log_std, _LEAST_LOG_STD, _MOST_LOG_STD)], axis=-1)


class TwinCritics(keras.layers.Layer):
    """Two independent Q functions Q(s, a) of the same architecture; built, so that their variables exist.

    The action and the vectors of the observation are inputs of the configured torso. With images, whose torsos do not
    receive the action, an MLP of `agent.network.hidden` processes the features of all arrays.
    """

    def __init__(self, config: Any, spec: EnvSpec, inputs: Any, seed: int, precision: str = "float32") -> None:
        """Build the critics.

        Args:
            config: `config.network` describes the torso.
            spec: the environment, with Box actions.
            inputs: `Encoder.inputs` of any observations.
            seed: seed of the initial variables.
            precision: precision of the torsos; the heads compute in float32.
        """
        super().__init__(name="critics")
        # Not the policy's seed: its layers have the same sizes.
        rng = np.random.default_rng([seed, 1])
        network = config.network
        both = EnvSpec(spec.name, {**spec.arrays, _ACTION: spec.action.array}, spec.action)
        images = any(takes_images(network, array) for array in spec.arrays.values())
        with default_seeds_from(seed + 1):
            with layers_computing_in(precision):
                self.torsos = [make_torso(network, both, rng) for _ in range(2)]
                self.joint = [MlpTorso(network, rng) for _ in range(2 if images else 0)]
            self.heads = [keras.layers.Dense(1, kernel_initializer=orthogonal(rng, 1.0), name="q") for _ in range(2)]
            self(inputs, tf.zeros([len(tf.nest.flatten(inputs)[0]), spec.action.size]))
        self.built = True

    def call(self, inputs: Any, action: tf.Tensor) -> tf.Tensor:
        """Q values [2, N] float32.

        Args:
            inputs: `Encoder.inputs` of N observations.
            action: [N, d] float32.
        """
        arrays = dict(inputs) if isinstance(inputs, Mapping) else {"observation": inputs}
        arrays[_ACTION] = action
        values = []
        for i, (torso, head) in enumerate(zip(self.torsos, self.heads, strict=True)):
            features = apply(torso, arrays)
            if self.joint:
                features = self.joint[i](features)
            values.append(head(tf.cast(features, tf.float32))[:, 0])
        return tf.stack(values)


class Temperature(keras.layers.Layer):
    """The temperature α > 0, exp of a trained variable; initially 1."""

    def __init__(self) -> None:
        super().__init__(name="temperature")
        self.log = self.add_weight(shape=(), initializer="zeros", name="log")
        self.built = True

    def value(self) -> tf.Tensor:
        """α, scalar float32."""
        return tf.exp(tf.convert_to_tensor(self.log))
