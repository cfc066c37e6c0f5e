"""Inference on a device that runs out of memory: the error names the contents and the settings to lower."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from seedcli.agents.registry import create_agent
from seedcli.config.sections import TrainingConfig
from seedcli.errors import EXIT_FAILED, SeedError
from seedcli.inference.device_memory import bytes_of, out_of_memory
from seedcli.inference.device_policy import DevicePolicy
from seedcli.inference.policy import AgentPolicy
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec
from tests.configs import agent_config

SPEC = EnvSpec("test/env", ArraySpec((1000,), "float32"), ActionSpec((3,)))
MAX_ENVS = 6
# One layer of 8, the LSTM (8 inputs, 5 units, 4 gates, biases), the heads for 3 actions and the value.
WEIGHTS = (1000 * 8 + 8) + (8 * 20 + 5 * 20 + 20) + (5 * 3 + 3) + (5 + 1)
STATES = (MAX_ENVS + 1) * 2 * 5 * 4  # hidden and cell, float32
ROW = 4000 + 4 + 1 + 4  # observation, reward, first, slot


def exhausted(*_: Any, **__: Any) -> Any:
    """A TensorFlow call that runs out of memory."""
    raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[7,5]")


class Unread:
    """A result whose read runs out of memory."""

    numpy = staticmethod(exhausted)


def _policy(**kwargs: Any) -> DevicePolicy:
    agent = create_agent(agent_config(hidden=(8,), lstm=5), TrainingConfig(), SPEC, 3)
    return AgentPolicy(agent, SPEC, max_slots=MAX_ENVS, seed=9, **kwargs).devices[0]


def _begin(policy: DevicePolicy, n: int) -> Any:
    slots = np.arange(n, dtype=np.int32)
    return policy.begin(np.zeros((n, 1000), np.float32), np.zeros(n, np.float32), slots == 0, slots)


def _check(error: SeedError, *parts: str) -> None:
    sentence = str(error)
    assert error.exit_status == EXIT_FAILED and isinstance(error.__cause__, tf.errors.ResourceExhaustedError)
    assert "\n" not in sentence and ". " not in sentence
    for part in parts:
        assert part in sentence, sentence


HELD = (
    "CPU:0 ran out of memory",
    f"inference's copy of the weights ({WEIGHTS * 4 / 1e3:.1f} kB)",
    f"the agent states of inference.max_envs = 6 environments ({STATES / 1e3:.1f} kB)",
)
LOWER = ("lower inference.max_envs = 6, inference.batch_size or training.batch_size", "let other devices train")


def test_message_names_tensorflows_device_and_its_peak_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def info(device: str) -> dict[str, int]:
        asked.append(device)
        return {"current": 1, "peak": 14_912_000_000}

    monkeypatch.setattr(tf.config.experimental, "get_memory_info", info)
    message = "OOM when allocating tensor on /job:localhost/replica:0/task:0/device:GPU:3 by allocator GPU_3_bfc"
    error = tf.errors.ResourceExhaustedError(None, None, message)
    held = {"the weights": 2_500_000, "nothing": 0, "a batch": 1_234, "the rest": None}
    raised = out_of_memory(error, "GPU:0", "while learning", held, "lower training.batch_size")
    assert asked == ["GPU:3"] and raised.exit_status == EXIT_FAILED
    assert str(raised) == (
        "GPU:3 ran out of memory while learning (TensorFlow's peak: 14,912.0 MB): it must hold "
        "the weights (2.5 MB), a batch (1.2 kB) and the rest; lower training.batch_size"
    )
    # A device that TensorFlow has not started has no known peak.
    monkeypatch.setattr(tf.config.experimental, "get_memory_info", lambda device: exhausted())
    unnamed = tf.errors.ResourceExhaustedError(None, None, "Out of memory")
    assert str(out_of_memory(unnamed, "GPU:1", "while learning", held, "")).startswith(
        "GPU:1 ran out of memory while learning: it"
    )
    assert str(out_of_memory(unnamed, "", "while learning", held, "")).startswith("the device ran out of memory")


def test_bytes_of_tensorflow_and_keras_variables() -> None:
    layer = keras.layers.Dense(3)
    layer.build((None, 4))
    assert bytes_of([*layer.variables, tf.zeros([2, 2], tf.uint8), tf.Variable(0.0)]) == 4 * (12 + 3) + 4 + 4


@pytest.mark.parametrize(("pad_to", "rows"), [((), 3), ((4, 8), 4)])
def test_begin_out_of_memory(monkeypatch: pytest.MonkeyPatch, pad_to: tuple[int, ...], rows: int) -> None:
    policy = _policy(pad_to=pad_to)
    batch = f"a batch of {rows} environments ({rows * ROW / 1e3:.1f} kB)"
    monkeypatch.setattr(policy, "_act", exhausted)
    with pytest.raises(SeedError) as raised:
        _begin(policy, 3)
    _check(raised.value, *HELD, *LOWER, "while answering 3 environments", batch)


@pytest.mark.parametrize("missing", ["action", "logits"])
def test_finish_out_of_memory(missing: str) -> None:
    policy = _policy()
    promise = _begin(policy, 2)
    if missing == "action":
        promise = promise._replace(action=Unread())
    else:
        promise = promise._replace(recorded={**promise.recorded, missing: Unread()})
    with pytest.raises(SeedError) as raised:
        policy.finish(promise)
    _check(
        raised.value,
        *HELD,
        *LOWER,
        "while answering 2 environments",
        f"a batch of 2 environments ({2 * ROW / 1e3:.1f} kB)",
    )
    assert policy.meter.batches == 0


def test_publish_snapshot_and_assign_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = _policy()
    slots, first = np.arange(2, dtype=np.int32), np.zeros(2, np.bool_)
    monkeypatch.setattr(policy, "_publish", exhausted)
    with pytest.raises(SeedError) as raised:
        policy.publish(5)
    _check(raised.value, *HELD, *LOWER, "while copying new weights")
    assert policy.version == 0 and "a batch of" not in str(raised.value)
    with monkeypatch.context() as patch:
        patch.setattr(policy, "_snapshot", lambda *_: {"hidden": Unread()})
        with pytest.raises(SeedError) as raised:
            policy.snapshot(slots, first)
    _check(raised.value, *HELD, *LOWER, "while saving the states of 2 environments")
    policy._exploration = SimpleNamespace(assign=exhausted)
    with pytest.raises(SeedError) as raised:
        policy.assign(slots, "training", slots.astype(np.int64))
    _check(raised.value, *HELD, *LOWER, "while adding environments")
