"""Several learner hosts on this machine, as processes."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence

from tests.system.harness import Fleet, Learner

PATIENCE = "topology.host_timeout=60"


def free_addresses(count: int) -> list[str]:
    """Addresses of this machine that nothing listens at."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]


def learners(fleet: Fleet, count: int, *arguments: str, each: Sequence[Sequence[str]] = ()) -> list[Learner]:
    """Start the learner hosts of one run.

    Args:
        fleet: where they run.
        count: how many.
        arguments: of all of them.
        each: of each, beside those.
    """
    hosts = ",".join(free_addresses(count))
    own = each or [()] * count
    return [
        fleet.learner(*arguments, "--hosts", hosts, "--host-index", str(index), "--trust-network", *own[index])
        for index in range(count)
    ]
