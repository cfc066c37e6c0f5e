"""Play with small agents whose observations stay on the devices, or do not; the training batches can be compared.

python -m tests.training.on_trajectories FILE: on three virtual devices, two of which train, in a process of its own.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from seedcli.agents import create_agent
from seedcli.config import AgentConfig, TrainingConfig
from seedcli.inference.arena import Arena
from seedcli.inference.engine import StepEngine
from seedcli.inference.policy import AgentPolicy
from seedcli.inference.streams import Stream
from seedcli.inference.trajectories import ObservationStore
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec
from seedcli.topology import Plan
from seedcli.training.devices import Devices, prepare
from seedcli.training.sources import QueueSource
from seedcli.training.trajectories import Trajectories

# Numbers of the last array are, read as floats, such that arithmetic would change their bits.
SPEC = EnvSpec(
    "test/env",
    {
        "flag": ArraySpec((2,), "bool"),
        "image": ArraySpec((2, 2, 1), "uint8"),
        "numbers": ArraySpec((3,), "float32"),
        "words": ArraySpec((1,), "int32"),
    },
    ActionSpec((3,)),
)
B = 6
SIZES = (2, 3, 1, 4, 2)
MAX_ENVS = 20
ROUNDS = 34


class Game:
    """A stream whose records are all different."""

    def __init__(self, stream: Stream, name: int) -> None:
        self.stream, self.name, self.step = stream, name, 0

    def send(self, engine: StepEngine, fault: str = "") -> None:
        """Write the next record; `fault`: what is wrong with it."""
        stream = self.stream
        views = stream.buffer.layout.views(np.frombuffer(engine.destination(stream), np.uint8))
        envs = np.arange(stream.num_envs)
        views.observation["flag"][:] = (self.step >> np.arange(2)) & 1
        views.observation["image"][:] = (self.step + 50 * envs + 7 * self.name)[:, None, None, None] % 256
        views.observation["numbers"][:] = np.stack([np.full_like(envs, self.name), envs, envs * 0 + self.step], axis=1)
        views.observation["words"][:] = 0x7F800001 + 1000 * self.name + 100 * envs[:, None] + self.step
        views.reward[:] = 1.0
        views.terminated[:] = self.step % 7 == 6
        views.truncated[:] = 0
        if fault == "reward":
            views.reward[0] = np.nan
        elif fault == "observation":
            views.observation["numbers"][-1] = np.inf
        self.step += 1
        engine.arrived(stream)


def play(
    devices: Devices,
    *,
    kept: bool,
    places: int | None = None,
    pad_to: tuple[int, ...] = (),
    seed: int = 0,
    spoil: bool = False,
) -> dict[str, Any]:
    """Streams of several sizes come, go and fail, and batches are made; the same ones for the same seed.

    Args:
        kept: keep observations on the devices.
        places: on each of them; None: as many as there can be records, in streams of different sizes.
        spoil: exchange the places of two records of an unroll.
    """
    training = TrainingConfig(unroll_length=4, batch_size=B)
    with devices.scope():
        agent = create_agent(AgentConfig(hidden=(8,), lstm=4, frame_stack=2), training, SPEC, 3)
    algorithm = agent.algorithm
    arena = Arena(SPEC, algorithm.records, algorithm.recorded, batch_size=B, queue_batches=1)
    policy = AgentPolicy(agent, SPEC, max_slots=MAX_ENVS, seed=9, devices=devices.inference, pad_to=pad_to)
    places = 3 * arena.bound_records(MAX_ENVS, 1) if places is None else places
    stores = [ObservationStore(SPEC, device, places) for device in devices.inference] if kept else []
    if kept:
        policy.keep(stores)
    trajectories = Trajectories(SPEC, devices) if kept else None
    source = QueueSource(B, arena, devices.place, trajectories)

    def put(buffer: Any) -> None:
        if spoil:
            buffer.positions[[1, 2]] = buffer.positions[[2, 1]]
        source.put(buffer)

    faults: list[str] = []

    def fault(stream: Stream, sentence: str) -> None:
        faults.append(sentence)
        engine.close_stream(stream)

    engine = StepEngine(
        algorithm, SPEC, policy, arena, max_envs=MAX_ENVS, batch_size=0, deadline=0.0, on_unroll=put, on_fault=fault
    )  # fmt: skip
    games: list[Game] = []

    def join(envs: int, role: Any = "training") -> None:
        stream = engine.open_stream(None, len(games), envs, role)
        assert stream is not None
        games.append(Game(stream, len(games)))

    for envs in SIZES:
        join(envs)
    join(2, "evaluation")
    rng = np.random.default_rng(seed)
    batches = []
    fates = [(9, 1, "reward"), (11, 3, "reward"), (15, 1, "observation"), (18, 3, "observation")]
    for number in range(ROUNDS):
        for game in games:
            if not game.stream.closed and not game.stream.pending and rng.random() < 0.85:
                fate = next((each for each in fates if number >= each[0] and game.name == each[1]), None)
                game.send(engine, "" if fate is None else fate[2])
                if fate is not None:
                    fates.remove(fate)
        engine.answer()
        if number == 21:
            engine.close_stream(games[0].stream)
            join(3)
        # Training is behind by several rounds now and then: streams wait for buffers.
        if number % 5 == 4:
            while (batch := source.next_batch(wait=False)) is not None:
                batches.append(_told(batch, devices))
                engine.unblock()
    for game in games:
        engine.close_stream(game.stream)
    queue: Any = source._queue
    while (buffer := queue.take_buffer(wait=False)) is not None:
        arena.release(buffer)
    return {
        "batches": batches,
        "faults": faults,
        "free": [store.free for store in stores],
        "places": places,
        "uploaded": trajectories.uploaded if trajectories else None,
        "copied": trajectories.copied if trajectories else None,
        "lanes": len(policy.lanes),
    }


def _told(batch: Any, devices: Devices) -> list[Any]:
    """All arrays of a batch, device by device, and where its observations are."""
    leaves = tf.nest.flatten(batch.unrolls)
    parts = [devices.local(leaf) for leaf in leaves]
    arrays = [np.asarray(part) for leaf in parts for part in leaf]
    observation = [part for leaf in tf.nest.flatten(batch.unrolls.observation) for part in devices.local(leaf)]
    names = [part.device.rpartition("device:")[2] for part in observation]
    return [names, [*arrays, batch.versions, batch.final, batch.weights]]


def main(output: str) -> None:
    """What three devices show: two train, and two or all three infer."""
    found = {}
    first = Plan("cpu", 3, (0, 1), (1, 2), columns=B // 2, virtual=True)
    prepare(first)
    for name, plan in {"apart": first, "all": Plan("cpu", 3, (0, 1), (0, 1, 2), columns=B // 2, virtual=True)}.items():
        devices = Devices(plan)
        found[name] = {
            "off": play(devices, kept=False),
            "on": play(devices, kept=True),
            "few": play(devices, kept=True, places=45),
        }
    Path(output).write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
