"""Inference with an agent: one lane a device, weights published to all of them, environments told how to explore."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from seedcli.agents.base import Agent, Role
from seedcli.inference.device_policy import Decision, DevicePolicy
from seedcli.inference.trajectories import ObservationStore
from seedcli.specs import EnvSpec

__all__ = ["AgentPolicy", "Decision", "LanePolicy", "Policy", "PolicyGroup", "WholePolicy", "spread"]

# Batch sizes that XLA compiles where none are configured, as fractions of the environments at most.
_COMPILED_PARTS = (16, 4, 2, 1)
_HOST_STRIDE = 0x61C88647  # keeps the seeds of hosts apart


class _Stateful(Protocol):
    def snapshot(self, slots: npt.NDArray[np.int32], first: npt.NDArray[np.bool_]) -> Any:
        """The agent states [N, ...] of the slots as they stand before the record at hand, after any reset."""

    def assign(self, slots: npt.NDArray[np.int32], role: Role, index: npt.NDArray[np.int64]) -> None:
        """Say what the environments of the slots [N] are for, and which of that role each is."""


class Policy(_Stateful, Protocol):
    """What the step engine needs of inference; `seed bench inference` puts a constant in its place."""

    def act(
        self,
        observation: Any,
        reward: npt.NDArray[np.float32],
        first: npt.NDArray[np.bool_],
        slots: npt.NDArray[np.int32],
    ) -> Decision:
        """Answer a batch: observation [N, ...] (or such arrays by name), reward [N], first [N], slots [N]."""


class LanePolicy(_Stateful, Protocol):
    """One device of several: its batches are begun, and asked for later. Batches of one device follow each other.

    Attributes:
        store: where the device keeps the observations it is given; None: nowhere.
    """

    store: ObservationStore | None

    def begin(
        self,
        observation: Any,
        reward: npt.NDArray[np.float32],
        first: npt.NDArray[np.bool_],
        slots: npt.NDArray[np.int32],
        positions: npt.NDArray[np.int32] | None = None,
    ) -> Any:
        """Give the device a batch, see `Policy.act`, without waiting for its result; returns what `finish` takes.

        It keeps the observations in the places `positions` [N] of its store; None: it does not.
        """

    def finish(self, promise: Any) -> Decision:
        """Wait for the result."""


@runtime_checkable
class PolicyGroup(Protocol):
    """Several devices that answer together; a slot is assigned to, and then answered by, one of them.

    Attributes:
        lanes: one for each device.
    """

    lanes: Sequence[LanePolicy]


class WholePolicy:
    """A policy that answers at once, as a lane, and keeps nothing."""

    store: ObservationStore | None = None

    def __init__(self, policy: Policy) -> None:
        self._act = policy.act
        self.snapshot = policy.snapshot
        self.assign = policy.assign

    def begin(
        self,
        observation: Any,
        reward: npt.NDArray[np.float32],
        first: npt.NDArray[np.bool_],
        slots: npt.NDArray[np.int32],
        positions: npt.NDArray[np.int32] | None = None,
    ) -> Decision:
        """See `LanePolicy.begin`."""
        return self._act(observation, reward, first, slots)

    def finish(self, promise: Decision) -> Decision:
        """See `LanePolicy.finish`."""
        return promise


def spread(count: int) -> npt.NDArray[np.int64]:
    """0 to count-1 in an order of which every beginning is spread over all: by reversed bits (van der Corput, 1935)."""
    bits = (count - 1).bit_length()
    numbers = np.arange(1 << bits)
    mirrored = sum((((numbers >> bit) & 1) << (bits - 1 - bit) for bit in range(bits)), np.zeros_like(numbers))
    return mirrored[mirrored < count]


class _Lane:
    """A device's policy, with what all devices share."""

    def __init__(self, group: AgentPolicy, device: DevicePolicy) -> None:
        self._group = group
        self._device = device
        self.begin = device.begin
        self.finish = device.finish
        self.snapshot = device.snapshot

    @property
    def store(self) -> ObservationStore | None:
        """See `LanePolicy`."""
        return self._device.store

    def assign(self, slots: npt.NDArray[np.int32], role: Role, index: npt.NDArray[np.int64]) -> None:
        """See `Policy.assign`."""
        self._group.set_exploration(slots, role, index)
        self._device.explore(self._group.exploration)


