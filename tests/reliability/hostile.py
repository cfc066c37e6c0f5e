"""Hostile connections at both ports of a learner in training: how much they slow it down, and that none is admitted."""

from __future__ import annotations

import argparse
import contextlib
import json
import threading
import time
from pathlib import Path
from typing import Any

from seedcli.errors import ConnectionLost, SeedError, UnreachableError
from seedcli.net.connect import connect
from seedcli.net.frames import Kind, pack_header
from seedcli.net.handshake import ClientHandshake
from seedcli.net.security.keys import Security
from tests.reliability.subject import SPEC, Reading, Subject
from tests.system.harness import Fleet, Process, fleet_in, wait_for

_MEMORY_MB = 64.0
_JOIN_SECONDS = 10.0
_ROUNDS = 2  # each without and with attacks


def add_parser(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command to those of `python -m tests.reliability`."""
    parser = commands.add_parser("hostile", parents=[shared], help="hostile connections, while a learner trains")
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0, help="in all, half of them with attacks")
    parser.add_argument(
        "--rate", type=float, default=4.0, help="attacks per second of each connection; 0: as many as possible"
    )
    parser.add_argument("--pause", type=float, default=0.002, help="minimum seconds of a step of the actor")
    parser.add_argument("--slowdown", type=float, default=0.1, help="bound on the slowdown of training")
    parser.add_argument("--descriptors", type=int, default=0, help="the learner's limit (ulimit -n); 0: unchanged")
    parser.set_defaults(run=run)


class _Visitor:
    """Actors that join and leave during the measurement."""

    def __init__(self, addresses: dict[str, str], security: Security) -> None:
        self._addresses = addresses
        self._security = security
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(name,), daemon=True) for name in ("zmq", "grpc")]
        self.seconds: list[float] = []
        self.failures: list[str] = []

    def __enter__(self) -> _Visitor:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * _JOIN_SECONDS)

    def _run(self, name: str) -> None:
        while not self._stop.wait(1.0):
            begun = time.monotonic()
            while not self._stop.is_set() and not self._join(name, begun):
                time.sleep(0.1)

    def _join(self, name: str, begun: float) -> bool:
        """Try to join, as an actor does; returns False if it should retry."""
        try:
            with contextlib.closing(connect(self._addresses[name], self._security)) as transport:
                transport.connect(_JOIN_SECONDS)
                handshake = ClientHandshake(
                    transport, actor_id=f"visitor-{name}", envs=1, streams=1, timeout=_JOIN_SECONDS
                )
                handshake.configure()
                session = handshake.announce(SPEC).session
                self.seconds.append(time.monotonic() - begun)
                transport.send(pack_header(Kind.GOODBYE, session=session))
        except (ConnectionLost, UnreachableError) as error:
            if time.monotonic() - begun < _JOIN_SECONDS:
                return False
            self.failures.append(f"an actor could not join over {name} within {_JOIN_SECONDS:.0f} s: {error}")
        except SeedError as error:
            self.failures.append(f"an actor could not join over {name}: {error}")
        return True


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train without and with hostile connections in turn; returns the measurements."""
    with fleet_in(folder) as fleet:
        return _measure(options, fleet)


def _measure(options: argparse.Namespace, fleet: Fleet) -> dict[str, Any]:
    prefix = ["prlimit", f"--nofile={options.descriptors}"] if options.descriptors else []
    values = ["training.checkpoint_seconds=2"] if options.descriptors else []
    subject = Subject(fleet, pause=options.pause, values=values, prefix=prefix)
    phase = options.seconds / (2 * _ROUNDS)
    quiet, hostile, joins, failures = [], [], [], []
    attackers: list[dict[str, Any]] = []
    most = [0, 0.0]
    begun = subject.read()
    warm: Reading | None = None
    for _ in range(_ROUNDS):
        with _Visitor(subject.addresses, subject.security) as visitor:  # in both phases, because they take time too
            quiet.append(_watch(subject, phase, most))
        failures += visitor.failures
        attacker = _attack(fleet, subject, options)
        with _Visitor(subject.addresses, subject.security) as visitor:
            hostile.append(_watch(subject, phase, most))
        attackers.append(json.loads(attacker.stdout.splitlines()[-1]))
        attacker.kill()
        failures += visitor.failures
        joins += visitor.seconds
        # Memory is compared after the first round, which fills caches of allocators and libraries.
        warm = warm or subject.read()
    time.sleep(1.0)
    after = subject.read()
    slowdown = 1 - sum(rate for rate, _ in hostile) / sum(rate for rate, _ in quiet)
    failures += subject.failures()
    assert warm is not None
    if slowdown > options.slowdown:
        failures.append(f"training was slowed by {slowdown:.1%}, more than the bound of {options.slowdown:.0%}")
    if after.memory - warm.memory > _MEMORY_MB:
        failures.append(
            f"memory grew by {after.memory - warm.memory:.0f} MB, more than the bound of {_MEMORY_MB:.0f} MB"
        )
    if not joins:
        failures.append("no actor joined meanwhile")
    let_in = {name: count for attacker in attackers for name, count in attacker["let_in"].items()}
    if let_in:
        failures.append(f"attackers were admitted: {let_in}")
    return {
        "connections": options.connections,
        "steps_per_second_without": [rate for rate, _ in quiet],
        "steps_per_second_with": [rate for rate, _ in hostile],
        "slowdown": slowdown,
        "learner_cores_without": [cores for _, cores in quiet],
        "learner_cores_with": [cores for _, cores in hostile],
        "attackers_cores": [attacker["cpu"] / phase for attacker in attackers],
        "attacks": [attacker["done"] for attacker in attackers],
        "let_in": let_in,
        "joined_meanwhile": len(joins),
        "slowest_join_seconds": max(joins, default=0.0),
        "memory_mb": {"begun": begun.memory, "most": most[1], "ended": after.memory},
        "descriptors": {"begun": begun.descriptors, "most": most[0], "ended": after.descriptors},
        "failures": failures,
    }


def _attack(fleet: Fleet, subject: Subject, options: argparse.Namespace) -> Process:
    ports = [part for name in ("grpc", "zmq") for part in (f"--{name}", subject.addresses[name])]
    attacker = fleet.start(
        *ports,
        "--connections",
        str(options.connections),
        "--rate",
        str(options.rate),
        module="tests.reliability.attacks",
    )

    def attacks() -> bool:
        assert attacker.running, attacker.stderr
        return bool(attacker.stdout)

    wait_for(attacks, "the attack begins")  # its priority is the lowest, so a busy machine lets it wait
    return attacker


def _watch(subject: Subject, seconds: float, most: list[Any]) -> tuple[float, float]:
    """Watch it train for `seconds`; returns steps per second and the cores that the learner used."""
    first = now = subject.read()
    while now.time - first.time < seconds:
        time.sleep(0.2)
        now = subject.read()
        most[0], most[1] = max(most[0], now.descriptors), max(most[1], now.memory)
    return now.steps_per_second(first), (now.cpu - first.cpu) / (now.time - first.time)
