"""A learner whose updates are all dropped stops instead of running to its last step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from seedcli.config.schema import make_config
from seedcli.errors import EXIT_FAILED, SeedError
from seedcli.roles.learner.core import LearnerCore
from seedcli.training.batches import TrainingBatch, zero_unrolls
from tests.agents.helpers import VECTOR


def test_many_batches_in_a_row_with_a_non_finite_loss_end_training(tmp_path: Path) -> None:
    config = make_config({"agent": {"network": {"hidden": (8,)}}, "training": {"batch_size": 2, "unroll_length": 3}})
    core = LearnerCore(
        config, "", tmp_path / "checkpoints", VECTOR, on_release=lambda: None, on_fault=lambda stream, sentence: None
    )

    def batch(reward: float) -> TrainingBatch:
        unrolls = zero_unrolls(core.agent, VECTOR, 2)
        unrolls.reward[:] = reward
        return TrainingBatch.of(unrolls, np.zeros(unrolls.reward.shape, np.int64))

    for _ in range(99):
        assert core.train(batch(np.nan)).fault == "the loss"
    assert core.train(batch(1.0)).applied
    for _ in range(99):
        core.train(batch(np.nan))
    with pytest.raises(SeedError, match=r"the loss was non-finite on 100 batches in a row.*learning_rate") as raised:
        core.train(batch(np.nan))
    assert raised.value.exit_status == EXIT_FAILED
    assert core.trainer.dropped == 199 and core.trainer.updates == 1
