"""Many cheap actors in one process: one environment each, heartbeats, and a step from time to time.

    SEED_TOKEN=… python -m tests.reliability.light_actors --connect ADDRESS --count 500

Prints a line of JSON twice a second: {"in": admitted actors, "steps": answered steps, "failures": […]}.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import resource
from collections.abc import AsyncIterator
from typing import Any, Protocol

import grpc
import zmq
import zmq.asyncio

from seedcli.net.frames import HEADER_BYTES, Header, Kind, decode_control, encode_control, pack_header, unpack_header
from seedcli.net.grpc_client import METHOD, SERVICE
from seedcli.net.handshake import transcript
from seedcli.net.security.curve import protect_client
from seedcli.net.security.keys import Security, new_nonce, prove, tls_identity
from seedcli.net.security.token import find_token
from tests.reliability.subject import LAYOUT, SPEC

_AT_ONCE = 50  # handshakes: a cluster does not start all actors at once either
_ANSWER_SECONDS = 60.0


class _Line(Protocol):
    """A connection."""

    async def send(self, header: bytes, payload: bytes = b"") -> None: ...

    async def heartbeat(self, header: bytes) -> None: ...

    async def receive(self) -> tuple[Header, bytes]: ...


class _ZmqLine:
    def __init__(self, context: zmq.asyncio.Context, address: str, security: Security) -> None:
        self._sockets = []
        name = os.urandom(15)
        for first in (b"C", b"H"):
            sock = context.socket(zmq.DEALER)
            sock.setsockopt(zmq.IDENTITY, first + name)
            sock.setsockopt(zmq.LINGER, 0)
            protect_client(sock, security)
            self._sockets.append(sock)
        self._address = address.replace("zmq://", "tcp://")
        self._sockets[0].connect(self._address)
        self._beats = False

    async def send(self, header: bytes, payload: bytes = b"") -> None:
        await self._sockets[0].send_multipart([header, payload])

    async def heartbeat(self, header: bytes) -> None:
        if not self._beats:  # like an actor: opens a second connection once it is admitted
            self._sockets[1].connect(self._address)
            self._beats = True
        await self._sockets[1].send_multipart([header, b""])

    async def receive(self) -> tuple[Header, bytes]:
        header, payload = await self._sockets[0].recv_multipart()
        return unpack_header(header), payload


class _GrpcLine:
    def __init__(self, address: str, security: Security) -> None:
        identity = tls_identity(security, "actor")
        credentials = grpc.ssl_channel_credentials(identity.roots, identity.key, identity.chain)
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.ssl_target_name_override", identity.name)]
        self._channel = grpc.aio.secure_channel(address, credentials, options=options)
        self._call = self._channel.stream_stream(f"/{SERVICE}/{METHOD}")()

    async def send(self, header: bytes, payload: bytes = b"") -> None:
        await self._call.write(header + payload)

    async def heartbeat(self, header: bytes) -> None:
        await self.send(header)

    async def receive(self) -> tuple[Header, bytes]:
        message = await self._call.read()
        if message is grpc.aio.EOF:
            raise ConnectionError("the stream has ended")
        return unpack_header(message[:HEADER_BYTES]), message[HEADER_BYTES:]


class _Crowd:
    """All actors of this process."""

    def __init__(self, address: str, count: int, step_seconds: float, name: str) -> None:
        self._address = address
        self._count = count
        self._step_seconds = step_seconds
        self._name = name
        self._security = Security(find_token())
        self._context = zmq.asyncio.Context()
        self._context.set(zmq.MAX_SOCKETS, 4 * count + 64)
        self._handshakes = asyncio.Semaphore(_AT_ONCE)
        self.inside = 0
        self.steps = 0
        self.failures: list[str] = []

    async def run(self) -> None:
        """Run until the process is killed."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._report())
            for number in range(self._count):
                group.create_task(self._actor(number))

    async def _report(self) -> None:
        while True:
            print(json.dumps({"in": self.inside, "steps": self.steps, "failures": self.failures[:5]}), flush=True)
            await asyncio.sleep(0.5)

    async def _actor(self, number: int) -> None:
        try:
            async with self._handshakes:
                line: _Line = (
                    _ZmqLine(self._context, self._address, self._security)
                    if self._address.startswith("zmq://")
                    else _GrpcLine(self._address, self._security)
                )
                ready = await asyncio.wait_for(self._shake_hands(line, number), _ANSWER_SECONDS)
            self.inside += 1
            await self._live(line, ready, number)
        except Exception as error:
            self.inside -= 1
            self.failures.append(f"actor {number}: {type(error).__name__}: {error}")

    async def _shake_hands(self, line: _Line, number: int) -> dict[str, Any]:
        name = f"{self._name}-{number}"
        hello = encode_control({"actor_id": name, "envs": 1, "streams": 1, "version": "0"})
        challenge = await self._ask(line, Kind.HELLO, hello, Kind.CHALLENGE)
        nonce = new_nonce()
        proof = prove(self._security.token, "actor", transcript(hello, challenge), nonce)
        await self._ask(line, Kind.PROOF, encode_control({"nonce": nonce, "proof": proof}), Kind.CONFIGURE)
        spec = encode_control({**SPEC.to_dict(), "codecs": {"observation": "raw"}})
        return decode_control(await self._ask(line, Kind.SPEC, spec, Kind.READY))

    @staticmethod
    async def _ask(line: _Line, kind: Kind, payload: bytes, expected: Kind) -> bytes:
        await line.send(pack_header(kind, len(payload)), payload)
        while True:
            header, answer = await line.receive()
            if header.kind == expected:
                return answer
            if header.kind != Kind.HEARTBEAT_ACK:
                raise ConnectionError(f"{Kind(header.kind).name} instead of {expected.name}: {answer[:200]!r}")

    async def _live(self, line: _Line, ready: dict[str, Any], number: int) -> None:
        beat, session, sequence = ready["heartbeat_seconds"], ready["session"], 0
        await asyncio.sleep(beat * (number % 10) / 10)
        beats_a_step = max(1, round(self._step_seconds / beat))
        async for turn in _every(beat):
            await line.heartbeat(pack_header(Kind.HEARTBEAT, session=session))
            if (turn + number) % beats_a_step == 0:
                header = pack_header(Kind.STEP, LAYOUT.nbytes, session=session, sequence=sequence)
                await asyncio.wait_for(self._step(line, header, sequence), _ANSWER_SECONDS)
                sequence += 1
                self.steps += 1

    async def _step(self, line: _Line, header: bytes, sequence: int) -> None:
        await line.send(header, bytes(LAYOUT.nbytes))
        while True:
            answer, _ = await line.receive()
            if answer.kind == Kind.ACTION and answer.sequence == sequence:
                return
            if answer.kind != Kind.HEARTBEAT_ACK:
                raise ConnectionError(f"{Kind(answer.kind).name} instead of ACTION")


async def _every(seconds: float) -> AsyncIterator[int]:
    for turn in itertools.count():
        yield turn
        await asyncio.sleep(seconds)


def main() -> None:
    """Run until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--connect", required=True)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--step-seconds", type=float, default=10.0)
    parser.add_argument("--name", default=f"light-{os.getpid()}")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.nice(10)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_Crowd(options.connect, options.count, options.step_seconds, options.name).run())


if __name__ == "__main__":
    main()
