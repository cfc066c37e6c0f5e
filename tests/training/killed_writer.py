"""A process that forks checkpoint writers, which are killed. TensorFlow is imported once, before the forks.

For each line `<first serial> <environment steps> <moment> <event>` on its input it forks a writer that saves
checkpoints with increasing serials: it first replaces the checkpoint of those environment steps, then alternately
creates and replaces one. The answer is the last serial confirmed to be on disk (-1: none) and whether the writer was
killed. The writer is killed after its second checkpoint and `moment` times as long as that one took, or if `event` is
not 0, just before its event-th file operation; in that case it ends by itself after two checkpoints.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

from seedcli.config.sections import ReplayConfig
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec
from seedcli.training.checkpoint import Checkpointer
from seedcli.training.replay.blocks import BlockCodec, BlockField
from seedcli.training.replay.buffer import Replay
from seedcli.training.replay.store import ReplayStore

SPEC = EnvSpec("test/env", ArraySpec((2,), "uint8"), ActionSpec((3,)))
CODEC = BlockCodec([BlockField("x", (2, 50), "uint8", True)])
SIZES = (1000, 10)  # of its variables; all their elements are the serial


def new_replay() -> Replay:
    """An empty replay like that of the writer."""
    return Replay(CODEC, ReplayConfig(capacity=12, min_size=1, window=1e9), 1, seed=0)


class _Kept:
    """A replay with its store, as a learner attaches it to checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.replay = new_replay()
        self.store = ReplayStore(folder, CODEC.signature)

    def capture(self):
        snapshot = self.replay.snapshot()
        return lambda directory: self.store.save(directory, snapshot)

    def prune(self, checkpoints: list[Path]) -> None:
        self.store.prune(checkpoints)


def _kill_at(event: int) -> None:
    seen = 0

    def count(name: str, arguments: object) -> None:
        nonlocal seen
        if threading.current_thread().name == "checkpoint" and name.startswith(("open", "os.", "shutil.")):
            seen += 1
            if seen == event:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def _write(run: Path, serial: int, env_steps: int, event: int, confirmed: int) -> None:
    variables = {str(size): tf.Variable(np.zeros(size, np.float32)) for size in SIZES}
    kept = _Kept(run / "replay")
    writer = Checkpointer(
        run / "checkpoints", "[run]\n", SPEC, {"agent": variables}, keep=2, keep_every_hours=0.0, attachment=kept
    )
    if event:
        _kill_at(event)
    for i in range(2 if event else 10_000):
        number = serial + i
        kept.replay.insert(kept.replay.pack({"x": np.full((2, 3, 50), number % 256, np.uint8)}), np.ones(3))
        for variable in variables.values():
            variable.assign(tf.fill(variable.shape, float(number)))
        writer.save({"env_steps": env_steps + (i + 1) // 2, "serial": number}, wait=True)
        os.write(confirmed, f"{number}\n".encode())


def _one(run: Path, serial: int, env_steps: int, moment: float, event: int) -> tuple[int, bool]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            _write(run, serial, env_steps, event, writing)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as confirmed:
        first = b""
        if not event:
            first = confirmed.readline()
            started = time.monotonic()
            first += confirmed.readline()
            time.sleep(moment * (time.monotonic() - started))
            os.kill(child, signal.SIGKILL)
        lines = (first + confirmed.read()).split()
    _, status = os.waitpid(child, 0)
    return int(lines[-1]) if lines else -1, os.WIFSIGNALED(status)


def main() -> None:
    for line in sys.stdin:
        serial, env_steps, moment, event = line.split()
        last, killed = _one(Path(sys.argv[1]), int(serial), int(env_steps), float(moment), int(event))
        print(last, int(killed), flush=True)


if __name__ == "__main__":
    main()
