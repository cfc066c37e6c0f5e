"""Learner hosts join at the rendezvous, or fail with the reason."""

from __future__ import annotations

import logging
import socket
import threading
import time
from contextlib import ExitStack
from typing import Any

import pytest
import zmq

from seedcli.cluster.rendezvous import Rendezvous, RendezvousCancelled
from seedcli.errors import AuthenticationError, UnreachableError, UsageError
from seedcli.net.frames import Kind, pack_header
from seedcli.net.security.keys import Security
from seedcli.serving import admission_control
from tests.cluster.joining import SECURITY, Hosts, failure, free_hosts, status, wait_until
from tests.net.harness import LIMIT
from tests.net.protected import OTHER

# -- joining


def test_three_hosts_join(held: Hosts) -> None:
    for index, rendezvous in enumerate(held.all(3)):
        state = rendezvous.state
        assert (rendezvous.index, rendezvous.failure, state.spec, state.run, state.ready) == (
            index,
            "",
            None,
            None,
            False,
        )
        assert state.hosts == tuple(status(other).addresses for other in range(3)) and state.missing == ()


def test_a_single_host_does_not_wait(held: Hosts) -> None:
    assert len(held.all(1)[0].state.hosts) == 1


def test_insecure_hosts_join_without_a_token(held: Hosts) -> None:
    hosts = free_hosts(2)
    futures = [held.start(hosts, index, security=None) for index in range(2)]
    assert [future.result(LIMIT).failure for future in futures] == ["", ""]


@pytest.mark.parametrize("theirs", [Security(OTHER), None], ids=["another token", "none"])
def test_a_host_without_the_token_is_refused(held: Hosts, theirs: Security | None) -> None:
    hosts = free_hosts(2)
    chief = held.start(hosts, 0)
    sentence = failure(held.start(hosts, 1, security=theirs), AuthenticationError)
    assert hosts[0] in sentence and ("token" in sentence or "--insecure" in sentence)
    held.stop.set()
    failure(chief, RendezvousCancelled)


def test_messages_of_unauthenticated_peers_are_ignored(held: Hosts) -> None:
    hosts = free_hosts(2)
    chief = held.start(hosts, 0, timeout=2.0)
    with zmq.Context() as context, context.socket(zmq.DEALER) as intruder:
        intruder.setsockopt(zmq.LINGER, 0)
        intruder.connect(f"tcp://{hosts[0]}")
        body = status(1, training__batch_size=64).model_dump_json().encode()
        intruder.send_multipart([pack_header(Kind.HELLO, len(body)), body])
        # A host that holds the token would have been refused with the name of the key.
        assert "did not join" in failure(chief, UsageError)
        assert not intruder.poll(0)


# -- failures


