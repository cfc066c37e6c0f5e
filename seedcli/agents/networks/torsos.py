"""Torsos: networks from an observation, or a stack of frames, to a feature vector.

A torso is a Keras layer whose constructor takes (config, rng): an instance of its class `Config`, which extends
`NetworkConfig`, and a `numpy.random.Generator` that its initialisers draw seeds from. It maps inputs [N, D] or, if
`Config.smallest_image` is a number, images [N, H, W, C] to features [N, F].

Initialisation is orthogonal with gain √2, as is common in policy-gradient implementations (Andrychowicz et al., "What
Matters in On-Policy Reinforcement Learning?", 2020).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from seedcli.agents.networks.torso_configs import DeepConfig
from seedcli.config.choices import TORSOS
from seedcli.config.sections import NetworkConfig
from seedcli.errors import SeedError, UsageError, first_line, message_line, place_of
from seedcli.specs import ArraySpec, EnvSpec

_RELU_GAIN = math.sqrt(2.0)


def orthogonal(rng: np.random.Generator, gain: float) -> keras.initializers.Initializer:
    """An orthogonal initialiser with a seed drawn from `rng`."""
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


def saturation(x: tf.Tensor, activation: str) -> tf.Tensor:
    """Fraction of saturated units in a layer's outputs x [M, F], scalar float32.

    With tanh, outputs beyond ±0.99, counted per record; with ReLU, units that are 0 for all M records.
    """
    stuck = tf.abs(x) > 0.99 if activation == "tanh" else tf.reduce_max(x, axis=0) <= 0.0
    return tf.reduce_mean(tf.cast(stuck, tf.float32))


class MlpTorso(keras.layers.Layer):
    """Fully connected layers with tanh or ReLU: [N, D] → [N, hidden[-1]]."""

    def __init__(self, config: NetworkConfig, rng: np.random.Generator) -> None:
        super().__init__(name="mlp")
        self._activation = config.activation
        self.stages = [_dense(units, config.activation, rng) for units in config.hidden]

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Features of x [N, D] float32."""
        for layer in self.stages:
            x = layer(x)
        return x

    def saturation(self, features: tf.Tensor) -> tf.Tensor:
        """`saturation` of the last layer; 0 without layers."""
        return saturation(features, self._activation) if self.stages else tf.constant(0.0)


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

    def saturation(self, features: tf.Tensor) -> tf.Tensor:
        return saturation(features, "relu")


class ShallowTorso(ConvTorso):
    """The shallow network of IMPALA (Espeholt et al., 2018), without its LSTM: [N, H, W, C] → [N, 256]."""

    def __init__(self, config: NetworkConfig, rng: np.random.Generator) -> None:
        super().__init__("impala_shallow", (Conv(16, 8, 4), Conv(32, 4, 2)), 256, rng)


class NatureTorso(ConvTorso):
    """The network of Mnih et al., "Human-level control" (Nature 2015): [N, H, W, C] → [N, 512]."""

    def __init__(self, config: NetworkConfig, rng: np.random.Generator) -> None:
        super().__init__("nature", (Conv(32, 8, 4), Conv(64, 4, 2), Conv(64, 3, 1)), 512, rng)


class DeepTorso(keras.layers.Layer):
    """The deep residual network of IMPALA (Espeholt et al., 2018, figure 3): [N, H, W, C] → [N, 256].

    One stage per entry of `channels` (16, 32 and 32 in the paper): a 3×3 convolution, 3×3 max-pooling with stride 2 and
    two residual blocks of two 3×3 convolutions; then ReLU and a dense layer of 256.
    """

    BLOCKS = 2

    def __init__(self, config: DeepConfig, rng: np.random.Generator) -> None:
        super().__init__(name="impala_deep")
        channels = config.channels
        # Scaled so that all residual blocks together add as much variance as one of gain √2.
        residual_gain = _RELU_GAIN / math.sqrt(len(channels) * self.BLOCKS)
        self.entries = [_conv(filters, 3, 1, "same", None, rng) for filters in channels]
        self.pool = keras.layers.MaxPooling2D(3, 2, padding="same", data_format="channels_last")
        self.blocks = [
            [
                (_conv(filters, 3, 1, "same", "relu", rng), _conv(filters, 3, 1, "same", None, rng, residual_gain))
                for _ in range(self.BLOCKS)
            ]
            for filters in channels
        ]
        self.dense = _dense(256, "relu", rng)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Features of x [N, H, W, C] float32."""
        for entry, blocks in zip(self.entries, self.blocks, strict=True):
            x = self.pool(entry(x))
            for inner, outer in blocks:
                x = x + outer(inner(tf.nn.relu(x)))
        return self.dense(_flatten(tf.nn.relu(x)))

    def saturation(self, features: tf.Tensor) -> tf.Tensor:
        return saturation(features, "relu")


def _flatten(x: tf.Tensor) -> tf.Tensor:
    return tf.reshape(x, [-1, math.prod(x.shape[1:])])


def apply(torso: Any, x: Any) -> tf.Tensor:
    """Features [N, F] of a torso; stores F in its attribute `units`.

    Raises:
        UsageError: a user's torso fails, or returns something else.
    """
    try:
        features = torso(x)
    except UsageError as error:  # from a part of a `MixedTorso`, within Keras' message
        raise UsageError(message_line(error)) from error
    except tf.errors.OpError:
        raise
    except Exception as error:
        shape = tf.nest.map_structure(lambda each: each.shape.as_list(), x)
        raise UsageError(
            f"the torso {type(torso).__name__} fails on inputs {shape}: {first_line(error)}{place_of(error)}"
        ) from error
    if (
        not tf.is_tensor(features)
        or features.shape.rank != 2
        or features.shape[1] is None
        or not features.dtype.is_floating
    ):
        found = f"{features.dtype.name} {features.shape}" if tf.is_tensor(features) else type(features).__name__
        raise UsageError(
            f"the torso {type(torso).__name__} must return features [N, F] in a floating-point dtype with F known, "
            f"and returned {found}"
        )
    torso.units = int(features.shape[1])
    return features


def saturated(torso: Any, features: tf.Tensor) -> tf.Tensor:
    """Fraction of saturated units in a torso's features [M, F]; 0 for a torso that has no method `saturation`."""
    return torso.saturation(features) if hasattr(torso, "saturation") else tf.constant(0.0)


