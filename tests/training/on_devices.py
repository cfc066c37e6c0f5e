"""Training on virtual devices, and on several hosts, in a separate process; writes its results to a file.

python -m tests.training.on_devices FILE: one host, its processor split into 8 devices.
python -m tests.training.on_devices FILE INDEX ADDRESS ADDRESS: one of two hosts, with TensorFlow's address of each.
"""

from __future__ import annotations

import dataclasses
import functools
import pickle
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

from seedcli.agents.base import UnrollBatch
from seedcli.agents.registry import create_agent
from seedcli.agents.target_networks import copy_to, polyak
from seedcli.config.sections import TrainingConfig
from seedcli.config.topology import Plan
from seedcli.specs import EnvSpec
from seedcli.training import batch_update
from seedcli.training import trainer as trainer_module
from seedcli.training.batch_update import BatchUpdate, column_orders
from seedcli.training.batches import TrainingBatch
from seedcli.training.devices import Devices, find_inventory, prepare
from seedcli.training.optimizer import clip_gradients
from seedcli.training.trainer import Trainer, UpdateResult
from tests.agents.helpers import CONTINUOUS, VECTOR, random_records
from tests.configs import agent_config
from tests.training.tiny_agent import Network, TinyAgent, tiny_batch

B, UPDATES = 8, 10
NETWORK = {"hidden": (8,), "lstm": 4, "previous_action_reward": True, "normalize_observations": True}
AGENTS = {
    "vtrace": agent_config(**NETWORK, algorithm="vtrace", normalize_values=True, separate_value=True, policy_clip=0.2),
    "vtrace_fixed": agent_config(**NETWORK, algorithm="vtrace", normalize_values=True, fixed_targets=True),
    "ppo": agent_config(**NETWORK, algorithm="ppo", normalize_values=True, value_clip=0.1, target_kl=10.0),
    "r2d2": agent_config(**NETWORK, algorithm="r2d2", dueling_hidden=0, frame_stack=2, n_step=2, target_period=3),
    "sac": agent_config(hidden=(8,), normalize_observations=True, algorithm="sac", tau=0.3),
}
SPECS = dict.fromkeys(AGENTS, VECTOR) | {"sac": CONTINUOUS}
TRAINING = {
    "vtrace": TrainingConfig(unroll_length=4, batch_size=B, learning_rate=0.01, epsilon=1e-3, clip_norm=0.05),
    **dict.fromkeys(
        ("vtrace_fixed", "ppo"),
        TrainingConfig(unroll_length=4, batch_size=B, learning_rate=0.01, epsilon=1e-3, clip_norm=0.05, epochs=2),
    ),
    "r2d2": TrainingConfig(
        unroll_length=3, burn_in=1, batch_size=B, optimizer="rmsprop", epsilon=1e-3, learning_rate=0.01, clip_norm=0.05
    ),
    "sac": TrainingConfig(unroll_length=4, batch_size=B, learning_rate=0.01, epsilon=1e-3, clip_norm=0.05),
}
# Numbers of devices tried with each: tracing an update takes a second or two for each replica.
DEVICES = {"vtrace": (1, 4), "vtrace_fixed": (2,), "ppo": (2,), "r2d2": (2, 8), "sac": (2,)}


