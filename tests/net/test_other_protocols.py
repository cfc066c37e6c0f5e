"""Another program at a learner's address is distinguished from a slow, suspended or lost learner."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from seedcli.errors import EXIT_REFUSED, EXIT_UNREACHABLE, AuthenticationError, UnreachableError
from seedcli.net.security.keys import Security
from tests.net.harness import LIMIT, security_of
from tests.net.protected import MINE, client_of

SSH = b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n"
SERVERS = {  # banner, and seconds after which the server ends a connection
    "ends": (SSH, 0.2),
    "stays": (SSH, LIMIT),
    "short banner": (b"+OK\r\n", LIMIT),
    "zeros": (bytes(64), LIMIT),
}
TCP = pytest.mark.parametrize("kind", ["grpc", "zmq"])
SECURITY = pytest.mark.parametrize("security", [None, Security(MINE)], ids=["insecure", "token"])
PROTOCOL = {"grpc": "gRPC", "zmq": "ZeroMQ"}


@contextlib.contextmanager
def server(kind: str, banner: bytes, seconds: float) -> Iterator[str]:
    """The address of a server that sends `banner` and ends each connection after `seconds`."""
    stop = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.sendall(banner)
            stop.wait(seconds)
            connection.settimeout(0.0)
            connection.recv(65536)

    def accept() -> None:
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                threading.Thread(target=serve, args=(listener.accept()[0],)).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"{'zmq://' if kind == 'zmq' else ''}127.0.0.1:{listener.getsockname()[1]}"
        finally:
            stop.set()
            thread.join(LIMIT)


@TCP
@SECURITY
@pytest.mark.parametrize(("banner", "seconds"), SERVERS.values(), ids=SERVERS)
def test_another_protocol_is_a_refusal(kind: str, security: Security | None, banner: bytes, seconds: float) -> None:
    with server(kind, banner, seconds) as address:
        begun = time.monotonic()
        with client_of(address, security) as client, pytest.raises(AuthenticationError) as caught:
            client.connect(3.5)
        assert time.monotonic() - begun < 6
    assert caught.value.exit_status == EXIT_REFUSED
    sentence = str(caught.value)
    assert f"the server at {address} does not speak {PROTOCOL[kind]}, so it is not a learner" in sentence
    assert "zmq://HOST:PORT" in sentence and "token" not in sentence and "\n" not in sentence


@TCP
@SECURITY
def test_a_single_banner_is_not_a_refusal(kind: str, security: Security | None) -> None:
    """As on a port that a learner takes over from another program."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet_once() -> None:
            with listener.accept()[0] as connection:
                connection.sendall(SSH)
            said.set()

        said = threading.Event()
        threading.Thread(target=greet_once).start()
        address = f"{'zmq://' if kind == 'zmq' else ''}127.0.0.1:{listener.getsockname()[1]}"
        with client_of(address, security) as client, pytest.raises(UnreachableError, match="connections are accepted"):
            client.connect(2.5)
        assert said.is_set()


@pytest.mark.parametrize("kind", ["grpc", "grpc+token", "zmq", "zmq+token"])
def test_an_actor_waits_for_a_suspended_learner(kind: str, spawn: Callable[..., subprocess.Popen[str]]) -> None:
    process = spawn("-m", "tests.net.harness", kind, "1000")
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)  # until all its threads are stopped
    with client_of(address, security_of(kind)) as client, pytest.raises(UnreachableError) as caught:
        client.connect(3.0)
    assert caught.value.exit_status == EXIT_UNREACHABLE
    sentence = f"no learner answered at {address} within 3 s, though connections are accepted there: wait if"
    assert sentence in str(caught.value)
    with client_of(address, security_of(kind)) as client:
        waking = threading.Timer(2.0, process.send_signal, (signal.SIGCONT,))
        waking.start()
        client.connect(LIMIT)
        waking.join(LIMIT)
