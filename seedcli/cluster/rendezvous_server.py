"""The chief's side of the rendezvous (`cluster.rendezvous`): it collects the hosts' status and sends all the state."""

from __future__ import annotations

import errno
import ipaddress
import logging
import select
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import zmq

from seedcli.cluster.messages import State, Status, describe_host, find_disagreement
from seedcli.errors import ProtocolError, UsageError
from seedcli.net.addresses import join_host_port, split_host_port
from seedcli.net.base import Destination, Payload, Peer
from seedcli.net.frames import CONTROL_LIMIT, Header, Kind, pack_header
from seedcli.net.messages import printable
from seedcli.net.security.keys import Security
from seedcli.net.zmq_router import RouterServer
from seedcli.serving.admission_control import AdmissionControl
from seedcli.telemetry.logs import log_once_per

_log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 1.0  # between heartbeats, of both sides
HEARTBEAT_TIMEOUT_SECONDS = 10.0  # without a heartbeat, after which a host is lost
POLL_SECONDS = 0.05
JOIN_SECONDS = 10.0
_LOG_SECONDS = 5.0
_RECEIVE_CALLS = 16  # maximum number of `receive` calls per turn


class Clock:
    """A clock that excludes time during which this process is blocked, as all are while TensorFlow connects them.

    Attributes:
        now: seconds on this clock.
        ticked: time of the last tick, monotonic seconds.
    """

    def __init__(self) -> None:
        self.now, self.ticked = 0.0, time.monotonic()

    def tick(self, longest: float, otherwise: float = 0.0) -> None:
        """Add the seconds since the last tick, or `otherwise` if they are more than `longest`."""
        before, self.ticked = self.ticked, time.monotonic()
        passed = self.ticked - before
        self.now += passed if passed <= longest else otherwise


@dataclass
class _Host:
    """A host that has joined: its last status, its connection, and when the status arrived, on the server's clock."""

    status: Status
    peer: Peer
    heard: float


