"""Many authenticated connections at once: the cost of each to the learner, and the effect on other actors."""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seedcli.net.connect import connect
from seedcli.net.frames import Kind, pack_header
from seedcli.net.handshake import ClientHandshake
from tests.reliability.subject import LAYOUT, SPEC, Subject
from tests.system.harness import Fleet, Process, fleet_in, wait_for

MEMORY_MB = 0.25  # bound on the learner's memory per connection
_IN_ONE_PROCESS = 250
_PROBES = 200
_JOIN_LIMIT = 120.0
_OVERHEAD_MB = 64.0  # inference buffers for more environments, over either transport


def add_parser(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command to those of `python -m tests.reliability`."""
    parser = commands.add_parser("connections", parents=[shared], help="many authenticated connections at once")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument(
        "--transport", choices=("zmq", "grpc", "both"), action="append", help="default: both, then each"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="to hold them once all are admitted")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Hold the connections; returns the measurements by transport."""
    result: dict[str, Any] = {}
    failures: list[str] = []
    for kind in options.transport or ("both", "zmq", "grpc"):
        with fleet_in(folder / kind) as fleet:
            transports = ("zmq", "grpc") if kind == "both" else (kind,)
            found = _hold(fleet, transports, options.count, options.seconds)
        failures += [f"{kind}: {failure}" for failure in found.pop("failures")]
        result |= {f"{kind}_{name}": value for name, value in found.items()}
    return result | {"failures": failures}


def _hold(fleet: Fleet, transports: Sequence[str], count: int, seconds: float) -> dict[str, Any]:
    subject = Subject(fleet)
    # Before the probes of step times, whose sockets close with a delay.
    before = subject.read()
    alone = _step_milliseconds(subject)
    begun = time.monotonic()
    crowds = [
        _start(fleet, subject.addresses[transport], size, f"{transport}-{number}")
        for transport in transports
        for number, size in enumerate(_parts(count // len(transports)))
    ]
    wait_for(lambda: sum(_last_line(crowd)["in"] for crowd in crowds) == count, f"{count} are in", _JOIN_LIMIT)
    all_in = time.monotonic() - begun
    reading = subject.read()
    time.sleep(seconds)
    held = subject.read()
    meanwhile = _step_milliseconds(subject)
    said = [_last_line(crowd) for crowd in crowds]
    failures = subject.failures(joined=count) + [failure for crowd in said for failure in crowd["failures"]]
    if sum(crowd["in"] for crowd in said) != count:
        failures.append(f"{sum(crowd['in'] for crowd in said)} of {count} are still in")
    each = (held.memory - before.memory) / count
    bound = MEMORY_MB + _OVERHEAD_MB / count
    if each > bound:
        failures.append(f"a connection takes {each:.2f} MB, more than the bound of {bound:.2f} MB")
    if held.threads > before.threads + 8:
        failures.append(f"{count} connections take {held.threads - before.threads} more threads")
    return {
        "connections": count,
        "seconds_until_all_are_in": all_in,
        "memory_mb": {"before": before.memory, "all_in": reading.memory, "held": held.memory},
        "memory_mb_each": each,
        "descriptors": {"before": before.descriptors, "held": held.descriptors},
        "threads": {"before": before.threads, "held": held.threads},
        "steps_of_the_crowd": sum(crowd["steps"] for crowd in said),
        "training_steps_per_second": {"held": held.steps_per_second(reading)},
        "step_milliseconds_alone": alone,
        "step_milliseconds_meanwhile": meanwhile,
        "learner_cores_held": (held.cpu - reading.cpu) / (held.time - reading.time),
        "failures": failures,
    }


def _parts(count: int) -> list[int]:
    return [min(_IN_ONE_PROCESS, count - start) for start in range(0, count, _IN_ONE_PROCESS)]


def _start(fleet: Fleet, address: str, count: int, name: str) -> Process:
    return fleet.start(
        *("--connect", address, "--count", str(count), "--name", name), module="tests.reliability.light_actors"
    )


def _last_line(crowd: Process) -> dict[str, Any]:
    assert crowd.running, crowd.stderr
    lines = [line for line in crowd.stdout.splitlines(keepends=True) if line.endswith("\n")]
    said: dict[str, Any] = json.loads(lines[-1]) if lines else {"in": 0, "steps": 0, "failures": []}
    assert not said["failures"], said["failures"]
    return said


def _step_milliseconds(subject: Subject) -> dict[str, float]:
    """Milliseconds that an actor waits for the answer to a step, median and 99th percentile by transport."""
    found = {}
    for name, address in subject.addresses.items():
        with contextlib.closing(connect(address, subject.security)) as transport:
            transport.connect(30.0)
            handshake = ClientHandshake(transport, actor_id="probe", envs=1, streams=1, timeout=30.0)
            handshake.configure()
            session = handshake.announce(SPEC).session
            seconds = []
            for sequence in range(_PROBES):
                begun = time.perf_counter()
                transport.send(
                    pack_header(Kind.STEP, LAYOUT.nbytes, session=session, sequence=sequence), bytes(LAYOUT.nbytes)
                )
                while (frame := transport.receive(30.0)) is not None and frame.header.kind != Kind.ACTION:
                    pass
                assert frame is not None, "no answer"
                seconds.append(time.perf_counter() - begun)
            transport.send(pack_header(Kind.GOODBYE, session=session))
            found[name] = 1000 * statistics.median(seconds)
            found[f"{name}_99"] = 1000 * statistics.quantiles(seconds, n=100)[-1]
    return found
