"""How long checkpoints stall training: real runs with far more checkpoints than usual."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from tests.system.harness import Fleet, checkpoints, fleet_in, last, sets

_PROMISE = 1.0  # % of the time
# Line of the training thread in the table at the end of a run: part, seconds, share.
_ROW = re.compile(r"^ *(?:training thread)? +checkpoint +([\d.]+) +([\d.]+)%", re.MULTILINE)
_WALL = re.compile(r"where the time went, of (?:(\d+):)?(\d+):(\d+)")

# Name → preset, steps and further settings: a queue, a larger network, and a replay saved with every checkpoint.
RUNS = {
    "pong_vtrace": ("pong_vtrace", 60_000, ()),
    "football_vtrace": ("football_vtrace", 6_000, ("actors.count=1", "actors.envs=8", "training.batch_size=4")),
    "pong_r2d2 with replay.save": ("pong_r2d2", 20_000, ("replay.save=true", "replay.min_size=200")),
}


def add_parser(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command to those of `python -m tests.reliability`."""
    parser = commands.add_parser("stall", parents=[shared], help="how long checkpoints stall training")
    parser.add_argument("--every", type=float, default=5.0, metavar="SECONDS", help="between checkpoints")
    parser.add_argument("--only", choices=tuple(RUNS), action="append", help="default: each of them")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train with many checkpoints; returns their cost by run, and `failures`."""
    result: dict[str, Any] = {}
    failures = []
    with fleet_in(folder) as fleet:
        for name in options.only or RUNS:
            found = result[name] = _train(fleet, name, options.every)
            if found["share_of_the_time_percent"] > _PROMISE:
                failures.append(f"{name}: checkpoints took {found['share_of_the_time_percent']} % of the time")
            if found["checkpoints"] < 3:
                failures.append(f"{name}: only {found['checkpoints']} checkpoints were written: lower --every")
    return result | {"failures": failures}


def _train(fleet: Fleet, name: str, every: float) -> dict[str, Any]:
    preset, steps, values = RUNS[name]
    logdir = re.sub(r"\W+", "-", name)
    written = sets(*values, f"training.checkpoint_seconds={every}", "training.keep_checkpoints=100000")
    options = ["--preset", preset, "--steps", str(steps), "--logdir", logdir, "--no-live", "--profile"]
    process = fleet.start("train", *options, *written)
    process.ends_with(0, limit=1800)
    row, wall = _ROW.search(process.stderr), _WALL.search(process.stderr)
    assert row is not None and wall is not None, process.stderr
    written_at = checkpoints(fleet.folder / logdir)
    newest = fleet.folder / logdir / "checkpoints" / str(written_at[-1])
    hours, minutes, seconds = (int(part or 0) for part in wall.groups())
    # The last one is written after training.
    stalled = float(row[1]) / max(1, len(written_at) - 1)
    return {
        "checkpoints": len(written_at),
        "of_mb": round(sum(path.stat().st_size for path in newest.iterdir()) / 1e6, 1),
        "updates": last(fleet.folder / logdir, "learner_updates"),
        "seconds": 3600 * hours + 60 * minutes + seconds,
        "share_of_the_time_percent": float(row[2]),
        "milliseconds_each": round(1000 * stalled, 1),
    }