def test_a_difference_is_named_on_every_host(held: Hosts, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    hosts = free_hosts(3)
    futures = [held.start(hosts, index) for index in range(2)]
    wait_until(lambda: f"host 1 ({hosts[1]}) has joined" in caplog.text)  # before the error ends every host
    other = held.start(hosts, 2, status(2, training__batch_size=64, telemetry__x=1, net__host="::"))
    sentences = {failure(future, UsageError) for future in (*futures, other)}
    (sentence,) = sentences
    assert f"host 2 ({hosts[2]}) has training.batch_size = 64 and host 0 ({hosts[0]}) has 32" in sentence


def test_host_specific_keys_may_differ(held: Hosts) -> None:
    hosts = free_hosts(2)
    own: dict[str, Any] = {"net__host": "10.0.0.2", "net__grpc_port": 1, "net__token_file": "t", "net__tls_ca": "c"}
    own |= {"net__metrics_port": 5, "telemetry__interval": 3.0}
    chief, other = held.start(hosts, 0), held.start(hosts, 1, status(1, **own))
    assert len(chief.result(LIMIT).state.hosts) == len(other.result(LIMIT).state.hosts) == 2


def test_infinities_and_tuples_compare_equal_across_hosts(held: Hosts) -> None:
    hosts = free_hosts(2)
    futures = [held.start(hosts, index, status(index, a__b=float("inf"), a__c=((1, 2), 3.5))) for index in range(2)]
    assert all(future.result(LIMIT).failure == "" for future in futures)


def test_a_key_missing_on_one_host_is_named(held: Hosts) -> None:
    hosts = free_hosts(2)
    chief, other = held.start(hosts, 0), held.start(hosts, 1, status(1, agent__width=3))
    for future in (chief, other):
        assert "agent.width = 3 and host 0" in failure(future, UsageError)


def test_hosts_of_different_versions_fail(held: Hosts) -> None:
    hosts = free_hosts(2)
    chief, other = held.start(hosts, 0), held.start(hosts, 1, status(1, "2.0"))
    for future in (chief, other):
        assert "runs seedcli 2.0 and host 0" in failure(future, UsageError)


def test_every_host_names_a_host_that_does_not_join(held: Hosts) -> None:
    hosts = free_hosts(3)
    other = held.start(hosts, 2)
    chief = held.start(hosts, 0, timeout=1.5)
    for future in (chief, other):
        sentence = failure(future, UsageError)
        assert f"topology.host_timeout = 1.5 s: host 1 ({hosts[1]}) did not join" in sentence


def test_a_missing_chief_is_unreachable(held: Hosts) -> None:
    hosts = free_hosts(2)
    assert f"host 0 ({hosts[0]}) does not answer" in failure(held.start(hosts, 1, timeout=0.5), UnreachableError)
    unknown = ["no-such-host.invalid:1", hosts[0]]
    assert "no-such-host" in failure(held.start(unknown, 1, timeout=0.5), UnreachableError)


def test_two_processes_with_the_same_index_fail(held: Hosts) -> None:
    hosts = free_hosts(3)
    futures = [held.start(hosts, index) for index in (0, 1, 1)]
    for future in futures:
        assert f"two processes have joined as host 1 ({hosts[1]})" in failure(future, UsageError)


def test_a_second_chief_fails(held: Hosts) -> None:
    hosts = free_hosts(2)
    futures = [held.start(hosts, 0), held.start(hosts, 0)]
    wait_until(lambda: any(future.done() for future in futures))
    held.stop.set()
    (sentence,) = [str(future.exception(LIMIT)) for future in futures if isinstance(future.exception(), UsageError)]
    assert "is in use: another process is host 0 already" in sentence


@pytest.mark.parametrize("address", ["192.0.2.7:9999", "no-such-host.invalid:9999"])
def test_a_chief_address_of_another_machine_fails(held: Hosts, address: str) -> None:
    assert "topology.host_index = 0" in failure(held.start([address, "b:1"], 0), UsageError)


def test_an_index_out_of_range_fails(held: Hosts) -> None:
    hosts = free_hosts(2)
    chief, other = held.start(hosts, 0), held.start(hosts, 5)
    for future in (chief, other):
        assert "topology.host_index = 5 of one host must be from 1 to 1" in failure(future, UsageError)


def test_waiting_can_be_stopped_and_the_others_are_notified(held: Hosts) -> None:
    hosts = free_hosts(3)
    stop = threading.Event()
    chief = held.start(hosts, 0, stopped=stop.is_set)
    other = held.start(hosts, 1)
    time.sleep(0.5)
    begun = time.monotonic()
    stop.set()
    failure(chief, RendezvousCancelled)
    assert "host 0" in failure(other, UnreachableError)
    assert time.monotonic() - begun < 5


def test_a_host_stopped_while_waiting_can_join_again(held: Hosts) -> None:
    hosts = free_hosts(3)
    stop = threading.Event()
    chief, first = held.start(hosts, 0), held.start(hosts, 1, stopped=stop.is_set)
    time.sleep(0.5)
    stop.set()
    failure(first, RendezvousCancelled)
    others = [held.start(hosts, index) for index in (1, 2)]
    assert all(len(future.result(LIMIT).state.hosts) == 3 for future in (chief, *others))


def test_a_configuration_over_the_size_limit_is_refused() -> None:
    large = status(0, agent__x="x" * 70_000)
    with pytest.raises(UsageError, match="exceeds the 65536 bytes"):
        Rendezvous(free_hosts(2), large, SECURITY)


def ended(visitor: socket.socket) -> bool:
    """Wait for the other end to close the connection."""
    try:
        return visitor.recv(1000)[-1:] == b"" or ended(visitor)  # ZeroMQ greets
    except ConnectionError:
        return True


@pytest.mark.parametrize("security", [SECURITY, None], ids=["token", "insecure"])
def test_unauthenticated_connections_to_the_chief_are_ended_and_hosts_stay(
    held: Hosts, monkeypatch: pytest.MonkeyPatch, security: Security | None
) -> None:
    monkeypatch.setattr(admission_control, "PROOF_SECONDS", 3.0)
    monkeypatch.setattr(admission_control, "MAX_UNAUTHENTICATED", 8)
    hosts = free_hosts(2)
    host, port = hosts[0].split(":")
    chief = Rendezvous(hosts, status(0), security)
    with ExitStack() as stack:
        stack.callback(chief.close)
        assert chief.server is not None
        control = chief.server.admission

        def visit() -> socket.socket:
            visitor = stack.enter_context(socket.create_connection((host, int(port)), LIMIT))
            visitor.settimeout(LIMIT)
            return visitor

        visitors = [visit() for _ in range(12)]
        wait_until(lambda: control.ended >= 4)  # of 12 at once
        visitors += [visit() for _ in range(8)]
        begun = time.monotonic()
        assert (
            all(map(ended, visitors[:12])) and time.monotonic() - begun < 2.5
        )  # above the limit, the oldest are ended
        other = held.start(hosts, 1, security=security)
        chief.join(LIMIT)
        assert all(map(ended, visitors[12:])) and time.monotonic() - begun > 2.5
        wait_until(lambda: control.unauthenticated == 0)
        count = control.ended
        time.sleep(3.5)
        # The connections of the hosts, which are older than that, remain.
        assert control.ended == count and not chief.failure and not other.result(LIMIT).failure
