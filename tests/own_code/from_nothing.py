"""A user's algorithm that shares nothing with the built-in ones: REINFORCE on a linear policy, for Discrete actions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from pydantic import Field

from seedcli.agents import targets
from seedcli.agents.base import (
    ActInputs,
    ActOutputs,
    AlgorithmSpec,
    LossOutputs,
    ParameterGroup,
    Role,
    State,
    UnrollBatch,
)
from seedcli.agents.variables import named_variables
from seedcli.config.sections import AgentConfig, Sections, TrainingConfig
from seedcli.specs import ArraySpec, EnvSpec


class ReinforceConfig(AgentConfig):
    """Williams, "Simple statistical gradient-following algorithms", 1992."""

    entropy: float = Field(0.01, ge=0.0, description="weight of the entropy")

    def conflicts(self, config: Sections) -> Iterator[str]:
        if config.training.burn_in:
            yield f"training.burn_in = {config.training.burn_in} must be 0: there is no state to warm up"


class Reinforce:
    """An `agents.base.Agent` that remembers the number of records of its episode, to have a state."""

    Config = ReinforceConfig

    def __init__(
        self, config: ReinforceConfig, training: TrainingConfig, spec: EnvSpec, seed: int, precision: str = "float32"
    ) -> None:
        self.config, self.spec, self.seed = config, spec, seed
        self.size = training.unroll_length * training.columns_per_update
        self.algorithm = AlgorithmSpec(
            name=config.algorithm,
            burn_in=0,
            unroll_length=training.unroll_length,
            source="queue",
            recorded={"logits": ArraySpec((spec.action.categories[0],), "float32")},
        )
        self.network = self.make_network()

    def make_network(self) -> Any:
        layer = keras.layers.Dense(
            self.spec.action.categories[0], kernel_initializer=keras.initializers.RandomNormal(seed=self.seed)
        )
        layer.build((None, self.spec.arrays["observation"].shape[-1]))
        return layer

    def initial_state(self, batch_size: int) -> State:
        return {"age": tf.zeros([batch_size], tf.int32)}

    def exploration(self, role: Role, index: npt.NDArray[np.int64], total: int) -> npt.NDArray[np.float32]:
        return np.zeros(len(index), np.float32)

    def act(self, network: Any, inputs: ActInputs, state: State) -> tuple[ActOutputs, State]:
        logits = network(inputs.observation)
        action = tf.random.stateless_categorical(logits, 1, inputs.seed, dtype=tf.int32)[:, 0]
        greedy = tf.argmax(logits, axis=-1, output_type=tf.int32)
        action = greedy if inputs.greedy else action
        return ActOutputs(action, {"logits": logits}, greedy), {"age": state["age"] + 1}

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        return {"policy": ParameterGroup(self.network.trainable_variables)}

    def observe(self, unrolls: UnrollBatch) -> None:
        """There are no statistics."""

    def targets(self, unrolls: UnrollBatch) -> Mapping[str, tf.Tensor]:
        """Discounted returns within the unroll."""
        r_t, discount_t, mask_tm1 = targets.transitions(
            unrolls.reward, unrolls.terminated, unrolls.truncated, self.config.discount
        )
        found = targets.vtrace(
            log_rho_tm1=tf.zeros_like(r_t),
            r_t=r_t,
            discount_t=discount_t,
            mask_tm1=mask_tm1,
            values=tf.zeros_like(unrolls.reward),
        )
        return {"returns": found.vs_tm1, "mask": mask_tm1}

    def loss(self, unrolls: UnrollBatch) -> LossOutputs:
        logits = self.network(unrolls.observation[:-1])
        log_p = tf.nn.log_softmax(logits)
        chosen = tf.reduce_sum(log_p * tf.one_hot(unrolls.action[:-1], logits.shape[-1]), axis=-1)
        entropy = -tf.reduce_sum(tf.exp(log_p) * log_p, axis=-1)
        each = -chosen * unrolls.targets["returns"] - self.config.entropy * entropy
        each *= unrolls.targets["mask"] * unrolls.weights
        return LossOutputs(tf.reduce_sum(each) / self.size, None, {"entropy": tf.reduce_mean(entropy)})

    def after_update(self, update: tf.Tensor) -> None:
        """Nothing follows an update."""

    def variables(self) -> dict[str, tf.Variable]:
        return named_variables(network=self.network)