class RendezvousServer:
    """Listens at the chief's address in its own thread (a `net.base.FrameHandler`).

    Args:
        hosts: "host:port" of each host, the chief first.
        chief: the chief's status, with which the others' are compared.
        security: token of the connections; None: no encryption and no authentication.

    Attributes:
        admission: limits the connections of unauthenticated peers.

    Raises:
        UsageError: the chief's address cannot be bound.
    """

    full = False

    def __init__(self, hosts: Sequence[str], chief: Status, security: Security | None) -> None:
        self._hosts = hosts
        self._chief = chief
        self._server = _listen(hosts[0], security)
        self._poll = select.poll()
        self._poll.register(self._server.fileno(), select.POLLIN)
        self._clock = Clock()
        self._state = State(missing=tuple(range(len(hosts))))
        self._due = False  # send before the next heartbeat
        self._peers: dict[Peer, int] = {}  # index of every peer that has sent a status
        self._joined: dict[int, _Host] = {}
        self._closing: tuple[str, bool] | None = None
        self.admission = AdmissionControl([self._server], lambda: self._clock.ticked)
        self._thread = threading.Thread(target=self._run, name="rendezvous server", daemon=True)
        self._thread.start()

    def close(self, reason: str, *, usage: bool) -> None:
        """Notify the others that the chief has ended, and why; safe to call twice. See `Rendezvous.close`."""
        self._closing = self._closing or (reason, usage)
        self._thread.join(JOIN_SECONDS)

    # -- a net.base.FrameHandler, called by `receive` in the server's thread

    def destination(self, peer: Peer, header: Header) -> None:
        """None: a STEP is refused by `frame`."""

    def take_row(self, destination: Destination, header: Header, payload: Payload) -> None:
        """Never called: there is no destination."""

    def lost(self, peer: Peer, reason: str, *, malformed: bool = False) -> None:
        self._peers.pop(peer, None)
        if malformed:
            log_once_per("rendezvous", _LOG_SECONDS, _log, logging.WARNING, "%s dropped: %s", peer.address, reason)

    def frame(self, peer: Peer, header: Header, payload: Payload) -> None:
        """See `net.base.FrameHandler`."""
        if header.kind != Kind.HELLO:
            raise ProtocolError(f"the rendezvous received a frame of kind {header.kind}")
        status = Status.parse(payload)
        self._server.trust(peer)
        self._peers[peer] = status.index
        known = self._joined.get(status.index)
        if known is not None and known.status.process == status.process:
            self._due = self._due or known.status != status
            self._joined[status.index] = _Host(status, peer, self._clock.now)
            if status.ended is not None:
                self._take_end(status.index, status.ended, status.usage)
        elif not self._state.hosts:
            self._take_newcomer(status, peer)

    def _take_end(self, index: int, reason: str, usage: bool) -> None:
        if usage:
            self._fail(reason, usage=True)
        elif reason and (self._state.hosts or index == 0):
            self._fail(f"{describe_host(self._hosts, index)} has ended: {reason}")
        if not self._state.hosts:
            self._joined.pop(index, None)  # it may join again

    def _take_newcomer(self, status: Status, peer: Peer) -> None:
        if status.config is None:
            raise ProtocolError("the host belongs to an earlier rendezvous")
        who = describe_host(self._hosts, status.index)
        # If the earlier process has lost its connection, another may replace it.
        if status.index in self._joined and self._joined[status.index].peer in self._peers:
            self._fail(f"two processes have joined as {who}: give each its own --host-index", usage=True)
            return
        if sentence := find_disagreement(self._hosts, self._chief, status):
            self._fail(sentence, usage=True)
            return
        if status.index:
            _log.info("%s has joined", who)
        self._joined[status.index] = _Host(status, peer, self._clock.now)
        self._due = True

    # -- the thread

    def _run(self) -> None:
        next_beat = 0.0
        try:
            while True:
                closing = self._closing
                self._poll.poll(1000 * POLL_SECONDS)
                for _ in range(_RECEIVE_CALLS):
                    if not self._server.receive(self):
                        break
                self._clock.tick(2 * HEARTBEAT_SECONDS + POLL_SECONDS)
                self._find_silent()
                if closing is not None:
                    self._take_end(0, *closing)
                    self._send(ended=True)
                    return
                if self._due or self._clock.ticked >= next_beat:
                    self._due, next_beat = False, self._clock.ticked + HEARTBEAT_SECONDS
                    self._send()
        except Exception:  # the hosts notice that heartbeats stop
            _log.exception("the rendezvous of the learner hosts has failed")
        finally:
            self.admission.close()
            self._server.close()

    def _fail(self, sentence: str, *, usage: bool = False) -> None:
        """Make all hosts stop; only the first reason is kept."""
        if not self._state.failure:
            self._state = self._state.model_copy(update={"failure": printable(sentence), "usage": usage})
            self._due = True

    def _find_silent(self) -> None:
        for index, host in list(self._joined.items()):
            silent = self._clock.now - host.heard
            if silent <= HEARTBEAT_TIMEOUT_SECONDS or host.status.ended is not None:
                continue
            sentence = f"{describe_host(self._hosts, index)} has not been heard from for {silent:.0f} s"
            if self._state.hosts:
                self._fail(sentence)
            else:
                _log.warning("%s", sentence)
                del self._joined[index]

    def _send(self, *, ended: bool = False) -> None:
        self._state = self._collect(ended)
        other = self._state.model_copy(update={"hosts": (), "taken": True})
        state, outside = (pack.model_dump_json().encode() for pack in (self._state, other))
        members = {host.peer for host in self._joined.values()}
        # The chief last: once it knows that all are ready, TensorFlow may block its Python threads.
        for peer in sorted(self._peers, key=lambda peer: self._peers[peer] == 0):
            body = state if peer in members else outside
            self._server.send(peer, pack_header(Kind.CONFIGURE, len(body)), body)

    def _collect(self, ended: bool) -> State:
        """Merge the hosts' status into the next state."""
        everyone, before = range(len(self._hosts)), self._state
        statuses = {index: host.status for index, host in self._joined.items()}
        whole = len(statuses) == len(self._hosts)
        return before.model_copy(
            update={
                "missing": tuple(index for index in everyone if index not in statuses),
                "hosts": before.hosts or (tuple(statuses[index].addresses for index in everyone) if whole else ()),
                "run": before.run or (statuses[0].run if 0 in statuses else None),
                "ready": whole and all(status.ready for status in statuses.values()),
                "loads": tuple(statuses[index].envs if index in statuses else 0 for index in everyone),
                "spec": before.spec or next((status.spec for status in statuses.values() if status.spec), None),
                "ended": ended,
            }
        )


def _listen(chief: str, security: Security | None) -> RouterServer:
    """Listen at the address of the chief's name, or on every interface if that is a loopback address."""
    host, port = split_host_port(chief) or ("", 0)
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    try:
        address = str(socket.getaddrinfo(host.strip("[]"), port, family, socket.SOCK_STREAM)[0][4][0])
        # Some systems resolve a machine's own name to a loopback address, which other hosts cannot reach.
        loopback = ipaddress.ip_address(address.partition("%")[0]).is_loopback
        if security is not None and loopback and host.strip("[]") not in ("localhost", address):
            address = "0.0.0.0"
        url = f"tcp://{join_host_port(address, port)}"
        return RouterServer("zmq", url, max_payload=CONTROL_LIMIT, security=security)
    except (OSError, UnicodeError, zmq.ZMQError) as error:
        if getattr(error, "errno", 0) == errno.EADDRINUSE:
            raise UsageError(
                f"{chief}, the chief's address in topology.hosts, is in use: another process is host 0 already (give "
                "each its own --host-index), or choose another port"
            ) from error
        raise UsageError(
            f"cannot listen at {chief} ({error}), the address of this host according to topology.host_index = 0: check "
            "topology.hosts, and give each host its own --host-index"
        ) from error
