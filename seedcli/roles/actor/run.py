"""The actor: keeps a session with the learner (`roles.actor.session`) until training is done. It holds no network."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import logging
import os
import random
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from seedcli.errors import (
    EXIT_DONE,
    AuthenticationError,
    ConnectionLost,
    EnvironmentFailed,
    RefusedError,
    SeedError,
    TrainingDone,
    UnreachableError,
    UsageError,
)
from seedcli.net.connect import connect
from seedcli.net.handshake import ClientHandshake, Redirected
from seedcli.roles.actor.session import ActorSession, Environments
from seedcli.roles.discovery import Discovery
from seedcli.roles.restarts import Restarts
from seedcli.roles.stopping import Stopped, raise_if_stopped, raising_stopped
from seedcli.roles.watchdog import PendingSignals
from seedcli.telemetry.logs import setup_logging
from seedcli.telemetry.metrics import Profile

_log = logging.getLogger(__name__)

_DEFAULT_RECONNECT_SECONDS = 300.0
_POLL_SECONDS = 0.5
_LOOK_SECONDS = 1.0
_REPORT_SECONDS = 5.0


def _end_with_parent(parent: int) -> None:
    """Have the kernel stop this process when its parent dies (Linux only; elsewhere heartbeats detect it)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        raise UsageError(f"the process {parent} that started this actor is gone: start it again")


def _backoff(attempt: int) -> float:
    """Seconds before the next attempt: doubling from 0.1 to 3, with jitter so that a fleet does not reconnect at once.

    A ZeroMQ attempt at an earlier address of the learner takes 5 s; with these pauses a fleet is back within 10 s.
    """
    return min(3.0, 0.1 * 2.0 ** min(attempt, 10)) * random.uniform(0.5, 1.0)