class MixedTorso(keras.layers.Layer):
    """Concatenated features of several arrays: one torso per image, and one for all concatenated vectors.

    Args:
        images: torsos of the images, by name.
        vectors: names of the vectors.
        flat: torso of the vectors; None without vectors.
    """

    def __init__(self, images: Mapping[str, keras.layers.Layer], vectors: Sequence[str], flat: Any) -> None:
        super().__init__(name="mixed")
        self._image_names = tuple(images)
        self._vector_names = tuple(vectors)
        self.images = list(images.values())
        self.mlp = flat
        self._torsos = self.images + ([] if flat is None else [flat])

    def call(self, arrays: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Features [N, F], images first, of arrays by name: [N, H, W, C] or [N, D] float32."""
        parts = [apply(torso, arrays[name]) for name, torso in zip(self._image_names, self.images, strict=True)]
        if self.mlp is not None:
            parts.append(apply(self.mlp, tf.concat([arrays[name] for name in self._vector_names], axis=-1)))
        return tf.concat(parts, axis=-1)

    def saturation(self, features: tf.Tensor) -> tf.Tensor:
        """The mean over the parts, weighted by their widths."""
        widths = [torso.units for torso in self._torsos]
        parts = zip(self._torsos, tf.split(features, widths, axis=-1), strict=True)
        return tf.add_n([saturated(torso, part) * (torso.units / sum(widths)) for torso, part in parts])


def takes_images(config: NetworkConfig, array: ArraySpec) -> bool:
    """Whether the configured torso treats an array as an image: [H, W] or [H, W, C], and large enough."""
    if config.smallest_image is None or array.categories or len(array.shape) not in (2, 3):
        return False
    return min(array.shape[:2]) >= config.smallest_image


def make_torso(config: NetworkConfig, spec: EnvSpec, rng: np.random.Generator) -> Any:
    """The configured torso, not yet built.

    For a Dict observation each image has its own torso. All other arrays are concatenated into the input of one more
    torso: an MLP, or the configured torso if that takes no images.
    """
    torso: Any = TORSOS.load(config.torso)
    _check_class(torso, config.torso)
    if not isinstance(spec.observation, Mapping):
        return _instantiate(torso, config, rng)
    images = {
        name: _instantiate(torso, config, rng) for name, array in spec.arrays.items() if takes_images(config, array)
    }
    vectors = [name for name in spec.arrays if name not in images]
    flat = torso if config.smallest_image is None else MlpTorso
    return MixedTorso(images, vectors, _instantiate(flat, config, rng) if vectors else None)


def _instantiate(torso: Any, config: NetworkConfig, rng: np.random.Generator) -> Any:
    """An instance of a torso's class; raises UsageError if its own code fails."""
    try:
        return torso(config, rng)
    except (SeedError, tf.errors.OpError):
        raise
    except Exception as error:
        raise UsageError(f"the torso {torso.__name__} cannot be built: {first_line(error)}{place_of(error)}") from error


def _check_class(torso: Any, name: str) -> None:
    """Raise UsageError unless a class is a Keras layer with a method `call` and is built with (config, rng)."""
    try:
        inspect.signature(torso.__init__).bind(torso, "config", "rng")  # not the class: Keras' __new__ takes anything
    except TypeError as error:
        raise UsageError(f"the torso {name} must take (config, rng) when it is built: {error}") from error
    if not issubclass(torso, keras.layers.Layer):
        raise UsageError(f"the torso {name} must be a subclass of keras.layers.Layer (docs/writing-an-agent.md)")
    if torso.call is keras.layers.Layer.call:
        raise UsageError(f"the torso {name} has no method call, which computes its features (docs/writing-an-agent.md)")


def input_shapes(config: NetworkConfig, spec: EnvSpec) -> dict[str, tuple[int, ...]]:
    """Shapes of the torso's inputs for the arrays of one observation: (height, width, channels) or (size,).

    Raises:
        UsageError: the torso does not support the environment's observations.
    """

    def shape(array: ArraySpec) -> tuple[int, ...]:
        if not takes_images(config, array):
            return (sum(array.categories) or math.prod(array.shape),)
        return array.shape if len(array.shape) == 3 else (*array.shape, 1)

    smallest = config.smallest_image
    if smallest is None or any(takes_images(config, array) for array in spec.arrays.values()):
        return {name: shape(array) for name, array in spec.arrays.items()}
    found = ", ".join(_description(array) for array in spec.arrays.values())
    raise UsageError(
        f"agent.network.torso {config.torso!r} needs images [height, width] or [height, width, channels] of at least "
        f"{smallest}×{smallest} pixels, but observations of {spec.name} are {found}: choose agent.network.torso mlp"
    )


def _description(array: ArraySpec) -> str:
    if array.categories:
        return "one of " + " and of ".join(map(str, array.categories)) + " categories"
    return f"arrays of shape {array.shape}"
