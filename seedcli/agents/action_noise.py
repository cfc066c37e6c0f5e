"""Noise of actions that lasts: successive samples of a policy are alike, so that what explores gets further."""

from __future__ import annotations

from typing import Protocol

import tensorflow as tf

from seedcli.agents import noise
from seedcli.agents.actor_critic_config import ActorCriticConfig
from seedcli.agents.distributions import Categorical, DiagonalGaussian, Distribution, MultiCategorical


class ActionNoise(Protocol):
    """How actions are sampled with what earlier ones were sampled with.

    The noise of the action before is z, [..., size] float32; it is 0 at the start of an episode and after a greedy
    action, where there is none.

    Attributes:
        size: its numbers.
        recorded: whether every record stores z, because densities depend on it.
    """

    size: int
    recorded: bool

    def sample(self, params: tf.Tensor, before: tf.Tensor, source: noise.Source) -> tuple[tf.Tensor, tf.Tensor]:
        """Actions [N, ...] for parameters [N, P] and z, and their own noise; deterministic given the source."""

    def conditioned(self, params: tf.Tensor, before: tf.Tensor) -> tf.Tensor:
        """The parameters [..., P] of the distribution whose densities training uses, given z; called if `recorded`."""


class CorrelatedNoise:
    """The `ActionNoise` of Box actions: z' = ρ·z + √(1 − ρ²)·ε, where ε is standard normal.

    Successive actions push in the same direction. Training has the same condition: z has led to the state, but ε is
    independent of it, so actions are not credited with what earlier noise did. An action is still credited with its
    noise that carries on in later ones, because z is a constant here; Korenkevych et al., "Autoregressive Policies for
    Continuous Control Deep Reinforcement Learning" (2019), compute it from the means that are trained.

    Args:
        distribution: that of the actions.
        correlation: ρ, 0 ≤ ρ < 1.
    """

    recorded = True

    def __init__(self, distribution: DiagonalGaussian, correlation: float) -> None:
        self.size = distribution.size // 2
        self._distribution = distribution
        self._correlation = correlation

    def sample(self, params: tf.Tensor, before: tf.Tensor, source: noise.Source) -> tuple[tf.Tensor, tf.Tensor]:
        """See `ActionNoise`."""
        action = self._distribution.sample(self.conditioned(params, before), source)
        return action, self._distribution.standardized(params, action)

    def conditioned(self, params: tf.Tensor, before: tf.Tensor) -> tf.Tensor:
        """See `ActionNoise`."""
        return self._distribution.correlated(params, before, self._correlation)


class KeptNoise:
    """The `ActionNoise` of categories: with some probability an action is the one at the same uniform number as before.

    Each part of an action is the quantile of its categories at a number that is kept or drawn anew, all parts at once.
    While the policy hardly depends on what it sees, an action therefore lasts 1/(1 − probability) steps on average; a
    policy that is sure of its actions is not changed. Training uses the probabilities of the policy alone, as if every
    number were new: given the number before, an action that is kept has at least that probability, whatever the policy
    is, and little would be learned from it. Actions are hence also credited with what others with the same number did.
    Hollenstein et al., "Colored Noise in PPO" (2024), do so with normal noise.

    Args:
        distribution: that of the actions.
        probability: that the number is kept, 0 ≤ probability < 1.
    """

    recorded = False

    def __init__(self, distribution: Categorical | MultiCategorical, probability: float) -> None:
        self.size = distribution.parts
        self._distribution = distribution
        self._probability = probability

    def sample(self, params: tf.Tensor, before: tf.Tensor, source: noise.Source) -> tuple[tf.Tensor, tf.Tensor]:
        """See `ActionNoise`."""
        rows = tf.shape(params)[0]
        for_keeping, for_new = noise.split(source, 2)
        kept = (noise.uniform(for_keeping, rows) < self._probability)[:, tf.newaxis] & (before > 0.0)
        drawn = tf.where(kept, before, noise.above_zero(for_new, rows, self.size))
        return self._distribution.quantile(params, drawn), drawn

    def conditioned(self, params: tf.Tensor, before: tf.Tensor) -> tf.Tensor:
        """See `ActionNoise`."""
        return params


def make_action_noise(config: ActorCriticConfig, distribution: Distribution) -> ActionNoise | None:
    """The noise that the configuration asks for with this distribution of actions, or None."""
    if isinstance(distribution, DiagonalGaussian):
        return CorrelatedNoise(distribution, config.noise_correlation) if config.noise_correlation else None
    if isinstance(distribution, Categorical | MultiCategorical) and config.noise_persistence:
        return KeptNoise(distribution, config.noise_persistence)
    return None
