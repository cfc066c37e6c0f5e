"""A learner whose device runs out of memory while it is built or resumed ends with a list of what uses the memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from seedcli.config.schema import make_config
from seedcli.errors import EXIT_FAILED, SeedError
from seedcli.roles.learner import core as module
from seedcli.roles.learner.core import LearnerCore
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec
from seedcli.training.checkpoint import find_checkpoint
from tests.inference.test_device_memory import exhausted
from tests.system.harness import LIMIT, TINY, sets

SPEC = EnvSpec("test/env", ArraySpec((1000,), "float32"), ActionSpec((3,)))
MAX_ENVS = 5000
# One layer of 8, the LSTM (8 inputs, 5 units, 4 gates, biases), the heads for 3 actions and the value.
WEIGHTS = (1000 * 8 + 8) + (8 * 20 + 5 * 20 + 20) + (5 * 3 + 3) + (5 + 1)
STATES = f"the agent states of inference.max_envs = 5000 environments ({5001 * 2 * 5 * 4 / 1e6:.1f} MB)"


def _core(folder: Path) -> LearnerCore:
    config = make_config(
        {
            "agent": {"network": {"hidden": (8,), "lstm": 5}},
            "inference": {"max_envs": MAX_ENVS},
            "training": {"batch_size": 4, "unroll_length": 3, "optimizer": "adam"},
        }
    )
    return LearnerCore(
        config, "", folder / "checkpoints", SPEC, on_release=lambda: None, on_fault=lambda stream, sentence: None
    )


def _sentence(raised: pytest.ExceptionInfo[SeedError]) -> str:
    sentence = str(raised.value)
    assert raised.value.exit_status == EXIT_FAILED
    assert isinstance(raised.value.__cause__, tf.errors.ResourceExhaustedError)
    assert sentence.startswith("the device ran out of memory while ") and "\n" not in sentence
    assert "agent.network.hidden" in sentence and "topology.inference_devices" in sentence
    return sentence


def test_weights_do_not_fit_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "create_agent", exhausted)
    with pytest.raises(SeedError) as raised:
        _core(tmp_path)
    sentence = _sentence(raised)
    assert "it must hold the network's weights; make the network smaller" in sentence
    assert "inference.max_envs" not in sentence, "a lower value would not help"


def test_state_tables_do_not_fit_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf, "repeat", exhausted)
    with pytest.raises(SeedError) as raised:
        _core(tmp_path)
    sentence = _sentence(raised)
    assert f"while building the learner: it must hold {WEIGHTS:,} parameters ({WEIGHTS * 4 / 1e3:.1f} kB)" in sentence
    assert STATES in sentence and "the optimizer's state, " in sentence
    assert "lower inference.max_envs = 5000, " in sentence


def test_an_optimizer_does_not_fit_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Trainer", exhausted)
    with pytest.raises(SeedError) as raised:
        _core(tmp_path)
    sentence = _sentence(raised)
    assert STATES in sentence and "inference's copy of the weights (33.2 kB)" in sentence


def test_a_restored_checkpoint_does_not_fit_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core = _core(tmp_path)
    core.checkpointer.save(core.counters(), wait=True)
    checkpoint = find_checkpoint(tmp_path / "checkpoints")
    core.resume(checkpoint)
    (variable, *_) = core.agent.variables().values()
    monkeypatch.setattr(type(variable), "assign", exhausted)
    with pytest.raises(SeedError) as raised:
        core.resume(checkpoint)
    sentence = _sentence(raised)
    assert f"while restoring {checkpoint.path}: " in sentence and STATES in sentence
    moments = 2 * WEIGHTS * 4  # Adam's two moments of each weight, without its two scalars
    assert f"the optimizer's state ({moments / 1e3:.1f} kB)" in sentence


_RUN = """
import sys
import tensorflow as tf
from seedcli.cli.main import main

def exhausted(*_, **__):
    message = "OOM when allocating tensor on /job:localhost/replica:0/task:0/device:CPU:0 by allocator cpu"
    raise tf.errors.ResourceExhaustedError(None, None, message)

PATCH
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("patch", "doing"),
    [
        ("tf.repeat = exhausted", "CPU:0 ran out of memory while building the learner"),
        (
            "import seedcli.inference.device_policy as module; make = module.Promise; "
            "module.Promise = lambda action, *rest: make(type('Unread', (), {'numpy': exhausted})(), *rest)",
            "CPU:0 ran out of memory while answering 4 environments",
        ),
    ],
    ids=["built", "answered"],
)
def test_a_run_ends_with_one_sentence(tmp_path: Path, patch: str, doing: str) -> None:
    options: list[Any] = ["train", "--preset", "cartpole_vtrace", "--deterministic", "--steps", "1000", "--envs", "4"]
    values = sets(*TINY, "agent.network.lstm=5", "inference.max_envs=64")
    ended = subprocess.run(
        [sys.executable, "-c", _RUN.replace("PATCH", patch), *options, "--logdir", str(tmp_path / "run"), *values],
        capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
    assert ended.returncode == EXIT_FAILED, ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if "out of memory" in line]
    assert line.startswith(f"seed: {doing}: it must hold ") and "lower inference.max_envs = 64, " in line
    assert "the agent states of inference.max_envs = 64 environments (2.6 kB)" in line
    assert "unexpected" not in ended.stderr and "Traceback" not in ended.stderr
