"""Inference on one device: agent states by slot, published weights, one traced function per batch."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from seedcli.agents.base import ActInputs, Agent, Role
from seedcli.agents.calls import traced
from seedcli.errors import SeedError
from seedcli.inference.act_outputs import check_act, outputs_and_state
from seedcli.inference.device_memory import bytes_of, out_of_memory
from seedcli.inference.variable_placement import nearest, short_name
from seedcli.specs import EnvSpec, map_arrays
from seedcli.telemetry.device_meters import DeviceMeter


class Decision(NamedTuple):
    """A policy's result for a batch.

    Attributes:
        action: [N, ...], dtype and shape of the specification's action.
        recorded: name → [N, ...].
        version: exact policy version of the weights used: the number of updates applied to them.
        details: of a detailed policy "greedy_action" and the algorithm's `ActOutputs.details`, name → [N, ...]; else
            empty.
    """

    action: npt.NDArray[Any]
    recorded: Mapping[str, npt.NDArray[Any]]
    version: int
    details: Mapping[str, npt.NDArray[Any]] = MappingProxyType({})


class Promise(NamedTuple):
    """A batch in progress on a device.

    Attributes:
        action, recorded, details: tensors, including the padded rows.
        rows: N, rows without padding.
        version: policy version of the weights.
        begun: start time, seconds of `time.perf_counter`.
    """

    action: tf.Tensor
    recorded: Mapping[str, tf.Tensor]
    details: Mapping[str, tf.Tensor]
    rows: int
    version: int
    begun: float


class DevicePolicy:
    """An agent that runs inference on one device, with its own copy of the weights.

    Args:
        agent: the algorithm.
        spec: the environment.
        device: TensorFlow's name, such as "GPU:3"; "": TensorFlow's default device.
        slots: rows of the tables; the last is for padded rows.
        pad_to: batch sizes to pad to, ascending; empty: dynamic batches.
        greedy: choose actions without exploration.
        detailed: also return `Decision.details`.
        compiled: compile with XLA, once per batch size.
        seed: returns the random seed of the next batch, [2] int32.
        explore: takes the arguments of `assign`; returns the exploration of all slots, [slots] float32.

    Attributes:
        device: its name.
        accelerated: whether it is not the CPU.
        version: policy version of its weights.
        meter: its counters; written by the thread that calls `finish`.
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
        detailed: bool,
        compiled: bool,
        seed: Callable[[], npt.NDArray[np.int32]],
        explore: Callable[[npt.NDArray[np.int32], Role, npt.NDArray[np.int64]], npt.NDArray[np.float32]],
    ) -> None:
        self._agent = agent
        self._spec = spec
        self._greedy = greedy
        self._detailed = detailed
        # Entering the scope of a device takes a tenth of the time of a small network, and a single device needs none.
        self._device = device if len(tf.config.list_logical_devices()) > 1 else ""
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
        # TensorFlow copies int32 results to the host before a function returns, so every device would wait for the
        # previous one. They are therefore returned as another dtype.
        self._bitcast_action = self.accelerated and np.dtype(spec.action.array.dtype) == np.int32
        self._action_dtype = np.dtype(spec.action.array.dtype)
        scalars = 4 + 1 + 4  # reward, first, slot
        self._row_bytes = spec.observation_bytes + scalars
        self.meter = DeviceMeter(self.device, "inference")
        rows = [None]
        # TensorFlow treats the methods of several objects as one function, and warns of repeated retracing.
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
    ) -> tuple[tf.Tensor, Any, Any]:
        exploration = tf.gather(self._exploration, slots)
        inputs = ActInputs(observation, reward, first, exploration, seed, self._greedy)
        returned = self._agent.act(self._network, inputs, self._gather(slots, first))
        outputs, state = outputs_and_state(self._agent, returned)
        check_act(self._agent, self._spec, outputs, state, self._initial)
        for table, rows in zip(tf.nest.flatten(self._table), tf.nest.flatten(state), strict=True):
            table.scatter_update(tf.IndexedSlices(rows, slots))
        action = outputs.action
        details = {"greedy_action": outputs.greedy_action, **outputs.details} if self._detailed else {}
        return tf.bitcast(action, tf.float32) if self._bitcast_action else action, dict(outputs.recorded), details

    def _publish_impl(self) -> None:
        for mine, trained in zip(self._network.variables, self._agent.network.variables, strict=True):
            copy = nearest(trained, self.device)
            with tf.device(copy.device):
                value = copy.read_value()
            mine.assign(value)

    def publish(self, version: int) -> None:
        """Copy the trained weights into this device's inference weights and set their version.

        Raises:
            SeedError: the device is out of memory.
        """
        try:
            with self._lock, self._on_device():
                self._publish()
                self.version = version
        except tf.errors.ResourceExhaustedError as error:
            raise self._out_of_memory(error, "while copying new weights") from error

    def _out_of_memory(self, error: tf.errors.ResourceExhaustedError, doing: str, rows: int = 0) -> SeedError:
        """Build the error to raise; `rows`: environments of the current batch, without padding."""
        rows = self._padded(rows) if self._pad_to and rows else rows
        held = {
            "inference's copy of the weights": bytes_of(self._network.variables),
            f"the agent states of inference.max_envs = {self._scratch} environments": bytes_of(
                tf.nest.flatten(self._table)
            ),
            f"a batch of {rows} environments": rows * self._row_bytes,
            "the network's activations": None,
            "training on the same device": None,
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
        """Start a batch on the device without waiting for its result; the CPU's part is done when this returns.

        Args:
            observation: [N, ...], or a mapping of name → [N, ...].
            reward: [N] float32.
            first: [N] bool, whether the record is the first of an episode.
            slots: [N] int32.

        Returns:
            The argument of `finish`.

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
                    action, recorded, details = self._act(observation, reward, first, slots, self._seed())
                    version = self.version
        except tf.errors.ResourceExhaustedError as error:
            raise self._out_of_memory(error, f"while answering {n} environments", n) from error
        if not self.accelerated:
            self.meter.busy += time.perf_counter() - begun
        return Promise(action, recorded, details, n, version, begun)

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
            details = {name: value.numpy()[:n] for name, value in promise.details.items()}
        except tf.errors.ResourceExhaustedError as error:
            raise self._out_of_memory(error, f"while answering {n} environments", n) from error
        meter = self.meter
        meter.batches += 1
        meter.rows += n
        if self.accelerated:
            meter.busy += time.perf_counter() - promise.begun
        action = action.view(self._action_dtype) if self._bitcast_action else action
        return Decision(action, recorded, promise.version, details)

    def act(
        self,
        observation: Any,
        reward: npt.NDArray[np.float32],
        first: npt.NDArray[np.bool_],
        slots: npt.NDArray[np.int32],
    ) -> Decision:
        """Call `begin` and `finish`."""
        return self.finish(self.begin(observation, reward, first, slots))

    def assign(self, slots: npt.NDArray[np.int32], role: Role, index: npt.NDArray[np.int64]) -> None:
        """Set the role of the environments of the slots [N], and the index [N] of each within that role.

        Raises:
            SeedError: the device is out of memory.
        """
        try:
            self._exploration.assign(self._explore(slots, role, index))
        except tf.errors.ResourceExhaustedError as error:
            raise self._out_of_memory(error, "while adding environments") from error

    def snapshot(self, slots: npt.NDArray[np.int32], first: npt.NDArray[np.bool_]) -> Any:
        """Return the agent states [N, ...] of the slots [N] before the current record, after any reset.

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
            raise self._out_of_memory(error, f"while saving the states of {len(slots)} environments") from error