def plan(devices: int, **values: Any) -> Plan:
    """A plan for training on the first `devices` of 8 virtual devices."""
    training = tuple(range(devices))
    return Plan("cpu", 8, training, (7,), columns=B // devices, virtual=True, **values)


def batches(agent: Any, count: int = UPDATES, spec: EnvSpec = VECTOR) -> list[TrainingBatch]:
    """Random batches with ends of episodes, importance weights, columns of weight 0 and non-zero states."""
    made = []
    for number in range(count):
        rng = np.random.default_rng(number)
        records = random_records(spec, agent.algorithm.batch_records, B, seed=number)
        records["observation"] = (3.0 * records["observation"] + number).astype(np.float32)
        weights = rng.uniform(0.2, 1.0, B).astype(np.float32)
        weights[rng.integers(B)] = 0.0

        def some(leaf: Any, rng: np.random.Generator = rng) -> Any:
            shape = (B, *leaf.shape[1:])
            return (rng.random(shape) * 2).astype(leaf.numpy().dtype)

        shape = records["reward"].shape
        recorded = {
            name: records.get(name, rng.normal(size=(*shape, *array.shape)).astype(array.dtype))
            for name, array in agent.algorithm.recorded.items()
        }
        unrolls = UnrollBatch(
            observation=records["observation"],
            reward=records["reward"],
            terminated=records["terminated"],
            truncated=records["truncated"],
            action=records["action"],
            recorded=recorded,
            state=tf.nest.map_structure(some, agent.initial_state(1)),
            weights=weights,
        )
        made.append(TrainingBatch.of(unrolls, np.zeros(shape, np.int64)))
    return made


def make(algorithm: str, devices: Devices, training: TrainingConfig | None = None, kind: Any = Trainer) -> Any:
    """Create an agent and its trainer on devices."""
    training = training or TRAINING[algorithm]
    with devices.scope():
        agent = create_agent(AGENTS[algorithm], training, SPECS[algorithm], 3)
    return agent, kind(agent, training, 1000, devices)


def variables(agent: Any, trainer: Trainer) -> list[Any]:
    """All variables of a checkpoint."""
    return [v.numpy() for v in (*agent.variables().values(), *trainer.variables().values())]


def as_dict(result: UpdateResult) -> dict[str, Any]:
    """The result of an update as a dictionary."""
    return {name: value for name, value in result._asdict().items() if name != "metrics"} | {"metrics": result.metrics}


def train(algorithm: str, devices: Devices, **values: Any) -> dict[str, Any]:
    """Train on devices; returns the results of the first updates and the variables."""
    agent, trainer = make(algorithm, devices, **values)
    results = [as_dict(trainer.update(batch, env_steps=0)) for batch in batches(agent, spec=SPECS[algorithm])]
    names = list(agent.variables())
    found = {"results": results, "variables": variables(agent, trainer), "trained_steps": trainer.trained_steps}
    return {**found, "names": names}


class ClipsFirst(BatchUpdate):
    """A wrong trainer: every device clips its own gradients before they are summed."""

    def gradients(self, unrolls: Any, scale: Any) -> Any:
        found = super().gradients(unrolls, scale)
        (mine,) = found.gradients
        return found._replace(gradients=[clip_gradients(mine, self._config.clip_norm)[0]])


def clips_first(*args: Any) -> Trainer:
    """A trainer with that fault."""
    with mock.patch.object(trainer_module, "BatchUpdate", ClipsFirst):
        return Trainer(*args)


def drop(devices: Devices) -> dict[str, Any]:
    """Train on a batch with a non-finite last column, between two good ones."""
    agent, trainer = make("r2d2", devices)
    first, second, third = batches(agent, 3)
    assert trainer.update(first, env_steps=0).applied
    before = variables(agent, trainer)
    second.unrolls.reward[3, B - 1] = np.nan
    result = trainer.update(second, env_steps=0)
    after = variables(agent, trainer)
    again = trainer.update(third, env_steps=0).applied
    copies = [
        [copy.numpy() for copy in v.value.values]
        for v in (*agent.network.variables, *trainer.groups[0].optimizer.variables)
    ]
    # Only trainable variables stay unchanged; the observation statistics, which are finite here, are updated.
    trainable = [v.trainable for v in agent.network.variables]
    return {
        "trainable": trainable,
        "result": as_dict(result),
        "before": before,
        "after": after,
        "again": again,
        "copies": copies,
        "dropped": trainer.dropped,
    }


def placed(devices: Devices) -> list[dict[str, Any]]:
    """The part of a batch on each device."""
    agent, _ = make("vtrace", devices)
    unrolls = devices.place(batches(agent, 1)[0].unrolls)
    parts: list[dict[str, Any]] = []
    for i in range(devices.replicas):
        part = tf.nest.map_structure(lambda x, i=i: devices.local(x)[i], unrolls)
        leaves = tf.nest.flatten(part)
        parts.append(
            {
                "devices": {leaf.device.rpartition("device:")[2] for leaf in leaves},
                "reward": part.reward.numpy(),
                "hidden": part.state["lstm_hidden"].numpy(),
                "weights": part.weights.numpy(),
            }
        )
    return parts


def target_networks(devices: Devices) -> dict[str, Any]:
    """Copies and averages outside of replicas and, called by each of them, inside."""

    def values(network: Any) -> list[Any]:
        return [[copy.numpy() for copy in variable.value.values] for variable in network.variables]

    found: dict[str, Any] = {}
    calls = {"copy": copy_to, "average": lambda target, source: polyak(target, source, 0.25)}
    for name, call in calls.items():
        for place in ("outside", "inside"):
            with devices.scope():
                target, source = Network(), Network()
                for i, variable in enumerate(source.variables):
                    variable.assign([1.0 + i, -2.0])
                before = values(target), values(source)
                function = functools.partial(call, target, source)
                replicas = functools.partial(devices.run, function) if place == "inside" else function
                tf.function(replicas, autograph=False)()
                found[name, place] = *before, values(target)
    return found


def joined(number: int, parts: int) -> Any:
    """Orders of columns with which one device forms the minibatches of `number` devices."""

    def orders(seed: int, updates: Any, epochs: int, replica: int, columns: Any) -> Any:
        each = columns // number
        found = [column_orders(seed, updates, epochs, i, each) + i * each for i in range(number)]
        split = tf.reshape(tf.stack(found), [number, epochs, parts, -1])
        return tf.reshape(tf.transpose(split, [1, 2, 0, 3]), [epochs, -1])

    return orders


def tiny(devices: Devices, epochs: int, count: int, **values: Any) -> dict[str, Any]:
    """An agent with two groups, targets and averages on minibatches; in the second batch a column is not finite."""
    training = TrainingConfig(
        unroll_length=3, batch_size=B, learning_rate=0.05, clip_norm=0.4, epochs=epochs, minibatches=2
    )
    with devices.scope():
        agent = TinyAgent(training, logs=False, **values)
    trainer = Trainer(agent, training, 1000, devices, seed=5)
    made = [tiny_batch(B, number) for number in range(count)]
    made[1].unrolls.reward[1, 3] = np.nan
    results = [as_dict(trainer.update(batch, env_steps=0)) for batch in made]
    counts = trainer.updates, trainer.dropped
    return {"results": results, "variables": variables(agent, trainer), "counts": counts}


def minibatches() -> dict[Any, Any]:
    """Minibatches on two devices, and the same ones on a single device."""
    found: dict[Any, Any] = {}
    recurrent = TRAINING["vtrace"].model_copy(update={"epochs": 3, "minibatches": 2})
    for number, devices in ((2, Devices(plan(2))), (1, Devices.default())):
        orders = joined(2, 2) if number == 1 else column_orders
        with mock.patch.object(batch_update, "column_orders", orders):
            found["loop", number] = tiny(devices, 3, 4)
            found["unrolled", number] = tiny(devices, 2, 3)
            found["stop", number] = tiny(devices, 3, 3, stop_after=12)
            found["vtrace", number] = train("vtrace", devices, training=recurrent)
    return found


def one_host() -> dict[str, Any]:
    """All results of one host with 8 virtual devices."""
    prepare(plan(8))
    prepare(plan(8))  # a second call does nothing
    found: dict[str, Any] = {"inventory": find_inventory()}
    for algorithm in AGENTS:
        found[algorithm, 0] = train(algorithm, Devices.default())
        for number in DEVICES[algorithm]:
            found[algorithm, number] = train(algorithm, Devices(plan(number)))
    local = TRAINING["r2d2"].model_copy(update={"batch_size": B // 2})
    found["divided by the local batch"] = train("r2d2", Devices(plan(2)), training=local)
    found["clipped before the sum"] = train("r2d2", Devices(plan(2)), kind=clips_first)
    found["xla"] = train("r2d2", Devices(plan(2, xla="training")))
    found["batches"] = batches(make("vtrace", Devices.default())[0], 1)
    four = Devices(plan(4))
    found["drop"], found["placed"] = drop(four), placed(four)
    found["names"] = four.training, four.inference
    found["minibatches"] = minibatches()
    found["target networks"] = target_networks(four)
    agent, trainer = make("r2d2", four)
    before = variables(agent, trainer)
    found["sum"] = trainer.sum_over_hosts([np.array([3, 5]), np.array([0.5])])
    trainer.broadcast([*agent.variables().values(), *trainer.variables().values()])
    found["broadcast"] = before, variables(agent, trainer)
    last = dataclasses.replace(plan(1), training=(5,))
    agent, trainer = make("vtrace", Devices(last))
    trainer.update(batches(agent, 1)[0], env_steps=0)
    found["elsewhere"] = {v.value.device.rpartition("device:")[2] for v in agent.network.variables}
    try:
        prepare(dataclasses.replace(plan(4), devices=4))
    except Exception as error:
        found["too late"] = type(error).__name__, str(error)
    return found


def half(batch: TrainingBatch, index: int) -> TrainingBatch:
    """The columns of one of two hosts."""
    columns = slice(index * B // 2, (index + 1) * B // 2)
    parts = {
        name: tf.nest.map_structure(lambda x, n=name: x[columns] if n in ("state", "weights") else x[:, columns], value)
        for name, value in batch.unrolls._asdict().items()
    }
    return TrainingBatch.of(UnrollBatch(**parts), batch.versions[:, columns])


def one_of_two(index: int, addresses: tuple[str, ...]) -> dict[str, Any]:
    """The results of one of two hosts."""
    plan = Plan("cpu", 1, (0,), (0,), columns=B // 2, hosts=addresses, host_index=index)
    prepare(plan)
    cluster = tf.train.ClusterSpec({"worker": list(addresses)})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, task_type="worker", task_id=index, rpc_layer="grpc"
    )
    devices = Devices(plan, resolver)
    with devices.scope():
        agent = create_agent(AGENTS["r2d2"], TRAINING["r2d2"], VECTOR, 3 if index == 0 else 4)
    trainer = Trainer(agent, TRAINING["r2d2"], 1000, devices)
    trainer.broadcast([*agent.variables().values(), *trainer.variables().values()])
    everything = batches(agent)
    results = []
    for number, batch in enumerate(everything):
        # In every third step the second host has no batch at first, so that no host trains.
        missing = index == 1 and number % 3 == 0
        mine = half(batch, index)
        for absent in (True, False) if number % 3 == 0 else (False,):
            nothing = missing and absent
            control = np.array([float(nothing), 10.0 + index])
            results.append(as_dict(trainer.update(None if nothing else mine, env_steps=0, control=control)))
    return {"results": results, "variables": variables(agent, trainer), "trained_steps": trainer.trained_steps}


if __name__ == "__main__":
    output, *host = sys.argv[1:]
    outcome = one_of_two(int(host[0]), tuple(host[1:])) if host else one_host()
    Path(output).write_bytes(pickle.dumps(outcome))
