"""Distributions over actions, as pure functions of a network's outputs: parameters [..., P] float32.

All but `SquashedGaussian` implement `Distribution`; actions are in the form of `specs.ActionSpec`.
"""

from __future__ import annotations

import math
from typing import Protocol

import tensorflow as tf

from seedcli.agents import noise
from seedcli.specs import ActionSpec


class Distribution(Protocol):
    """A family of distributions over actions.

    Attributes:
        name: name of its parameters: "logits" or "mean_log_std".
        size: P, number of parameters.
    """

    name: str
    size: int

    def sample(self, params: tf.Tensor, source: noise.Source) -> tf.Tensor:
        """Actions [N, ...] sampled for parameters [N, P]; deterministic given the source."""

    def mode(self, params: tf.Tensor) -> tf.Tensor:
        """The most probable actions [...]."""

    def log_prob(self, params: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        """Log-probability, or log-density, of actions [...]: [...] float32."""

    def entropy(self, params: tf.Tensor) -> tf.Tensor:
        """Entropy, differential for a density, [...] float32, nats."""

    def spread(self, params: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """How much policies [M, P] differ from one another, scalar float32, nats: 0 if all are equal.

        The mean KL divergence of a policy from their mixture with weights [M], which sum to 1: the mutual information
        of observation and action.
        """

    def describe(self, params: tf.Tensor) -> dict[str, tf.Tensor]:
        """The parameters in a user's terms, name → [..., n] float32.

        "logits" and "probabilities" of categories, the parts of a MultiDiscrete one after the other; "mean" and
        "std" of the numbers of a Box, where -1 and 1 are the bounds (see `specs.ActionSpec`).
        """


class Categorical:
    """A `Distribution` over n categories: parameters [..., n] are logits; actions are [...] int32."""

    name = "logits"
    parts = 1

    def __init__(self, categories: int) -> None:
        self.size = categories

    def sample(self, params: tf.Tensor, source: noise.Source) -> tf.Tensor:
        return noise.categorical(source, params)

    def quantile(self, params: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
        """The actions at numbers [N, 1] in (0, 1) of the cumulative probabilities of [N, n]."""
        return noise.quantile(params, numbers)

    def mode(self, params: tf.Tensor) -> tf.Tensor:
        return tf.argmax(params, axis=-1, output_type=tf.int32)

    def log_prob(self, params: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.nn.log_softmax(params) * tf.one_hot(action, self.size), axis=-1)

    def entropy(self, params: tf.Tensor) -> tf.Tensor:
        log_p = tf.nn.log_softmax(params)
        return -tf.reduce_sum(tf.exp(log_p) * log_p, axis=-1)

    def spread(self, params: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        mixture = tf.linalg.matvec(tf.nn.softmax(params), weights, transpose_a=True)
        return -tf.reduce_sum(tf.math.xlogy(mixture, mixture)) - tf.tensordot(self.entropy(params), weights, 1)

    def describe(self, params: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"logits": params, "probabilities": tf.nn.softmax(params)}


class MultiCategorical:
    """A `Distribution` over k independent categories: parameters [..., Σ n_i] are logits; actions [..., k] int32."""

    name = "logits"

    def __init__(self, categories: tuple[int, ...]) -> None:
        self.size = sum(categories)
        self.parts = len(categories)
        self._categories = categories
        self._parts = [Categorical(n) for n in categories]

    def sample(self, params: tf.Tensor, source: noise.Source) -> tf.Tensor:
        drawn = zip(self._parts, self._split(params), noise.split(source, len(self._parts)), strict=True)
        return tf.stack([part.sample(logits, each) for part, logits, each in drawn], axis=-1)

    def quantile(self, params: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
        """As for `Categorical.quantile`, with a number for each part, [N, k]."""
        split = zip(self._parts, self._split(params), tf.split(numbers, self.parts, axis=-1), strict=True)
        return tf.stack([part.quantile(logits, each) for part, logits, each in split], axis=-1)

    def mode(self, params: tf.Tensor) -> tf.Tensor:
        parts = zip(self._parts, self._split(params), strict=True)
        return tf.stack([part.mode(logits) for part, logits in parts], axis=-1)

    def log_prob(self, params: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        parts = zip(self._parts, self._split(params), tf.unstack(action, len(self._parts), axis=-1), strict=True)
        return tf.add_n([part.log_prob(logits, chosen) for part, logits, chosen in parts])

    def entropy(self, params: tf.Tensor) -> tf.Tensor:
        return tf.add_n([part.entropy(x) for part, x in zip(self._parts, self._split(params), strict=True)])

    def spread(self, params: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """The sum over the parts."""
        return tf.add_n([part.spread(x, weights) for part, x in zip(self._parts, self._split(params), strict=True)])

    def describe(self, params: tf.Tensor) -> dict[str, tf.Tensor]:
        parts = [tf.nn.softmax(logits) for logits in self._split(params)]
        return {"logits": params, "probabilities": tf.concat(parts, axis=-1)}

    def _split(self, params: tf.Tensor) -> list[tf.Tensor]:
        return tf.split(params, self._categories, axis=-1)


class DiagonalGaussian:
    """A `Distribution` of d independent normal variables: parameters [..., 2·d] are means and log standard deviations.

    Actions [..., d] float32 are unclipped samples, possibly outside the bounds of the space. The environment's adapter
    clips them: to the agent, clipping is part of the environment and densities are exact. (Chou et al., "Improving
    Stochastic Policy Gradients in Continuous Control with Deep Reinforcement Learning using the Beta Distribution",
    2017, and Fujita & Maeda, "Clipped Action Policy Gradient", 2018, discuss the bias of clipping.)
    """

    name = "mean_log_std"

    def __init__(self, dimensions: int) -> None:
        self.size = 2 * dimensions

    def sample(self, params: tf.Tensor, source: noise.Source) -> tf.Tensor:
        mean, log_std = tf.split(params, 2, axis=-1)
        return mean + tf.exp(log_std) * noise.normal(source, tf.shape(params)[0], self.size // 2)

    def standardized(self, params: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        """The noise of actions, (action − mean) / std, [..., d] float32."""
        mean, log_std = tf.split(params, 2, axis=-1)
        return (action - mean) * tf.exp(-log_std)

    def correlated(self, params: tf.Tensor, before: tf.Tensor, correlation: float) -> tf.Tensor:
        """Parameters of the actions mean + std·(ρ·z + √(1 − ρ²)·ε), where z is known and ε is standard normal.

        If z is also standard normal, these actions have the distribution of `params`.

        Args:
            params: [..., 2·d].
            before: z, [..., d] float32, the noise of the previous actions.
            correlation: ρ, 0 ≤ ρ < 1.
        """
        mean, log_std = tf.split(params, 2, axis=-1)
        mean += tf.exp(log_std) * correlation * before
        return tf.concat([mean, log_std + 0.5 * math.log1p(-(correlation**2))], axis=-1)

    def mode(self, params: tf.Tensor) -> tf.Tensor:
        return tf.split(params, 2, axis=-1)[0]

    def log_prob(self, params: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        log_std, z = tf.split(params, 2, axis=-1)[1], self.standardized(params, action)
        return -tf.reduce_sum(0.5 * tf.square(z) + log_std + 0.5 * math.log(2.0 * math.pi), axis=-1)

    def entropy(self, params: tf.Tensor) -> tf.Tensor:
        _, log_std = tf.split(params, 2, axis=-1)
        return tf.reduce_sum(log_std + 0.5 * math.log(2.0 * math.pi * math.e), axis=-1)

    def spread(self, params: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """As for `Distribution.spread`, with the mixture approximated by a normal distribution of the same variance."""
        mean, log_std = tf.split(params, 2, axis=-1)
        centre = tf.linalg.matvec(mean, weights, transpose_a=True)
        between = tf.linalg.matvec(tf.square(mean - centre), weights, transpose_a=True)
        within = tf.linalg.matvec(tf.exp(2.0 * log_std), weights, transpose_a=True)
        return 0.5 * tf.reduce_sum(tf.math.log1p(between / within))

    def describe(self, params: tf.Tensor) -> dict[str, tf.Tensor]:
        mean, log_std = tf.split(params, 2, axis=-1)
        return {"mean": mean, "std": tf.exp(log_std)}


class SquashedGaussian:
    """tanh of d independent normal variables u: parameters [..., 2·d] are means and log standard deviations of u.

    Actions [..., d] float32 lie inside the bounds ±1. (Haarnoja et al., "Soft Actor-Critic", 2018, appendix C.) Not a
    `Distribution`: it is for algorithms that differentiate through the samples, and its entropy has no closed form.
    """

    def __init__(self, dimensions: int) -> None:
        self.size = 2 * dimensions

    def sample(self, params: tf.Tensor, noise: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Actions tanh(mean + std·noise) and their log-density, both differentiable with respect to the parameters.

        Equation 21 of the paper, with log(1 − tanh² u) = 2·(log 2 − u − softplus(−2u)), which is finite for any u and
        does not cancel.

        Args:
            params: [..., 2·d].
            noise: [..., d] float32, samples of the standard normal distribution.

        Returns:
            Actions [..., d] and log-densities [...], float32.
        """
        mean, log_std = tf.split(params, 2, axis=-1)
        u = mean + tf.exp(log_std) * noise
        log_slope = 2.0 * (math.log(2.0) - u - tf.nn.softplus(-2.0 * u))
        log_normal = -0.5 * tf.square(noise) - log_std - 0.5 * math.log(2.0 * math.pi)
        return tf.tanh(u), tf.reduce_sum(log_normal - log_slope, axis=-1)

    def median(self, params: tf.Tensor) -> tf.Tensor:
        """tanh(mean) [..., d], the median of each number."""
        return tf.tanh(tf.split(params, 2, axis=-1)[0])

    def describe(self, params: tf.Tensor) -> dict[str, tf.Tensor]:
        """The parameters by name: "mean" and "std" [..., d] float32 of u, before tanh."""
        mean, log_std = tf.split(params, 2, axis=-1)
        return {"mean": mean, "std": tf.exp(log_std)}


def make_distribution(action: ActionSpec) -> Distribution:
    """The distribution over the actions of a specification."""
    if action.size:
        return DiagonalGaussian(action.size)
    if action.array.shape:
        return MultiCategorical(action.categories)
    return Categorical(action.categories[0])
