"""Temporally correlated action noise: successive samples of a policy are alike, so that exploration reaches further."""

from __future__ import annotations

from typing import Protocol

import tensorflow as tf

from seedcli.agents import noise
from seedcli.agents.actor_critic_config import ActorCriticConfig
from seedcli.agents.distributions import Categorical, DiagonalGaussian, Distribution, MultiCategorical


class ActionNoise(Protocol):
    """How actions are sampled given the noise of earlier ones.

    The noise of the previous action is z, [..., size] float32; it is 0 at the start of an episode and after a greedy
    action.

    Attributes:
        size: number of elements of z.
        recorded: whether every record stores z, because densities depend on it.
    """

    size: int
    recorded: bool

    def sample(self, params: tf.Tensor, before: tf.Tensor, source: noise.Source) -> tuple[tf.Tensor, tf.Tensor]:
        """Actions [N, ...] and their noise, for parameters [N, P] and z; deterministic given the source."""

    def conditioned(self, params: tf.Tensor, before: tf.Tensor) -> tf.Tensor:
        """The parameters [..., P] of the distribution whose densities training uses, given z; called if `recorded`."""


class CorrelatedNoise:
    """The `ActionNoise` of Box actions: z' = ρ·z + √(1 − ρ²)·ε, where ε is standard normal.

    Successive actions push in the same direction. Training conditions on z too: z has led to the state, but ε is
    independent of it, so actions are not credited with the effects of earlier noise. An action is still credited with
    the effect of its noise on later actions, because z is a constant here; Korenkevych et al., "Autoregressive Policies
    for Continuous Control Deep Reinforcement Learning" (2019), compute it from the trained means.

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
    """The `ActionNoise` of categories: with some probability, an action reuses the uniform number of the previous one.

    Each part of an action is the quantile of its categories at a number that is kept or redrawn, all parts at once.
    While the policy hardly depends on the observation, an action therefore lasts 1/(1 − probability) steps on average;
    a policy that is certain of its actions is not changed. Training uses the probabilities of the policy alone, as if
    every number were redrawn: given the previous number, a kept action has at least that probability under any policy,
    and little would be learned from it. Actions are therefore also credited with the effects of other actions at the
    same number. Hollenstein et al., "Colored Noise in PPO" (2024), do so with normal noise.

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
    """The noise that the configuration selects for this distribution of actions, or None."""
    if isinstance(distribution, DiagonalGaussian):
        return CorrelatedNoise(distribution, config.noise_correlation) if config.noise_correlation else None
    if isinstance(distribution, Categorical | MultiCategorical) and config.noise_persistence:
        return KeptNoise(distribution, config.noise_persistence)
    return None
