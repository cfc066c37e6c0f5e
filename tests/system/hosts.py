"""Several learner hosts on this machine, as processes; as a module, a `seed` whose TensorFlow cannot connect."""

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

from tests.ports import reserve_ports
from tests.system.harness import Fleet, Learner

HOST_TIMEOUT = "topology.host_timeout=60"
# ZeroMQ's greeting for CURVE, and messages of the largest size accepted before the handshake has ended.
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE" + bytes(47)
_MEGABYTES = _GREETING + (b"\x06" + (65_000).to_bytes(8) + bytes(65_000)) * 50
FAULT = "PYTEST_FAULTY_HOST"  # environment variable: "stopped" or "taken", see `main`


def free_addresses(count: int) -> list[str]:
    """Addresses of this machine with free ports."""
    return [f"127.0.0.1:{port}" for port in reserve_ports(count)]


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
        fleet: of the processes.
        count: number of hosts.
        arguments: of all of them.
        each: further arguments of each.
        modules: module that each runs; default: `seedcli`.
        tf_config: the hosts are given in TF_CONFIG, not by `--hosts` and `--host-index`.
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
    """Unauthenticated peers at a port, replaced when they are ended. Half are silent, half send as fast as they can.

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
            for _ in range(min(20, self._count - len(peers))):  # a few at once, to spare the kernel's backlog
                with contextlib.suppress(ConnectionRefusedError):
                    peers.append(socket.create_connection(self._address, 5.0))
                    peers[-1].setblocking(False)
            for peer in peers[:]:
                try:
                    while peer.recv(4096):
                        pass  # ZeroMQ's greeting
                except BlockingIOError:
                    with contextlib.suppress(OSError):  # the next recv finds the reason
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
    """Run `seed` as a host that joins the others, but whose TensorFlow then does not connect.

    Either the process is "stopped" (SIGSTOP) just before, or the port that it has announced is "taken".
    """
    from seedcli.cli import main as cli
    from seedcli.roles.learner import host as several

    make_devices = several._make_devices
    listener = socket.socket()

    def stopped(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGSTOP)
        return make_devices(*arguments)

    def taken(host: str) -> socket.socket:
        listener.bind((host, 0))
        listener.listen()
        return listener.dup()

    if os.environ[FAULT] == "stopped":
        several._make_devices = stopped
    else:
        several.reserve_port = taken
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
