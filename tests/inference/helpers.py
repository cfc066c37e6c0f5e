"""Helpers for tests of the step engine: a policy that can be checked by hand, and streams with identifiable rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from seedcli.agents.base import AlgorithmSpec
from seedcli.inference.arena import Arena, UnrollBuffer
from seedcli.inference.device_policy import Decision
from seedcli.inference.engine import StepEngine
from seedcli.inference.pace import Pace
from seedcli.inference.streams import Answer, Stream
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec

SPEC = EnvSpec("test/env", ArraySpec((3,), "float32"), action=ActionSpec((1000,)))


def algorithm(burn_in: int, length: int) -> AlgorithmSpec:
    """An algorithm that records one float with each action."""
    return AlgorithmSpec("test", burn_in, length, "queue", {"mark": ArraySpec((), "float32")})


class CountingPolicy:
    """Acts with the sum of the observation; its state counts the records of an episode; one version per batch."""

    def __init__(self, slots: int) -> None:
        self.state = np.zeros(slots, np.int64)
        self.version = 0
        self.batches: list[int] = []
        self.assigned: dict[int, tuple[str, int]] = {}  # slot → role, index within that role

    def begin(self, observation: Any, reward: Any, first: Any, slots: Any) -> Decision:
        self.state[slots] = np.where(first, 0, self.state[slots]) + 1
        self.version += 1
        self.batches.append(len(slots))
        action = observation.sum(axis=1).astype(np.int32) % 1000
        return Decision(action, {"mark": action.astype(np.float32) / 2}, self.version)

    def finish(self, promise: Decision) -> Decision:
        return promise

    def snapshot(self, slots: Any, first: Any) -> Any:
        return {"count": np.where(first, 0, self.state[slots])}

    def assign(self, slots: Any, role: Any, index: Any) -> None:
        for slot, number in zip(slots.tolist(), index.tolist(), strict=True):
            self.assigned[slot] = (role, number)


class FakeDevice(CountingPolicy):
    """One of several devices, with its own state table; versions and the log of calls belong to the group."""

    def __init__(self, group: FakeGroup, number: int, slots: int) -> None:
        super().__init__(slots)
        self.state[:] = -1000 * (number + 1)  # exposes states that this device has never reset
        self.group, self.number = group, number

    def begin(self, observation: Any, reward: Any, first: Any, slots: Any) -> Decision:
        self.group.log.append(("begin", self.number))
        self.group.version += 1
        # The engine may reuse its memory before `finish`.
        decision = super().begin(observation, reward, first, slots)
        return decision._replace(version=self.group.version)

    def finish(self, promise: Decision) -> Decision:
        self.group.log.append(("finish", self.number))
        return promise


class FakeGroup:
    """A group of devices that can be checked by hand."""

    def __init__(self, devices: int, slots: int) -> None:
        self.version = 0
        self.log: list[tuple[str, int]] = []
        self.devices = [FakeDevice(self, number, slots) for number in range(devices)]


class Player:
    """A stream of environments with records (environment, episode, step) and episodes of the given lengths."""

    def __init__(self, engine: StepEngine, stream: Stream, name: int, lengths: npt.NDArray[np.int64]) -> None:
        self.engine = engine
        self.stream = stream
        self.name = name
        self.lengths = lengths
        self.episode = np.zeros(stream.num_envs, np.int64)
        self.step = np.zeros(stream.num_envs, np.int64)
        self.sent: list[dict[str, npt.NDArray[Any]]] = []

    def send(self, bad: npt.NDArray[np.bool_] | None = None, value: float = np.nan) -> None:
        """Write the next row to the engine's destination and keep a copy; reward is `value` where `bad` [E]."""
        envs = self.stream.num_envs
        layout = self.stream.buffer.layout
        views = layout.views(np.frombuffer(self.engine.destination(self.stream), np.uint8))
        ids = self.name * 100 + np.arange(envs)
        final = self.step + 1 >= self.lengths[np.arange(envs), self.episode % self.lengths.shape[1]]
        views.observation[:] = np.stack([ids, self.episode, self.step], axis=1)
        views.reward[:] = np.where(self.step == 0, 0.0, 1.0 + self.episode)
        if bad is not None:
            views.reward[bad] = value
        views.terminated[:] = final & (self.episode % 2 == 0)
        views.truncated[:] = final & (self.episode % 2 == 1)
        self.sent.append(
            {
                "observation": views.observation.copy(),
                "reward": views.reward.copy(),
                "terminated": views.terminated.copy(),
                "truncated": views.truncated.copy(),
            }
        )
        self.episode = self.episode + final
        self.step = np.where(final, 0, self.step + 1)
        self.engine.arrived(self.stream)


def make_engine(
    *,
    burn_in: int = 0,
    length: int = 4,
    max_envs: int = 64,
    training_batch: int = 4,
    batch_size: int = 0,
    deadline: float = 0.0,
    on_fault: Callable[[Stream, str], None] | None = None,
    clock: Callable[[], float] | None = None,
    policy: Any = None,
    pace: Pace | None = None,
) -> tuple[StepEngine, Arena, Any, list[UnrollBuffer]]:
    """An engine with its parts and the list of its finished unrolls; the default policy is a `CountingPolicy`."""
    algo = algorithm(burn_in, length)
    arena = Arena(SPEC, algo.records, algo.recorded, batch_size=training_batch, queue_batches=1)
    policy = policy or CountingPolicy(max_envs)
    unrolls: list[UnrollBuffer] = []
    kwargs: dict[str, Any] = {} if clock is None else {"clock": clock}

    def fault(stream: Stream, sentence: str) -> None:
        engine.close_stream(stream)

    engine = StepEngine(
        algo,
        SPEC,
        getattr(policy, "devices", [policy]),
        arena,
        max_envs=max_envs,
        batch_size=batch_size,
        deadline=deadline,
        on_unroll=unrolls.append,
        on_fault=on_fault or fault,
        pace=pace,
        **kwargs,
    )
    return engine, arena, policy, unrolls


def take_answers(engine: StepEngine) -> list[Answer]:
    """Run the batches that are due; returns the answers sent."""
    sent: list[Answer] = []
    assert engine.answer(sent.append) == len(sent)
    return sent


def take_unblocked(engine: StepEngine) -> list[Answer]:
    """The answers that no longer need to wait."""
    sent: list[Answer] = []
    assert engine.unblock(sent.append) == len(sent)
    return sent


def answered(answers: list[Answer]) -> set[int]:
    """Indices of the streams that were answered."""
    return {answer.stream.index for answer in answers}
