"""Mutations over real connections, against a learner that trains with a real actor."""

from __future__ import annotations

import contextlib
import os
import queue
import random
import threading
import time
from collections import Counter
from typing import Any

import numpy as np

from seedcli.errors import ConnectionLost, ProtocolError, SeedError
from seedcli.net.base import ClientTransport, Frame
from seedcli.net.codecs import RowEncoder
from seedcli.net.connect import connect
from seedcli.net.frames import Kind, encode_control, pack_header
from seedcli.net.grpc_client import GrpcClient
from seedcli.net.handshake import ClientHandshake, transcript
from seedcli.net.security.keys import Security, new_nonce, prove
from seedcli.net.security.token import Token
from tests.reliability.mutations import Mutator, Sent
from tests.reliability.subject import LAYOUT, SPEC, Reading, Subject
from tests.system.harness import fleet_in

_ANSWER_SECONDS = 20.0  # without an answer count as a hang
_IN_A_SESSION = 50  # mutations in a session, unless one ends it
_RATE_SECONDS = 4.0  # to measure the training rate without mutations, before and after
WORKERS = 16  # each spends most of its time waiting in handshakes
_MEMORY_MB = 96.0


class Hang(Exception):
    """The learner did not answer."""


class _ReusedChannel(GrpcClient):
    """An actor's gRPC connection that opens streams one after the other: a new connection would take 0.2 s."""

    def connect(self, timeout: float) -> None:
        if self._reader is not None:
            self._outbox.put(None)
            self._call.cancel()
            self._reader.join(timeout)
        self._outbox, self._inbox, self._lost = queue.SimpleQueue(), queue.SimpleQueue(), None
        super().connect(timeout)

    def _wait_until_ready(self, timeout: float) -> None:
        if self._reader is None:
            super()._wait_until_ready(timeout)


