"""Nothing that arrives at a learner's ports disturbs its training."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import zmq
import zstandard

from seedcli.errors import ConnectionLost, RefusedError, SeedError
from seedcli.net.base import ClientTransport
from seedcli.net.codecs import RowEncoder
from seedcli.net.connect import connect
from seedcli.net.frames import Kind, encode_control, pack_header
from seedcli.net.grpc_client import METHOD, OTHER_VERSION, SERVICE
from seedcli.net.handshake import ClientHandshake
from seedcli.net.messages import Ready
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec, RowLayout
from tests.reliability import connections, hostile
from tests.reliability.attacks import GREETING
from tests.reliability.subject import Subject
from tests.system.harness import COUNTER, TINY, Fleet, counting, fleet_in, last, sets, wait_for

SPEC = EnvSpec(f"gymnasium/{COUNTER}", ArraySpec((4,), "float32"), ActionSpec((4,)))
LAYOUT = RowLayout(SPEC, 1)
ENCODER = RowEncoder(LAYOUT, {"observation": "zstd"})
SECONDS = 30.0
STEPS = 8000  # of the training, which lasts longer than the attacks

_names = itertools.count()


def hello(**changes: Any) -> bytes:
    message = {"actor_id": f"outsider-{next(_names)}", "envs": 1, "streams": 1, "version": "0"} | changes
    return encode_control(message)


def framed(kind: int, payload: bytes, claimed: int | None = None) -> list[bytes]:
    return [pack_header(kind, len(payload) if claimed is None else claimed), payload]


def unauthenticated_frames() -> dict[str, list[bytes]]:
    """Invalid first messages of a peer, as header and payload; each must end its connection."""
    header = pack_header(Kind.HELLO, 0)
    return {
        "noise": [os.urandom(32), os.urandom(100)],
        "an empty message": [b"", b""],
        "half a header": [header[:16], b""],
        "another magic": [b"HTTP" + header[4:], b""],
        "another version": [header[:4] + b"\x63" + header[5:], b""],
        "another kind": [header[:5] + b"\xc8" + header[6:], b""],
        "a reserved field in use": [header[:31] + b"\x01", b""],
        "less than it claims": framed(Kind.HELLO, hello(), claimed=1000),
        "more than it claims": framed(Kind.HELLO, hello(), claimed=3),
        "4 GB claimed": framed(Kind.HELLO, hello(), claimed=2**32 - 1),
        "more than is allowed": framed(Kind.HELLO, b" " * 70_000),
        "no JSON": framed(Kind.HELLO, b"\x80\x04K\x01."),
        "nested JSON": framed(Kind.HELLO, b"[" * 60_000),
        "a list": framed(Kind.HELLO, b"[]"),
        "no environments": framed(Kind.HELLO, hello(envs=0)),
        "a billion environments": framed(Kind.HELLO, hello(envs=10**9)),
        "true environments": framed(Kind.HELLO, hello(envs=True)),
        "an unknown field": framed(Kind.HELLO, hello(admin=1)),
        "a name that is none": framed(Kind.HELLO, hello(actor_id="\x00" * 10)),
        "a step before hello": framed(Kind.STEP, bytes(LAYOUT.nbytes)),
        "a specification before hello": framed(Kind.SPEC, json.dumps(SPEC.to_dict()).encode()),
    }


def over_zmq(address: str, parts: list[bytes]) -> None:
    """Send a message and wait for the learner's response."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(address.replace("zmq://", "tcp://"))
        dealer.send_multipart(parts)
        assert dealer.poll(int(SECONDS * 1000)), f"no answer to {parts!r:.80}"
        assert dealer.recv_multipart()[0][5] == Kind.UNKNOWN


def over_grpc(address: str, parts: list[bytes]) -> None:
    """Send a message and wait for the learner's response."""
    messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()  # None ends the stream
    messages.put(b"".join(parts))
    with grpc.insecure_channel(address) as channel:
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter(messages.get, None), timeout=SECONDS)
        try:
            assert next(call)[5] == Kind.UNKNOWN
        except grpc.RpcError as error:
            assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, OTHER_VERSION)
        finally:
            messages.put(None)


def noise_over_tcp(address: str) -> None:
    host, _, port = address.removeprefix("zmq://").rpartition(":")
    openings = {
        "nothing": b"",
        "noise": os.urandom(70_000),
        "half a ZeroMQ greeting": b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03",
        "a ZeroMQ greeting and noise": b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48) + os.urandom(1000),
        "HTTP/1": b"GET / HTTP/1.1\r\nHost: learner\r\n\r\n",
        "HTTP/2 and noise": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + os.urandom(1000),
    }
    for opening in openings.values():
        with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(opening)


