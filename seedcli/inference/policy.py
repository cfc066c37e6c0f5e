"""Inference with an agent on all inference devices: published weights and exploration of each environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from seedcli.agents.base import Agent, Role
from seedcli.inference.device_policy import Decision, DevicePolicy
from seedcli.specs import EnvSpec

_HOST_STRIDE = 0x61C88647  # separates the seeds of hosts


class Policy(Protocol):
    """What the step engine needs from one device; `seed bench inference` replaces it by a constant.

    A batch is started and its result fetched later, so that several devices work at the same time; batches of one
    device run in order. See `DevicePolicy` for arguments and results.
    """

    def begin(
        self,
        observation: Any,
        reward: npt.NDArray[np.float32],
        first: npt.NDArray[np.bool_],
        slots: npt.NDArray[np.int32],
    ) -> Any:
        """Start a batch on the device; returns the argument of `finish`."""

    def finish(self, promise: Any) -> Decision:
        """Wait for the result of a batch."""

    def snapshot(self, slots: npt.NDArray[np.int32], first: npt.NDArray[np.bool_]) -> Any:
        """Return the agent states of the slots before the current record."""

    def assign(self, slots: npt.NDArray[np.int32], role: Role, index: npt.NDArray[np.int64]) -> None:
        """Set the role of the slots' environments."""


def spread(count: int) -> npt.NDArray[np.int64]:
    """Return 0 to count-1, int64 [count], in bit-reversed order (van der Corput, 1935).

    Every prefix is spread evenly over the whole range.
    """
    bits = (count - 1).bit_length()
    numbers = np.arange(1 << bits)
    mirrored = sum((((numbers >> bit) & 1) << (bits - 1 - bit) for bit in range(bits)), np.zeros_like(numbers))
    return mirrored[mirrored < count]


def padded_sizes(envs: int) -> tuple[int, ...]:
    """Default batch sizes for padding, ascending: few traces, little waste."""
    return tuple(sorted({max(1, envs // part) for part in (16, 4, 2, 1)}))


class AgentPolicy:
    """An agent that runs inference with its own copies of the weights, one per inference device.

    Args:
        agent: the algorithm.
        spec: the environment.
        max_slots: maximum number of environments over all devices; one more slot is for padded rows.
        seed: of action sampling; the batch number is the other half of each seed.
        devices: TensorFlow's names, such as "GPU:3"; "": TensorFlow's default device.
        pad_to: batch sizes to pad to, ascending; empty: dynamic batches, or four sizes if XLA compiles inference.
        greedy: choose actions without exploration (evaluation).
        detailed: decisions hold `Decision.details` too.
        training_envs: training environments of the configured fleet, over which exploration is spread.
        publish_every: inference takes one in this many versions.
        xla: "all": compile inference with XLA; see `config.TopologyConfig`. A TPU always compiles.
        host: index of this host, and number of learner hosts: exploration and sampling seeds differ between hosts.

    Attributes:
        exploration: [max_slots + 1] float32, `ActInputs.exploration` by slot; 0 if never assigned.
        devices: the policy of each device; each slot belongs to one of them.
        batches: batches started so far, over all devices.
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
        detailed: bool = False,
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
            pad_to = padded_sizes(max_slots)
        self.devices = tuple(
            DevicePolicy(
                agent,
                spec,
                device=device,
                slots=max_slots + 1,
                pad_to=sorted(pad_to),
                greedy=greedy,
                detailed=detailed,
                compiled=compiled,
                seed=self._next_seed,
                explore=self._explore,
            )
            for device in devices
        )
        for device in self.devices:
            device.publish(0)

    def _next_seed(self) -> npt.NDArray[np.int32]:
        self.batches += 1
        return np.array([self._seed, self.batches & 0x7FFFFFFF], np.int32)

    @property
    def version(self) -> int:
        """Policy version of the inference weights."""
        return self.devices[0].version

    def publish(self, version: int) -> None:
        """Offer the trained weights to inference; `version` is the number of updates applied to them.

        They are copied to every inference device if they are the first, if their version has reached another
        multiple of `publish_every`, or if it is not later than the current one (after a restore).
        """
        every = self.publish_every
        if self._published and version > self.version and version // every == self.version // every:
            return
        self._published = True
        for device in self.devices:
            device.publish(version)

    def _explore(
        self, slots: npt.NDArray[np.int32], role: Role, index: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        """Set the exploration of the slots [N]; `index` [N] numbers the environments of this host."""
        if role == "training":
            # An incomplete fleet covers the same range of exploration as the whole one.
            index = self._ranks[(index * self._hosts + self._host) % len(self._ranks)]
        self.exploration[slots] = self._agent.exploration(role, index, len(self._ranks))
        return self.exploration
