"""The doorman: connections of strangers end when they are too old, too talkative or too many, and nobody else's do."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterator

import pytest

from seedcli.serving import admission_control as doorman
from seedcli.serving.admission_control import Doorman
from tests.system.harness import wait_for

LIMIT = 20.0


class Door:
    """A listener that accepts everybody, in this process, and trusts whom it is told to."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int | None = self._socket.getsockname()[1]
        self.trusted: set[tuple[str, int]] = set()
        self._open: list[socket.socket] = [self._socket]

    def trusts(self, descriptor: int, address: tuple[str, int]) -> bool:
        return address in self.trusted

    def visit(self, *, trusted: bool = False) -> socket.socket:
        """Connect to it; gives the visitor's end."""
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
def door() -> Iterator[Door]:
    door = Door()
    yield door
    door.close()


@pytest.fixture
def guard(door: Door) -> Iterator[Doorman]:
    guard = Doorman([door], time.monotonic)
    yield guard
    guard.close()


def is_ended(visitor: socket.socket) -> bool:
    """Whether the other end closes the connection."""
    try:
        return visitor.recv(1) == b""
    except ConnectionError:
        return True


def stands(visitor: socket.socket) -> bool:
    """Whether nothing has come from the other end, neither data nor its end."""
    visitor.settimeout(0.01)
    try:
        visitor.recv(1)
    except TimeoutError:
        return True
    return False


def test_who_does_not_prove_the_token_in_time_is_ended_and_who_has_stays(
    door: Door, guard: Doorman, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorman, "PROOF_SECONDS", 1.0)
    begun = time.monotonic()
    actor, stranger = door.visit(trusted=True), door.visit()
    assert is_ended(stranger) and time.monotonic() - begun > 0.9
    assert stands(actor) and guard.ended == 1


def test_who_loses_that_is_given_the_same_time_anew(
    door: Door, guard: Doorman, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorman, "PROOF_SECONDS", 1.0)
    actor = door.visit(trusted=True)
    actor.sendall(bytes(2 * doorman._STRANGER_BYTES // 3))  # fits into the kernel's buffers
    time.sleep(1.5)
    begun = time.monotonic()
    door.trusted.clear()
    assert is_ended(actor) and time.monotonic() - begun > 0.9


def test_who_sends_much_before_the_proof_is_ended(door: Door, guard: Doorman, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorman, "_STRANGER_BYTES", 50_000)
    actor, stranger, quiet = door.visit(trusted=True), door.visit(), door.visit()
    for visitor in (actor, stranger):
        visitor.sendall(bytes(60_000))
    quiet.sendall(bytes(1_000))
    assert is_ended(stranger)
    assert stands(actor) and stands(quiet)


def test_a_few_may_come_in_although_actors_hold_most_descriptors(
    door: Door, guard: Doorman, monkeypatch: pytest.MonkeyPatch
) -> None:
    actors = [door.visit(trusted=True) for _ in range(30)]
    wait_for(lambda: guard.descriptors > 60, "a look at all of them", LIMIT)
    # What is left for connections is less than nothing, which those that knock are to be told, not to be cut off for.
    monkeypatch.setattr(doorman, "descriptor_limit", lambda: guard.descriptors)
    strangers = [door.visit() for _ in range(doorman._AT_THE_DOOR + 4)]
    assert all(is_ended(stranger) for stranger in strangers[:4])
    assert all(map(stands, strangers[4:])) and all(map(stands, actors))
    assert guard.crowded


def test_the_oldest_strangers_go_when_there_are_too_many(
    door: Door, guard: Doorman, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorman, "STRANGERS", 5)
    actor = door.visit(trusted=True)
    strangers = [door.visit() for _ in range(8)]
    assert all(is_ended(stranger) for stranger in strangers[:3])
    assert all(stands(visitor) for visitor in (actor, *strangers[3:]))


def test_nobody_is_too_old_while_the_service_takes_nothing(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorman, "PROOF_SECONDS", 0.5)
    heard = time.monotonic() - 100.0
    guard = Doorman([door], lambda: heard)
    try:
        stranger = door.visit()
        time.sleep(2.0)
        assert stands(stranger)
        monkeypatch.setattr(guard, "_heard", time.monotonic)
        stranger.settimeout(LIMIT)
        assert is_ended(stranger)
    finally:
        guard.close()


def test_strangers_are_found_and_ended_when_no_descriptor_is_left(
    door: Door, guard: Doorman, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    stranger, actor = door.visit(), door.visit(trusted=True)
    # Below what is open already: nothing more can be opened, not even a folder.
    resource.setrlimit(resource.RLIMIT_NOFILE, (stranger.fileno() + 10, limits[1]))
    monkeypatch.setattr(doorman, "PROOF_SECONDS", 0.5)
    hoard = []
    try:
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                hoard.append(stranger.dup())
        assert is_ended(stranger)
    finally:
        for duplicate in hoard:
            duplicate.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert stands(actor)


def test_the_learner_is_crowded_by_actors_and_not_by_strangers(door: Door, guard: Doorman) -> None:
    guard.descriptors, guard.strangers = doorman.descriptor_limit() - 5, 0
    assert guard.crowded
    guard.strangers = guard.descriptors // 2
    assert not guard.crowded


def test_without_ports_there_is_no_thread() -> None:
    class Inside:
        port = None

        def trusts(self, descriptor: int, address: tuple[str, int]) -> bool:
            return False

    guard = Doorman([Inside()], time.monotonic)
    assert guard._thread is None
    guard.close()
