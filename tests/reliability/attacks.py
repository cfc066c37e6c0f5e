"""Attacks of hostile peers on a learner's ports; `python -m tests.reliability.attacks` runs them in its own process.

    SEED_TOKEN=… python -m tests.reliability.attacks --grpc HOST:PORT --zmq HOST:PORT --connections 50 --rate 4

Each connection is a thread that repeats one attack, `--rate` times a second (0: as fast as possible). Prints a line of
JSON twice a second: the number of attacks of each kind, and how often one was admitted, which must not happen.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import socket
import ssl
import struct
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from seedcli.errors import SeedError
from seedcli.net.base import ClientTransport
from seedcli.net.connect import connect
from seedcli.net.frames import Kind, encode_control, pack_header
from seedcli.net.grpc_client import METHOD, SERVICE
from seedcli.net.handshake import ClientHandshake, transcript
from seedcli.net.security.keys import Security, new_nonce, prove, tls_identity
from seedcli.net.security.token import Token, find_token, new_token
from tests.reliability.subject import SPEC

_SECONDS = 12.0  # a connection is held open: longer than any unauthenticated peer may stay
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)


class Attacker:
    """Knows the learner's addresses, a recorded session of an actor and, for some attacks, the token."""

    def __init__(self, grpc_address: str, zmq_address: str, token: Token, seed: int) -> None:
        self.grpc_address, self.zmq_address = grpc_address, zmq_address
        self.security = Security(token)
        self.outsider = Security(Token(new_token(), "a guess"))
        self.random = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.let_in: Counter[str] = Counter()
        self.stop = threading.Event()
        self.tls = _tls(self.security)
        self.recorded = {address: _record(address, self.security) for address in (grpc_address, zmq_address)}

    # -- attacks, each on the address of a port -----------------------------------------------------------------

    def connect_and_leave(self, address: str) -> None:
        """Open a connection and close it at once."""
        _tcp(address).close()

    def stay_silent(self, address: str) -> None:
        """Open a connection and send nothing."""
        with _tcp(address) as sock:
            _until_closed(sock, self.stop)

    def send_noise(self, address: str) -> None:
        """Send random bytes, with or without a valid beginning."""
        with _tcp(address) as sock:
            sock.sendall(self.random.choice([b"", GREETING, _PREFACE, b"\x16\x03\x01\x02\x00"]) + os.urandom(4096))
            _drain(sock)

    def half_handshake(self, address: str) -> None:
        """Send the first half of a recorded session, then nothing."""
        with _tcp(address) as sock:
            recorded = self.recorded[address]
            sock.sendall(recorded[: len(recorded) // 2])
            _until_closed(sock, self.stop)

    def slow_bytes(self, address: str) -> None:
        """Send a recorded handshake, a byte every tenth of a second."""
        with _tcp(address) as sock:
            for byte in self.recorded[address][:100]:
                if self.stop.wait(0.1):
                    return
                sock.sendall(bytes([byte]))

    def replay(self, address: str) -> None:
        """Replay all bytes of a recorded session, from the first to its goodbye."""
        with _tcp(address) as sock:
            sock.sendall(self.recorded[address])
            _drain(sock)

    def oversized(self, address: str) -> None:
        """Claim the largest message, and send it as fast as it is read."""
        with _tcp(address) as sock:
            if address == self.zmq_address:
                sock.sendall(GREETING)
                sock.recv(64)
                sock.sendall(b"\x06" + struct.pack(">Q", 255 * 2**20))
            for _ in range(64):
                sock.sendall(bytes(2**16))

    def http(self, address: str) -> None:
        """Send an HTTP request, as a browser does."""
        with _tcp(address) as sock:
            sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: learner\r\n\r\n")
            _drain(sock)

    def wrong_token(self, address: str) -> None:
        """Connect as an actor with another token."""
        with contextlib.closing(connect(address, self.outsider)) as transport:
            self._join("wrong token", transport)

    def wrong_proof(self, address: str) -> None:
        """Connect with the right transport keys, but without the token."""
        with contextlib.closing(connect(address, self.security)) as transport:
            transport.token = self.outsider.token
            self._join("wrong proof", transport)

    def replayed_proof(self, address: str) -> None:
        """Send a proof that was valid on another connection."""
        with contextlib.closing(connect(address, self.security)) as transport:
            transport.connect(2.0)
            hello = encode_control({"actor_id": "replay", "envs": 1, "streams": 1, "version": "0"})
            _ask(transport, Kind.HELLO, hello)
            nonce = new_nonce()
            proof = prove(self.security.token, "actor", transcript(hello, b'{"nonce":"an earlier one"}'), nonce)
            if _ask(transport, Kind.PROOF, encode_control({"nonce": nonce, "proof": proof})) == Kind.CONFIGURE:
                self.let_in["replayed proof"] += 1

    def http2_flood(self, address: str) -> None:
        """Over TLS with the right certificate, send pings, settings, and open streams without closing them."""
        with _tcp(self.grpc_address) as raw, self.tls.wrap_socket(raw, server_hostname="seed-learner") as sock:
            sock.sendall(_PREFACE + _http2(4, 0, b""))
            headers = _headers(self.grpc_address)
            for number in range(200):
                if self.stop.is_set():
                    return
                sock.sendall(
                    _http2(6, 0, bytes(8)) + _http2(4, 0, b"") + _http2(1, 2 * number + 1, headers, flags=4)
                )  # PING, SETTINGS, HEADERS

    # -- the loop ---------------------------------------------------------------------------------------------

    def _join(self, what: str, transport: ClientTransport) -> None:
        transport.connect(2.0)
        handshake = ClientHandshake(transport, actor_id="outsider", envs=1, streams=1, timeout=2.0)
        handshake.configure()
        self.let_in[what] += 1

    def attacks(self) -> list[tuple[str, Callable[[str], None], str]]:
        """Name, function and address of every attack, at both ports."""
        both = [
            *(self.connect_and_leave, self.stay_silent, self.send_noise, self.half_handshake, self.slow_bytes),
            *(self.replay, self.oversized, self.http, self.wrong_token, self.wrong_proof, self.replayed_proof),
        ]
        found = [
            (attack.__name__, attack, address) for attack in both for address in (self.zmq_address, self.grpc_address)
        ]
        return [*found, ("http2_flood", self.http2_flood, self.grpc_address)]

    def work(self, name: str, attack: Callable[[str], None], address: str, rate: float) -> None:
        """Repeat an attack; runs in a thread."""
        while not self.stop.is_set():
            begun = time.monotonic()
            with contextlib.suppress(OSError, SeedError):
                attack(address)
            self.done[name] += 1
            if rate:
                self.stop.wait(max(0.0, begun + self.random.uniform(0.5, 1.5) / rate - time.monotonic()))


def _tcp(address: str) -> socket.socket:
    host, _, port = address.removeprefix("zmq://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=2.0)


def _drain(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while sock.recv(65536):
            pass


def _until_closed(sock: socket.socket, stop: threading.Event) -> None:
    sock.settimeout(0.5)
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline and not stop.is_set():
        try:
            if not sock.recv(65536):
                return
        except TimeoutError:
            continue


def _ask(transport: ClientTransport, kind: Kind, payload: bytes) -> int | None:
    transport.send(pack_header(kind, len(payload)), payload)
    frame = transport.receive(2.0)
    return None if frame is None else frame.header.kind


def _tls(security: Security) -> ssl.SSLContext:
    identity = tls_identity(security, "actor")
    assert identity.key is not None and identity.chain is not None and identity.roots is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=identity.roots.decode())
    context.set_alpn_protocols(["h2"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pem")
        path.write_bytes(identity.key + identity.chain)
        context.load_cert_chain(path)
    return context


def _http2(kind: int, stream: int, payload: bytes, *, flags: int = 0) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def _headers(authority: str) -> bytes:
    """The header block of a call, without compression (RFC 7541, literal fields)."""
    fields = {
        ":method": "POST", ":scheme": "https", ":path": f"/{SERVICE}/{METHOD}", ":authority": authority,
        "te": "trailers", "content-type": "application/grpc",
    }  # fmt: skip
    return b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )


def _record(address: str, security: Security) -> bytes:
    """Record the bytes that an actor sends in a whole session, through a relay."""
    recorded = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def relay() -> None:
            with server.accept()[0] as near, _tcp(address) as far:
                threading.Thread(target=_copy, args=(far, near, bytearray()), daemon=True).start()
                _copy(near, far, recorded)

        thread = threading.Thread(target=relay, daemon=True)
        thread.start()
        scheme = "zmq://" if address.startswith("zmq://") else ""
        with contextlib.closing(connect(f"{scheme}127.0.0.1:{server.getsockname()[1]}", security)) as transport:
            transport.connect(60.0)
            handshake = ClientHandshake(transport, actor_id="recorded", envs=1, streams=1, timeout=20.0)
            handshake.configure()
            session = handshake.announce(SPEC).session
            transport.send(pack_header(Kind.GOODBYE, session=session))
        thread.join(5.0)
    return bytes(recorded)


def _copy(source: socket.socket, target: socket.socket, recorded: bytearray) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            recorded += data
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def main() -> None:
    """Attack until stdin ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--grpc", required=True)
    parser.add_argument("--zmq", required=True)
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--rate", type=float, default=4.0)
    parser.add_argument("--seconds", type=float, default=3600.0)
    options = parser.parse_args()
    os.nice(19)
    attacker = Attacker(options.grpc, options.zmq, find_token(), 1)
    for name, attack, address in itertools.islice(itertools.cycle(attacker.attacks()), options.connections):
        threading.Thread(target=attacker.work, args=(name, attack, address, options.rate), daemon=True).start()
    ends = time.monotonic() + options.seconds
    while time.monotonic() < ends:
        cpu = time.process_time()
        print(json.dumps({"done": attacker.done, "let_in": attacker.let_in, "cpu": cpu}), flush=True)
        time.sleep(0.5)
    attacker.stop.set()


if __name__ == "__main__":
    main()
