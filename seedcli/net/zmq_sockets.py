"""Helpers for the ZeroMQ sockets of learner and actor."""

from __future__ import annotations

import zmq

_NOTHING = bytearray()


def skip(socket: zmq.Socket[bytes]) -> None:
    """Discard the remaining parts of the message being received."""
    while socket.getsockopt(zmq.RCVMORE):
        socket.recv_into(_NOTHING)


def keep_alive(socket: zmq.Socket[bytes]) -> None:
    """Enable TCP keepalive, so that the kernel detects a lost machine."""
    for option, value in (
        (zmq.TCP_KEEPALIVE, 1),
        (zmq.TCP_KEEPALIVE_IDLE, 30),
        (zmq.TCP_KEEPALIVE_INTVL, 10),
        (zmq.TCP_KEEPALIVE_CNT, 3),
    ):
        socket.setsockopt(option, value)


def watch(socket: zmq.Socket[bytes], events: int) -> zmq.Socket[bytes]:
    """Return a socket that receives the monitor's `events` of `socket`."""
    address = f"inproc://monitor-{id(socket)}"
    socket.monitor(address, events)
    monitor: zmq.Socket[bytes] = socket.context.socket(zmq.PAIR)
    # Unbounded: with a limit, ZeroMQ's I/O thread would wait for the reader.
    monitor.setsockopt(zmq.RCVHWM, 0)
    monitor.connect(address)
    return monitor


def property_of(frame: zmq.Frame, name: int | str) -> int | str | bytes | None:
    """Return a property of a message's connection; None if unknown, as for peers of the first ZeroMQ protocol."""
    try:
        return frame.get(name)
    except zmq.ZMQError:
        return None