class _Actor:
    """The loop over sessions: connect, act, and reconnect until the timeout."""

    def __init__(
        self,
        discovery: Discovery,
        *,
        envs: int,
        streams: int,
        actor_id: str,
        reconnect: float | None,
        threads: int,
        signalled: Callable[[], int],
    ) -> None:
        self._discovery = discovery
        self._envs = envs
        self._streams = streams
        self._reconnect = reconnect
        self._limit = _DEFAULT_RECONNECT_SECONDS if reconnect is None else reconnect
        self._connected_before = False
        self._lost_at = time.monotonic()
        self._signalled = signalled
        self._restarts = Restarts(actor_id)
        self._environments = Environments(threads, renew=self._replace_process, on_hang=self._hung, signalled=signalled)
        self._session: ActorSession | None = None
        self._session_was_open = False
        self._address_known = False
        self._sent = False  # another learner host redirected this actor to the session's host
        self._no_redirect = False  # the redirect failed: the next learner host must not redirect again
        self.profile = Profile()
        for name, spent in self._restarts.seconds.items():
            self.profile.add(name, spent)
        self.steps = self._restarts.steps

    def run(self) -> None:
        """Act until the learner announces the end of training.

        Raises:
            UnreachableError: no learner for longer than the reconnect timeout.
            RefusedError: every learner found refused this actor.
            EnvironmentFailed: the environments failed too often.
        """
        if self._restarts.given_up:
            self._report_previous_failure()
            raise EnvironmentFailed(self._restarts.given_up)
        attempt = 0
        try:
            while not self._attempt(first=attempt == 0):
                # A session that opened resets the count.
                attempt = 0 if self._session_was_open else attempt + 1
                left = self._limit - (time.monotonic() - self._lost_at)
                # Without an address the next attempt only reads a file.
                pause = _backoff(attempt) if self._address_known else min(_backoff(attempt), _LOOK_SECONDS)
                time.sleep(min(pause, max(0.0, left)))
        finally:
            self._environments.close()

    def _attempt(self, *, first: bool) -> bool:
        """Run one connection from discovery to its end; returns whether training is done."""
        self._session_was_open = False
        self._address_known = False
        goodbye, failure, address = True, "", ""
        try:
            address = self._discovery.next()
            self._address_known = True
            session = self._open_session(address)
            raise_if_stopped()  # while environments were built
            self._discovery.succeeded()
            self._no_redirect = False
            assert session.ready is not None
            self._connected_before = self._session_was_open = True
            if self._reconnect is None:
                self._limit = session.ready.reconnect_timeout
            while not session.done:
                session.turn(_POLL_SECONDS)
            goodbye = False
            return True
        except TrainingDone:
            goodbye = False
            return True
        except (ConnectionLost, UnreachableError) as error:
            goodbye = False
            self._lost(error, first=first or self._session_was_open)
        except RefusedError as error:
            if self._session_was_open or not address:
                raise
            goodbye = False
            # A learner has admitted this actor before, so a distrusted peer may just be using its address meanwhile.
            # After a failed redirect the actor returns to the redirecting host.
            if not (self._sent or (self._connected_before and isinstance(error, AuthenticationError))):
                self._discovery.refused(address, error)
            self._lost(error, first=first)
        except EnvironmentFailed as error:
            in_session = self._session is not None and self._session.ready is not None
            if not in_session and not self._connected_before and not self._restarts.failures:
                raise  # the environments have never worked
            self._lost_at, failure = time.monotonic(), str(error)
            self._failed(error, reported=in_session)
        finally:
            if self._session is not None:
                session, self._session = self._session, None
                self.steps += session.steps
                session.close(goodbye=goodbye, failure=failure)
        return False

    def _open_session(self, address: str) -> ActorSession:
        """Open a session with the learner at `address`, or with the host to which it redirects this actor."""
        self._sent = False
        self._session = session = self._new_session(address)
        try:
            session.open()
        except Redirected as sent:
            session.close(goodbye=False)
            self._sent = self._no_redirect = True
            address = sent.address
            self._session = session = self._new_session(address)
            session.open()
        _log.info("connected to %s with %d environments", address, self._envs)
        return session

    def _new_session(self, address: str) -> ActorSession:
        return ActorSession(
            connect(address, self._discovery.security(address)),
            self._environments,
            actor_id=self._restarts.actor_id,
            envs=self._envs,
            streams=self._streams,
            profile=self.profile,
            failure=self._restarts.unreported,
            reported=self._mark_reported,
            placed=self._no_redirect,
        )

    def _lost(self, error: SeedError, *, first: bool) -> None:
        """Handle a missing learner; raises UnreachableError after the reconnect timeout."""
        if self._session_was_open:
            self._lost_at = time.monotonic()
        gone = time.monotonic() - self._lost_at
        if gone >= self._limit:
            what = "has been lost" if self._connected_before else "has not answered"
            raise UnreachableError(
                f"the learner at {self._discovery} {what} for {gone:.0f} s (the limit is {self._limit:.0f} s): "
                "start it, check --connect, or raise --reconnect-timeout"
            ) from error
        if first:
            _log.warning("%s; trying again for %.0f s", error, self._limit - gone)

    def _mark_reported(self) -> None:
        self._restarts.unreported = ""

    def _report_previous_failure(self) -> None:
        """Report to the learner, if it is reachable, why the previous process gave up."""
        with contextlib.suppress(SeedError):
            address = self._discovery.next()
            transport = connect(address, self._discovery.security(address))
            try:
                transport.connect(_REPORT_SECONDS)
                ClientHandshake(
                    transport,
                    actor_id=self._restarts.actor_id,
                    envs=self._envs,
                    streams=self._streams,
                    timeout=_REPORT_SECONDS,
                    failure=self._restarts.unreported,
                    placed=True,  # any host must accept the report itself, without a redirect
                ).configure()
            finally:
                transport.close()

    def _failed(self, error: EnvironmentFailed, *, reported: bool) -> None:
        """Rebuild the environments, or give up; `reported`: the learner learns of the failure as the session ends."""
        self._environments.discard()
        if not self._restarts.failed(str(error), self._environments.restarts):
            raise EnvironmentFailed(self._restarts_exhausted(str(error))) from error
        if reported:
            self._mark_reported()

    def _hung(self, sentence: str) -> None:
        """Handle environments that hang; called in the watchdog's thread."""
        if not self._restarts.failed(sentence, self._environments.restarts):
            # The main thread is blocked: the next process reports to the learner and exits.
            self._restarts.given_up = self._restarts_exhausted(sentence)
        self._replace_process()

    def _replace_process(self) -> None:
        if number := self._signalled():
            os._exit(128 + number)
        steps = self.steps + (self._session.steps if self._session is not None else 0)
        self._restarts.replace_process(steps, self.profile.seconds())

    def _restarts_exhausted(self, sentence: str) -> str:
        return (
            f"{sentence}; that is failure {self._restarts.failures} of these environments, more than "
            f"environment.restarts = {self._environments.restarts} allows: repair them"
        )


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Context in which the output of environments goes to stderr: stdout is for results, read only at the end."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def run_actor(
    discovery: Discovery,
    *,
    envs: int | None = None,
    streams: int | None = None,
    actor_id: str | None = None,
    reconnect_timeout: float | None = None,
    threads: int = 0,
    json_output: bool = False,
    parent: int | None = None,
) -> int:
    """Run an actor until training is done.

    Args:
        discovery: where the learner is.
        envs: number of environments; default 16.
        streams: groups that the environments are split into; default 2, at most `envs`.
        actor_id: default: host, process and a random part.
        reconnect_timeout: seconds to look for a lost learner; default: set by the learner.
        threads: worker threads of vector environments that have any; 0: one per core.
        json_output: print the steps and the time profile as JSON at the end.
        parent: stop when this process, which started the actor, dies.

    Returns:
        The exit status: 0 when training is done, 143, 130 or 129 after a signal.
    """
    envs = 16 if envs is None else envs
    if envs < 1:
        raise UsageError(f"--envs {envs} must be at least 1")
    streams = min(2, envs) if streams is None else streams
    if not 1 <= streams <= envs:
        raise UsageError(f"--streams {streams} must lie between 1 and --envs ({envs})")
    setup_logging(None, None)
    actor = _Actor(
        discovery,
        envs=envs,
        streams=streams,
        actor_id=actor_id or f"{socket.gethostname()[:32]}-{os.getpid()}-{secrets.token_hex(3)}",
        reconnect=reconnect_timeout,
        threads=threads,
        signalled=PendingSignals(),
    )
    # A simulator's crash cannot be caught; this prints where it happened.
    faulthandler.enable()
    begun = time.perf_counter()
    status = EXIT_DONE
    try:
        with _stdout_to_stderr(), raising_stopped():
            if parent is not None:
                _end_with_parent(parent)
            actor.run()
    except Stopped as stop:
        status = stop.status
    wall = time.perf_counter() - begun
    report: dict[str, Any] = {"env_steps": actor.steps, "seconds": wall, "profile": actor.profile.seconds()}
    if json_output:
        print(json.dumps(report))
    else:
        spent = ", ".join(f"{name} {100 * part / wall:.0f}%" for name, part in actor.profile.seconds().items())
        _log.info("%s environment steps in %.0f s; time: %s", f"{actor.steps:,}", wall, spent)
    return status
