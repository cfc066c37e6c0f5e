"""TensorFlow devices of a host: discovery, placement of variables, transfer of batches.

`tf.distribute` mirrors the weights on all training devices and sums over them, and over hosts. It is not used for one
device on one host.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from seedcli.agents.base import UnrollBatch
from seedcli.config.topology import Inventory, Plan
from seedcli.errors import SeedError, UsageError
from seedcli.inference.device_memory import bytes_of, out_of_memory


def find_inventory() -> Inventory:
    """Find the devices of this machine without initialising them."""
    gpus, tpus = tf.config.list_physical_devices("GPU"), tf.config.list_physical_devices("TPU")
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    models = tuple(str(each.get("device_name", "")) for each in details) or ("TPU core",) * len(tpus)
    return Inventory(gpus=len(gpus), tpus=len(tpus), cores=len(os.sched_getaffinity(0)), models=models)


def prepare(plan: Plan) -> None:
    """Configure TensorFlow's devices for a plan; must be called before TensorFlow's first operation.

    A CPU plan splits the CPU into virtual devices and hides GPUs. GPU memory grows on demand.

    Raises:
        SeedError: TensorFlow has already started with other devices.
    """
    try:
        gpus = tf.config.list_physical_devices("GPU")
        tf.config.set_visible_devices(gpus if plan.platform == "gpu" else [], "GPU")
        if plan.platform == "gpu":
            for gpu in gpus:
                tf.config.experimental.set_memory_growth(gpu, True)
        if plan.virtual:
            parts = [tf.config.LogicalDeviceConfiguration() for _ in range(plan.devices)]
            tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], parts)
    except RuntimeError as error:
        raise SeedError(f"TensorFlow has already started, so its devices cannot be changed: {error}") from error


class Devices:
    """The training and inference devices of a host.

    Args:
        plan: the role of each device; None: TensorFlow's default device.
        resolver: a `tf.distribute.cluster_resolver.ClusterResolver` with TensorFlow's addresses of all hosts; None for
            one host.

    Raises:
        UsageError: TensorFlow finds no TPU.

    Attributes:
        plan: as given.
        strategy: `tf.distribute` strategy; the default strategy for one device on one host.
        training, inference: names of this host's devices, such as "GPU:3"; "": TensorFlow's default device.
        replicas: number of training devices of this host.
        distributed: whether there are several training devices over all hosts.
    """

    def __init__(self, plan: Plan | None, resolver: Any = None) -> None:
        self.plan = plan
        self.training: tuple[str, ...] = ("",)
        self.inference: tuple[str, ...] = ("",)
        self.distributed = False
        self._device = ""
        if plan is not None:
            self.training = tuple(plan.name(device) for device in plan.training)
            self.inference = tuple(plan.name(device) for device in plan.inference)
            self.distributed = plan.num_hosts > 1 or len(self.training) > 1 or plan.platform == "tpu"
            if not self.distributed and self.training[0] != _default_device():
                self._device = self.training[0]
        self.replicas = len(self.training)
        self.strategy = _make_strategy(plan, resolver) if plan and self.distributed else tf.distribute.get_strategy()

    @classmethod
    def default(cls) -> Devices:
        """TensorFlow's default device, alone."""
        return cls(None)

    @property
    def chief(self) -> bool:
        """Whether this is the first or only host."""
        return self.plan is None or self.plan.host_index == 0

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Context in which this thread creates, reads and changes variables of the training devices."""
        with contextlib.ExitStack() as stack:
            if self._device:
                stack.enter_context(tf.device(self._device))
            if self.distributed:
                stack.enter_context(self.strategy.scope())
            yield

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function once per training device, each with its own part of arguments returned by `place`."""
        return self.strategy.run(function, args=args) if self.distributed else function(*args)

    def local(self, value: Any) -> tuple[Any, ...]:
        """Values on this host's training devices of one tensor returned by `run`."""
        return tuple(self.strategy.experimental_local_results(value)) if self.distributed else (value,)

    def place(self, unrolls: UnrollBatch) -> UnrollBatch:
        """Copy this host's part of a batch to its training devices, the same number of columns to each.

        Args:
            unrolls: host arrays.

        Returns:
            The batch as tensors; with several training devices as `tf.distribute.DistributedValues`, in the order of
            the columns.

        Raises:
            SeedError: a device is out of memory.
            ValueError: the columns cannot be split evenly.
        """
        try:
            if not self.distributed:
                with tf.device(self._device) if self._device else contextlib.nullcontext():
                    return tf.nest.map_structure(tf.convert_to_tensor, unrolls)
            columns, rest = divmod(len(unrolls.weights), self.replicas)
            if rest:
                raise ValueError(f"{len(unrolls.weights)} columns for {self.replicas} training devices")
            parts = []
            for i, device in enumerate(self.training):
                with tf.device(device):
                    part = slice(i * columns, (i + 1) * columns)
                    parts.append(tf.nest.map_structure(_to_tensor, columns_of(unrolls, part)))
        except tf.errors.ResourceExhaustedError as error:
            held = {
                f"a batch of {len(unrolls.weights) // self.replicas} unrolls": batch_bytes(unrolls) // self.replicas,
                "the previous batch": None,
                "training and inference on the same device": None,
            }
            remedy = (
                "lower training.batch_size, training.unroll_length or inference.max_envs, or let other devices infer"
            )
            raise out_of_memory(error, self.training[0], "while copying a training batch", held, remedy) from error
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: parts[context.replica_id_in_sync_group % self.replicas]
        )


