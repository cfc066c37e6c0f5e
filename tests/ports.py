"""Ports that are chosen before their processes start, and ports at which nothing listens."""

from __future__ import annotations

import random
import socket
from pathlib import Path

# Lower ports belong to installed services, 12,000 to 31,999 to SLURM steps of several learners.
_CHOICES = [*range(10_000, 12_000), *range(32_000, 65_536)]
_reserved: list[socket.socket] = []


def reserve_ports(count: int) -> list[int]:
    """Return TCP ports of this machine that stay free until the process that they are meant for binds them.

    The kernel may give a port that it chose, once closed, to any other socket while that process starts. So these are
    outside the range from which the kernel chooses. A UDP socket of the same number, open until the tests end, prevents
    other processes of the tests from choosing it.
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
    """All ports outside the range from which the kernel chooses, in random order."""
    ephemeral = Path("/proc/sys/net/ipv4/ip_local_port_range")
    low, high = map(int, ephemeral.read_text().split()) if ephemeral.exists() else (32_768, 65_535)
    ports = [port for port in _CHOICES if not low <= port <= high] or _CHOICES[:]
    random.shuffle(ports)
    return ports
