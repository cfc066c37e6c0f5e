"""Admission control: unauthenticated connections end when they are too old, have sent too much or are too many."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Iterator

import pytest

from seedcli.serving import admission_control
from seedcli.serving.admission_control import AdmissionControl
from tests.system.harness import wait_for

LIMIT = 20.0


class Port:
    """A listener in this process that accepts every connection and trusts those in `trusted`."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int | None = self._socket.getsockname()[1]
        self.trusted: set[tuple[str, int]] = set()
        self._open: list[socket.socket] = [self._socket]

    def trusts(self, descriptor: int, address: tuple[str, int]) -> bool:
        return address in self.trusted

    def visit(self, *, trusted: bool = False) -> socket.socket:
        """Connect; returns the client's socket."""
        visitor = socket.create_connection(self._socket.getsockname())
        visitor.settimeout(LIMIT)
        if trusted:
            self.trusted.add(visitor.getsockname())
        self._open += [visitor, self._socket.accept()[0]]
        return visitor

    def close(self) -> None:
        for opened in self._open:
            opened.close()


@pytest.fixture
def port() -> Iterator[Port]:
    port = Port()
    yield port
    port.close()


@pytest.fixture
def control(port: Port) -> Iterator[AdmissionControl]:
    control = AdmissionControl([port], time.monotonic)
    yield control
    control.close()


def is_ended(visitor: socket.socket) -> bool:
    """Wait for the other end to close the connection."""
    try:
        return visitor.recv(1) == b""
    except ConnectionError:
        return True


def is_open(visitor: socket.socket) -> bool:
    """Whether the other end has sent neither data nor its end."""
    visitor.settimeout(0.01)
    try:
        visitor.recv(1)
    except TimeoutError:
        return True
    return False


def test_a_connection_without_proof_in_time_is_ended_and_one_with_it_stays(
    port: Port, control: AdmissionControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_control, "PROOF_SECONDS", 1.0)
    begun = time.monotonic()
    actor, intruder = port.visit(trusted=True), port.visit()
    assert is_ended(intruder) and time.monotonic() - begun > 0.9
    assert is_open(actor) and control.ended == 1


def test_a_peer_whose_session_ended_gets_the_full_time_again(
    port: Port, control: AdmissionControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_control, "PROOF_SECONDS", 1.0)
    actor = port.visit(trusted=True)
    actor.sendall(bytes(2 * admission_control._MAX_BYTES // 3))  # fits into the kernel's buffers
    time.sleep(1.5)
    begun = time.monotonic()
    port.trusted.clear()
    assert is_ended(actor) and time.monotonic() - begun > 0.9


def test_a_connection_with_much_data_before_the_proof_is_ended(
    port: Port, control: AdmissionControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_control, "_MAX_BYTES", 50_000)
    actor, intruder, quiet = port.visit(trusted=True), port.visit(), port.visit()
    for visitor in (actor, intruder):
        visitor.sendall(bytes(60_000))
    quiet.sendall(bytes(1_000))
    assert is_ended(intruder)
    assert is_open(actor) and is_open(quiet)


def test_a_few_connections_are_admitted_although_actors_hold_most_descriptors(
    port: Port, control: AdmissionControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    actors = [port.visit(trusted=True) for _ in range(30)]
    wait_for(lambda: control.descriptors > 60, "a look at all of them", LIMIT)
    # No descriptors are left for connections: new peers must get a refusal, not a closed connection.
    monkeypatch.setattr(admission_control, "descriptor_limit", lambda: control.descriptors)
    intruders = [port.visit() for _ in range(admission_control._MIN_UNAUTHENTICATED + 4)]
    assert all(is_ended(intruder) for intruder in intruders[:4])
    assert all(map(is_open, intruders[4:])) and all(map(is_open, actors))
    assert control.descriptors_exhausted


def test_the_oldest_connections_are_ended_when_there_are_too_many(
    port: Port, control: AdmissionControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_control, "MAX_UNAUTHENTICATED", 5)
    actor = port.visit(trusted=True)
    intruders = [port.visit() for _ in range(8)]
    assert all(is_ended(intruder) for intruder in intruders[:3])
    assert all(is_open(visitor) for visitor in (actor, *intruders[3:]))


def test_no_connection_is_too_old_while_the_service_is_stalled(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_control, "PROOF_SECONDS", 0.5)
    last = time.monotonic() - 100.0
    control = AdmissionControl([port], lambda: last)
    try:
        intruder = port.visit()
        time.sleep(2.0)
        assert is_open(intruder)
        monkeypatch.setattr(control, "_last_turn", time.monotonic)
        intruder.settimeout(LIMIT)
        assert is_ended(intruder)
    finally:
        control.close()


def test_connections_are_found_and_ended_when_no_descriptor_is_left(
    port: Port, control: AdmissionControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    intruder, actor = port.visit(), port.visit(trusted=True)
    # Soon nothing more can be opened, not even a folder; all open descriptors are below the limit, as always.
    highest = max(map(int, os.listdir("/dev/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 10, limits[1]))
    monkeypatch.setattr(admission_control, "PROOF_SECONDS", 0.5)
    hoard = []
    try:
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                hoard.append(intruder.dup())
        assert is_ended(intruder)
    finally:
        for duplicate in hoard:
            duplicate.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert is_open(actor)


def test_only_actors_make_the_learner_crowded(port: Port, control: AdmissionControl) -> None:
    control.descriptors, control.unauthenticated = admission_control.descriptor_limit() - 5, 0
    assert control.descriptors_exhausted
    control.unauthenticated = control.descriptors // 2
    assert not control.descriptors_exhausted


def test_without_ports_there_is_no_thread() -> None:
    class Inside:
        port = None

        def trusts(self, descriptor: int, address: tuple[str, int]) -> bool:
            return False

    control = AdmissionControl([Inside()], time.monotonic)
    assert control._thread is None
    control.close()
