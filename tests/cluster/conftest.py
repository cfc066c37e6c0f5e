from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from seedcli.cluster import rendezvous_server
from tests.cluster.joining import BEAT, TIMEOUT, Hosts, wait_until
from tests.net.harness import LIMIT


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    monkeypatch.setattr(rendezvous_server, "HEARTBEAT_SECONDS", BEAT)
    monkeypatch.setattr(rendezvous_server, "HEARTBEAT_TIMEOUT_SECONDS", TIMEOUT)
    before = threading.active_count()
    hosts = Hosts()
    yield hosts
    hosts.stop.set()
    joined = [future.result() for future in hosts.futures if future.exception(LIMIT) is None]
    for closed in [hosts.pool.submit(rendezvous.close) for rendezvous in joined]:
        closed.result(LIMIT)
    hosts.pool.shutdown()
    wait_until(lambda: threading.active_count() <= before)