class _Worker:
    """Sends mutations over one connection after the other; runs in a thread."""

    def __init__(self, number: int, seed: int, address: str, security: Security | None, budget: _Budget) -> None:
        self.mutator = Mutator(seed * 1000 + number)
        self.random: random.Random = self.mutator.random
        self._number = number
        self._address = address
        self._security = None if address.startswith("shm:") else security
        self._budget = budget
        self.outcomes: Counter[str] = Counter()
        self.connections = 0
        self.failure = ""
        self._joined = 0

    def run(self) -> None:
        """Send mutations until the budget is spent."""
        # The priority of this thread: on one machine it must not take the CPU from the learner.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        stages = (self._unauthenticated, self._proof, self._specification, self._session, self._session)
        reused = _ReusedChannel(self._address, security=self._security) if "://" not in self._address else None
        try:
            while self._budget.left > 0:
                transport = reused or connect(self._address, self._security)
                with contextlib.nullcontext() if reused else contextlib.closing(transport):
                    with contextlib.suppress(ConnectionLost, ProtocolError):  # the last mutation ended the connection
                        transport.connect(_ANSWER_SECONDS)
                        self.connections += 1
                        self.random.choice(stages)(transport)
        except (Hang, SeedError) as error:
            self.failure = f"worker {self._number}: {type(error).__name__}: {error}"
        if reused is not None:
            reused.close()

    def _count(self, stage: str, kind: int | None) -> None:
        self._budget.spend()
        self.outcomes[f"{stage}: {Kind(kind).name.lower() if kind else 'connection ended'}"] += 1

    def _try(self, transport: ClientTransport, stage: str, sent: Sent, session: int = 0) -> int | None:
        """Send a mutation; returns the kind of the answer, None if the connection has ended.

        A heartbeat follows it, which is always answered, even if the mutation is not.
        """
        kind: int | None = None
        try:
            transport.send(sent.header, sent.payload)
            transport.send(pack_header(Kind.HEARTBEAT, session=session))
            while True:
                frame = self._receive(transport)
                if frame.header.kind in (Kind.UNKNOWN, Kind.HEARTBEAT_ACK):
                    kind = kind or frame.header.kind
                    # The answer to the mutation; that to the heartbeat is still to come.
                    if frame.header.kind == Kind.HEARTBEAT_ACK or stage != "session":
                        break
                    self._count(stage, kind)
                    return None
                kind = frame.header.kind
        except (ConnectionLost, ProtocolError):  # ProtocolError: of another version
            kind = None
        self._count(stage, kind)
        return kind

    @staticmethod
    def _receive(transport: ClientTransport) -> Frame:
        frame = transport.receive(_ANSWER_SECONDS)
        if frame is None:
            raise Hang(f"no answer within {_ANSWER_SECONDS:.0f} s")
        return frame

    def _hello(self) -> bytes:
        name = f"fuzz-{self._number}"
        return encode_control({"actor_id": name, "envs": 1, "streams": 1, "version": "0"})

    def _ask(self, transport: ClientTransport, kind: Kind, payload: bytes) -> Frame:
        transport.send(pack_header(kind, len(payload)), payload)
        return self._receive(transport)

    def _proof_for(self, hello: bytes, challenge: Any, token: Token | None) -> bytes:
        if token is None:
            return b"{}"
        nonce = new_nonce()
        return encode_control(
            {"nonce": nonce, "proof": prove(token, "actor", transcript(hello, bytes(challenge)), nonce)}
        )

    def _unauthenticated(self, transport: ClientTransport) -> None:
        kinds = [Kind.HELLO] * 4 + [Kind.PROOF, Kind.SPEC, Kind.STEP, Kind.HEARTBEAT, Kind.GOODBYE]
        while self._budget.left > 0:
            kind = self.random.choice(kinds)
            sent = self.mutator.frame(kind, self._hello() if kind == Kind.HELLO else b"{}")
            if self._try(transport, "unauthenticated", sent) != Kind.UNKNOWN or kind == Kind.HELLO:
                return

    def _proof(self, transport: ClientTransport) -> None:
        hello = self._hello()
        challenge = self._ask(transport, Kind.HELLO, hello).payload
        self._try(
            transport, "proof", self.mutator.frame(Kind.PROOF, self._proof_for(hello, challenge, transport.token))
        )

    def _specification(self, transport: ClientTransport) -> None:
        hello = self._hello()
        challenge = self._ask(transport, Kind.HELLO, hello).payload
        self._ask(transport, Kind.PROOF, self._proof_for(hello, challenge, transport.token))
        body = encode_control({**SPEC.to_dict(), "codecs": {"observation": "raw"}})
        self._try(transport, "specification", self.mutator.frame(Kind.SPEC, body))

    def _session(self, transport: ClientTransport) -> None:
        codec = "raw" if transport.shares_memory else self.random.choice(["raw", "zstd"])
        handshake = ClientHandshake(
            transport, actor_id=f"fuzz-{self._number}", envs=1, streams=1, timeout=_ANSWER_SECONDS
        )
        handshake.configure()
        ready = handshake.announce(SPEC, {"observation": codec})
        (buffer,) = transport.open_session(ready.extra, ready.payload_bytes)
        encoder = RowEncoder(LAYOUT, {"observation": "zstd"})
        sequence = 0
        for _ in range(_IN_A_SESSION):
            if self._budget.left <= 0:
                return
            row = np.zeros(LAYOUT.nbytes, np.uint8)
            LAYOUT.views(row).observation[:] = self.random.choice([0.0, 1.0, 5.0, float("nan")])
            body, elsewhere, blocks = row.tobytes(), 0, 0
            if transport.shares_memory:
                buffer[:] = row.data
                body, elsewhere = b"", LAYOUT.nbytes
            elif codec == "zstd":
                out = bytearray(encoder.max_payload)
                body, blocks = bytes(out[: encoder.encode(row, memoryview(out))]), 1
            fields = {"session": ready.session, "sequence": sequence}
            if self.random.random() < 0.15:
                header = pack_header(Kind.STEP, elsewhere or len(body), **fields)
                sent = Sent(header, body, "valid or repeated")
                if self.random.random() < 0.3:
                    transport.send(sent.header, sent.payload)
            elif self.random.random() < 0.1:
                sent = self.mutator.frame(Kind.HEARTBEAT, b"", **fields)
            else:
                sent = self.mutator.frame(Kind.STEP, body, blocks=blocks, elsewhere=elsewhere, **fields)
            kind = self._try(transport, "session", sent, ready.session)
            if kind in (None, Kind.REFUSED, Kind.UNKNOWN):
                return
            if kind == Kind.ACTION:
                sequence += 1


