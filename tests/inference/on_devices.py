"""Inference on virtual devices, in a separate process; prints its results as one line of JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import tensorflow as tf

from seedcli.agents.base import UnrollBatch
from seedcli.agents.networks.models import evaluate
from seedcli.agents.registry import create_agent
from seedcli.config.sections import TrainingConfig
from seedcli.inference.arena import Arena, UnrollBuffer
from seedcli.inference.engine import StepEngine
from seedcli.inference.policy import AgentPolicy
from seedcli.inference.streams import Stream
from seedcli.inference.variable_placement import device_names
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec
from tests.configs import agent_config
from tests.inference.helpers import Player, take_answers, take_unblocked

SPEC = EnvSpec("test/env", ArraySpec((3,), "float32"), ActionSpec((3,)))
DEVICES = 4


def make_agent(seed: int = 3) -> Any:
    """A small recurrent agent; the current scope places its variables."""
    training = TrainingConfig(unroll_length=4, batch_size=2)
    return create_agent(agent_config(hidden=(8,), lstm=5), training, SPEC, seed)


def _rows(slots: list[int], first: bool) -> tuple[Any, ...]:
    n = len(slots)
    observation = np.linspace(-1, 1, 3 * n, dtype=np.float32).reshape(n, 3)
    return observation, np.ones(n, np.float32), np.full(n, first), np.array(slots, np.int32)


def places() -> dict[str, Any]:
    """Devices of each lane's variables and computation."""
    agent = make_agent()
    policy = AgentPolicy(agent, SPEC, max_slots=6, seed=9, devices=("CPU:1", "CPU:3"))
    found = []
    for device in policy.devices:
        promise = device.begin(*_rows([0, 1], True))
        kept = [*device._network.variables, device._exploration, *tf.nest.flatten(device._table)]
        found.append([device_names(kept), device_names([promise.action, *promise.recorded.values()])])
        device.finish(promise)
    meters = [[d.meter.device, d.meter.role, d.meter.batches, d.meter.rows, d.meter.busy > 0] for d in policy.devices]
    return {"places": found, "trained": device_names(agent.network.variables), "meters": meters}


def same_everywhere() -> dict[str, Any]:
    """The same batches on one device and alternately on two: logits, and actions by batch number."""
    one = AgentPolicy(make_agent(), SPEC, max_slots=6, seed=9)
    two = AgentPolicy(make_agent(), SPEC, max_slots=6, seed=9, devices=("CPU:2", "CPU:3"))
    largest, actions = 0.0, True
    for turn in range(6):
        lane, slots = two.devices[turn % 2], ([0, 1, 2], [3, 4])[turn % 2]
        rows = _rows(slots, turn < 2)
        plain, other = one.devices[0].act(*rows), lane.finish(lane.begin(*rows))
        largest = max(largest, float(np.abs(plain.recorded["logits"] - other.recorded["logits"]).max()))
        actions &= bool((plain.action == other.action).all())
    return {"difference": largest, "actions": actions, "batches": two.batches}


def replayed() -> dict[str, Any]:
    """Unrolls of streams in three lanes, re-evaluated on the training device: must return the same logits."""
    agent = make_agent()
    algorithm = agent.algorithm
    arena = Arena(SPEC, algorithm.records, algorithm.recorded, batch_size=4, queue_batches=1)
    policy = AgentPolicy(agent, SPEC, max_slots=16, seed=1, devices=("CPU:1", "CPU:2", "CPU:3"))
    unrolls: list[UnrollBuffer] = []

    def fault(stream: Stream, sentence: str) -> None:
        raise AssertionError(sentence)

    engine = StepEngine(
        algorithm, SPEC, policy.devices, arena, max_envs=16, batch_size=0, deadline=0.0, on_unroll=unrolls.append,
        on_fault=fault,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    players = []
    for name, envs in enumerate((2, 3, 1, 2)):
        stream = engine.open_stream(None, name, envs)
        assert stream is not None
        players.append(Player(engine, stream, name, rng.integers(2, 7, (envs, 5))))
    worst, count, carried = 0.0, 0, False
    for _ in range(14):
        for player in players:
            if not player.stream.pending and rng.random() < 0.8:
                player.send()
        take_answers(engine)
        for buffer in unrolls:
            worst, count = max(worst, _difference(agent, buffer)), count + 1
            carried |= any(np.any(leaf) for leaf in tf.nest.flatten(buffer.state))
            arena.release(buffer)
        unrolls.clear()
        take_unblocked(engine)
    return {"worst": worst, "unrolls": count, "carried": bool(carried), "envs": engine.lane_envs}


def _difference(agent: Any, buffer: UnrollBuffer) -> float:
    rows = buffer.rows
    batch = UnrollBatch(
        tf.constant(rows.observation), tf.constant(rows.reward), tf.constant(rows.terminated.view(np.bool_)),
        tf.constant(rows.truncated.view(np.bool_)), tf.constant(buffer.action),
        {name: tf.constant(value) for name, value in buffer.recorded.items()},
        tf.nest.map_structure(tf.constant, buffer.state), tf.ones(buffer.num_envs),
    )  # fmt: skip
    outputs = evaluate(agent.network, batch, agent.algorithm.burn_in)
    return float(np.abs(outputs.policy.numpy() - buffer.recorded["logits"]).max())


def published() -> dict[str, Any]:
    """Three inference devices copy weights of two training devices that differ (they never do in practice)."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        agent = make_agent()
    variable = agent.network.variables[0].value
    policy = AgentPolicy(
        agent, SPEC, max_slots=6, seed=9, devices=("CPU:1", "CPU:2", "CPU:0"), publish_every=3
    )  # fmt: skip
    taken = []
    for version in (1, 2, 3, 3, 4, 6):
        for number, copy in enumerate(variable.values):
            copy.assign(tf.fill(copy.shape, 100.0 * (number + 1) + len(taken)))
        policy.publish(version)
        values = [float(device._network.variables[0].numpy().flat[0]) for device in policy.devices]
        versions = [lane.finish(lane.begin(*_rows([i], True))).version for i, lane in enumerate(policy.devices)]
        taken.append([version, values, versions, policy.version])
    return {"taken": taken, "trained": device_names(agent.network.variables)}


def main() -> None:
    """Run everything in one process, because TensorFlow takes seconds to start."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * DEVICES)
    parts = (places, same_everywhere, replayed, published)
    print(json.dumps({part.__name__: part() for part in parts}))


if __name__ == "__main__":
    main()