def batch_bytes(unrolls: UnrollBatch) -> int:
    """Bytes of all arrays of a batch, on any device."""
    return bytes_of(tf.nest.flatten(unrolls, expand_composites=True))


def columns_of(unrolls: UnrollBatch, part: slice) -> UnrollBatch:
    """Some columns of a batch, as views of its arrays."""
    return unrolls.map_columns(lambda array, axis: array[part] if axis == 0 else array[:, part])


def _to_tensor(array: Any) -> tf.Tensor:
    """Convert an array or a view to a tensor on the device of the current scope."""
    return tf.convert_to_tensor(np.ascontiguousarray(array))


def _default_device() -> str:
    """TensorFlow's default device."""
    return "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"


def _make_strategy(plan: Plan, resolver: Any) -> Any:
    if plan.platform == "tpu":
        return _make_tpu_strategy(plan)
    if plan.num_hosts == 1:
        # Virtual devices of one CPU share its memory: sum in order on the first of them.
        sums = tf.distribute.ReductionToOneDevice() if plan.platform == "cpu" else None
        return tf.distribute.MirroredStrategy([plan.name(device) for device in plan.training], sums)
    gpus = plan.platform == "gpu"
    # It uses the first accelerators of every host; the resolver gives their number.
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        resolver.cluster_spec(),
        task_type=resolver.task_type,
        task_id=resolver.task_id,
        num_accelerators={"GPU": len(plan.training)} if gpus else {},
        rpc_layer="grpc",
    )
    how = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(implementation=how.AUTO if gpus else how.RING)
    return tf.distribute.MultiWorkerMirroredStrategy(resolver, options)


def _make_tpu_strategy(plan: Plan) -> Any:
    """Make a strategy over the training cores of this host's TPU; the other cores are for inference.

    Written from TensorFlow's documentation; not yet run on a TPU.

    Raises:
        UsageError: TensorFlow finds no TPU.
    """
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver("local")
        tf.config.experimental_connect_to_cluster(resolver)
        topology = tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, RuntimeError, tf.errors.OpError) as error:
        raise UsageError(
            f"topology.platform = tpu, but TensorFlow finds no TPU ({error}): run seed doctor, or use another platform"
        ) from error
    # [replicas, cores of a replica, coordinates]: replica i is core i of the first and only host.
    cores = topology.device_coordinates[0, list(plan.training)][:, np.newaxis]
    assignment = tf.tpu.experimental.DeviceAssignment(topology, cores)
    return tf.distribute.TPUStrategy(resolver, experimental_device_assignment=assignment)
