"""Agents that each break one rule of the protocol; `docs/writing-an-agent.md` lists them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from pydantic import Field

from seedcli.agents.base import ActInputs, ActOutputs, LossOutputs, ParameterGroup, State, UnrollBatch
from seedcli.agents.networks.models import PolicyValueNetwork
from seedcli.agents.r2d2 import R2D2Agent
from seedcli.agents.variables import named_variables
from seedcli.agents.vtrace import VTraceAgent
from seedcli.agents.vtrace_config import VTraceConfig
from seedcli.config.sections import Sections
from tests.own_code.from_nothing import Reinforce


class ConfigOfNothing(VTraceAgent):
    Config = dict  # type: ignore[assignment]


class KeyWithoutDefault(VTraceAgent):
    class Config(VTraceConfig):
        temperature: float = Field(description="no default")


class KeyOfPython(VTraceAgent):
    """Follows the rules; its key is a keyword of Python."""

    class Config(VTraceConfig):
        global_: float = Field(1.0, alias="global", description="a factor")


class TorsoOfNothing(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__()


class ConflictIsANumber(VTraceAgent):
    class Config(VTraceConfig):
        def conflicts(self, config: Sections) -> Iterator[Any]:
            yield 3


class NoLoss(VTraceAgent):
    loss = None  # type: ignore[assignment]


class SamplesAlways(VTraceAgent):
    def act(self, network: Any, inputs: ActInputs, state: State) -> tuple[ActOutputs, State]:
        outputs, state = super().act(network, inputs._replace(greedy=False), state)
        return outputs._replace(action=1 - outputs.greedy_action), state


class OtherArguments(VTraceAgent):
    def __init__(self, config: Any) -> None:
        raise AssertionError("never called")


class FailsWhenBuilt(VTraceAgent):
    def make_network(self) -> Any:
        raise ZeroDivisionError("no units")


class ForgetsVariables(VTraceAgent):
    def variables(self) -> dict[str, tf.Variable]:
        return {name: v for name, v in super().variables().items() if "value" not in name}


class ForgetsStatistics(VTraceAgent):
    """Holds all trained variables."""

    def variables(self) -> dict[str, tf.Variable]:
        trained = {id(v.value) for v in self.network.trainable_variables}
        return {name: v for name, v in super().variables().items() if id(v) in trained}


class NamesAtRandom(VTraceAgent):
    def variables(self) -> dict[str, tf.Variable]:
        return {f"{name}-{id(self)}": variable for name, variable in super().variables().items()}


class NotSeeded(VTraceAgent):
    def __init__(self, config: Any, training: Any, spec: Any, seed: int, precision: str = "float32") -> None:
        super().__init__(config, training, spec, time.perf_counter_ns() % 2**31, precision)


class StateOfOneRow(Reinforce):
    def initial_state(self, batch_size: int) -> State:
        return {"age": tf.zeros([1], tf.int32)}


class ExplorationInDouble(VTraceAgent):
    def exploration(self, role: Any, index: Any, total: int) -> Any:
        return np.zeros(len(index))


class _Changed(Reinforce):
    def act(self, network: Any, inputs: ActInputs, state: State) -> tuple[ActOutputs, State]:
        outputs, state = super().act(network, inputs, state)
        return self.changed(outputs, inputs, state)

    def changed(self, outputs: ActOutputs, inputs: ActInputs, state: State) -> tuple[ActOutputs, State]:
        raise NotImplementedError


class ActionsInLong(_Changed):
    def changed(self, outputs: ActOutputs, inputs: ActInputs, state: State) -> tuple[ActOutputs, State]:
        return outputs._replace(action=tf.cast(outputs.action, tf.int64)), state


class ActionsOutOfRange(_Changed):
    def changed(self, outputs: ActOutputs, inputs: ActInputs, state: State) -> tuple[ActOutputs, State]:
        return outputs._replace(action=outputs.action + 2), state


class GreedyOfOneRow(_Changed):
    def changed(self, outputs: ActOutputs, inputs: ActInputs, state: State) -> tuple[ActOutputs, State]:
        return outputs._replace(greedy_action=outputs.greedy_action[:1]), state


class RecordsMore(_Changed):
    def changed(self, outputs: ActOutputs, inputs: ActInputs, state: State) -> tuple[ActOutputs, State]:
        return outputs._replace(recorded={**outputs.recorded, "value": inputs.reward}), state


class RecordsInHalf(_Changed):
    def changed(self, outputs: ActOutputs, inputs: ActInputs, state: State) -> tuple[ActOutputs, State]:
        return outputs._replace(recorded={"logits": tf.cast(outputs.recorded["logits"], tf.float16)}), state


class ForgotReturnOfAct(VTraceAgent):
    def act(self, network: Any, inputs: ActInputs, state: State) -> tuple[ActOutputs, State]:  # type: ignore[return]
        super().act(network, inputs, state)


class OtherState(_Changed):
    def changed(self, outputs: ActOutputs, inputs: ActInputs, state: State) -> tuple[ActOutputs, State]:
        return outputs, {"steps": state["age"]}


class StateInFloat(_Changed):
    def changed(self, outputs: ActOutputs, inputs: ActInputs, state: State) -> tuple[ActOutputs, State]:
        return outputs, {"age": tf.cast(state["age"], tf.float32)}


class OwnRandomness(_Changed):
    def changed(self, outputs: ActOutputs, inputs: ActInputs, state: State) -> tuple[ActOutputs, State]:
        logits = outputs.recorded["logits"]
        return outputs._replace(recorded={"logits": logits + tf.random.normal(tf.shape(logits))}), state


class CountsInPython(_Changed):
    calls = 0

    def changed(self, outputs: ActOutputs, inputs: ActInputs, state: State) -> tuple[ActOutputs, State]:
        self.calls += 1
        return outputs._replace(recorded={"logits": outputs.recorded["logits"] * self.calls}), state


class ChangesVariables(_Changed):
    def changed(self, outputs: ActOutputs, inputs: ActInputs, state: State) -> tuple[ActOutputs, State]:
        self.network.bias.assign_add(tf.ones_like(self.network.bias))
        return outputs, state


class NormalizesTheBatch(_Changed):
    def changed(self, outputs: ActOutputs, inputs: ActInputs, state: State) -> tuple[ActOutputs, State]:
        logits = outputs.recorded["logits"]
        return outputs._replace(recorded={"logits": logits - tf.reduce_mean(logits, axis=0)}), state


class _ForgetfulNetwork(PolicyValueNetwork):
    def unroll(self, observation: Any, reward: Any, action: Any, first: Any, state: State) -> tuple[Any, State]:
        return super().unroll(observation, reward, action, tf.zeros_like(first), state)


class UnrollNeverResets(VTraceAgent):
    """To be built with an LSTM."""

    def make_network(self) -> PolicyValueNetwork:
        return _ForgetfulNetwork(self.config_of_network, self._spec, self._seed)

    def __init__(self, config: Any, *arguments: Any) -> None:
        self.config_of_network = config
        super().__init__(config, *arguments)


class TargetsByColumn(Reinforce):
    def targets(self, unrolls: UnrollBatch) -> Any:
        return {name: tf.transpose(target) for name, target in super().targets(unrolls).items()}


class LossOfEachColumn(Reinforce):
    def loss(self, unrolls: UnrollBatch) -> LossOutputs:
        return super().loss(unrolls)._replace(loss=tf.ones_like(unrolls.weights))


class LossOfOtherGroup(Reinforce):
    def loss(self, unrolls: UnrollBatch) -> LossOutputs:
        outputs = super().loss(unrolls)
        return outputs._replace(loss={"actor": outputs.loss})


class GeneralMetric(VTraceAgent):
    def loss(self, unrolls: UnrollBatch) -> LossOutputs:
        outputs = super().loss(unrolls)
        return outputs._replace(metrics={**outputs.metrics, "env_steps": outputs.loss})


class MetricOfEachColumn(VTraceAgent):
    def loss(self, unrolls: UnrollBatch) -> LossOutputs:
        outputs = super().loss(unrolls)
        return outputs._replace(metrics={**outputs.metrics, "kl": unrolls.reward[:-1]})


class ForgotReturn(VTraceAgent):
    def loss_outputs(self, *arguments: Any) -> LossOutputs:  # type: ignore[return, override]
        super().loss_outputs(*arguments)


class ForgotReturnOfLoss(Reinforce):
    def loss(self, unrolls: UnrollBatch) -> LossOutputs:  # type: ignore[return]
        super().loss(unrolls)


class NegativePriorities(R2D2Agent):
    def loss(self, unrolls: UnrollBatch) -> LossOutputs:
        outputs = super().loss(unrolls)
        return outputs._replace(priorities=outputs.priorities - 1e3)


class PrioritiesOfObservations(R2D2Agent):
    def initial_priorities(self, unrolls: UnrollBatch) -> tf.Tensor:
        return tf.reduce_sum(unrolls.observation, axis=[0, 2])


class UnusedVariable(Reinforce):
    def __init__(self, *arguments: Any) -> None:
        self.unused = keras.Variable(1.0, name="unused")
        super().__init__(*arguments)

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        return {"policy": ParameterGroup([*self.network.trainable_variables, self.unused])}

    def variables(self) -> dict[str, tf.Variable]:
        return {**super().variables(), "unused": self.unused.value}


class InfiniteGradient(Reinforce):
    def loss(self, unrolls: UnrollBatch) -> LossOutputs:
        outputs = super().loss(unrolls)
        return outputs._replace(loss=outputs.loss + tf.sqrt(tf.reduce_sum(0.0 * self.network.kernel)))


class ForgetsMask(VTraceAgent):
    """Adds a term for all actions taken, including those that the environment ignored."""

    def loss_outputs(
        self, batch: Any, unrolls: Any, policy_loss: Any, squared_error: Any, metrics: Any, stop: Any = None
    ) -> LossOutputs:
        each = policy_loss - 0.001 * batch.log_pi
        return super().loss_outputs(batch, unrolls, each, squared_error, metrics, stop)


class ForgetsMaskOfDivergence(VTraceAgent):
    """The term is 0 where the policy is the one that acted."""

    def loss_outputs(
        self, batch: Any, unrolls: Any, policy_loss: Any, squared_error: Any, metrics: Any, stop: Any = None
    ) -> LossOutputs:
        log_ratio = batch.log_pi - batch.log_mu
        each = policy_loss + tf.exp(log_ratio) - 1.0 - log_ratio
        return super().loss_outputs(batch, unrolls, each, squared_error, metrics, stop)


class ForgetsMaskOfTargets(Reinforce):
    def targets(self, unrolls: UnrollBatch) -> Any:
        found = super().targets(unrolls)
        return {
            **found,
            "returns": found["returns"] + tf.cast(unrolls.action[:-1], tf.float32),
            "mask": 1.0 + 0.0 * found["mask"],
        }


class MeanOverColumns(Reinforce):
    def loss(self, unrolls: UnrollBatch) -> LossOutputs:
        outputs = super().loss(unrolls)
        return outputs._replace(loss=outputs.loss * self.size / tf.cast(tf.size(unrolls.reward), tf.float32))


class ObservesEverything(Reinforce):
    def __init__(self, *arguments: Any) -> None:
        self.mean = tf.Variable(0.0, trainable=False)
        super().__init__(*arguments)

    def observe(self, unrolls: UnrollBatch) -> None:
        self.mean.assign(tf.reduce_mean(unrolls.observation))

    def variables(self) -> dict[str, tf.Variable]:
        return {**named_variables(network=self.network), "mean": self.mean}


class UndoesUpdates(Reinforce):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.start = self.make_network()

    def after_update(self, update: tf.Tensor) -> None:
        for mine, start in zip(self.network.variables, self.start.variables, strict=True):
            mine.assign(start)


class Hangs(VTraceAgent):
    def __init__(self, *arguments: Any) -> None:
        time.sleep(1000)


class Dies(VTraceAgent):
    def __init__(self, *arguments: Any) -> None:
        import os

        os.abort()
