"""A checkpoint writer is killed at random times and before each file operation: no confirmed checkpoint is lost."""

from __future__ import annotations

import os
import random
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import seedcli
from seedcli.training.checkpoint import Checkpointer, list_checkpoints, open_checkpoint, restore, take_checkpoint
from seedcli.training.replay.store import ReplayStore
from tests.training.killed_writer import CODEC, SIZES, SPEC, new_replay

KILLS = 60
LIMIT = 90.0  # seconds for one answer, the first of which waits for TensorFlow


class Killing:
    """A run's folder and the process that forks writers for it."""

    def __init__(self, run: Path, process: subprocess.Popen[str]) -> None:
        self.run = run
        self._process = process
        self.newest = -1  # its newest serial
        self._env_steps = 0

    def kill(self, moment: float = 0.0, event: int = 0) -> bool:
        """Kill a writer and check its files; returns False if it ended by itself first."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(self.newest + 1, self._env_steps, moment, event, file=self._process.stdin, flush=True)
        assert select.select([self._process.stdout], [], [], LIMIT)[0], "no answer"
        confirmed, killed = map(int, self._process.stdout.readline().split())
        self._check(max(confirmed, self.newest))
        return bool(killed)

    def _check(self, confirmed: int) -> None:
        for path in list_checkpoints(self.run / "checkpoints"):
            open_checkpoint(path)
        checkpoint = take_checkpoint(self.run)
        if checkpoint is None:
            assert confirmed == -1
            return
        serial = checkpoint.counters["serial"]
        assert serial >= confirmed and checkpoint.env_steps == int(checkpoint.path.name)
        variables = {str(size): tf.Variable(tf.zeros(size)) for size in SIZES}
        restore(checkpoint, {"agent": variables})
        for variable in variables.values():
            np.testing.assert_array_equal(variable, np.float32(serial))
        replay = new_replay()
        assert ReplayStore(self.run / "replay", CODEC.signature).restore(checkpoint.path, replay)
        snapshot, row = replay.snapshot(), {"x": np.zeros((2, 1, 50), np.uint8)}
        CODEC.unpack(list(snapshot.rows.blocks(snapshot.next - 1)), row)
        assert (row["x"] == serial % 256).all(), "the newest rows are those of this checkpoint"
        self.newest, self._env_steps = serial, checkpoint.env_steps


@pytest.fixture
def killing(tmp_path: Path) -> Iterator[Killing]:
    script = Path(__file__).with_name("killed_writer.py")
    environ = os.environ | {"PYTHONPATH": str(Path(seedcli.__file__).parent.parent), "TF_CPP_MIN_LOG_LEVEL": "3"}
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environ,
    )
    try:
        yield Killing(tmp_path, process)
    finally:
        process.kill()
        process.communicate(timeout=30)


def _assert_tidy(killing: Killing, caplog: pytest.LogCaptureFixture) -> None:
    """Assert that nothing was damaged, and that a new writer removes partial files."""
    assert not caplog.records, caplog.text
    Checkpointer(killing.run / "checkpoints", "", SPEC, {}, keep=2, keep_every_hours=0.0)
    names = [path.name for path in (killing.run / "checkpoints").iterdir()]
    assert names and all(name.isdecimal() for name in names), names


def test_killed_at_random(killing: Killing, caplog: pytest.LogCaptureFixture) -> None:
    moments = random.Random(5)
    during_writes = 0
    for _ in range(KILLS):
        assert killing.kill(moment=moments.uniform(0, 2))
        during_writes += not all(path.name.isdecimal() for path in (killing.run / "checkpoints").iterdir())
    assert during_writes > KILLS // 10, "writers must be killed during writes, not between them"
    _assert_tidy(killing, caplog)


def test_killed_before_each_operation_on_files(killing: Killing, caplog: pytest.LogCaptureFixture) -> None:
    assert not killing.kill(event=1_000_000), "the first writer ends by itself"
    event = 1
    while killing.kill(event=event):
        event += 1
    assert event > 60, "two checkpoints with a replay take more operations"
    _assert_tidy(killing, caplog)