class Intruder:
    """A peer that was admitted like an actor, with one environment, and then misbehaves.

    Args:
        address: the learner's.
        codec: of its observations.
    """

    def __init__(self, address: str, codec: str = "raw") -> None:
        self.transport: ClientTransport = connect(address)
        self.transport.connect(SECONDS)
        name = f"intruder-{next(_names)}"
        handshake = ClientHandshake(self.transport, actor_id=name, envs=1, streams=1, timeout=SECONDS)
        handshake.configure()
        self.ready: Ready = handshake.announce(SPEC, {"observation": codec})
        self.transport.open_session(self.ready.extra, self.ready.payload_bytes)
        assert self.ready.payload_bytes == (LAYOUT.nbytes if codec == "raw" else ENCODER.max_payload,)

    def row(self, **values: Any) -> bytes:
        rows = np.zeros(LAYOUT.nbytes, np.uint8)
        for name, value in values.items():
            getattr(LAYOUT.views(rows), name)[:] = value
        return rows.tobytes()

    def step(self, payload: bytes | None = None, *, claimed: int | None = None, **fields: int) -> None:
        payload = self.row() if payload is None else payload
        session = fields.pop("session", self.ready.session)
        claimed = len(payload) if claimed is None else claimed
        self.transport.send(pack_header(fields.pop("kind", Kind.STEP), claimed, session=session, **fields), payload)

    def next_kind(self) -> int | None:
        """The kind of the next frame other than heartbeats, which the learner may send at any time."""
        while (frame := self.transport.receive(SECONDS)) is not None:
            if frame.header.kind != Kind.HEARTBEAT_ACK:
                return frame.header.kind
        return None

    def answer(self) -> None:
        assert self.next_kind() == Kind.ACTION

    def is_ended(self) -> bool:
        """Whether the learner ends the session, with or without answers to earlier valid steps."""
        try:
            while (kind := self.next_kind()) == Kind.ACTION:
                pass
        except ConnectionLost:
            return True
        return kind in (Kind.UNKNOWN, Kind.REFUSED)


def _duplicate(intruder: Intruder) -> None:
    intruder.step(sequence=0)
    intruder.answer()
    intruder.step(sequence=0)


def _twice_at_once(intruder: Intruder) -> None:
    intruder.step(sequence=0)
    intruder.step(sequence=0)


def _answered_and_ahead(intruder: Intruder) -> None:
    intruder.step(sequence=0)
    intruder.answer()
    intruder.step(sequence=2)
    intruder.step(sequence=1)


INTRUSIONS: dict[str, Callable[[Intruder], None]] = {
    "a duplicate": _duplicate,
    "a step twice at once": _twice_at_once,
    "steps in another order": _answered_and_ahead,
    "a step too early": lambda intruder: intruder.step(sequence=1),
    "a row that is too short": lambda intruder: intruder.step(bytes(LAYOUT.nbytes - 64)),
    "a row that is too long": lambda intruder: intruder.step(bytes(LAYOUT.nbytes + 64)),
    "a long row said to be right": lambda intruder: intruder.step(bytes(70_000), claimed=LAYOUT.nbytes),
    "a short row said to be right": lambda intruder: intruder.step(bytes(10), claimed=LAYOUT.nbytes),
    "a stream that does not exist": lambda intruder: intruder.step(stream=7),
    "the session of another": lambda intruder: intruder.step(session=intruder.ready.session ^ 1),
    "an action": lambda intruder: intruder.step(kind=Kind.ACTION),
    "another hello": lambda intruder: intruder.step(hello(), kind=Kind.HELLO),
    "an observation that is no number": lambda intruder: intruder.step(intruder.row(observation=np.nan)),
    "an observation without end": lambda intruder: intruder.step(intruder.row(observation=np.inf)),
    "a flag that is neither 0 nor 1": lambda intruder: intruder.step(intruder.row(terminated=7)),
}


def encoded(**values: Any) -> bytes:
    """A row, encoded as in a session with codecs."""
    row = np.zeros(LAYOUT.nbytes, np.uint8)
    for name, value in values.items():
        getattr(LAYOUT.views(row), name)[:] = value
    out = bytearray(ENCODER.max_payload)
    return bytes(out[: ENCODER.encode(row, memoryview(out))])


def with_block(block: bytes) -> bytes:
    """An encoded row with its only block replaced."""
    scalars = encoded()[4:10]
    return struct.pack("<I", len(block)) + scalars + block


