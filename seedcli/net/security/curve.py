"""CURVE on ZeroMQ's sockets (RFC 26), and the ZAP handler that lets in who holds the token (RFC 27)."""

from __future__ import annotations

import hmac
import threading

import zmq

from seedcli.net.security.keys import ZAP_DOMAIN, Security, curve_keys

HANDSHAKE_MILLISECONDS = 10_000  # that a peer gets to shake hands, before its connection is closed
_ZAP = "inproc://zeromq.zap.01"  # where ZeroMQ asks, in each context
_ZAP_PARTS = 7
_VERSION = b"1.0"


def protect_listener(socket: zmq.Socket[bytes], security: Security) -> None:
    """Have a socket that will be bound take encrypted connections alone; a `Gate` decides whose."""
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, curve_keys(security.token, "learner")[1])
    socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
    # Without it ZeroMQ lets everyone in who knows the listener's key, should the gate ever be gone.
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


def protect_client(socket: zmq.Socket[bytes], security: Security) -> None:
    """Have a socket that will connect do so encrypted, and to the holder of the token alone."""
    public, secret = curve_keys(security.token, "actor")
    socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
    socket.setsockopt(zmq.CURVE_SERVERKEY, curve_keys(security.token, "learner")[0])


class Gate:
    """Answers ZeroMQ's question who may come in: the actors' key, and nobody else.

    CURVE alone proves to an actor that the learner holds the token; this proves it of the actor. A thread of its own,
    so that handshakes do not wait while the learner is busy. It ends with the context.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], security: Security) -> None:
        from zmq.utils import z85

        self._allowed = z85.decode(curve_keys(security.token, "actor")[0])
        self._socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(_ZAP)
        threading.Thread(target=self._run, name="gate", daemon=True).start()

    def _run(self) -> None:
        with self._socket as socket:
            try:
                while True:
                    socket.send_multipart(self._answer(socket.recv_multipart()))
            except zmq.ContextTerminated:
                return

    def _answer(self, request: list[bytes]) -> list[bytes]:
        # version, request id, domain, address, identity, mechanism, credentials
        number = request[1] if len(request) > 1 else b""
        good = (
            len(request) == _ZAP_PARTS
            and request[2] == ZAP_DOMAIN
            and request[5] == b"CURVE"
            and hmac.compare_digest(request[6], self._allowed)
        )
        status = [b"200", b"OK", b"actor"] if good else [b"400", b"another token", b""]
        return [_VERSION, number, *status, b""]
