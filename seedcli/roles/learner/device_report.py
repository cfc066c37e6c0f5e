"""Device statistics for the reporter, from the meters of inference and the profile of the training thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from seedcli.inference.variable_placement import device_names
from seedcli.telemetry.device_meters import DeviceFigures, DeviceMeter, DeviceWatch

if TYPE_CHECKING:
    from seedcli.roles.learner.core import LearnerCore


def unroll_bytes(core: LearnerCore) -> int:
    """Bytes of one column of a training batch as transferred to a device."""
    algorithm, spec = core.agent.algorithm, core.spec
    ends = 2  # terminated, truncated
    record = spec.observation_bytes + 4 + ends + spec.action.array.nbytes
    record += sum(array.nbytes for array in algorithm.recorded.values())
    state = sum(np.asarray(leaf).nbytes for leaf in tf.nest.flatten(core.agent.initial_state(1)))
    return algorithm.batch_records * record + state + 4  # and its weight


class DeviceReport:
    """Device meters; used by the reporting thread only.

    Args:
        core: the learner's parts.
    """

    def __init__(self, core: LearnerCore) -> None:
        self._core = core
        self._training = [DeviceMeter(name, "training") for name in device_names(core.agent.network.variables)]
        # An update splits the batch of this host over its devices.
        self._columns = core.local_batch_size // len(self._training)
        self._column_bytes = unroll_bytes(core)
        self._watch = DeviceWatch()

    def sample(self, updates: int, profile: Mapping[str, float], seconds: float) -> list[DeviceFigures]:
        """Statistics of the last `seconds`: training devices first, then inference devices.

        Args:
            updates: number made in this time, applied or dropped.
            profile: seconds of the training thread by name, since it started.
            seconds: since the last call.
        """
        transfer = sum(each.seconds().get("transfer", 0.0) for each in self._core.source.profiles.values())
        for meter in self._training:
            meter.busy = profile.get("training", 0.0)
            meter.batches += updates
            meter.rows += updates * self._columns
            meter.transfer_seconds = transfer
            meter.transfer_bytes += updates * self._columns * self._column_bytes
        return self._watch.sample([*self._training, *self.inference_meters], seconds)

    @property
    def inference_meters(self) -> Sequence[DeviceMeter]:
        """Statistics of the inference devices."""
        return [device.meter for device in self._core.policy.devices]

    @property
    def weights_age(self) -> int | None:
        """Updates by which inference's weights lag; None if every update is published."""
        policy = self._core.policy
        return max(0, self._core.trainer.updates - policy.version) if policy.publish_every > 1 else None