def _encoded_duplicate(intruder: Intruder) -> None:
    intruder.step(encoded(), sequence=0)
    intruder.answer()
    intruder.step(encoded(), sequence=0)


def _corrupt_later(intruder: Intruder) -> None:
    for sequence in range(3):
        intruder.step(encoded(observation=sequence), sequence=sequence)
        intruder.answer()
    intruder.step(with_block(os.urandom(9)), sequence=3)


BOMB = zstandard.ZstdCompressor(level=1).compress(bytes(256 * 2**20))
# A block of four bytes (RFC 8878) that holds 128 KiB of zeros, after a header without a size, and after one that
# claims the 16 bytes of the array.
_ZEROS = b"\x03\x00\x10\x00"
SMALL_BOMB = b"\x28\xb5\x2f\xfd\x00\x58" + _ZEROS
LYING_BOMB = b"\x28\xb5\x2f\xfd\x20\x10" + _ZEROS
assert len(zstandard.ZstdDecompressor().decompressobj().decompress(SMALL_BOMB)) == 2**17
assert zstandard.frame_content_size(LYING_BOMB) == LAYOUT.spec.observation_bytes

CORRUPTIONS: dict[str, Callable[[Intruder], None]] = {
    "a block of noise": lambda intruder: intruder.step(with_block(os.urandom(15))),
    "a corrupt block in the middle": _corrupt_later,
    "a block cut off": lambda intruder: intruder.step(with_block(BOMB[:12])),
    "an empty block": lambda intruder: intruder.step(with_block(b"")),
    "a row that is not encoded": lambda intruder: intruder.step(bytes(LAYOUT.nbytes)),
    "nothing at all": lambda intruder: intruder.step(b""),
    "a length beyond the row": lambda intruder: intruder.step(struct.pack("<I", 2**32 - 1) + encoded()[4:]),
    "a byte too many": lambda intruder: intruder.step(encoded() + b"x"),
    "a decompression bomb": lambda intruder: intruder.step(with_block(BOMB)),
    "a bomb as small as a block may be": lambda intruder: intruder.step(with_block(SMALL_BOMB)),
    "a bomb that says it is none": lambda intruder: intruder.step(with_block(LYING_BOMB)),
    "a step larger than any": lambda intruder: intruder.step(bytes(2**20)),
    "an encoded duplicate": _encoded_duplicate,
    "an encoded observation that is no number": lambda intruder: intruder.step(encoded(observation=np.nan)),
}


def intrude(address: str, intrusion: Callable[[Intruder], None], codec: str = "raw") -> bool:
    intruder = Intruder(address, codec)
    try:
        # The learner may end the connection during a send.
        with contextlib.suppress(ConnectionLost):
            intrusion(intruder)
        return intruder.is_ended()
    finally:
        intruder.transport.close()


def behave(address: str) -> None:
    """The control: peers that send only valid steps keep their session."""
    intruder = Intruder(address)
    for sequence in range(20):
        intruder.step(intruder.row(observation=sequence), sequence=sequence)
        intruder.answer()
    intruder.transport.close()
    intruder = Intruder(address, "zstd")
    for sequence in range(20):
        intruder.step(encoded(observation=sequence), sequence=sequence)
        intruder.answer()
    intruder.transport.close()
    for codec in ("bits", "lz4"):
        with pytest.raises(RefusedError, match=f"codec '{codec}'"):
            Intruder(address, codec)


def attacks(addresses: dict[str, str]) -> Iterator[str]:
    """Perform all attacks, one after the other; yields their names."""
    for send, address in ((over_zmq, addresses["zmq"]), (over_grpc, addresses["grpc"])):
        behave(address)
        noise_over_tcp(address)
        yield f"noise at {address}"
        for name, parts in unauthenticated_frames().items():
            send(address, parts)
            yield f"{name} at {address}"
        for name, intrusion in INTRUSIONS.items():
            assert intrude(address, intrusion), f"{name} at {address} did not end the session"
            yield f"{name} at {address}"
        for name, intrusion in CORRUPTIONS.items():
            assert intrude(address, intrusion, "zstd"), f"{name} at {address} did not end the session"
            yield f"{name} at {address}"
    for parts in ([os.urandom(32)], [pack_header(Kind.HELLO, 0)], [b"x"] * 50, [*framed(Kind.HELLO, hello()), b"more"]):
        over_zmq(addresses["zmq"], parts)
        yield f"{len(parts)} parts"


