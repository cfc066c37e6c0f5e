"""Mutations of valid frames: over each transport against a learner in training, and in one process at full speed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tests.reliability.fuzz_network import WORKERS, fuzz_network

TRANSPORTS = ("inprocess", "zmq", "grpc", "shm")
_COVERED = 30_000  # mutations with coverage measurement, which is slower


def add_parser(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command to those of `python -m tests.reliability`."""
    parser = commands.add_parser("fuzz", parents=[shared], help="mutations of valid frames, while a learner trains")
    parser.add_argument("--mutations", type=int, default=1_000_000, help="over each transport")
    parser.add_argument("--transport", choices=TRANSPORTS, action="append", help="default: each of them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, default=0.002, help="minimum seconds of a step of the actor")
    parser.add_argument("--workers", type=int, default=WORKERS, help="connections at once")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Send the mutations; returns the outcomes by transport."""
    result: dict[str, Any] = {}
    failures = []
    for transport in options.transport or TRANSPORTS:
        if transport == "inprocess":
            # Imported here, because it imports TensorFlow.
            from tests.reliability.fuzz_coverage import fuzz_with_coverage
            from tests.reliability.fuzz_parsers import fuzz_parsers

            found = fuzz_parsers(options.mutations, options.seed)
            covered, missing = fuzz_with_coverage(_COVERED, options.seed)
            found["not_reached"] = missing
            found["failures"] += missing + covered["failures"]
        else:
            found = fuzz_network(
                options.mutations, options.seed, transport, folder / transport, options.pause, options.workers
            )
        failures += [f"{transport}: {failure}" for failure in found.pop("failures")]
        result |= {f"{transport}_{name}": value for name, value in found.items()}
    return result | {"failures": failures}
