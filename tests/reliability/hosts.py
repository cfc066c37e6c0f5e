"""Two hosts on this machine and a router between them: network namespaces, created with Linux's `ip` as root."""

from __future__ import annotations

import os
import shutil
import subprocess
from types import TracebackType
from typing import Self

LEARNER_ADDRESS = "10.231.9.1"
_ROUTER = ("10.231.9.254", "10.231.10.254")
_ACTORS_ADDRESS = "10.231.10.1"


def _ip(*arguments: str, check: bool = True) -> bool:
    done = subprocess.run(["ip", *arguments], check=check, capture_output=True, timeout=30)
    return done.returncode == 0


def why_not() -> str:
    """Why this machine cannot create namespaces; "" if it can."""
    if os.geteuid() != 0:
        return "needs root to create network namespaces"
    if shutil.which("ip") is None:
        return "needs `ip` (iproute2)"
    probe = f"seed-probe-{os.getpid()}"
    made = _ip("netns", "add", probe, check=False)
    _ip("netns", "delete", probe, check=False)
    return "" if made else "is not permitted to create network namespaces"


class Hosts:
    """The learner's host and the actors' host; a context manager.

    Attributes:
        learner, actors: prefix of a command, to run it on that host.
    """

    def __init__(self) -> None:
        names = [f"seed-{os.getpid()}-{host}" for host in ("learner", "router", "actors")]
        self._learner, self._router, self._actors = self._names = names
        self.learner = ("ip", "netns", "exec", self._learner)
        self.actors = ("ip", "netns", "exec", self._actors)

    def __enter__(self) -> Self:
        try:
            for name in self._names:
                _ip("netns", "add", name)
                _ip("-n", name, "link", "set", "lo", "up")
            ends = ((self._learner, LEARNER_ADDRESS, "r0"), (self._actors, _ACTORS_ADDRESS, "r1"))
            for (host, address, port), gateway in zip(ends, _ROUTER, strict=True):
                _ip("link", "add", "e0", "netns", host, "type", "veth", "peer", "name", port, "netns", self._router)
                for name, device, own in ((host, "e0", address), (self._router, port, gateway)):
                    _ip("-n", name, "address", "add", f"{own}/24", "dev", device)
                    _ip("-n", name, "link", "set", device, "up")
                _ip("-n", host, "route", "add", "default", "via", gateway)
            self._forward(True)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        for name in self._names:
            _ip("netns", "delete", name, check=False)

    def _forward(self, on: bool) -> None:
        write = f"echo {int(on)} > /proc/sys/net/ipv4/ip_forward"
        _ip("netns", "exec", self._router, "sh", "-c", write)

    def cut(self, how: str) -> None:
        """Cut the hosts off from each other.

        Args:
            how: "silent": the router drops all packets; "unplugged": the actors' link goes down, which they can see.
        """
        if how == "silent":
            self._forward(False)
        else:
            _ip("-n", self._router, "link", "set", "r1", "down")

    def heal(self, how: str) -> None:
        """Undo `cut`."""
        if how == "silent":
            self._forward(True)
        else:
            _ip("-n", self._router, "link", "set", "r1", "up")
