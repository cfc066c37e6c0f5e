"""Inference on one device: agent states by slot, published weights, one traced function that answers a batch."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from seedcli.agents.base import ActInputs, Agent, Role
from seedcli.agents.calls import traced
from seedcli.errors import SeedError
from seedcli.inference.device_memory import bytes_of, out_of_memory
from seedcli.inference.variable_placement import nearest, short_name
from seedcli.specs import EnvSpec, map_arrays
from seedcli.telemetry.device_meters import DeviceMeter


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


class Promise(NamedTuple):
    """A batch that a device is at work on.

    Attributes:
        action, recorded: tensors, with the padded rows.
        rows: N, rows asked for.
        version: of the weights.
        begun: seconds of the clock of `time.perf_counter`.
    """

    action: tf.Tensor
    recorded: Mapping[str, tf.Tensor]
    rows: int
    version: int
    begun: float


class DevicePolicy:
    """An agent that answers on one device, with a copy of the weights there.

    Args:
        agent: the algorithm.
        spec: the environment.
        device: what TensorFlow calls it, such as "GPU:3"; "" is where TensorFlow puts things by itself.
        slots: rows of the tables; the last is for padded rows.
        pad_to: batch sizes to pad to, ascending; empty: dynamic batches.
        greedy: answer the action without exploration.
        compiled: let XLA compile it, each batch size once.
        seed: gives what the next batch's random numbers depend on, [2] int32.
        explore: takes what `assign` takes; gives how much the environments of all slots explore, [slots] float32.

    Attributes:
        device: its name.
        accelerated: whether it is another than the processor.
        version: of the weights it has.
        meter: what it has done; written by the thread that asks for answers.
    """

    def __init__(
        self,
        agent: Agent,
        spec: EnvSpec,
        *,
        device: str,
        slots: int,
        pad_to: Sequence[int],
        greedy: bool,
        compiled: bool,
        seed: Callable[[], npt.NDArray[np.int32]],
        explore: Callable[[npt.NDArray[np.int32], Role, npt.NDArray[np.int64]], npt.NDArray[np.float32]],
    ) -> None:
        self._agent = agent
        self._greedy = greedy
        self._device = device
        self._pad_to = pad_to
        self._scratch = slots - 1
        self._seed = seed
        self._explore = explore
        self._lock = threading.Lock()
        self.version = 0
        with self._on_device():
            self._network = agent.make_network()
            self._exploration = tf.Variable(np.zeros(slots, np.float32), trainable=False)
            initial = agent.initial_state(1)
            self._initial = tf.nest.map_structure(tf.convert_to_tensor, initial)
            self._table = tf.nest.map_structure(
                lambda x: tf.Variable(tf.repeat(x, slots, axis=0), trainable=False), self._initial
            )
        self._stateful = bool(tf.nest.flatten(initial))
        self.device = short_name(self._exploration.device)
        self.accelerated = not self.device.startswith("CPU")
        # Results of 32-bit integers are copied to the host before a function returns, which would make every device
        # wait for the one before it: they travel as what they are not.
        self._in_disguise = self.accelerated and np.dtype(spec.action.array.dtype) == np.int32
        self._action_dtype = np.dtype(spec.action.array.dtype)
        scalars = 4 + 1 + 4  # reward, first, slot
        self._row_bytes = spec.observation_bytes + scalars
        self.meter = DeviceMeter(self.device, "inference")
        rows = [None]
        # TensorFlow takes the methods of several objects for one function, and warns that it is traced again and again.
        self._act = traced(
            functools.partial(self._act_impl),
            jit_compile=compiled,
            input_signature=[
                map_arrays(lambda array: tf.TensorSpec([*rows, *array.shape], array.dtype), spec.observation),
                tf.TensorSpec(rows, tf.float32),
                tf.TensorSpec(rows, tf.bool),
                tf.TensorSpec(rows, tf.int32),
                tf.TensorSpec([2], tf.int32),
            ],
        )
        self._snapshot = traced(
            functools.partial(self._gather),
            input_signature=[tf.TensorSpec(rows, tf.int32), tf.TensorSpec(rows, tf.bool)],
        )
        self._publish = traced(functools.partial(self._publish_impl))

    def _on_device(self) -> contextlib.AbstractContextManager[Any]:
        return tf.device(self._device) if self._device else contextlib.nullcontext()

    def _gather(self, slots: tf.Tensor, first: tf.Tensor) -> Any:
        def one(table: tf.Variable, initial: tf.Tensor) -> tf.Tensor:
            rows = tf.gather(table, slots)
            mask = tf.reshape(first, [-1] + [1] * (rows.shape.rank - 1))
            return tf.where(mask, initial, rows)

        return tf.nest.map_structure(one, self._table, self._initial)

    def _act_impl(
        self, observation: tf.Tensor, reward: tf.Tensor, first: tf.Tensor, slots: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, Any]:
        exploration = tf.gather(self._exploration, slots)
        inputs = ActInputs(observation, reward, first, exploration, seed)
        outputs, state = self._agent.act(self._network, inputs, self._gather(slots, first))
        for table, rows in zip(tf.nest.flatten(self._table), tf.nest.flatten(state), strict=True):
            table.scatter_update(tf.IndexedSlices(rows, slots))
        action = outputs.greedy_action if self._greedy else outputs.action
        return tf.bitcast(action, tf.float32) if self._in_disguise else action, dict(outputs.recorded)

    def _publish_impl(self) -> None:
        for mine, trained in zip(self._network.variables, self._agent.network.variables, strict=True):
            copy = nearest(trained, self.device)
            with tf.device(copy.device):
                value = copy.read_value()
            mine.assign(value)

    def publish(self, version: int) -> None:
        """Copy the trained weights into the ones inference reads here, and give them their version.

        Raises:
            SeedError: the device is out of memory.
        """
        try:
            with self._lock, self._on_device():
                self._publish()
                self.version = version
        except tf.errors.ResourceExhaustedError as error:
            raise self._out_of_memory(error, "to take new weights") from error

    def _out_of_memory(self, error: tf.errors.ResourceExhaustedError, doing: str, rows: int = 0) -> SeedError:
        """What to raise; `rows`: environments of the batch at hand, without the padded ones."""
        rows = self._padded(rows) if self._pad_to and rows else rows
        held = {
            "inference's copy of the weights": bytes_of(self._network.variables),
            f"the agent states of inference.max_envs = {self._scratch} environments": bytes_of(
                tf.nest.flatten(self._table)
            ),
            f"a batch of {rows} environments": rows * self._row_bytes,
            "what is computed of them": None,
            "what trains there": None,
        }
        remedy = (
            f"lower inference.max_envs = {self._scratch}, inference.batch_size or training.batch_size, or let other "
            "devices train"
        )
        return out_of_memory(error, self.device, doing, held, remedy)

    def _padded(self, n: int) -> int:
        for size in self._pad_to:
            if size >= n:
                return size
        largest = self._pad_to[-1]
        return -(-n // largest) * largest

    def begin(
        self,
        observation: Any,
        reward: npt.NDArray[np.float32],
        first: npt.NDArray[np.bool_],
        slots: npt.NDArray[np.int32],
    ) -> Promise:
        """Give the device a batch without waiting for its result; the processor's work is done when this returns.

        Args:
            observation: [N, ...], or such arrays by name.
            reward: [N] float32.
            first: [N] bool, the first record of an episode.
            slots: [N] int32.

        Returns:
            What `finish` takes.

        Raises:
            SeedError: the device is out of memory.
        """
        begun = time.perf_counter()
        n = len(slots)
        if self._pad_to:
            extra = self._padded(n) - n
            observation = map_arrays(
                lambda array: np.concatenate([array, np.zeros((extra, *array.shape[1:]), array.dtype)]), observation
            )
            reward = np.concatenate([reward, np.zeros(extra, np.float32)])
            first = np.concatenate([first, np.ones(extra, np.bool_)])
            slots = np.concatenate([slots, np.full(extra, self._scratch, np.int32)])
        try:
            with self._on_device():
                if self.accelerated:
                    observation = self._upload(observation, len(slots))
                with self._lock:
                    action, recorded = self._act(observation, reward, first, slots, self._seed())
                    version = self.version
        except tf.errors.ResourceExhaustedError as error:
            raise self._out_of_memory(error, f"to answer {n} environments", n) from error
        if not self.accelerated:
            self.meter.busy += time.perf_counter() - begun
        return Promise(action, recorded, n, version, begun)

    def _upload(self, observation: Any, rows: int) -> Any:
        begun = time.perf_counter()
        observation = map_arrays(tf.convert_to_tensor, observation)
        self.meter.transfer_seconds += time.perf_counter() - begun
        self.meter.transfer_bytes += rows * self._row_bytes
        return observation

    def finish(self, promise: Promise) -> Decision:
        """Wait for the result of a batch.

        Raises:
            SeedError: the device is out of memory.
        """
        n = promise.rows
        try:
            action = promise.action.numpy()[:n]
            recorded = {name: value.numpy()[:n] for name, value in promise.recorded.items()}
        except tf.errors.ResourceExhaustedError as error:
            raise self._out_of_memory(error, f"to answer {n} environments", n) from error
        meter = self.meter
        meter.batches += 1
        meter.rows += n
        if self.accelerated:
            meter.busy += time.perf_counter() - promise.begun
        return Decision(action.view(self._action_dtype) if self._in_disguise else action, recorded, promise.version)

    def act(
        self,
        observation: Any,
        reward: npt.NDArray[np.float32],
        first: npt.NDArray[np.bool_],
        slots: npt.NDArray[np.int32],
    ) -> Decision:
        """`begin` and `finish` in one."""
        return self.finish(self.begin(observation, reward, first, slots))

    def assign(self, slots: npt.NDArray[np.int32], role: Role, index: npt.NDArray[np.int64]) -> None:
        """Say what the environments of the slots [N] are for, and which of that role each is.

        Raises:
            SeedError: the device is out of memory.
        """
        try:
            self._exploration.assign(self._explore(slots, role, index))
        except tf.errors.ResourceExhaustedError as error:
            raise self._out_of_memory(error, "to take more environments in") from error

    def snapshot(self, slots: npt.NDArray[np.int32], first: npt.NDArray[np.bool_]) -> Any:
        """The agent states [N, ...] of the slots [N] as they stand before the record at hand, after any reset.

        Raises:
            SeedError: the device is out of memory.
        """
        if not self._stateful:
            return self._initial
        try:
            with self._on_device():
                states = self._snapshot(slots, first)
            return tf.nest.map_structure(lambda x: x.numpy(), states)
        except tf.errors.ResourceExhaustedError as error:
            raise self._out_of_memory(error, f"to keep the states of {len(slots)} environments") from error