class AgentPolicy:
    """An agent answering with its own copies of the weights, one on each inference device.

    `act`, `snapshot` and `assign` are those of the first device, for callers that need no more than one.

    Args:
        agent: the algorithm.
        spec: the environment.
        max_slots: environments at once, of all devices together; one slot more is kept for padded rows.
        seed: of action sampling; the batch number is the other half of each seed.
        devices: what TensorFlow calls them, such as "GPU:3"; "" is where TensorFlow puts things by itself.
        pad_to: batch sizes to pad to, ascending; empty: dynamic batches, or four sizes where XLA compiles each.
        greedy: answer the action without exploration (evaluation).
        training_envs: environments of the configured fleet that train, over which exploration is spread.
        publish_every: of the versions published, inference takes one in so many.
        xla: "all": XLA compiles inference; see `config.TopologyConfig`. It always does for a TPU, which knows no other
            way.
        host: which of the learner's hosts this is, and how many there are: environments of different hosts explore
            differently, and their actions are drawn with different seeds.

    Attributes:
        exploration: [max_slots + 1] float32, `ActInputs.exploration` by slot; 0 where never assigned.
        lanes: one for each device, see `LanePolicy`.
        devices: the policies behind them; `device` is the name of each, `meter` what it has done.
        batches: begun so far, on all devices.
        publish_every: as given.
    """

    def __init__(
        self,
        agent: Agent,
        spec: EnvSpec,
        *,
        max_slots: int,
        seed: int,
        devices: Sequence[str] = ("",),
        pad_to: Sequence[int] = (),
        greedy: bool = False,
        training_envs: int = 1,
        publish_every: int = 1,
        xla: str = "off",
        host: tuple[int, int] = (0, 1),
    ) -> None:
        self._agent = agent
        self._host, self._hosts = host
        self._seed = seed if self._host == 0 else (seed + self._host * _HOST_STRIDE) & 0x7FFFFFFF
        self._ranks = spread(training_envs)
        self.exploration: npt.NDArray[np.float32] = np.zeros(max_slots + 1, np.float32)
        self.publish_every = publish_every
        self._published = False
        self.batches = 0
        compiled = xla == "all" or any(device.startswith("TPU") for device in devices)
        if compiled and not pad_to:
            pad_to = tuple({max(1, max_slots // part) for part in _COMPILED_PARTS})
        self.devices = tuple(
            DevicePolicy(
                agent,
                spec,
                device=device,
                slots=max_slots + 1,
                pad_to=sorted(pad_to),
                greedy=greedy,
                compiled=compiled,
                seed=self._next_seed,
            )
            for device in devices
        )
        self.lanes = tuple(_Lane(self, device) for device in self.devices)
        for device in self.devices:
            device.publish(0)

    def _next_seed(self) -> npt.NDArray[np.int32]:
        self.batches += 1
        return np.array([self._seed, self.batches & 0x7FFFFFFF], np.int32)

    @property
    def version(self) -> int:
        """Of the weights that inference uses."""
        return self.devices[0].version

    def publish(self, version: int) -> None:
        """Offer the trained weights, with the number of updates behind them, to inference.

        The first that are offered are taken, and then those whose version has reached another multiple of
        `publish_every`, or is no later than the one in use (it is replaced): they are copied into the variables that
        inference reads on each of its devices.
        """
        every = self.publish_every
        if self._published and version > self.version and version // every == self.version // every:
            return
        self._published = True
        for device in self.devices:
            device.publish(version)

    def keep(self, stores: Sequence[ObservationStore]) -> None:
        """Have each device keep the observations it is given in a store there; before there is an engine."""
        for device, store in zip(self.devices, stores, strict=True):
            device.store = store

    def act(
        self,
        observation: Any,
        reward: npt.NDArray[np.float32],
        first: npt.NDArray[np.bool_],
        slots: npt.NDArray[np.int32],
    ) -> Decision:
        """See `Policy.act`."""
        device = self.devices[0]
        return device.finish(device.begin(observation, reward, first, slots))

    def assign(self, slots: npt.NDArray[np.int32], role: Role, index: npt.NDArray[np.int64]) -> None:
        """See `Policy.assign`."""
        self.lanes[0].assign(slots, role, index)

    def snapshot(self, slots: npt.NDArray[np.int32], first: npt.NDArray[np.bool_]) -> Any:
        """See `Policy.snapshot`."""
        return self.devices[0].snapshot(slots, first)

    def set_exploration(self, slots: npt.NDArray[np.int32], role: Role, index: npt.NDArray[np.int64]) -> None:
        """Note how much the environments of the slots [N] explore; `index` [N] counts those of this host."""
        if role == "training":
            # A fleet that is not complete explores as widely as the whole one, not as its first environments do.
            index = self._ranks[(index * self._hosts + self._host) % len(self._ranks)]
        self.exploration[slots] = self._agent.exploration(role, index, len(self._ranks))
