"""The rendezvous: learner hosts of one run find each other, agree on what they build, and detect failed hosts.

The chief listens at the first address of topology.hosts over the ZeroMQ transport, with the frames, keys and admission
control of the listeners for actors. Every host connects, including the chief. There are two messages, each with the
complete state: with every heartbeat a host sends its `Status` (as HELLO), and the chief's server sends every host the
`State` that it collects from them (as CONFIGURE).

    Status of each host → `RendezvousServer` at the chief: compares and collects → State → every host

So no message depends on an earlier one, and hosts can reconnect. The fields of `State` are set in this order: hosts
(all have joined and agree), run (its state), ready (TensorFlow may connect them), spec (what all build).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from seedcli.cluster import rendezvous_server as server
from seedcli.cluster.messages import MAX_HOSTS, State, Status, describe_host
from seedcli.cluster.rendezvous_server import JOIN_SECONDS, POLL_SECONDS, Clock, RendezvousServer
from seedcli.errors import AuthenticationError, ConnectionLost, ProtocolError, SeedError, UnreachableError, UsageError
from seedcli.net.addresses import check_known
from seedcli.net.frames import CONTROL_LIMIT, Kind, pack_header
from seedcli.net.messages import printable
from seedcli.net.security.keys import Security
from seedcli.net.zmq import ZmqClient

_log = logging.getLogger(__name__)

_STOP_POLL_SECONDS = 0.1
_CONNECT_SECONDS = 2.0  # per attempt; closing may have to wait for it


class RendezvousCancelled(Exception):
    """This host was asked to stop while it waited for the others."""


class Rendezvous:
    """One host's client of the rendezvous; thread-safe. End it with `close`.

    Its own thread exchanges messages; other threads update this host's status (`update`) and read the state.

    Args:
        hosts: "host:port" of each host, the chief first; only the chief listens at its address.
        status: this host's status.
        security: token of the connections; None: no encryption and no authentication.
        stopped: returns whether this host was asked to stop, which ends `wait`.

    Attributes:
        hosts: the addresses of all hosts.
        index: the index of this host.
        server: the chief's server; None on other hosts.

    Raises:
        UsageError: the chief's address cannot be bound, or there are too many hosts or too large a configuration.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        status: Status,
        security: Security | None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        if len(hosts) > MAX_HOSTS:
            raise UsageError(
                f"topology.hosts names {len(hosts)} hosts, more than the limit of {MAX_HOSTS}: leave some out"
            )
        if len(_body(status)) > CONTROL_LIMIT:
            raise UsageError(
                f"this host's configuration exceeds the {CONTROL_LIMIT} bytes that can be sent to other hosts"
            )
        self.hosts = tuple(hosts)
        self.index = status.index
        self._security = security
        self._stopped = stopped
        self._changed = threading.Condition()
        # Under the condition's lock:
        self._status = Status.parse(_body(status))  # as received by others, with tuples as lists
        self._state = State(missing=(0,))
        self._failure: SeedError | None = None
        self._due = False  # send before the next heartbeat
        # Used by the thread only:
        self._client: ZmqClient | None = None
        self._clock = Clock()
        self._heard = 0.0
        self.server = RendezvousServer(self.hosts, self._status, security) if self.index == 0 else None
        self._thread = threading.Thread(target=self._run, name="rendezvous", daemon=True)
        self._thread.start()

    @property
    def state(self) -> State:
        """The state last received from the chief's server."""
        with self._changed:
            return self._state

    @property
    def failure(self) -> str:
        """The first failure, naming the host that was lost or that ended with a reason; "" if there is none."""
        with self._changed:
            return str(self._failure or "")

    def update(self, **values: Any) -> None:
        """Change fields of this host's status and send it at once.

        Raises:
            ProtocolError: the specification exceeds the size limit of a message.
        """
        with self._changed:
            changed = self._status.model_copy(update=values)
            if "spec" in values and len(_body(changed.model_copy(update={"config": None}))) > CONTROL_LIMIT:
                raise ProtocolError(f"a specification of more than {CONTROL_LIMIT} bytes cannot be sent to other hosts")
            self._due = self._due or changed != self._status
            self._status = changed

    def wait_spec(self, timeout: float) -> Mapping[str, Any] | None:
        """Wait for the agreed specification; None after `timeout` seconds, or if a host is lost."""
        with self._changed:
            self._changed.wait_for(lambda: self._state.spec is not None or self._failure is not None, timeout)
            return self._state.spec

    def wait(self, condition: Callable[[State], bool], timeout: float, overdue: Callable[[], SeedError]) -> State:
        """Wait until `condition` holds for the state; returns the state.

        Raises:
            SeedError: a host is lost or has failed, or `overdue()` after `timeout` seconds.
            RendezvousCancelled: this host was asked to stop.
        """
        deadline = time.monotonic() + timeout
        while True:
            with self._changed:
                self._changed.wait_for(lambda: condition(self._state) or self._failure is not None, _STOP_POLL_SECONDS)
                if self._failure is not None:
                    raise self._failure
                if condition(self._state):
                    return self._state
            if self._stopped():
                raise RendezvousCancelled(f"{describe_host(self.hosts, self.index)} was stopped")
            if time.monotonic() >= deadline:
                raise overdue()

    def join(self, timeout: float) -> Self:
        """Wait until all hosts have joined, for at most `timeout` seconds; closes this client on failure.

        Raises:
            UsageError: a host did not join; hosts disagree in their configuration, version or index.
            UnreachableError: the chief does not answer or has ended.
            AuthenticationError: the chief has another token.
            RendezvousCancelled: this host was asked to stop.
        """
        try:
            self.wait(lambda state: bool(state.hosts), timeout, lambda: self._overdue(timeout))
        except BaseException as error:
            self.close(str(error) or type(error).__name__, usage=isinstance(error, UsageError))
            raise
        return self

    def _overdue(self, timeout: float) -> SeedError:
        chief, limit = describe_host(self.hosts, 0), f"topology.host_timeout = {timeout:g} s"
        state, own = self.state, describe_host(self.hosts, self.index)
        if state.taken:
            return UsageError(
                f"{limit}: another process has joined {chief} as {own}: stop it, or give each its own --host-index"
            )
        if self._heard:
            names = ", ".join(describe_host(self.hosts, index) for index in state.missing)
            return UsageError(
                f"{limit}: {names} did not join at {self.hosts[0]}: start every host of topology.hosts, each with its "
                "own --host-index, or raise the timeout"
            )
        try:
            check_known(self.hosts[0], self.hosts[0])
        except UnreachableError as error:
            return error
        return UnreachableError(
            f"{limit}: {chief} does not answer: start it, check topology.hosts or raise the timeout"
        )

    def close(self, reason: str = "", *, usage: bool = False) -> None:
        """Leave the rendezvous; safe to call twice.

        Args:
            reason: why the others must stop; "" if this host has completed its work.
            usage: the user must correct the reason.
        """
        with self._changed:
            if self._status.ended is None:
                self._status = self._status.model_copy(update={"ended": printable(reason), "usage": usage})
        self._thread.join(JOIN_SECONDS)
        if self.server is not None:
            self.server.close(reason, usage=usage)

    # -- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        next_beat = 0.0
        try:
            while True:
                self._receive()
                self._clock.tick(2 * server.HEARTBEAT_SECONDS + POLL_SECONDS)
                with self._changed:
                    status, due, self._due = self._status, self._due, False
                if due or self._clock.ticked >= next_beat or status.ended is not None:
                    next_beat = self._clock.ticked + server.HEARTBEAT_SECONDS
                    self._send(status)
                if status.ended is not None:
                    return
                silent = self._clock.now - self._heard
                if self._state.hosts and not self._state.ended and silent > server.HEARTBEAT_TIMEOUT_SECONDS:
                    self._fail(SeedError(f"{describe_host(self.hosts, 0)} has not been heard from for {silent:.0f} s"))
        except Exception as error:  # any error: the others must not wait for this host
            _log.exception("the rendezvous of the learner hosts has failed")
            self._fail(SeedError(f"{describe_host(self.hosts, self.index)} cannot reach the other hosts: {error}"))
        finally:
            self._disconnect()

    def _receive(self) -> None:
        """Connect if needed, wait briefly for messages and take them."""
        if self._state.ended:
            time.sleep(POLL_SECONDS)
            return
        try:
            client = self._client = self._client or self._connect()
            wait = POLL_SECONDS
            while (frame := client.receive(wait)) is not None:
                if frame.header.kind != Kind.CONFIGURE:
                    raise ConnectionLost("the chief does not accept this host as part of its run")
                self._take(State.parse(frame.payload))
                wait = 0.0
        except (ConnectionLost, ProtocolError, UnreachableError) as error:
            _log.debug("the connection to the chief: %s", error)
            self._disconnect()
            time.sleep(POLL_SECONDS)

    def _take(self, state: State) -> None:
        self._heard = self._clock.now
        if state.failure:
            kind = UsageError if state.usage else SeedError if self._state.hosts else UnreachableError
            self._fail(kind(state.failure))
        with self._changed:
            self._state = state
            self._changed.notify_all()

    def _connect(self) -> ZmqClient:
        client = ZmqClient(f"tcp://{self.hosts[0]}", security=self._security)
        try:
            client.connect(_CONNECT_SECONDS)
        except SeedError as error:
            client.close()
            if not self._state.hosts and not isinstance(error, UnreachableError):
                self._fail(
                    AuthenticationError(self._authentication_failure())
                    if isinstance(error, AuthenticationError)
                    else error
                )
            raise UnreachableError(str(error)) from error
        finally:
            self._clock.tick(2 * _CONNECT_SECONDS, _CONNECT_SECONDS)  # counts as time without a message from the chief
        with self._changed:
            self._due = True
        return client

    def _authentication_failure(self) -> str:
        chief = describe_host(self.hosts, 0)
        if self._security is None:
            return f"{chief} closes unencrypted connections: give --insecure to every host or to none"
        return (
            f"{chief} and this host do not trust each other: this host uses the token from "
            f"{self._security.token.source}; give every host the same token (seed token show), or --insecure to all"
        )

    def _send(self, status: Status) -> None:
        if self._client is None or self._state.ended:
            return
        body = _body(status.model_copy(update={"config": None}) if self._state.hosts else status)
        try:
            self._client.send(pack_header(Kind.HELLO, len(body)), body)
        except ConnectionLost:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _fail(self, error: SeedError) -> None:
        with self._changed:
            if self._failure is None and self._status.ended is None:
                self._failure = error
            self._changed.notify_all()


def _body(status: Status) -> bytes:
    return status.model_dump_json().encode()
