"""Several learner hosts on this machine, as processes; run as a module, a `seed` that TensorFlow cannot connect."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Any

from tests.system.harness import Fleet, Learner

PATIENCE = "topology.host_timeout=60"
# What ZeroMQ says first, for CURVE, and messages as large as it takes before the handshake has ended.
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE" + bytes(47)
_MEGABYTES = _GREETING + (b"\x06" + (65_000).to_bytes(8) + bytes(65_000)) * 50
FAULT = "PYTEST_FAULTY_HOST"  # in the environment: "stopped" or "taken", see `main`


def free_addresses(count: int) -> list[str]:
    """Addresses of this machine that nothing listens at."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]


def learners(
    fleet: Fleet,
    count: int,
    *arguments: str,
    each: Sequence[Sequence[str]] = (),
    modules: Sequence[str] = (),
    tf_config: bool = False,
) -> list[Learner]:
    """Start the learner hosts of one run.

    Args:
        fleet: where they run.
        count: how many.
        arguments: of all of them.
        each: of each, beside those.
        modules: which each of them runs; `seed`'s own by default.
        tf_config: they learn of each other from TF_CONFIG, not from `--hosts` and `--host-index`.
    """
    hosts = free_addresses(count)
    started = []
    for index in range(count):
        named = ["--hosts", ",".join(hosts), "--host-index", str(index)]
        if tf_config:
            task = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}}
            named, fleet.environ["TF_CONFIG"] = [], json.dumps(task)
        own, module = each[index] if each else (), modules[index] if modules else "seedcli"
        started.append(fleet.learner(*arguments, *named, "--trust-network", *own, module=module))
    fleet.environ.pop("TF_CONFIG", None)
    return started


class Crowd(threading.Thread):
    """Unauthenticated peers at a port, a new one for each that is ended. Half are silent, half send all they can.

    Args:
        address: "host:port".
        count: of peers.

    Attributes:
        ended: connections that the other side has ended.
    """

    def __init__(self, address: str, count: int) -> None:
        super().__init__(daemon=True)
        host, port = address.split(":")
        self._address = host, int(port)
        self._count = count
        self._quit = threading.Event()
        self.ended = 0
        self.start()

    def run(self) -> None:
        peers: list[socket.socket] = []
        while not self._quit.wait(0.05):
            for _ in range(min(20, self._count - len(peers))):  # a few at once: it is no test of the kernel
                with contextlib.suppress(ConnectionRefusedError):
                    peers.append(socket.create_connection(self._address, 5.0))
                    peers[-1].setblocking(False)
            for peer in peers[:]:
                try:
                    while peer.recv(4096):
                        pass  # ZeroMQ's greeting
                except BlockingIOError:
                    with contextlib.suppress(OSError):  # the next look finds why
                        if peer.fileno() % 2:
                            peer.send(_MEGABYTES)
                    continue
                except ConnectionError:
                    pass
                self.ended += 1
                peers.remove(peer)
                peer.close()
        for peer in peers:
            peer.close()

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        self._quit.set()
        self.join()


def main() -> int:
    """Run `seed` as a host that joins the others, and whose TensorFlow then does not connect.

    It is "stopped" (SIGSTOP) just before, or the port it has announced is "taken" by a process that says nothing.
    """
    from seedcli.cli import main as cli
    from seedcli.roles.learner import host as several

    connected = several._connected
    listener = socket.socket()

    def stopped(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGSTOP)
        return connected(*arguments)

    def taken(host: str) -> int:
        listener.bind((host, 0))
        listener.listen()
        return int(listener.getsockname()[1])

    if os.environ[FAULT] == "stopped":
        several._connected = stopped
    else:
        several.free_port = taken
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