@pytest.mark.slow
def test_invalid_messages_do_not_disturb_training(fleet: Fleet) -> None:
    run = fleet.folder / "run"
    # Insecure, so that all messages reach the learner's own checks.
    options = ["--preset", "cartpole_vtrace", "--steps", str(STEPS), "--logdir", "run", "--insecure"]
    learner = fleet.learner(*options, *sets(*TINY, *counting(pause=0.002)))
    addresses = learner.wait_until_it_serves()
    actors = [fleet.actor(address, "--envs", "8", "--insecure") for address in addresses.values()]
    wait_for(lambda: last(run, "actors") == 2 and last(run, "learner_updates") > 0, "training begins")
    before = last(run, "env_steps")
    done = []
    try:
        # Repeat the attacks until the training is over, at least once.
        for name in itertools.chain.from_iterable(attacks(addresses) for _ in range(100)):
            done.append(name)
            if not learner.running:
                break
    except (SeedError, OSError, AssertionError):
        if learner.running and last(run, "env_steps") < STEPS:
            raise
    once = 2 * (1 + len(unauthenticated_frames()) + len(INTRUSIONS) + len(CORRUPTIONS)) + 4
    assert len(done) >= once, f"the training ended after {len(done)} of {once} attacks"
    learner.ends_with(0)
    for actor in actors:
        actor.ends_with(0)
        assert "trying again" not in actor.stderr, "an actor lost its connection"
    assert last(run, "env_steps") >= STEPS > before
    assert last(run, "protocol_errors") >= 2 * (len(INTRUSIONS) + len(CORRUPTIONS))
    assert last(run, "dropped_updates") == 0
    assert "Traceback" not in learner.stderr
    assert "dropped: " in learner.stderr


def test_hostile_connections_are_not_admitted_and_do_not_stop_training(tmp_path: Path) -> None:
    """Short form of `python -m tests.reliability hostile`; the bound is generous, because the machine is shared."""
    options = argparse.Namespace(connections=50, seconds=12.0, rate=2.0, pause=0.005, slowdown=0.6, descriptors=0)
    result = hostile.run(options, tmp_path)
    assert result["failures"] == []
    assert result["joined_meanwhile"] > 0 and min(map(len, result["attacks"])) > 5


@pytest.mark.slow
def test_a_flood_of_connections_leaves_the_learner_enough_descriptors(tmp_path: Path) -> None:
    """As fast as possible, at a learner with few descriptors: training and checkpoints continue, actors can join."""
    options = argparse.Namespace(connections=24, seconds=12.0, rate=50.0, pause=0.005, slowdown=0.95, descriptors=192)
    result = hostile.run(options, tmp_path)
    assert result["failures"] == []
    assert result["joined_meanwhile"] > 0
    found = sorted(int(path.parent.name) for path in tmp_path.glob("run/checkpoints/[0-9]*/COMPLETE"))
    assert found and found[-1] > 0
    assert "were closed: " in (tmp_path / "run" / "learner.log").read_text()


def test_an_unauthenticated_peer_cannot_fill_the_memory(tmp_path: Path) -> None:
    """It claims the largest message on many connections and sends it at full speed."""
    with fleet_in(tmp_path) as fleet:
        subject = Subject(fleet, pause=0.005)
        before, most = subject.read(), 0.0
        host, _, port = subject.addresses["zmq"].removeprefix("zmq://").rpartition(":")
        deadline = time.monotonic() + 5.0

        def send() -> None:
            while time.monotonic() < deadline:
                with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=5.0) as sock:
                    sock.sendall(GREETING)
                    sock.recv(64)
                    sock.sendall(b"\x06" + struct.pack(">Q", 255 * 2**20))
                    while time.monotonic() < deadline:
                        sock.sendall(bytes(2**16))

        threads = [threading.Thread(target=send) for _ in range(20)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            most = max(most, subject.read().memory)
            time.sleep(0.1)
        # The bound is what arrives between two checks of admission control; without it, gigabytes.
        assert most - before.memory < 700
        wait_for(lambda: subject.read().memory - before.memory < 64, "the memory is free again", 20.0)
        assert subject.failures() == []


@pytest.mark.slow
def test_many_authenticated_connections_need_few_resources(tmp_path: Path) -> None:
    """Short form of `python -m tests.reliability connections`."""
    result = connections.run(argparse.Namespace(transport=["both"], count=100, seconds=3.0), tmp_path)
    assert result["failures"] == []
    assert result["both_steps_of_the_crowd"] > 0
    # 50 over gRPC take one descriptor each, 50 over ZeroMQ two.
    assert result["both_descriptors"]["held"] >= result["both_descriptors"]["before"] + 150
