"""What each device of the learner does: counters for the hot path, and the figures that are made of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

DeviceRole = Literal["inference", "training"]


@dataclass(slots=True)
class DeviceMeter:
    """What a device has done in one role since the learner started; written by one thread, read by any.

    Attributes:
        device: its name, such as "GPU:3".
        role: what it was used for.
        busy: seconds in which its work was under way: an inference batch, or an update.
        batches: of them.
        rows: environments of inference batches, or unrolls of training batches.
        transfer_seconds: in which something was brought to it.
        transfer_bytes: that were brought to it.
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
    """What a device did in one role since the last line of metrics.

    Attributes:
        device: its name, such as "GPU:3".
        role: what it was used for.
        utilisation: share of the time in which its work was under way, 0 to 1.
        batches_per_second: inference batches or updates.
        batch_rows: mean environments of an inference batch, or unrolls of a training batch; None where there was none.
        transfer_share: share of the time in which something was brought to it.
        transfer_mb_per_second: megabytes (10⁶ bytes) that were brought to it, a second; 0 where nothing has to be.
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
    """Makes figures of what meters have counted between two looks; belongs to one thread."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, DeviceRole], DeviceMeter] = {}

    def look(self, meters: Iterable[DeviceMeter], seconds: float) -> list[DeviceFigures]:
        """The figures of the last `seconds`, in the order of the meters."""
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
                    # What was under way at the last look is counted whole when it ends.
                    utilisation=min(1.0, (now.busy - last.busy) / seconds),
                    batches_per_second=batches / seconds,
                    batch_rows=(now.rows - last.rows) / batches if batches else None,
                    transfer_share=min(1.0, (now.transfer_seconds - last.transfer_seconds) / seconds),
                    transfer_mb_per_second=(now.transfer_bytes - last.transfer_bytes) / seconds / 1e6,
                )
            )
        return figures


def worth_showing(devices: Sequence[DeviceFigures]) -> bool:
    """Whether there is more than one device, or another than a processor: one that does everything says nothing."""
    names = {figures.device for figures in devices}
    return len(names) > 1 or any(not name.startswith("CPU") for name in names)
