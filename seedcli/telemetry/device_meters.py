"""Utilisation of the learner's devices: counters for the hot path, and metrics computed from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

DeviceRole = Literal["inference", "training"]


@dataclass(slots=True)
class DeviceMeter:
    """Counters of a device in one role since the learner started; written by one thread, read by any.

    Attributes:
        device: its name, such as "GPU:3".
        role: "inference" or "training".
        busy: seconds with an inference batch or an update in progress.
        batches: number of inference batches or updates.
        rows: environments of inference batches, or unrolls of training batches.
        transfer_seconds: seconds with a transfer to the device in progress.
        transfer_bytes: bytes transferred to the device.
    """

    device: str
    role: DeviceRole
    busy: float = 0.0
    batches: int = 0
    rows: int = 0
    transfer_seconds: float = 0.0
    transfer_bytes: int = 0


@dataclass(frozen=True)
class DeviceFigures:
    """Metrics of a device in one role since the last line of metrics.

    Attributes:
        device: its name, such as "GPU:3".
        role: "inference" or "training".
        utilisation: share of the time with a batch or an update in progress, 0 to 1.
        batches_per_second: inference batches or updates per second.
        batch_rows: mean environments of an inference batch, or unrolls of a training batch; None if there was none.
        transfer_share: share of the time with a transfer to the device in progress, 0 to 1.
        transfer_mb_per_second: megabytes (10⁶ bytes) per second transferred to the device; 0 if none is needed.
    """

    device: str
    role: DeviceRole
    utilisation: float
    batches_per_second: float
    batch_rows: float | None
    transfer_share: float
    transfer_mb_per_second: float

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, ready for JSON."""
        return dataclasses.asdict(self)


FIGURES = ("utilisation", "batches_per_second", "batch_rows", "transfer_share", "transfer_mb_per_second")


class DeviceWatch:
    """Computes metrics from the differences of counters; belongs to one thread."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, DeviceRole], DeviceMeter] = {}

    def sample(self, meters: Iterable[DeviceMeter], seconds: float) -> list[DeviceFigures]:
        """Return the metrics of the last `seconds`, in the order of the meters."""
        figures = []
        for meter in meters:
            now = dataclasses.replace(meter)
            last = self._last.get((now.device, now.role), DeviceMeter(now.device, now.role))
            self._last[now.device, now.role] = now
            batches = now.batches - last.batches
            figures.append(
                DeviceFigures(
                    now.device,
                    now.role,
                    # Work is counted when it ends, so the share can exceed 1.
                    utilisation=min(1.0, (now.busy - last.busy) / seconds),
                    batches_per_second=batches / seconds,
                    batch_rows=(now.rows - last.rows) / batches if batches else None,
                    transfer_share=min(1.0, (now.transfer_seconds - last.transfer_seconds) / seconds),
                    transfer_mb_per_second=(now.transfer_bytes - last.transfer_bytes) / seconds / 1e6,
                )
            )
        return figures


def worth_showing(devices: Sequence[DeviceFigures]) -> bool:
    """Whether there are several devices or an accelerator; metrics of a single CPU say nothing."""
    names = {figures.device for figures in devices}
    return len(names) > 1 or any(not name.startswith("CPU") for name in names)
