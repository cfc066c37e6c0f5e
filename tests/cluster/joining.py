"""Learner hosts in threads that join at a rendezvous: over real sockets, with a real token."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from seedcli.cluster.messages import Addresses, Status
from seedcli.cluster.rendezvous import Rendezvous
from seedcli.net.security.keys import Security
from tests.net.harness import LIMIT
from tests.net.protected import MINE
from tests.ports import reserve_ports

SECURITY = Security(MINE)
BEAT, TIMEOUT = 0.1, 1.5


def free_hosts(count: int) -> list[str]:
    """Addresses of `count` hosts with a free port."""
    (port,) = reserve_ports(1)
    return [f"127.0.0.1:{port}", *(f"127.0.0.{index + 1}:{port}" for index in range(1, count))]


def status(index: int, version: str = "1.0", **config: Any) -> Status:
    values = {"training.batch_size": 32, "topology.hosts": ("a:1", "b:1"), "topology.host_index": index}
    return Status(
        index=index,
        process=os.urandom(8).hex(),
        version=version,
        addresses=Addresses(
            tensorflow=f"127.0.0.1:{9000 + index}",
            actors={"grpc": f"127.0.0.1:{8000 + index}", "zmq": f"127.0.0.1:{8100 + index}"},
        ),
        config=values | {key.replace("__", "."): value for key, value in config.items()},
    )


class Hosts:
    """Hosts in threads."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(8)
        self.futures: list[Future[Rendezvous]] = []
        self.stop = threading.Event()

    def start(self, hosts: list[str], index: int, own: Status | None = None, **options: Any) -> Future[Rendezvous]:
        future = self.pool.submit(self._join, hosts, own or status(index), **options)
        self.futures.append(future)
        return future

    def _join(
        self,
        hosts: list[str],
        own: Status,
        *,
        security: Security | None = SECURITY,
        timeout: float = LIMIT,
        stopped: Callable[[], bool] | None = None,
    ) -> Rendezvous:
        return Rendezvous(hosts, own, security, stopped or self.stop.is_set).join(timeout)

    def all(self, count: int) -> list[Rendezvous]:
        hosts = free_hosts(count)
        futures = [self.start(hosts, index) for index in reversed(range(count))]
        return [future.result(LIMIT) for future in reversed(futures)]


def wait_until(happened: Callable[[], bool], seconds: float = LIMIT) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "timeout"
        time.sleep(0.01)


def failure(future: Future[Rendezvous], kind: type[BaseException]) -> str:
    with pytest.raises(kind) as caught:
        future.result(LIMIT)
    assert "\n" not in str(caught.value)
    return str(caught.value)
