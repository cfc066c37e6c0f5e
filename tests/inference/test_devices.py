"""Inference on several devices: what lies where, and that it makes no difference."""

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
    """What a process with four virtual devices has found."""
    root = Path(__file__).parents[2]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.inference.on_devices"],
        cwd=root, env=environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_weights_states_and_work_are_on_the_device_of_the_lane(found):
    assert found["places"]["places"] == [[["CPU:1"], ["CPU:1"]], [["CPU:3"], ["CPU:3"]]]
    assert found["places"]["trained"] == ["CPU:0"]
    assert found["places"]["meters"] == [["CPU:1", "inference", 1, 2, True], ["CPU:3", "inference", 1, 2, True]]


def test_devices_in_turns_answer_as_one_does(found):
    same = found["same_everywhere"]
    assert same["difference"] < 1e-6
    assert same["actions"] and same["batches"] == 6, "random numbers depend on the batch's number over all lanes"


def test_an_unroll_acted_on_any_device_is_replayed_on_another(found):
    replayed = found["replayed"]
    assert sorted(replayed["envs"]) == [2, 3, 3] and replayed["unrolls"] >= 8
    assert replayed["carried"], "unrolls begin within episodes, with a state"
    assert replayed["worst"] < 1e-5


def test_weights_come_from_the_copy_on_the_same_device_or_else_the_first(found):
    published = found["published"]
    assert published["trained"] == ["CPU:0", "CPU:1"]
    # By lane: CPU:1 trains too, CPU:2 does not, CPU:0 does.
    assert published["taken"][0] == [1, [200.0, 100.0, 100.0], [1, 1, 1], 1]


def test_one_version_in_so_many_is_taken_and_what_acts_says_which(found):
    taken = {i: (offered, values[0] - 200, versions) for i, (offered, values, versions, _) in
             enumerate(found["published"]["taken"])}  # fmt: skip
    assert taken == {
        0: (1, 0.0, [1, 1, 1]),  # the first that is offered
        1: (2, 0.0, [1, 1, 1]),
        2: (3, 2.0, [3, 3, 3]),
        3: (3, 3.0, [3, 3, 3]),  # the same version again: after a resume the chief's weights take its place
        4: (4, 3.0, [3, 3, 3]),
        5: (6, 5.0, [6, 6, 6]),
    }
