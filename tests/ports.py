"""Ports for processes that are told theirs before they start, and ports at which nothing listens."""

from __future__ import annotations

import random
import socket
from pathlib import Path

# Below are those of installed services; from 12,000 to 31,999 those that SLURM steps of several learners choose.
_CHOICES = [*range(10_000, 12_000), *range(32_000, 65_536)]
_reserved: list[socket.socket] = []


def reserve_ports(count: int) -> list[int]:
    """Return TCP ports of this machine that nothing takes before the process that they are meant for.

    A port that the kernel chose and that was closed again may be given to any other socket while that process starts.
    These are none of the kernel's own choices. A UDP socket of the same number, open until the tests end, keeps other
    processes of the tests from choosing it.
    """
    ports = []
    for port in _candidates():
        if len(ports) == count:
            break
        reservation = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            reservation.bind(("", port))
            with socket.socket() as probe:
                probe.bind(("", port))
        except OSError:
            reservation.close()
            continue
        _reserved.append(reservation)
        ports.append(port)
    assert len(ports) == count, f"fewer than {count} free ports"
    return ports


def _candidates() -> list[int]:
    """All ports but those that the kernel gives to sockets without one, in random order."""
    ephemeral = Path("/proc/sys/net/ipv4/ip_local_port_range")
    low, high = map(int, ephemeral.read_text().split()) if ephemeral.exists() else (32_768, 65_535)
    ports = [port for port in _CHOICES if not low <= port <= high] or _CHOICES[:]
    random.shuffle(ports)
    return ports
