"""Find out why a gRPC connection fails: gRPC only reports that it is not ready.

A learner that has ended refuses TCP, and one that is stalled sends nothing. A learner that does not trust this actor,
or that this actor does not trust, closes the connection: only this case is reported here.
"""

from __future__ import annotations

import os
import socket
import ssl

from seedcli.net.addresses import split_host_port
from seedcli.net.greeting import greeting, is_http2, is_zmq
from seedcli.net.security.keys import TlsIdentity

# An HTTP/2 client's preface with empty SETTINGS; an HTTP/2 server answers with its own SETTINGS.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_FRAME_HEAD = 9
OTHER_PROTOCOL = "it does not speak gRPC"


def why_refused(address: str, identity: TlsIdentity | None, timeout: float) -> str | None:
    """Return why the server at `address` ("host:port") rejects this side.

    Args:
        address: the server's address.
        identity: the certificates that this side presents and trusts; None: no TLS.
        timeout: seconds for each network operation.

    Returns:
        The reason; "" if the only reason is a different token; OTHER_PROTOCOL if the server is not a learner; None if
        it was not reached or does not reject this side.
    """
    parts = split_host_port(address)
    assert parts is not None
    host = parts[0].strip("[]")
    try:
        received = greeting(host, parts[1])
        if is_zmq(received):
            return f"that is a ZeroMQ port: write zmq://{address}"
        if received and not is_http2(received):
            return OTHER_PROTOCOL
        with socket.create_connection((host, parts[1]), timeout) as connection:
            if identity is None:
                return _greet(connection)
            context = _context(identity)
            with context.wrap_socket(connection, server_hostname=identity.name or host) as wrapped:
                return _greet(wrapped)
    except ssl.SSLCertVerificationError as error:
        made_from_token = identity is not None and identity.name is not None
        return "" if made_from_token else f"its certificate: {error.verify_message or error.reason}"
    except ssl.SSLError as error:
        return _reason(error)
    except (ConnectionResetError, BrokenPipeError):
        return "it closed the connection"
    except OSError:
        return None


def _reason(error: ssl.SSLError) -> str:
    reason = (error.reason or "it closed the connection").lower().replace("_", " ")
    if "wrong version number" in reason or "record layer" in reason:
        return "it does not encrypt"
    return reason.removeprefix("tlsv1 alert ").removeprefix("tlsv13 alert ").removeprefix("sslv3 alert ")


def _greet(connection: socket.socket) -> str | None:
    connection.sendall(_PREFACE)
    answer = b""
    while len(answer) < _FRAME_HEAD:
        part = connection.recv(_FRAME_HEAD - len(answer))
        if not part:
            return "it closed the connection"
        answer += part
    return None if is_http2(answer) else OTHER_PROTOCOL


def _context(identity: TlsIdentity) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=identity.roots.decode() if identity.roots is not None else None)
    context.set_alpn_protocols(["h2"])
    if identity.chain is not None and identity.key is not None:
        # Python loads certificates from files only: use an anonymous one.
        descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, identity.key + identity.chain)
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
    return context
