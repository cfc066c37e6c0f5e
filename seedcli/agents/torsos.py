"""Torsos: what turns one observation, or a stack of them, into a feature vector.

Initialisation is orthogonal with gain √2 throughout, as policy-gradient implementations commonly use
(Andrychowicz et al., "What Matters in On-Policy Reinforcement Learning?", 2020).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from seedcli.config import AgentConfig
from seedcli.errors import UsageError
from seedcli.specs import EnvSpec

_RELU_GAIN = math.sqrt(2.0)


def orthogonal(rng: np.random.Generator, gain: float) -> keras.initializers.Initializer:
    """An orthogonal initialiser with a seed of its own, drawn from `rng`."""
    return keras.initializers.Orthogonal(gain=gain, seed=int(rng.integers(2**31)))


def _conv(
    filters: int,
    kernel: int,
    stride: int,
    padding: str,
    activation: str | None,
    rng: np.random.Generator,
    gain: float = _RELU_GAIN,
) -> keras.layers.Conv2D:
    return keras.layers.Conv2D(
        filters,
        kernel,
        stride,
        padding=padding,
        data_format="channels_last",
        activation=activation,
        kernel_initializer=orthogonal(rng, gain),
    )


def _dense(units: int, activation: str, rng: np.random.Generator) -> keras.layers.Dense:
    return keras.layers.Dense(units, activation=activation, kernel_initializer=orthogonal(rng, _RELU_GAIN))


class MlpTorso(keras.layers.Layer):
    """Fully connected layers with tanh: [N, D] → [N, hidden[-1]]."""

    def __init__(self, hidden: Sequence[int], rng: np.random.Generator) -> None:
        super().__init__(name="mlp")
        self.stages = [_dense(units, "tanh", rng) for units in hidden]

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Features of x [N, D] float32."""
        for layer in self.stages:
            x = layer(x)
        return x


class Conv(NamedTuple):
    """One convolution: number of filters, kernel size and stride in pixels."""

    filters: int
    kernel: int
    stride: int


class ConvTorso(keras.layers.Layer):
    """Valid convolutions and one dense layer, all with ReLU: [N, H, W, C] → [N, units]."""

    def __init__(self, name: str, convolutions: Sequence[Conv], units: int, rng: np.random.Generator) -> None:
        super().__init__(name=name)
        self.stages = [_conv(*conv, "valid", "relu", rng) for conv in convolutions]
        self.dense = _dense(units, "relu", rng)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Features of x [N, H, W, C] float32."""
        for layer in self.stages:
            x = layer(x)
        return self.dense(_flatten(x))


class DeepTorso(keras.layers.Layer):
    """The deep residual network of IMPALA (Espeholt et al., 2018, figure 3): [N, H, W, C] → [N, 256].

    Stages of 16, 32 and 32 channels, each a 3×3 convolution, a 3×3 max-pooling with stride 2 and two residual
    blocks of two 3×3 convolutions; then ReLU and a dense layer of 256.
    """

    CHANNELS = (16, 32, 32)
    BLOCKS = 2

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(name="impala_deep")
        # Every block adds its output to its input: scaled so, all of them together add what one of gain √2 would.
        residual_gain = _RELU_GAIN / math.sqrt(len(self.CHANNELS) * self.BLOCKS)
        self.entries = [_conv(channels, 3, 1, "same", None, rng) for channels in self.CHANNELS]
        self.pool = keras.layers.MaxPooling2D(3, 2, padding="same", data_format="channels_last")
        self.blocks = [
            [
                (_conv(channels, 3, 1, "same", "relu", rng), _conv(channels, 3, 1, "same", None, rng, residual_gain))
                for _ in range(self.BLOCKS)
            ]
            for channels in self.CHANNELS
        ]
        self.dense = _dense(256, "relu", rng)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Features of x [N, H, W, C] float32."""
        for entry, blocks in zip(self.entries, self.blocks, strict=True):
            x = self.pool(entry(x))
            for inner, outer in blocks:
                x = x + outer(inner(tf.nn.relu(x)))
        return self.dense(_flatten(tf.nn.relu(x)))


def _flatten(x: tf.Tensor) -> tf.Tensor:
    return tf.reshape(x, [-1, math.prod(x.shape[1:])])


_SHALLOW = (Conv(16, 8, 4), Conv(32, 4, 2))
_NATURE = (Conv(32, 8, 4), Conv(64, 4, 2), Conv(64, 3, 1))
# Smallest height and width, pixels: what leaves the last convolution one output; three halvings for the deep one.
_SMALLEST_IMAGE = {"impala_shallow": 20, "nature": 36, "impala_deep": 8}


def make_torso(config: AgentConfig, rng: np.random.Generator) -> Any:
    """The torso a configuration names, not built yet: IMPALA's two (Espeholt et al., 2018), the network of
    Mnih et al., "Human-level control" (Nature 2015), or fully connected layers."""
    if config.network == "mlp":
        return MlpTorso(config.hidden, rng)
    if config.network == "impala_shallow":
        return ConvTorso("impala_shallow", _SHALLOW, 256, rng)
    if config.network == "nature":
        return ConvTorso("nature", _NATURE, 512, rng)
    return DeepTorso(rng)


def frame_shape(config: AgentConfig, spec: EnvSpec) -> tuple[int, ...]:
    """The shape in which a torso takes one observation: (height, width, channels), or (size,) for mlp.

    Raises:
        UsageError: the torso cannot take the environment's observations.
    """
    observation = spec.observation
    if config.network == "mlp":
        return (observation.categories or math.prod(observation.shape),)
    smallest = _SMALLEST_IMAGE[config.network]
    if observation.categories:
        found = f"one of {observation.categories} categories"
    elif len(observation.shape) not in (2, 3) or min(observation.shape[:2]) < smallest:
        found = f"arrays of shape {observation.shape}"
    else:
        return observation.shape if len(observation.shape) == 3 else (*observation.shape, 1)
    raise UsageError(
        f"agent.network {config.network!r} needs images [height, width] or [height, width, channels] of at least "
        f"{smallest}×{smallest} pixels, but observations of {spec.name} are {found}: choose agent.network mlp"
    )
