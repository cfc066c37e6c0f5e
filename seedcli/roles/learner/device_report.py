"""What the reporter says of each device: inference's own meters, and training's, made of what its threads note."""

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
    """Bytes of one unroll of a training batch as it is brought to a device."""
    algorithm, spec = core.agent.algorithm, core.spec
    ends = 2  # terminated, truncated
    record = spec.observation_bytes + 4 + ends + spec.action.array.nbytes
    record += sum(array.nbytes for array in algorithm.recorded.values())
    state = sum(np.asarray(leaf).nbytes for leaf in tf.nest.flatten(core.agent.initial_state(1)))
    return algorithm.records * record + state + 4  # and its weight


class DeviceReport:
    """Belongs to the reporting thread.

    Args:
        core: whose devices these are.
    """

    def __init__(self, core: LearnerCore) -> None:
        self._core = core
        self._training = [DeviceMeter(name, "training") for name in device_names(core.agent.network.variables)]
        # An update splits the batch of this host over its devices.
        self._columns = core.local_batch_size // len(self._training)
        self._column_bytes = unroll_bytes(core)
        self._watch = DeviceWatch()

    def look(self, updates: int, profile: Mapping[str, float], seconds: float) -> list[DeviceFigures]:
        """The figures of the last `seconds`: devices that train, then those that infer.

        Args:
            updates: made in this time, applied or not.
            profile: seconds of the training thread by name, since it started.
            seconds: since the last look.
        """
        transfer = sum(each.seconds().get("transfer", 0.0) for each in self._core.source.profiles.values())
        for meter in self._training:
            meter.busy = profile.get("training", 0.0)
            meter.batches += updates
            meter.rows += updates * self._columns
            meter.transfer_seconds = transfer
            meter.transfer_bytes += updates * self._columns * self._column_bytes
        return self._watch.look([*self._training, *self.inference_meters], seconds)

    @property
    def inference_meters(self) -> Sequence[DeviceMeter]:
        """Of the devices that infer."""
        return [device.meter for device in self._core.policy.devices]

    @property
    def weights_age(self) -> int | None:
        """Updates made since the weights that inference uses; None where it gets those of every update."""
        policy = self._core.policy
        return max(0, self._core.trainer.updates - policy.version) if policy.publish_every > 1 else None
