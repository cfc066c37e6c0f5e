"""Inference with an agent: one lane a device, weights published to all of them, environments told how to explore."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from seedcli.agents.base import Agent, Role
from seedcli.inference.device_policy import Decision, DevicePolicy
from seedcli.specs import EnvSpec

_HOST_STRIDE = 0x61C88647  # keeps the seeds of hosts apart


class Policy(Protocol):
    """What the step engine needs of one device; `seed bench inference` puts a constant in its place.

    Batches are begun and asked for later, so that several devices work at once; those of one device follow each other.
    See `DevicePolicy` for what each method takes and gives.
    """

    def begin(
        self,
        observation: Any,
        reward: npt.NDArray[np.float32],
        first: npt.NDArray[np.bool_],
        slots: npt.NDArray[np.int32],
    ) -> Any:
        """Give the device a batch; returns what `finish` takes."""

    def finish(self, promise: Any) -> Decision:
        """Wait for the result of a batch."""

    def snapshot(self, slots: npt.NDArray[np.int32], first: npt.NDArray[np.bool_]) -> Any:
        """The agent states of the slots before the record at hand."""

    def assign(self, slots: npt.NDArray[np.int32], role: Role, index: npt.NDArray[np.int64]) -> None:
        """Say what the environments of the slots are for."""


def spread(count: int) -> npt.NDArray[np.int64]:
    """0 to count-1 in an order of which every beginning is spread over all: by reversed bits (van der Corput, 1935)."""
    bits = (count - 1).bit_length()
    numbers = np.arange(1 << bits)
    mirrored = sum((((numbers >> bit) & 1) << (bits - 1 - bit) for bit in range(bits)), np.zeros_like(numbers))
    return mirrored[mirrored < count]


def padded_sizes(envs: int) -> tuple[int, ...]:
    """The batch sizes inference is padded to where none are configured, ascending: few traces, little waste."""
    return tuple(sorted({max(1, envs // part) for part in (16, 4, 2, 1)}))


class AgentPolicy:
    """An agent answering with its own copies of the weights, one on each inference device.

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
        devices: the policy of each device; a slot is assigned to, and then answered by, one of them.
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
            pad_to = padded_sizes(max_slots)
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

    def _explore(
        self, slots: npt.NDArray[np.int32], role: Role, index: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        """Note how much the environments of the slots [N] explore; `index` [N] counts those of this host."""
        if role == "training":
            # A fleet that is not complete explores as widely as the whole one, not as its first environments do.
            index = self._ranks[(index * self._hosts + self._host) % len(self._ranks)]
        self.exploration[slots] = self._agent.exploration(role, index, len(self._ranks))
        return self.exploration
