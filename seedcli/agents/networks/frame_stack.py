"""Frame stacks: the arrays of observations as network inputs, with the most recent frames of an episode stacked.

Axis conventions: N rows of an inference batch; L records of an unroll, B columns, time-major; S frames of a stack.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from seedcli.agents.networks.normalizer import Normalizer
from seedcli.agents.networks.torsos import input_shapes, takes_images
from seedcli.config.sections import NetworkConfig
from seedcli.specs import ArraySpec, EnvSpec, map_arrays


def one_hot(values: tf.Tensor, array: ArraySpec, dtype: tf.DType = tf.float32) -> tf.Tensor:
    """Categorical values [..., *shape] as concatenated one-hot vectors of all their parts: [..., Σ n_i].

    A value outside the categories, such as -1, becomes a vector of zeros.
    """
    values = tf.cast(values, tf.int32)

    def hot_of(x: tf.Tensor, n: int) -> tf.Tensor:
        # tf.one_hot in uint8 has no counterpart in the formats of exported models.
        return tf.cast(tf.equal(x[..., tf.newaxis], tf.range(n)), dtype)

    if not array.shape:
        return hot_of(values, array.categories[0])
    batch = tf.shape(values)[: len(values.shape) - len(array.shape)]
    parts, widest = len(array.categories), max(array.categories)
    hot = hot_of(tf.reshape(values, tf.concat([batch, [parts]], axis=0)), widest)
    hot = tf.reshape(hot, tf.concat([batch, [parts * widest]], axis=0))
    if min(array.categories) == widest:
        return hot
    columns = np.concatenate([i * widest + np.arange(n) for i, n in enumerate(array.categories)])
    return tf.gather(hot, columns, axis=-1)


_IMAGE_STRIDE = 4  # every fourth image of an unroll is used for the statistics
# Records after which the statistics of images describe more than the starts of episodes, where environments look
# similar.
_SETTLED = 10_000


class FrameStack:
    """The most recent S frames of one array, stacked on the last axis, oldest first; zeros before an episode's start.

    The state is [N, S-1, *shape], the previous frames, unscaled: uint8 for uint8 arrays and one-hot categories, else
    float32.

    Args:
        array: the environment's array.
        shape: shape of one frame as input of the torso.
        size: S.
        normalizer: normalizer of the frames; None: uint8 is scaled by 1/255, or a binary array by its larger value.
        compute: dtype of the torso's input without a normalizer; a normalizer's output is float32.
    """

    def __init__(
        self,
        array: ArraySpec,
        shape: tuple[int, ...],
        size: int,
        normalizer: Normalizer | None,
        compute: str = "float32",
    ) -> None:
        self.shape = shape
        self._compute = compute
        self.normalizer = normalizer
        self._array = array
        self._size = size
        self._dtype = tf.uint8 if array.dtype == "uint8" or array.categories else tf.float32
        self._scale = 1.0
        if array.dtype == "uint8" and not array.categories:
            self._scale = 1.0 / (max(array.binary or (255,)) or 1)

    def initial_state(self, batch_size: int | tf.Tensor) -> tf.Tensor:
        """The empty stack, [batch_size, S-1, *shape]."""
        return tf.zeros([batch_size, self._size - 1, *self.shape], self._dtype)

    def frames(self, observation: tf.Tensor, batch_axes: int) -> tf.Tensor:
        """Values [..., *array] with `batch_axes` leading axes as frames [..., *shape] in the dtype of the state."""
        if self._array.categories:
            return one_hot(observation, self._array, self._dtype)
        if self._array.shape != self.shape:
            batch = tf.shape(observation)[:batch_axes]
            observation = tf.reshape(observation, tf.concat([batch, self.shape], axis=0))
        return tf.cast(observation, self._dtype)

    def step(
        self, observation: tf.Tensor, state: tf.Tensor | None, seen: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Stack one record on the state's frames.

        Args:
            observation: [N, ...].
            state: [N, S-1, *shape], or None if S is 1.
            seen: [N, S] bool, whether each frame of a stack belongs to the episode; only a normalizer needs it.

        Returns:
            The torso's input [N, ...], and the next state.
        """
        frames = self.frames(observation, 1)
        if state is None:
            return self._scaled(frames), None
        window = tf.concat([state, frames[:, tf.newaxis]], axis=1)
        return self._stacked(window, seen), window[:, 1:]

    def unroll(
        self, observation: tf.Tensor, state: tf.Tensor | None, seen: Sequence[tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Stack the records of an unroll.

        Args:
            observation: [L, B, ...].
            state: [B, S-1, *shape], or None if S is 1.
            seen: S masks [L, B] bool, one per frame of a stack: whether it belongs to the record's episode.

        Returns:
            The torso's input [L·B, ...], and the state after the last record.
        """
        frames = self.frames(observation, 2)
        if state is None:
            return self._scaled(tf.reshape(frames, [-1, *self.shape])), None
        length = tf.shape(frames)[0]
        before = self._size - 1
        swap = [1, 0, *range(2, 2 + len(self.shape))]
        frames = tf.concat([tf.transpose(state, swap), frames], axis=0)
        # Scale each frame once, not once per stack that contains it; floats are also stacked faster than bytes.
        shown = self._scaled(frames)
        windows = [self._masked(shown[i : i + length], seen[i]) for i in range(before)]
        windows.append(shown[before:])
        stacked = self._interleaved(tf.reshape(tf.stack(windows, axis=2), [-1, self._size, *self.shape]))
        kept = self._masked(frames[length:], tf.stack([mask[-1] for mask in seen[1:]]))
        return stacked, tf.transpose(kept, swap)

    def states(
        self, observation: tf.Tensor, state: tf.Tensor, kept: Sequence[tf.Tensor], index: tf.Tensor
    ) -> tf.Tensor:
        """The states before records of an unroll, [N, S-1, *shape].

        Args:
            observation: [L, B, ...].
            state: [B, S-1, *shape], before record 0.
            kept: S-1 masks [N] bool, whether each frame belongs to the record's episode.
            index: [N] int32, t·B + b for record t of column b.
        """
        swap = [1, 0, *range(2, 2 + len(self.shape))]
        frames = tf.concat([tf.transpose(state, swap), self.frames(observation, 2)], axis=0)
        flat = tf.reshape(frames, [-1, *self.shape])
        rows = index[:, tf.newaxis] + tf.range(self._size - 1) * tf.shape(frames)[1]
        return self._masked(tf.gather(flat, rows), tf.stack(kept, axis=1))

    def _masked(self, frames: tf.Tensor, keep: tf.Tensor) -> tf.Tensor:
        """Frames [X, Y, *shape], zero where `keep` [X, Y] is False."""
        return frames * tf.cast(keep, frames.dtype)[(..., *[tf.newaxis] * len(self.shape))]

    def _stacked(self, window: tf.Tensor, seen: tf.Tensor | None) -> tf.Tensor:
        """Frames [M, S, ..., C] as the torso's input [M, ..., S·C]."""
        if self.normalizer is not None:
            # A missing frame must be zero after normalization, which does not map 0 to 0.
            return self._interleaved(self._masked(self.normalizer(window), seen))
        return self._scaled(self._interleaved(window))

    def _interleaved(self, window: tf.Tensor) -> tf.Tensor:
        """[M, S, ..., C] → [M, ..., S·C]; transposing is twice as fast as a concatenation on a last axis this short."""
        *pixels, channels = self.shape
        flat = tf.reshape(window, [-1, self._size, math.prod(pixels), channels])
        return tf.reshape(tf.transpose(flat, [0, 2, 1, 3]), [-1, *pixels, self._size * channels])

    def _scaled(self, frames: tf.Tensor) -> tf.Tensor:
        if self.normalizer is not None:
            return self.normalizer(frames)
        x = tf.cast(frames, self._compute)  # 8 bits are exact in any float type
        return x if self._scale == 1.0 else x * self._scale


def normalized_arrays(config: NetworkConfig, spec: EnvSpec) -> list[str]:
    """Names of the numeric arrays that `agent.network.normalize_observations` scales; empty if it is off."""
    return [name for name, array in spec.arrays.items() if config.normalize_observations and _holds_numbers(array)]


def _holds_numbers(array: ArraySpec) -> bool:
    """Whether an array is numeric, not categorical, boolean or binary."""
    return np.dtype(array.dtype).kind in "fiu" and not array.categories and not array.binary


def _make_normalizer(config: NetworkConfig, array: ArraySpec, shape: tuple[int, ...]) -> Normalizer:
    unit = 1.0 / 255.0 if array.dtype == "uint8" else 1.0
    return Normalizer(shape, image=takes_images(config, array), unit=unit)


class ObservationStack:
    """A `FrameStack` for each array of an observation.

    The state is a dict, empty if S is 1. "frames" is the state of the single stack or a dict of states by name. With a
    normalizer, which must distinguish a missing frame from a frame of zeros, "frame_count" [N] int32 is the number of
    the S-1 frames that exist.

    Attributes:
        normalizers: normalizers of `normalized_arrays`, by name.
    """

    def __init__(self, config: NetworkConfig, spec: EnvSpec, compute: str = "float32") -> None:
        """Make the stacks; raises UsageError if the network does not support the environment's observations.

        Args:
            config: the network.
            spec: the environment.
            compute: dtype of the torso's inputs.
        """
        self._size = config.frame_stack
        shapes = input_shapes(config, spec)
        self.normalizers = {
            name: _make_normalizer(config, spec.arrays[name], shapes[name]) for name in normalized_arrays(config, spec)
        }
        stacks = {
            name: FrameStack(array, shapes[name], self._size, self.normalizers.get(name), compute)
            for name, array in spec.arrays.items()
        }
        self._stacks: Any = stacks if isinstance(spec.observation, Mapping) else stacks["observation"]

    def initial_state(self, batch_size: int | tf.Tensor) -> dict[str, Any]:
        """The state at the start of an episode."""
        if self._size == 1:
            return {}
        state = {"frames": map_arrays(lambda stack: stack.initial_state(batch_size), self._stacks)}
        if self.normalizers:
            state["frame_count"] = tf.zeros([batch_size], tf.int32)
        return state

    def step(self, observation: Any, state: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The torso's inputs, arrays [N, ...], of one record [N, ...], and the state after it."""
        if self._size == 1:
            return map_arrays(lambda stack, x: stack.step(x, None, None)[0], self._stacks, observation), {}
        before = self._size - 1
        seen, after = None, {}
        if self.normalizers:
            count = state["frame_count"]
            seen = tf.range(self._size) >= before - count[:, tf.newaxis]
            after["frame_count"] = tf.minimum(count + 1, before)
        both = map_arrays(lambda stack, *x: stack.step(*x, seen), self._stacks, observation, state["frames"])
        return map_arrays(lambda pair: pair[0], both), {"frames": map_arrays(lambda pair: pair[1], both), **after}

    def unroll(self, observation: Any, first: tf.Tensor, state: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The torso's inputs, arrays [L·B, ...], of an unroll, and the state after it.

        Args:
            observation: [L, B, ...].
            first: [L, B] bool, where an episode starts: earlier frames are masked.
            state: [B, ...], before record 0.
        """
        if self._size == 1:
            return map_arrays(lambda stack, x: stack.unroll(x, None, ())[0], self._stacks, observation), {}
        seen = self._seen(first, state.get("frame_count"))
        both = map_arrays(lambda stack, *x: stack.unroll(*x, seen), self._stacks, observation, state["frames"])
        after = {"frames": map_arrays(lambda pair: pair[1], both)}
        if self.normalizers:
            after["frame_count"] = sum(tf.cast(mask[-1], tf.int32) for mask in seen[1:])
        return map_arrays(lambda pair: pair[0], both), after

    def states(self, observation: Any, first: tf.Tensor, state: Mapping[str, Any], index: tf.Tensor) -> dict[str, Any]:
        """The states [N, ...] before records of an unroll, empty where the record is the first of an episode.

        Args:
            observation: [L, B, ...].
            first: [L, B] bool, where an episode starts.
            state: [B, ...], before record 0.
            index: [N] int32, t·B + b for record t of column b.
        """
        if self._size == 1:
            return {}
        seen = self._seen(first, state.get("frame_count"))[:-1]
        kept = [tf.gather(tf.reshape(mask, [-1]), index) for mask in seen]
        states = {
            "frames": map_arrays(
                lambda stack, *x: stack.states(*x, kept, index), self._stacks, observation, state["frames"]
            )
        }
        if self.normalizers:
            states["frame_count"] = sum(tf.cast(mask, tf.int32) for mask in kept)
        return states

    def observe(self, observation: Any, keep: tf.Tensor) -> None:
        """Update the normalizers with records [T, B, ...] of the columns `keep` [B] bool."""

        def one(stack: FrameStack, x: tf.Tensor) -> None:
            if stack.normalizer is not None:
                # Consecutive images are nearly equal, and large.
                some = x[::_IMAGE_STRIDE] if stack.normalizer.image else x
                stack.normalizer.update(stack.frames(some, 2), keep)

        map_arrays(one, self._stacks, observation)

    def settled(self) -> tf.Tensor:
        """1 once the statistics of all normalized images cover at least 10,000 records, else 0; scalar float32."""
        counts = [normalizer.count.value for normalizer in self.normalizers.values() if normalizer.image]
        if not counts:
            return tf.constant(1.0)
        return tf.cast(tf.reduce_min(tf.stack(counts)) * _IMAGE_STRIDE >= _SETTLED, tf.float32)

    def _seen(self, first: tf.Tensor, count: tf.Tensor | None) -> list[tf.Tensor]:
        """Whether each frame of a record's stack belongs to its episode: S masks [L, B] bool, oldest frame first."""
        length, before = tf.shape(first)[0], self._size - 1
        # Episodes are numbered from 0, the episode of the state; missing frames of the state get -1.
        episode = tf.cumsum(tf.cast(first, tf.int32), axis=0)
        frame_episode = tf.pad(episode, [[before, 0], [0, 0]])
        if count is not None:
            missing = tf.range(before)[:, tf.newaxis] < before - count
            frame_episode -= tf.pad(tf.cast(missing, tf.int32), [[0, length], [0, 0]])
        return [tf.equal(frame_episode[i : i + length], episode) for i in range(self._size)]
