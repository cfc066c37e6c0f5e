"""CURVE encryption of ZeroMQ sockets (RFC 26), and the ZAP handler that accepts holders of the token (RFC 27)."""

from __future__ import annotations

import hmac
import threading

import zmq

from seedcli.net.security.keys import ZAP_DOMAIN, Security, curve_keys

HANDSHAKE_MILLISECONDS = 10_000  # limit for the handshake, after which the connection is closed
_ZAP = "inproc://zeromq.zap.01"  # where ZeroMQ sends its requests, in each context
_ZAP_PARTS = 7
_VERSION = b"1.0"


def protect_listener(socket: zmq.Socket[bytes], security: Security) -> None:
    """Make a socket accept encrypted connections only, before it is bound; a `ZapHandler` authenticates them."""
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, curve_keys(security.token, "learner")[1])
    socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
    # Otherwise ZeroMQ would accept any peer that knows the listener's key if there were no ZAP handler.
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


def protect_client(socket: zmq.Socket[bytes], security: Security) -> None:
    """Make a socket connect encrypted, and only to a holder of the token; call it before connecting."""
    public, secret = curve_keys(security.token, "actor")
    socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
    socket.setsockopt(zmq.CURVE_SERVERKEY, curve_keys(security.token, "learner")[0])


class ZapHandler:
    """Answers ZeroMQ's authentication requests: it accepts the actors' key only.

    CURVE proves to an actor that the learner holds the token; this handler checks that the actor holds it. It has its
    own thread, so that handshakes do not wait while the learner is busy. The thread ends with the context.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], security: Security) -> None:
        from zmq.utils import z85

        self._allowed = z85.decode(curve_keys(security.token, "actor")[0])
        self._socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(_ZAP)
        threading.Thread(target=self._run, name="zap handler", daemon=True).start()

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
