"""Which device does what: a configuration laid over the devices there are. No device is touched here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from seedcli.config.conflicts import hosts_conflict
from seedcli.config.schema import Config
from seedcli.errors import UsageError

Platform = Literal["cpu", "gpu", "tpu"]
_INFERENCE_PART = 4  # "auto": one device in so many infers


@dataclass(frozen=True)
class Inventory:
    """The devices of one host.

    Attributes:
        gpus: number of GPUs.
        tpus: number of TPU cores.
        cores: of the processor.
        models: what the GPUs or TPU cores are called, by number; may be empty.
        whose: for sentences, "this machine" or what describes a machine that is elsewhere.
    """

    gpus: int = 0
    tpus: int = 0
    cores: int = 1
    models: tuple[str, ...] = ()
    whose: str = "this machine"

    def count(self, platform: Platform, virtual: int) -> int:
        """Devices of a platform; a processor is one, or as many as it is split into."""
        return {"cpu": virtual or 1, "gpu": self.gpus, "tpu": self.tpus}[platform]


@dataclass(frozen=True)
class Plan:
    """Which device of a host does what.

    Attributes:
        platform: kind of all devices used.
        devices: how many of them the host has.
        training: numbers of the devices that train, ascending from 0.
        inference: numbers of those that answer actors, ascending to the last; may overlap with `training`.
        columns: of a training batch, for each training device.
        hosts: learner hosts, "host:port" each; empty for one host alone.
        host_index: which of them this is; 0 is the chief.
        precision, xla, publish_every: as configured.
        virtual: whether the devices are parts of one processor.
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
        """Devices that do both."""
        return tuple(sorted({*self.training} & {*self.inference}))

    def name(self, device: int) -> str:
        """What TensorFlow calls a device of this host, such as "GPU:3"."""
        return f"{self.platform.upper()}:{device}"

    def describe(self) -> list[str]:
        """Sentences for people: which device does what."""
        total = _counted(self.platform, self.devices) + (" (parts of the processor)" if self.virtual else "")
        lines = [f"{total} on each of {self.num_hosts} hosts" if self.hosts else total]
        if self.hosts:
            chief = ", the chief" if self.host_index == 0 else f"; the chief is {self.hosts[0]}"
            lines.append(f"this is host {self.host_index} of {', '.join(self.hosts)}{chief}")
        each = " each" if len(self.training) > 1 else ""
        lines.append(f"training on {self._names(self.training)}: {_plural(self.columns, 'unroll')} of a batch{each}")
        lines.append(f"inference on {self._names(self.inference)}{self._sharing()}")
        if self.publish_every > 1:
            lines.append(f"weights go to inference every {self.publish_every} updates")
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
    """Lay `[topology]` over the devices of a host.

    "auto" gives one device in four to inference and the others to training, but to training no more than a batch can
    be split over; a single device does both. The processor of each of several hosts trains as one device.

    Raises:
        UsageError: more devices are asked for than there are, a batch cannot be split over them, or `tf.distribute`
            has no way to train on them together.
    """
    topology = config.topology
    platform = _platform(config, inventory)
    there = inventory.count(platform, topology.virtual_devices)
    for key in ("inference_devices", "training_devices"):
        wanted = getattr(topology, key)
        if wanted != "auto" and wanted > there:
            advice = ", or set topology.virtual_devices to try it on the processor" if platform == "cpu" else ""
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
                f"topology.training_devices = {wanted_training} must be 1 on the processors of {hosts} topology.hosts: "
                "TensorFlow trains on one a host"
            )
        wanted_training = 1
    training, inference = _shares(wanted_training, topology.inference_devices, there, batch // hosts)
    if batch // hosts % training:
        raise UsageError(
            f"training.batch_size = {batch} must be a multiple of {hosts * training}, {training} training devices"
            + (f" on each of {hosts} hosts" if hosts > 1 else "")
            + ": each trains on as many unrolls, so change one of the two"
        )
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
            f"topology.platform = {asked} where TensorFlow finds no {asked.upper()} on {inventory.whose}: "
            "use another platform (seed doctor shows what there is)"
        )
    return asked


def _shares(training: int | str, inference: int | str, there: int, columns: int) -> tuple[int, int]:
    """Numbers of training and of inference devices, "auto" resolved.

    Args:
        training, inference: as configured.
        there: devices of the host.
        columns: of a training batch that the host takes.
    """
    if not isinstance(training, int):
        spared = inference if isinstance(inference, int) else max(1, there // _INFERENCE_PART)
        most = there - spared or there  # who would leave none to training shares them
        training = max(number for number in range(1, most + 1) if columns % number == 0)
    if not isinstance(inference, int):
        inference = there - training or there
    return training, inference


def _counted(platform: Platform, count: int) -> str:
    return _plural(count, {"cpu": "CPU", "gpu": "GPU", "tpu": "TPU core"}[platform])


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
