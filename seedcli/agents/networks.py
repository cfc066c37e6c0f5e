"""Networks with memory: frame stack, torso, previous action and reward, LSTM, and heads of policy and value.

Axis conventions: N rows of an inference batch; L records of an unroll, B columns, time-major; A actions; F features.
A network has two ways in, `step` for acting and `unroll` for learning, which compute the same.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from seedcli.agents.base import State, UnrollBatch
from seedcli.agents.torsos import frame_shape, make_torso, orthogonal
from seedcli.config import AgentConfig
from seedcli.specs import EnvSpec


class FrameStack:
    """The newest S observations of an episode, stacked on the last axis, oldest first; zeros before its start.

    The state is [N, S-1, *shape], the frames before the next one, in the dtype they are kept in: uint8 for uint8
    observations and one-hot categories, float32 for everything else.

    Attributes:
        shape: one frame as the torso takes it.
        size: S.
    """

    def __init__(self, config: AgentConfig, spec: EnvSpec) -> None:
        self.shape = frame_shape(config, spec)
        self.size = config.frame_stack
        self._categories = spec.observation.categories
        small = spec.observation.dtype == "uint8"
        self._dtype = tf.uint8 if small or self._categories else tf.float32
        self._scale = 1.0 / 255.0 if small and not self._categories else 1.0

    def initial_state(self, batch_size: int | tf.Tensor) -> tf.Tensor:
        """The empty stack, [batch_size, S-1, *shape]."""
        return tf.zeros([batch_size, self.size - 1, *self.shape], self._dtype)

    def step(self, observation: tf.Tensor, state: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Stack observations [N, ...] on the state's frames: the torso's input [N, ...] float32, and the next state."""
        frames = self._frames(observation, 1)
        if state is None:
            return self._normalised(frames), None
        window = tf.concat([state, frames[:, tf.newaxis]], axis=1)
        return self._normalised(self._interleaved(window)), window[:, 1:]

    def unroll(
        self, observation: tf.Tensor, first: tf.Tensor, state: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Stack the observations of an unroll.

        Args:
            observation: [L, B, ...].
            first: [L, B] bool, where an episode starts: nothing of before it is seen.
            state: [B, S-1, *shape], or None where S is 1.

        Returns:
            The torso's input [L·B, ...] float32, and the state after the last record.
        """
        frames = self._frames(observation, 2)
        if state is None:
            return self._normalised(tf.reshape(frames, [-1, *self.shape])), None
        length = tf.shape(frames)[0]
        before = self.size - 1
        swap = [1, 0, *range(2, 2 + len(self.shape))]
        frames = tf.concat([tf.transpose(state, swap), frames], axis=0)
        # Episodes are counted from 0, that of the state: a frame is seen by records of its own episode alone.
        episode = tf.cumsum(tf.cast(first, tf.int32), axis=0)
        frame_episode = tf.pad(episode, [[before, 0], [0, 0]])
        windows = [
            self._masked(frames[i : i + length], tf.equal(frame_episode[i : i + length], episode))
            for i in range(before)
        ]
        windows.append(frames[before:])
        window = tf.reshape(tf.stack(windows, axis=2), [-1, self.size, *self.shape])
        kept = self._masked(frames[length:], tf.equal(frame_episode[length:], episode[-1:]))
        return self._normalised(self._interleaved(window)), tf.transpose(kept, swap)

    def _frames(self, observation: tf.Tensor, batch_axes: int) -> tf.Tensor:
        """Observations [..., *observation] as frames [..., *shape] in the kept dtype."""
        if self._categories:
            return tf.one_hot(observation, self._categories, dtype=self._dtype)
        batch = tf.shape(observation)[:batch_axes]
        return tf.cast(tf.reshape(observation, tf.concat([batch, self.shape], axis=0)), self._dtype)

    def _masked(self, frames: tf.Tensor, keep: tf.Tensor) -> tf.Tensor:
        """Frames [X, B, *shape], zero where `keep` [X, B] is False."""
        return frames * tf.cast(keep, self._dtype)[(..., *[tf.newaxis] * len(self.shape))]

    def _interleaved(self, window: tf.Tensor) -> tf.Tensor:
        """[M, S, ..., C] → [M, ..., S·C]; transposing is twice as fast as a concatenation on a last axis this short."""
        *pixels, channels = self.shape
        flat = tf.reshape(window, [-1, self.size, math.prod(pixels), channels])
        return tf.reshape(tf.transpose(flat, [0, 2, 1, 3]), [-1, *pixels, self.size * channels])

    def _normalised(self, stacked: tf.Tensor) -> tf.Tensor:
        x = tf.cast(stacked, tf.float32)
        return x if self._scale == 1.0 else x * self._scale


class Lstm(keras.layers.Layer):
    """An LSTM (Hochreiter & Schmidhuber, 1997; forget gate of Gers et al., 2000, with bias 1) in two parts.

    What depends on the input alone is computed for a whole sequence at once by `project`; `step` is the rest.
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
        """The input's part of the gates, [M, 4·units], of x [M, F]."""
        return tf.matmul(x, self.kernel) + self.bias

    def step(self, projected: tf.Tensor, hidden: tf.Tensor, cell: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """One time step: hidden and cell [N, units] after it, given `call`'s gates [N, 4·units]."""
        gates = projected + tf.matmul(hidden, self.recurrent_kernel)
        input_gate, forget_gate, candidate, output_gate = tf.split(gates, 4, axis=-1)
        cell = tf.sigmoid(forget_gate) * cell + tf.sigmoid(input_gate) * tf.tanh(candidate)
        return tf.sigmoid(output_gate) * tf.tanh(cell), cell


class Encoder(keras.layers.Layer):
    """Everything below the heads: observations, and what is remembered of earlier ones, to features.

    The state is a dict, all zeros at the start of an episode, with what the configuration asks for (maybe nothing):
    "frames" as `FrameStack` has it; "lstm_hidden" and "lstm_cell" [N, units] float32; "previous_action" [N] int32,
    0 where there is none yet, else 1 + the action.
    """

    def __init__(self, config: AgentConfig, spec: EnvSpec, rng: np.random.Generator) -> None:
        super().__init__(name="encoder")
        self._num_actions = spec.num_actions
        self._previous = config.previous_action_reward
        self._reward_clip = config.reward_input_clip
        self._stack = FrameStack(config, spec)
        self.torso = make_torso(config, rng)
        self.lstm = Lstm(config.lstm, rng) if config.lstm else None

    def initial_state(self, batch_size: int | tf.Tensor) -> dict[str, tf.Tensor]:
        """The state at the start of an episode."""
        state = {}
        if self._stack.size > 1:
            state["frames"] = self._stack.initial_state(batch_size)
        if self.lstm is not None:
            state["lstm_hidden"] = tf.zeros([batch_size, self.lstm.units])
            state["lstm_cell"] = tf.zeros([batch_size, self.lstm.units])
        if self._previous:
            state["previous_action"] = tf.zeros([batch_size], tf.int32)
        return state

    def step(self, observation: tf.Tensor, reward: tf.Tensor, state: State) -> tuple[tf.Tensor, State]:
        """Features of one record.

        Args:
            observation: [N, ...] in the environment's dtype.
            reward: [N] float32, raw.
            state: [N, ...], reset where the record is the first of an episode.

        Returns:
            Features [N, F], and the next state but for the action, which `remember` adds.
        """
        state = dict(state)
        stacked, frames = self._stack.step(observation, state.get("frames"))
        x = self._with_previous(self.torso(stacked), state.get("previous_action"), reward)
        if frames is not None:
            state["frames"] = frames
        if self.lstm is not None:
            x, cell = self.lstm.step(self.lstm(x), state["lstm_hidden"], state["lstm_cell"])
            state.update(lstm_hidden=x, lstm_cell=cell)
        return x, state

    def remember(self, state: State, action: tf.Tensor) -> State:
        """The state with the action [N] int32 chosen on the record in it."""
        return {**state, "previous_action": action + 1} if self._previous else state

    def unroll(
        self, observation: tf.Tensor, reward: tf.Tensor, action: tf.Tensor, first: tf.Tensor, state: State
    ) -> tuple[tf.Tensor, State]:
        """Features of every record of an unroll: what `step` gives one by one, the state reset where `first`.

        Args:
            observation: [L, B, ...] in the environment's dtype.
            reward: [L, B] float32, raw; L must be static where there is an LSTM.
            action: [L, B] int32.
            first: [L, B] bool, the first record of an episode.
            state: [B, ...], before record 0.

        Returns:
            Features [L·B, F], and the state after the last record.
        """
        after = dict(state)
        stacked, frames = self._stack.unroll(observation, first, state.get("frames"))
        if frames is not None:
            after["frames"] = frames
        previous = None
        if self._previous:
            previous = tf.concat([state["previous_action"][tf.newaxis], action[:-1] + 1], axis=0)
            previous = tf.reshape(tf.where(first, 0, previous), [-1])
            after["previous_action"] = action[-1] + 1
        x = self._with_previous(self.torso(stacked), previous, tf.reshape(reward, [-1]))
        if self.lstm is not None:
            length = reward.shape[0]
            projected = tf.reshape(self.lstm(x), [length, -1, 4 * self.lstm.units])
            keep = tf.cast(tf.logical_not(first), tf.float32)[..., tf.newaxis]
            hidden, cell = state["lstm_hidden"], state["lstm_cell"]
            hiddens = []
            for gates_t, keep_t in zip(tf.unstack(projected, length), tf.unstack(keep, length), strict=True):
                hidden, cell = self.lstm.step(gates_t, hidden * keep_t, cell * keep_t)
                hiddens.append(hidden)
            x = tf.concat(hiddens, axis=0)
            after.update(lstm_hidden=hidden, lstm_cell=cell)
        return x, after

    def _with_previous(self, x: tf.Tensor, previous_action: tf.Tensor | None, reward: tf.Tensor) -> tf.Tensor:
        """Features [M, F] with the previous action one-hot (none: zeros) and the reward, if asked for.

        The reward is clipped to ± `agent.reward_input_clip`; 0 leaves it as it is.
        """
        if previous_action is None:
            return x
        one_hot = tf.one_hot(previous_action - 1, self._num_actions)
        if self._reward_clip:
            reward = tf.clip_by_value(reward, -self._reward_clip, self._reward_clip)
        return tf.concat([x, one_hot, reward[:, tf.newaxis]], axis=-1)


class RecurrentNetwork(keras.layers.Layer):
    """An `Encoder` with the heads of a subclass; built, so that its variables exist.

    The same seed gives the same variables. A subclass makes its layers in `make_heads` and applies them in `heads`.
    """

    def __init__(self, config: AgentConfig, spec: EnvSpec, seed: int) -> None:
        """Build the network; raises UsageError where its torso cannot take the observations."""
        super().__init__(name="network")
        rng = np.random.default_rng(seed)
        self.encoder = Encoder(config, spec, rng)
        self.make_heads(config, spec, rng)
        observation = tf.zeros([1, *spec.observation.shape], spec.observation.dtype)
        self.step(observation, tf.zeros([1]), self.initial_state(1))
        self.built = True

    def make_heads(self, config: AgentConfig, spec: EnvSpec, rng: np.random.Generator) -> None:
        """Make the layers of the heads; their initialisers draw seeds from `rng`."""
        raise NotImplementedError

    def heads(self, features: tf.Tensor) -> Any:
        """The outputs, nested [M, ...], for features [M, F]; all but the first axis static."""
        raise NotImplementedError

    def initial_state(self, batch_size: int | tf.Tensor) -> State:
        """The state at the start of an episode, as `Encoder` has it."""
        return self.encoder.initial_state(batch_size)

    def step(self, observation: tf.Tensor, reward: tf.Tensor, state: State) -> tuple[Any, State]:
        """Outputs [N, ...] of one record, and the next state but for the action; arguments as `Encoder.step`'s."""
        features, state = self.encoder.step(observation, reward, state)
        return self.heads(features), state

    def remember(self, state: State, action: tf.Tensor) -> State:
        """The state with the action [N] int32 chosen on the record in it."""
        return self.encoder.remember(state, action)

    def unroll(
        self, observation: tf.Tensor, reward: tf.Tensor, action: tf.Tensor, first: tf.Tensor, state: State
    ) -> tuple[Any, State]:
        """Outputs [L, B, ...] of every record, and the state after the last; arguments as `Encoder.unroll`'s."""
        features, state = self.encoder.unroll(observation, reward, action, first, state)
        length, columns = tf.unstack(tf.shape(reward))
        outputs = tf.nest.map_structure(lambda x: tf.reshape(x, [length, columns, *x.shape[1:]]), self.heads(features))
        return outputs, state


class PolicyValue(NamedTuple):
    """What a `PolicyValueNetwork` says of records.

    Attributes:
        logits: [N, A] or [L, B, A] float32, of the policy.
        value: [N] or [L, B] float32.
    """

    logits: tf.Tensor
    value: tf.Tensor


class PolicyValueNetwork(RecurrentNetwork):
    """A `RecurrentNetwork` with a policy head and a value head: outputs are `PolicyValue`."""

    def make_heads(self, config: AgentConfig, spec: EnvSpec, rng: np.random.Generator) -> None:
        """See `RecurrentNetwork.make_heads`."""
        # A policy that is all but uniform at the start explores, whatever the features are.
        self.policy = keras.layers.Dense(spec.num_actions, kernel_initializer=orthogonal(rng, 0.01), name="policy")
        self.value = keras.layers.Dense(1, kernel_initializer=orthogonal(rng, 1.0), name="value")

    def heads(self, features: tf.Tensor) -> PolicyValue:
        """See `RecurrentNetwork.heads`."""
        return PolicyValue(self.policy(features), self.value(features)[:, 0])


class DuelingQNetwork(RecurrentNetwork):
    """A `RecurrentNetwork` with the dueling heads of Wang et al., "Dueling Network Architectures" (2016), equation 9.

    Q(s, a) = V(s) + A(s, a) − mean_a' A(s, a'): outputs are Q values [N, A] or [L, B, A] float32. Each head is a
    hidden layer of `agent.dueling_hidden` units with ReLU and a linear one, or the linear one alone where that is 0.
    """

    def make_heads(self, config: AgentConfig, spec: EnvSpec, rng: np.random.Generator) -> None:
        """See `RecurrentNetwork.make_heads`."""

        def head(name: str, units: int, gain: float) -> list[keras.layers.Layer]:
            layers = []
            if config.dueling_hidden:
                initializer = orthogonal(rng, math.sqrt(2.0))
                layers.append(
                    keras.layers.Dense(
                        config.dueling_hidden, activation="relu", kernel_initializer=initializer, name=f"{name}_hidden"
                    )
                )
            layers.append(keras.layers.Dense(units, kernel_initializer=orthogonal(rng, gain), name=name))
            return layers

        self.value_head = head("value", 1, 1.0)
        # Actions that all but tie at the start leave the first targets little maximisation bias.
        self.advantage_head = head("advantage", spec.num_actions, 0.1)

    def heads(self, features: tf.Tensor) -> tf.Tensor:
        """See `RecurrentNetwork.heads`."""
        value = advantage = features
        for layer in self.value_head:
            value = layer(value)
        for layer in self.advantage_head:
            advantage = layer(advantage)
        return value + advantage - tf.reduce_mean(advantage, axis=-1, keepdims=True)


def evaluate(network: Any, unrolls: UnrollBatch, burn_in: int) -> Any:
    """A network's outputs on the records after the burn-in, [T+1, B, ...], each seen as it was when acting.

    The first K = `burn_in` records (Kapturowski et al., "R2D2", 2019) only bring the stored state up to date: no
    gradient flows into them.

    Args:
        network: anything with the `unroll` of `RecurrentNetwork`.
        unrolls: records [K+T+1, B, ...]; the length of `reward` must be static for a network with an LSTM.
        burn_in: K.
    """
    final = tf.logical_or(unrolls.terminated, unrolls.truncated)
    # The stored state is already reset where record 0 is the first of its episode.
    first = tf.pad(final[:-1], [[1, 0], [0, 0]])
    records = (unrolls.observation, unrolls.reward, unrolls.action, first)
    state = unrolls.state
    if burn_in:
        _, state = network.unroll(*(x[:burn_in] for x in records), state)
        state = tf.nest.map_structure(tf.stop_gradient, state)
    outputs, _ = network.unroll(*(x[burn_in:] for x in records), state)
    return outputs
