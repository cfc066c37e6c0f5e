"""A user's torso with its own key."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from pydantic import Field

from seedcli.config.sections import NetworkConfig, PositiveInt


class WideConfig(NetworkConfig):
    """One layer of sines."""

    sines: PositiveInt = Field(12, description="units of the layer of sines")


class MyTorso(keras.layers.Layer):
    """sin(Wx + b), [N, D] → [N, sines]."""

    Config = WideConfig

    def __init__(self, config: WideConfig, rng: np.random.Generator) -> None:
        super().__init__(name="sines")
        self.units = config.sines
        self.dense = keras.layers.Dense(config.sines)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return tf.sin(self.dense(x))
