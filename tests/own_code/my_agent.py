"""A user's algorithm: V-trace with an extra loss term and its own key."""

from __future__ import annotations

import tensorflow as tf
from pydantic import Field

from seedcli.agents.base import LossOutputs, UnrollBatch
from seedcli.agents.vtrace import VTraceAgent
from seedcli.agents.vtrace_config import VTraceConfig
from seedcli.config.sections import NonNegative


class MyConfig(VTraceConfig):
    """V-trace with decaying weights."""

    weight_decay: NonNegative = Field(1e-4, description="weight of the sum of squared parameters")


class MyAgent(VTraceAgent):
    """V-trace whose loss also holds the squared parameters, once for all parts of a batch."""

    Config = MyConfig

    def __init__(self, config: MyConfig, *arguments: object, **named: object) -> None:
        super().__init__(config, *arguments, **named)  # type: ignore[arg-type]
        self.decay = config.weight_decay

    def loss(self, unrolls: UnrollBatch) -> LossOutputs:
        outputs = super().loss(unrolls)
        squares = tf.add_n([tf.reduce_sum(tf.square(v)) for v in self.network.trainable_variables])
        part = tf.reduce_sum(unrolls.weights) / self._columns
        return outputs._replace(
            loss=outputs.loss + self.decay * part * squares, metrics={**outputs.metrics, "squares": squares}
        )
