"""Inference on the device: agent states by slot, published weights, one traced function that answers a batch."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from seedcli.agents.base import ActInputs, Agent, Role
from seedcli.specs import EnvSpec, map_arrays


class Decision(NamedTuple):
    """What a policy answers for a batch.

    Attributes:
        action: [N, ...] as the specification's action.
        recorded: name → [N, ...].
        version: the policy version that chose, exact: number of updates behind the weights used.
    """

    action: npt.NDArray[Any]
    recorded: Mapping[str, npt.NDArray[Any]]
    version: int


class Policy(Protocol):
    """What the step engine needs of inference; `seed bench inference` puts a constant in its place."""

    def act(
        self,
        observation: Any,
        reward: npt.NDArray[np.float32],
        first: npt.NDArray[np.bool_],
        slots: npt.NDArray[np.int32],
    ) -> Decision:
        """Answer a batch: observation [N, ...] (or such arrays by name), reward [N], first [N], slots [N]."""

    def snapshot(self, slots: npt.NDArray[np.int32], first: npt.NDArray[np.bool_]) -> Any:
        """The agent states [N, ...] of the slots as they stand before the record at hand, after any reset."""

    def assign(self, slots: npt.NDArray[np.int32], role: Role, index: npt.NDArray[np.int64]) -> None:
        """Say what the environments of the slots [N] are for, and which of that role each is."""


def spread(count: int) -> npt.NDArray[np.int64]:
    """0 to count-1 in an order of which every beginning is spread over all: by reversed bits (van der Corput, 1935)."""
    bits = (count - 1).bit_length()
    numbers = np.arange(1 << bits)
    mirrored = sum((((numbers >> bit) & 1) << (bits - 1 - bit) for bit in range(bits)), np.zeros_like(numbers))
    return mirrored[mirrored < count]


class AgentPolicy:
    """An agent answering with its own copy of the weights.

    Args:
        agent: the algorithm.
        spec: the environment.
        max_slots: environments at once; one slot more is kept for padded rows.
        seed: of action sampling; the batch number is the other half of each seed.
        pad_to: batch sizes to pad to, ascending; empty: dynamic batches.
        greedy: answer the action without exploration (evaluation).
        training_envs: environments of the configured fleet that train, over which exploration is spread.

    Attributes:
        exploration: [max_slots + 1] float32, `ActInputs.exploration` by slot; 0 where never assigned.
    """

    def __init__(
        self,
        agent: Agent,
        spec: EnvSpec,
        *,
        max_slots: int,
        seed: int,
        pad_to: Sequence[int] = (),
        greedy: bool = False,
        training_envs: int = 1,
    ) -> None:
        self._agent = agent
        self._greedy = greedy
        self._network = agent.make_network()
        self._seed = seed
        self._pad_to = sorted(pad_to)
        self._scratch = max_slots
        self._ranks = spread(training_envs)
        self.exploration: npt.NDArray[np.float32] = np.zeros(max_slots + 1, np.float32)
        self._exploration_table = tf.Variable(self.exploration, trainable=False)
        self.batches = 0
        self._version = 0
        self._lock = threading.Lock()
        initial = agent.initial_state(1)
        self._initial = tf.nest.map_structure(tf.convert_to_tensor, initial)
        self._table = tf.nest.map_structure(
            lambda x: tf.Variable(tf.repeat(x, max_slots + 1, axis=0), trainable=False), self._initial
        )
        self._stateful = bool(tf.nest.flatten(initial))
        rows = [None]
        self._act = tf.function(
            self._act_impl,
            autograph=False,
            input_signature=[
                map_arrays(lambda array: tf.TensorSpec([*rows, *array.shape], array.dtype), spec.observation),
                tf.TensorSpec(rows, tf.float32),
                tf.TensorSpec(rows, tf.bool),
                tf.TensorSpec(rows, tf.int32),
                tf.TensorSpec([2], tf.int32),
            ],
        )
        self._snapshot = tf.function(
            self._gather, autograph=False, input_signature=[tf.TensorSpec(rows, tf.int32), tf.TensorSpec(rows, tf.bool)]
        )
        self._publish = tf.function(self._publish_impl, autograph=False)
        self.publish(0)

    def _gather(self, slots: tf.Tensor, first: tf.Tensor) -> Any:
        def one(table: tf.Variable, initial: tf.Tensor) -> tf.Tensor:
            rows = tf.gather(table, slots)
            mask = tf.reshape(first, [-1] + [1] * (rows.shape.rank - 1))
            return tf.where(mask, initial, rows)

        return tf.nest.map_structure(one, self._table, self._initial)

    def _act_impl(
        self, observation: tf.Tensor, reward: tf.Tensor, first: tf.Tensor, slots: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, Any]:
        exploration = tf.gather(self._exploration_table, slots)
        inputs = ActInputs(observation, reward, first, exploration, seed)
        outputs, state = self._agent.act(self._network, inputs, self._gather(slots, first))
        for table, rows in zip(tf.nest.flatten(self._table), tf.nest.flatten(state), strict=True):
            table.scatter_update(tf.IndexedSlices(rows, slots))
        return outputs.greedy_action if self._greedy else outputs.action, dict(outputs.recorded)

    def _publish_impl(self) -> None:
        for mine, trained in zip(self._network.variables, self._agent.network.variables, strict=True):
            mine.assign(trained)

    def publish(self, version: int) -> None:
        """Copy the trained weights into the ones inference reads, and give them their version."""
        with self._lock:
            self._publish()
            self._version = version

    def _padded(self, n: int) -> int:
        for size in self._pad_to:
            if size >= n:
                return size
        largest = self._pad_to[-1]
        return -(-n // largest) * largest

    def act(
        self,
        observation: Any,
        reward: npt.NDArray[np.float32],
        first: npt.NDArray[np.bool_],
        slots: npt.NDArray[np.int32],
    ) -> Decision:
        """See `Policy.act`."""
        n = len(slots)
        if self._pad_to:
            extra = self._padded(n) - n
            observation = map_arrays(
                lambda array: np.concatenate([array, np.zeros((extra, *array.shape[1:]), array.dtype)]), observation
            )
            reward = np.concatenate([reward, np.zeros(extra, np.float32)])
            first = np.concatenate([first, np.ones(extra, np.bool_)])
            slots = np.concatenate([slots, np.full(extra, self._scratch, np.int32)])
        self.batches += 1
        seed = np.array([self._seed, self.batches & 0x7FFFFFFF], np.int32)
        with self._lock:
            action, recorded = self._act(observation, reward, first, slots, seed)
            version = self._version
        return Decision(action.numpy()[:n], {name: value.numpy()[:n] for name, value in recorded.items()}, version)

    def assign(self, slots: npt.NDArray[np.int32], role: Role, index: npt.NDArray[np.int64]) -> None:
        """See `Policy.assign`."""
        if role == "training":
            # A fleet that is not complete explores as widely as the whole one, not as its first environments do.
            index = self._ranks[index % len(self._ranks)]
        self.exploration[slots] = self._agent.exploration(role, index, len(self._ranks))
        self._exploration_table.assign(self.exploration)

    def snapshot(self, slots: npt.NDArray[np.int32], first: npt.NDArray[np.bool_]) -> Any:
        """See `Policy.snapshot`."""
        if not self._stateful:
            return self._initial
        return tf.nest.map_structure(lambda x: x.numpy(), self._snapshot(slots, first))
