"""How TensorFlow's operations share the cores of a learner."""

from __future__ import annotations

import os
from typing import Any

import pytest
import tensorflow as tf

from seedcli.config.schema import make_config
from seedcli.roles.learner.core import share_cores


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The numbers of threads set within an operation and between operations. The machine has eight cores."""
    chosen: dict[str, int] = {}
    for name in ("intra", "inter"):
        monkeypatch.delenv(f"TF_NUM_{name.upper()}OP_THREADS", raising=False)
        monkeypatch.setattr(
            tf.config.threading,
            f"set_{name}_op_parallelism_threads",
            lambda count, name=name: chosen.__setitem__(name, count),
        )
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    return chosen


@pytest.mark.parametrize(
    ("training", "intra", "inter"),
    [
        ({}, 4, 4),
        ({"synchronous": True, "batch_size": 8, "minibatches": 4}, 4, 2),  # two operations at a time
        ({"synchronous": True, "batch_size": 4, "minibatches": 4}, 8, 4),  # a single unroll cannot be halved
    ],
)
def test_training_has_all_cores_if_environments_wait_for_it(
    threads: dict[str, int], training: dict[str, Any], intra: int, inter: int
) -> None:
    share_cores(make_config({"training": training}))
    assert threads == {"intra": intra, "inter": inter}


def test_threads_that_the_user_chose_are_kept(threads: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "3")
    share_cores(make_config({}))
    assert threads == {"inter": 4}