class _Budget:
    """Number of mutations left to send, shared by all workers."""

    def __init__(self, mutations: int) -> None:
        self.left = mutations
        self._lock = threading.Lock()

    def spend(self) -> None:
        with self._lock:
            self.left -= 1


def _training_rate(subject: Subject, seconds: float) -> float:
    before = subject.read()
    time.sleep(seconds)
    return subject.read().steps_per_second(before)


def fuzz_network(
    mutations: int, seed: int, transport: str, folder: Any, pause: float = 0.002, count: int = WORKERS
) -> dict[str, Any]:
    """Send mutations to a learner in training; returns the outcomes."""
    with fleet_in(folder) as fleet:
        subject = Subject(fleet, pause=pause, transport=transport)
        quiet = [_training_rate(subject, _RATE_SECONDS)]
        budget = _Budget(mutations)
        workers = [
            _Worker(number, seed, subject.addresses[transport], subject.security, budget) for number in range(count)
        ]
        threads = [threading.Thread(target=worker.run, daemon=True) for worker in workers]
        begun = subject.read()
        for thread in threads:
            thread.start()
        tenths, stalled = _watch(subject, threads, budget, mutations)
        ended = subject.read()
        quiet.append(_training_rate(subject, _RATE_SECONDS))
        after = subject.read()
        failures = subject.failures() + [worker.failure for worker in workers if worker.failure]
        fuzzed = ended.steps_per_second(begun)
        warm = tenths[0] if tenths else begun
        failures += _verdict(begun, warm, after, stalled, budget)
        return {
            "transport": transport,
            "mutations": mutations - budget.left,
            "mutations_per_second": (mutations - budget.left) / (ended.time - begun.time),
            "connections_or_streams": sum(worker.connections for worker in workers),
            "training_steps_per_second": {"without": sum(quiet) / 2, "with": fuzzed},
            "memory_mb": {
                "begun": begun.memory,
                "after each tenth": [round(reading.memory, 1) for reading in tenths],
                "ended": after.memory,
            },
            "descriptors": {"begun": begun.descriptors, "ended": after.descriptors},
            "protocol_errors": subject.metric("protocol_errors"),
            "outcomes": dict(sorted(sum((worker.outcomes for worker in workers), Counter[str]()).items())),
            "failures": failures,
        }


def _watch(
    subject: Subject, threads: list[threading.Thread], budget: _Budget, mutations: int
) -> tuple[list[Reading], float]:
    """Wait for the threads; returns a reading after each tenth of the mutations, and the longest stall in seconds."""
    tenths: list[Reading] = []
    stalled = 0.0
    steps, since = subject.read().steps, time.monotonic()
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.25)
        now = subject.read()
        if now.steps != steps:
            steps, since = now.steps, time.monotonic()
        stalled = max(stalled, time.monotonic() - since)
        if budget.left < mutations * (9 - len(tenths)) // 10:
            tenths.append(now)
        if stalled > _ANSWER_SECONDS:
            break
    return tenths, stalled


def _verdict(begun: Reading, warm: Reading, after: Reading, stalled: float, budget: _Budget) -> list[str]:
    failures = []
    if budget.left > 0:
        failures.append(f"{budget.left} mutations were not sent")
    if stalled > 5.0:
        failures.append(f"training stalled for {stalled:.1f} s")
    if after.memory - warm.memory > _MEMORY_MB:
        failures.append(
            f"memory grew by {after.memory - warm.memory:.0f} MB, more than the bound of {_MEMORY_MB:.0f} MB"
        )
    if after.descriptors > begun.descriptors + 16:
        failures.append(f"{after.descriptors} descriptors are open; before there were {begun.descriptors}")
    return failures
