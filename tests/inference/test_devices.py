"""Inference on several devices: placement, and results independent of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """Results of a process with four virtual devices."""
    root = Path(__file__).parents[2]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.inference.on_devices"],
        cwd=root, env=environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_variables_and_computation_are_on_the_lanes_device(found):
    assert found["places"]["places"] == [[["CPU:1"], ["CPU:1"]], [["CPU:3"], ["CPU:3"]]]
    assert found["places"]["trained"] == ["CPU:0"]
    assert found["places"]["meters"] == [["CPU:1", "inference", 1, 2, True], ["CPU:3", "inference", 1, 2, True]]


def test_alternating_devices_give_the_same_answers_as_one(found):
    same = found["same_everywhere"]
    assert same["difference"] < 1e-6
    assert same["actions"] and same["batches"] == 6, "seeds depend on the batch number over all lanes"


def test_logits_of_an_unroll_agree_between_inference_and_training_device(found):
    replayed = found["replayed"]
    assert sorted(replayed["envs"]) == [2, 3, 3] and replayed["unrolls"] >= 8
    assert replayed["carried"], "unrolls must begin within episodes, with a state"
    assert replayed["worst"] < 1e-5


def test_weights_are_copied_from_the_same_device_or_else_the_first(found):
    published = found["published"]
    assert published["trained"] == ["CPU:0", "CPU:1"]
    # By lane: CPU:1 trains too, CPU:2 does not, CPU:0 does.
    assert published["taken"][0] == [1, [200.0, 100.0, 100.0], [1, 1, 1], 1]


def test_publish_every_skips_versions_and_decisions_report_the_version(found):
    taken = {i: (offered, values[0] - 200, versions) for i, (offered, values, versions, _) in
             enumerate(found["published"]["taken"])}  # fmt: skip
    assert taken == {
        0: (1, 0.0, [1, 1, 1]),  # the first version is always taken
        1: (2, 0.0, [1, 1, 1]),
        2: (3, 2.0, [3, 3, 3]),
        3: (3, 3.0, [3, 3, 3]),  # the same version again: after a resume the chief's weights replace it
        4: (4, 3.0, [3, 3, 3]),
        5: (6, 5.0, [6, 6, 6]),
    }
