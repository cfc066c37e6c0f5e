"""The encoder of records into features: frame stacks, torso, previous action and reward, LSTM.

Axis conventions: N rows of an inference batch; L records of an unroll, B columns, time-major; F features.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from seedcli.agents.base import State
from seedcli.agents.networks.frame_stack import ObservationStack, one_hot
from seedcli.agents.networks.torsos import apply, make_torso, orthogonal, saturated, saturation
from seedcli.config.sections import NetworkConfig
from seedcli.specs import ActionSpec, EnvSpec


@contextlib.contextmanager
def layers_computing_in(precision: str) -> Iterator[None]:
    """Set the precision, such as "mixed_bfloat16", of Keras layers that this thread creates in the context.

    Variables are float32 in any precision. Layers cast their inputs to the compute dtype and do not cast outputs back.
    """
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


class Lstm(keras.layers.Layer):
    """An LSTM (Hochreiter & Schmidhuber, 1997; forget gate of Gers et al., 2000, with bias 1) in two parts.

    `call` computes the part that depends only on the inputs, for a whole sequence at once; `step` does the rest. Matrix
    products use the layer's compute dtype, sums and the cell float32.
    """

    def __init__(self, units: int, rng: np.random.Generator) -> None:
        super().__init__(name="lstm")
        self.units = units
        self._initializers = (orthogonal(rng, 1.0), orthogonal(rng, 1.0))

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create the variables for inputs [..., F]."""
        self.kernel = self.add_weight(
            shape=(input_shape[-1], 4 * self.units), initializer=self._initializers[0], name="kernel"
        )
        self.recurrent_kernel = self.add_weight(
            shape=(self.units, 4 * self.units), initializer=self._initializers[1], name="recurrent_kernel"
        )
        self.bias = self.add_weight(shape=(4 * self.units,), initializer=self._bias, name="bias")

    def _bias(self, shape: tuple[int, ...], dtype: Any = None) -> tf.Tensor:
        forget = tf.range(shape[0]) // self.units == 1
        return tf.cast(forget, dtype)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """The contribution of inputs x [M, F] to the gates, [M, 4·units]."""
        return tf.matmul(x, self.kernel) + self.bias

    def step(self, projected: tf.Tensor, hidden: tf.Tensor, cell: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """One time step: the next hidden and cell [N, units] float32, given the output [N, 4·units] of `call`."""
        recurrent = tf.matmul(
            tf.cast(hidden, self.compute_dtype), tf.cast(self.recurrent_kernel.value, self.compute_dtype)
        )
        gates = tf.cast(projected, tf.float32) + tf.cast(recurrent, tf.float32)
        input_gate, forget_gate, candidate, output_gate = tf.split(gates, 4, axis=-1)
        cell = tf.sigmoid(forget_gate) * cell + tf.sigmoid(input_gate) * tf.tanh(candidate)
        return tf.sigmoid(output_gate) * tf.tanh(cell), cell


class PreviousAction:
    """The action chosen on the previous record, as recurrent state and as network input.

    The state is [N, ...] in the shape and dtype of an action: for categories int32, 1 + the category; for a Box float32
    clipped to ±1; 0 before the first action. The environment clips bounded parts of a Box in the same way; unbounded
    parts are clipped only here, which keeps the network's inputs bounded.
    """

    def __init__(self, action: ActionSpec) -> None:
        self._array = action.array

    def initial_state(self, batch_size: int | tf.Tensor) -> tf.Tensor:
        """No action, [batch_size, ...]."""
        return tf.zeros([batch_size, *self._array.shape], self._array.dtype)

    def kept(self, action: tf.Tensor) -> tf.Tensor:
        """Actions [...] in the form of the state."""
        return action + 1 if self._array.categories else tf.clip_by_value(action, -1.0, 1.0)

    def unroll(self, action: tf.Tensor, first: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The state before each record of an unroll, [L·B, ...], and after the last one, [B, ...]."""
        kept = self.kept(action)
        before = tf.concat([state[tf.newaxis], kept[:-1]], axis=0)
        no_action = tf.reshape(first, tf.concat([tf.shape(first), [1] * len(self._array.shape)], axis=0))
        before = tf.where(no_action, tf.zeros([], before.dtype), before)
        return tf.reshape(before, [-1, *self._array.shape]), kept[-1]

    def features(self, state: tf.Tensor) -> tf.Tensor:
        """Network input [M, D] float32 for states [M, ...]: categories one-hot, zeros before the first action."""
        return one_hot(state - 1, self._array) if self._array.categories else state


# Parts of an `Encoder`'s state before a record that follow from earlier records, without any layer.
RECORDED_STATES = ("frames", "frame_count", "previous_action")


class Encoder(keras.layers.Layer):
    """Everything below the heads: encodes observations and recurrent state as features.

    The state is a dict, all zeros at the start of an episode. Depending on the configuration it holds "frames" and
    "frame_count" (see `ObservationStack`), "lstm_hidden" and "lstm_cell" [N, units] float32, and "previous_action" (see
    `PreviousAction`).
    """

    def __init__(
        self,
        config: NetworkConfig,
        spec: EnvSpec,
        rng: np.random.Generator,
        precision: str = "float32",
        *,
        towers: int = 1,
    ) -> None:
        """Make the layers; raises UsageError if the network does not support the environment's observations.

        Args:
            config: the network.
            spec: the environment.
            rng: random generator for the initial variables.
            precision: precision of torso and LSTM; variables, states and features are float32 in any.
            towers: number of torsos, each with its own LSTM, on the same inputs.
        """
        super().__init__(name="encoder")
        self._reward_clip = config.reward_input_clip
        self._previous = PreviousAction(spec.action) if config.previous_action_reward else None
        self._stack = ObservationStack(config, spec, keras.DTypePolicy(precision).compute_dtype)
        self.normalizers = list(self._stack.normalizers.values())
        self.towers = towers
        with layers_computing_in(precision):
            self.torsos = [make_torso(config, spec, rng) for _ in range(towers)]
            self.lstms = [Lstm(config.lstm, rng) for _ in range(towers if config.lstm else 0)]

    def initial_state(self, batch_size: int | tf.Tensor) -> dict[str, Any]:
        """The state at the start of an episode."""
        state = self._stack.initial_state(batch_size)
        for hidden, cell, lstm in self._memories():
            state[hidden] = tf.zeros([batch_size, lstm.units])
            state[cell] = tf.zeros([batch_size, lstm.units])
        if self._previous is not None:
            state["previous_action"] = self._previous.initial_state(batch_size)
        return state

    def inputs(self, observation: Any) -> Any:
        """The torso's inputs, arrays [N, ...], for observations [N, ...]; only without frame stack."""
        return self._stack.step(observation, {})[0]

    def step(self, observation: Any, reward: tf.Tensor, state: State) -> tuple[list[tf.Tensor], State]:
        """Features of one record from each tower; a graph computes only those that are used.

        Args:
            observation: [N, ...] in the environment's dtypes, by name if its specification has names.
            reward: [N] float32, raw.
            state: [N, ...], reset where the record is the first of an episode.

        Returns:
            Features [N, F] float32 of each tower, and the next state without the action, which `remember` adds.
        """
        stacked, after = self._stack.step(observation, state)
        features = [
            self._with_previous(apply(torso, stacked), state.get("previous_action"), reward) for torso in self.torsos
        ]
        for i, (hidden, cell, lstm) in enumerate(self._memories()):
            features[i], after[cell] = lstm.step(lstm(features[i]), state[hidden], state[cell])
            after[hidden] = features[i]
        return features, {**state, **after}

    def remember(self, state: State, action: tf.Tensor) -> State:
        """The state with the action [N, ...] chosen on the record."""
        return state if self._previous is None else {**state, "previous_action": self._previous.kept(action)}

    def unroll(
        self, observation: Any, reward: tf.Tensor, action: tf.Tensor, first: tf.Tensor, state: State
    ) -> tuple[list[tf.Tensor], State]:
        """Features of every record of an unroll from each tower, as from repeated `step`, reset where `first`.

        Args:
            observation: [L, B, ...] in the environment's dtypes, by name if its specification has names.
            reward: [L, B] float32, raw; L must be static with an LSTM.
            action: [L, B, ...].
            first: [L, B] bool, the first record of an episode.
            state: [B, ...], before record 0.

        Returns:
            Features [L·B, F] float32 of each tower, and the state after the last record.
        """
        stacked, after = self._stack.unroll(observation, first, state)
        previous = None
        if self._previous is not None:
            previous, after["previous_action"] = self._previous.unroll(action, first, state["previous_action"])
        flat = tf.reshape(reward, [-1])
        features = [self._with_previous(apply(torso, stacked), previous, flat) for torso in self.torsos]
        for i, (hidden, cell, lstm) in enumerate(self._memories()):
            start = state[hidden], state[cell]
            features[i], after[hidden], after[cell] = _unroll_lstm(lstm, reward.shape[0], features[i], first, *start)
        return features, {**state, **after}

    def states(
        self, observation: Any, action: tf.Tensor, first: tf.Tensor, state: State, index: tf.Tensor
    ) -> dict[str, Any]:
        """`RECORDED_STATES` [N, ...] before records of an unroll, reset where `first`.

        Args:
            observation: [L, B, ...], as for `unroll`.
            action: [L, B, ...].
            first: [L, B] bool.
            state: [B, ...], before record 0.
            index: [N] int32, t·B + b for record t of column b.
        """
        states = self._stack.states(observation, first, state, index)
        if self._previous is not None:
            before, _ = self._previous.unroll(action, first, state["previous_action"])
            states["previous_action"] = tf.gather(before, index)
        return states

    def _memories(self) -> Iterator[tuple[str, str, Lstm]]:
        """State names of each LSTM's hidden vector and cell, and the LSTM."""
        for prefix, lstm in zip(("", "value_"), self.lstms, strict=False):
            yield f"{prefix}lstm_hidden", f"{prefix}lstm_cell", lstm

    def saturation(self, features: tf.Tensor) -> tf.Tensor:
        """Fraction of saturated units in features [M, F] of all towers, scalar float32; see `torsos.saturation`.

        Counts the units of the LSTM, or without one those of the torso's last layer.
        """
        parts = tf.split(features, self.towers, axis=-1)
        if self.lstms:
            return tf.add_n([saturation(part, "tanh") for part in parts]) / self.towers
        each = zip(self.torsos, parts, strict=True)
        return tf.add_n([saturated(torso, part[:, : torso.units]) for torso, part in each]) / self.towers

    def observe(self, observation: Any, keep: tf.Tensor) -> None:
        """Update the statistics of `normalizers` with records [T, B, ...] of the columns `keep` [B] bool."""
        self._stack.observe(observation, keep)

    def settled(self) -> tf.Tensor:
        """Whether the statistics can be trained on, 0 or 1; see `ObservationStack.settled`."""
        return self._stack.settled()

    def _with_previous(self, x: tf.Tensor, previous_action: tf.Tensor | None, reward: tf.Tensor) -> tf.Tensor:
        """Features [M, F] as float32, with the previous action and reward if configured.

        The reward is clipped to ± `agent.network.reward_input_clip`; 0: not clipped.
        """
        x = tf.cast(x, tf.float32)
        if self._previous is None:
            return x
        if self._reward_clip:
            reward = tf.clip_by_value(reward, -self._reward_clip, self._reward_clip)
        return tf.concat([x, self._previous.features(previous_action), reward[:, tf.newaxis]], axis=-1)


def _unroll_lstm(
    lstm: Lstm, length: int, x: tf.Tensor, first: tf.Tensor, hidden: tf.Tensor, cell: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Hidden vectors [L·B, units] for inputs x [L·B, F], and hidden vector and cell [B, units] after the last.

    The state is reset to zero where `first` [L, B] bool; L is `length`.
    """
    projected = tf.reshape(lstm(x), [length, -1, 4 * lstm.units])
    keep = tf.cast(tf.logical_not(first), tf.float32)[..., tf.newaxis]
    hiddens = []
    for gates_t, keep_t in zip(tf.unstack(projected, length), tf.unstack(keep, length), strict=True):
        hidden, cell = lstm.step(gates_t, hidden * keep_t, cell * keep_t)
        hiddens.append(hidden)
    return tf.concat(hiddens, axis=0), hidden, cell
