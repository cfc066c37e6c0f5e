"""Assignment of a host's devices to training and inference. No device is accessed here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from seedcli.config.conflicts import batch_conflict, hosts_conflict
from seedcli.config.schema import Config
from seedcli.errors import UsageError

Platform = Literal["cpu", "gpu", "tpu"]
_INFERENCE_PART = 4  # "auto": one device in this many is for inference


@dataclass(frozen=True)
class Inventory:
    """The devices of one host.

    Attributes:
        gpus: number of GPUs.
        tpus: number of TPU cores.
        cores: CPU cores.
        models: model names of the GPUs or TPU cores, by device number; may be empty.
        whose: description of the machine for messages, such as "this machine".
    """

    gpus: int = 0
    tpus: int = 0
    cores: int = 1
    models: tuple[str, ...] = ()
    whose: str = "this machine"

    def count(self, platform: Platform, virtual: int) -> int:
        """Number of devices of a platform; the CPU counts as one, or as `virtual` devices."""
        return {"cpu": virtual or 1, "gpu": self.gpus, "tpu": self.tpus}[platform]


@dataclass(frozen=True)
class Plan:
    """Assignment of a host's devices to training and inference.

    Attributes:
        platform: platform of all devices used.
        devices: number of devices of that platform on the host.
        training: numbers of the training devices, ascending from 0.
        inference: numbers of the inference devices, ascending to the last; may overlap with `training`.
        columns: columns of a training batch per training device.
        hosts: learner hosts, "host:port" each; empty for a single host.
        host_index: index of this host; 0 is the chief.
        precision, xla, publish_every: as configured.
        virtual: whether the devices are virtual devices of the CPU.
    """

    platform: Platform
    devices: int
    training: tuple[int, ...]
    inference: tuple[int, ...]
    columns: int
    hosts: tuple[str, ...] = ()
    host_index: int = 0
    precision: str = "float32"
    xla: str = "off"
    publish_every: int = 1
    virtual: bool = False

    @property
    def num_hosts(self) -> int:
        """Learner hosts, at least 1."""
        return max(1, len(self.hosts))

    @property
    def shared(self) -> tuple[int, ...]:
        """Devices used for both training and inference."""
        return tuple(sorted({*self.training} & {*self.inference}))

    def name(self, device: int) -> str:
        """TensorFlow's name of a device of this host, such as "GPU:3"."""
        return f"{self.platform.upper()}:{device}"

    def describe(self) -> list[str]:
        """The assignment in words, one line per item."""
        total = _counted(self.platform, self.devices) + (" (virtual devices of the CPU)" if self.virtual else "")
        lines = [f"{total} on each of {self.num_hosts} hosts" if self.hosts else total]
        if self.hosts:
            chief = ", the chief" if self.host_index == 0 else f"; the chief is {self.hosts[0]}"
            lines.append(f"this is host {self.host_index} of {', '.join(self.hosts)}{chief}")
        each = " each" if len(self.training) > 1 else ""
        lines.append(f"training on {self._names(self.training)}: {_plural(self.columns, 'unroll')} of a batch{each}")
        lines.append(f"inference on {self._names(self.inference)}{self._sharing()}")
        if self.publish_every > 1:
            lines.append(f"weights are copied to inference every {self.publish_every} updates")
        idle = sorted({*range(self.devices)} - {*self.training, *self.inference})
        if idle:
            lines.append(f"idle: {self._names(tuple(idle))}")
        lines.append(
            f"precision {self.precision}; XLA {'on, as always on a TPU' if self.platform == 'tpu' else self.xla}"
        )
        return lines

    def _sharing(self) -> str:
        if not self.shared:
            return ""
        if self.shared == self.inference:
            return ", shared with training"
        return f"; {self._names(self.shared)} shared with training"

    def _names(self, devices: tuple[int, ...]) -> str:
        first, last = devices[0], devices[-1]
        if len(devices) > 2 and devices == tuple(range(first, last + 1)):
            return f"{self.name(first)} to {self.name(last)}"
        return ", ".join(self.name(device) for device in devices)


def make_plan(config: Config, inventory: Inventory) -> Plan:
    """Assign the devices of a host as `[topology]` asks.

    "auto" assigns one device in four to inference and the others to training, but no more training devices than a
    batch, or each of its minibatches, can be split over evenly; a single device does both. On several CPU hosts each
    CPU trains as one device.

    Raises:
        UsageError: the host has fewer devices than requested, a batch cannot be split over them, or `tf.distribute`
            cannot train on them together.
    """
    topology = config.topology
    platform = _platform(config, inventory)
    there = inventory.count(platform, topology.virtual_devices)
    for key in ("inference_devices", "training_devices"):
        wanted = getattr(topology, key)
        if wanted != "auto" and wanted > there:
            advice = ", or set topology.virtual_devices to test it on the CPU" if platform == "cpu" else ""
            raise UsageError(
                f"topology.{key} = {wanted} is more than the {_counted(platform, there)} of {inventory.whose}: "
                f"lower it{advice}"
            )
    hosts, batch = max(1, len(topology.hosts)), config.training.batch_size
    if unfit := hosts_conflict(config, hosts, platform):
        raise UsageError(unfit)
    wanted_training = topology.training_devices
    if hosts > 1 and platform == "cpu":
        if wanted_training not in ("auto", 1):
            raise UsageError(
                f"topology.training_devices = {wanted_training} must be 1 on the CPUs of {hosts} topology.hosts: "
                "TensorFlow supports one training device per CPU host"
            )
        wanted_training = 1
    columns = config.training.columns_per_update // hosts
    training, inference = _shares(wanted_training, topology.inference_devices, there, columns)
    if unfit := batch_conflict(config.training, hosts, training):
        raise UsageError(unfit)
    if topology.precision == "mixed_float16" and platform != "gpu":
        raise UsageError(
            f"topology.precision = mixed_float16 is for GPUs, and {inventory.whose} trains on its {platform.upper()}: "
            "use mixed_bfloat16 or float32"
        )
    return Plan(
        platform=platform,
        devices=there,
        training=tuple(range(training)),
        inference=tuple(range(there - inference, there)),
        columns=batch // hosts // training,
        hosts=topology.hosts if hosts > 1 else (),
        host_index=topology.host_index if hosts > 1 else 0,
        precision=topology.precision,
        xla=topology.xla,
        publish_every=topology.publish_every,
        virtual=topology.virtual_devices > 0,
    )


def _platform(config: Config, inventory: Inventory) -> Platform:
    asked = config.topology.platform
    if asked == "auto":
        return "tpu" if inventory.tpus else "gpu" if inventory.gpus else "cpu"
    if not inventory.count(asked, 1):
        raise UsageError(
            f"topology.platform = {asked} needs a {asked.upper()}, and TensorFlow finds none on {inventory.whose}: "
            "use another platform (seed doctor lists the devices)"
        )
    return asked


def _shares(training: int | str, inference: int | str, there: int, columns: int) -> tuple[int, int]:
    """Numbers of training and of inference devices, with "auto" resolved.

    Args:
        training, inference: as configured.
        there: number of devices of the host.
        columns: the host's columns of an update.
    """
    if not isinstance(training, int):
        reserved = inference if isinstance(inference, int) else max(1, there // _INFERENCE_PART)
        most = there - reserved or there  # if that leaves no training device, both share all
        training = max(number for number in range(1, most + 1) if columns % number == 0)
    if not isinstance(inference, int):
        inference = there - training or there
    return training, inference


def _counted(platform: Platform, count: int) -> str:
    return _plural(count, {"cpu": "CPU", "gpu": "GPU", "tpu": "TPU core"}[platform])


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
