"""The actor: steps environments, sends what it sees, does what it is told. It holds no network.

Each stream is a lock-step group of environments; while one steps, the others wait for their actions.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import random
import secrets
import signal
import socket
import sys
import threading
import time
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt

from seedcli.config import EnvironmentConfig
from seedcli.envs import create_env
from seedcli.envs.base import VectorEnv
from seedcli.errors import EXIT_DONE, ConnectionLost, ProtocolError, TrainingDone, UnreachableError, UsageError
from seedcli.net import connect
from seedcli.net.base import ClientTransport, Payload
from seedcli.net.frames import Header, Kind, decode_control, pack_header
from seedcli.net.handshake import ClientHandshake, Ready
from seedcli.specs import EnvSpec, RowLayout, StepBatch, split_envs
from seedcli.telemetry.logs import setup_logging
from seedcli.telemetry.metrics import Profile

_log = logging.getLogger(__name__)

_HANDSHAKE_SECONDS = 60.0
_FIRST_ANSWER_SECONDS = 5.0
_DEFAULT_RECONNECT_SECONDS = 300.0
_POLL_SECONDS = 0.5


class _Stop(BaseException):
    """A signal asked to stop; carries the exit status. No Exception: an environment must not take it for its own."""

    def __init__(self, status: int) -> None:
        self.status = status


class Environments:
    """The vector environments of an actor, one a stream, kept over reconnections."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._config: EnvironmentConfig | None = None
        self._envs: list[VectorEnv] = []

    def build(self, config: EnvironmentConfig, split: list[int]) -> EnvSpec:
        """Build what `config` asks for in groups of `split`, unless that is what there is."""
        if config != self._config or [env.num_envs for env in self._envs] != split:
            self.close()
            self._envs = [create_env(config, envs, threads=self._threads) for envs in split]
            self._config = config
        return self._envs[0].spec

    def __getitem__(self, stream: int) -> VectorEnv:
        return self._envs[stream]

    def close(self) -> None:
        """Close all of them."""
        for env in self._envs:
            env.close()
        self._envs = []


class ActorSession:
    """One connection, from the handshake to its end.

    Args:
        transport: not yet connected.
        environments: built in `open`.
        actor_id: kept over reconnections.
        envs: environments.
        streams: groups they are split into.

    Attributes:
        ready: what the learner granted; None before `open`.
        done: the learner said that training is over.
        profile: seconds by activity.
    """

    def __init__(
        self,
        transport: ClientTransport,
        environments: Environments,
        *,
        actor_id: str,
        envs: int,
        streams: int,
        profile: Profile,
    ) -> None:
        self._transport = transport
        self._environments = environments
        self._actor_id = actor_id
        self._envs = envs
        self._streams = streams
        self._views: list[StepBatch] = []
        self._sequence: list[int] = []
        self._last_heard = time.monotonic()
        self._stop_heartbeat = threading.Event()
        self._heartbeat: threading.Thread | None = None
        self.ready: Ready | None = None
        self.done = False
        self.steps = 0
        self.profile = profile

    def open(self) -> None:
        """Connect, be configured, build the environments, be admitted, send the first records.

        Raises:
            UnreachableError, RefusedError, ProtocolError, ConnectionLost, EnvironmentFailed, UsageError.
        """
        self._transport.connect(_FIRST_ANSWER_SECONDS)
        handshake = ClientHandshake(
            self._transport,
            actor_id=self._actor_id,
            envs=self._envs,
            streams=self._streams,
            timeout=_HANDSHAKE_SECONDS,
        )
        message = handshake.configure()
        config = EnvironmentConfig.model_validate(message["environment"])
        seed = int(message["seed"])
        split = split_envs(self._envs, self._streams, int(message["evaluation_envs"]))
        spec = self._environments.build(config, split)
        ready = handshake.announce(spec)
        layouts = [RowLayout(spec, envs) for envs in ready.stream_envs]
        if list(ready.stream_envs) != split or list(ready.payload_bytes) != [layout.nbytes for layout in layouts]:
            raise ProtocolError("the learner expects other streams or rows than this actor has: use one version")
        buffers = self._transport.open_session(ready.extra, ready.payload_bytes)
        self._views = [
            layout.views(np.frombuffer(buffer, np.uint8)) for layout, buffer in zip(layouts, buffers, strict=True)
        ]
        self._sequence = [0] * len(layouts)
        self.ready = ready
        self._last_heard = time.monotonic()
        self._start_heartbeat(ready)
        for stream, layout in enumerate(layouts):
            begun = time.perf_counter()
            self._environments[stream].reset(seed, self._views[stream])
            self.profile.add("environment", time.perf_counter() - begun)
            seed += layout.num_envs
            self._send(stream)

    def _start_heartbeat(self, ready: Ready) -> None:
        header = pack_header(Kind.HEARTBEAT, session=ready.session)

        def beat() -> None:
            while not self._stop_heartbeat.wait(ready.heartbeat_seconds):
                self._transport.heartbeat(header)

        self._heartbeat = threading.Thread(target=beat, name="heartbeat", daemon=True)
        self._heartbeat.start()

    def _send(self, stream: int) -> None:
        assert self.ready is not None
        begun = time.perf_counter()
        header = pack_header(
            Kind.STEP,
            self.ready.payload_bytes[stream],
            stream=stream,
            sequence=self._sequence[stream],
            session=self.ready.session,
        )
        # A connection that has ended is reported by `turn`, after what the learner said last: it may be DONE.
        with contextlib.suppress(ConnectionLost):
            self._transport.send_row(stream, header)
        self.profile.add("wire", time.perf_counter() - begun)

    def turn(self, timeout: float) -> bool:
        """Handle one frame; False where none came within `timeout` seconds.

        Raises:
            ConnectionLost: the connection broke, or the learner has been silent for too long.
            RefusedError: the learner ended the session and said why.
        """
        begun = time.perf_counter()
        frame = self._transport.receive(timeout)
        self.profile.add("waiting", time.perf_counter() - begun)
        assert self.ready is not None
        if frame is None:
            silent = time.monotonic() - self._last_heard
            if silent > self.ready.timeout_seconds:
                raise ConnectionLost(f"the learner has been silent for {silent:.0f} s")
            return False
        self._last_heard = time.monotonic()
        header, payload = frame
        if header.kind == Kind.ACTION:
            self._act(header, payload)
        elif header.kind == Kind.DONE:
            self.done = True
        elif header.kind == Kind.UNKNOWN:
            raise ConnectionLost("the learner does not know this session: it has restarted")
        elif header.kind == Kind.REFUSED:
            raise _refused(payload)
        elif header.kind != Kind.HEARTBEAT_ACK:
            raise ProtocolError(f"the learner sent a frame of kind {header.kind} inside a session")
        return True

    def _act(self, header: Header, payload: Payload) -> None:
        stream = header.stream
        if stream >= len(self._views) or header.sequence != self._sequence[stream]:
            raise ProtocolError(f"an action for step {header.sequence} of stream {stream}, which was not asked for")
        env = self._environments[stream]
        actions: npt.NDArray[np.int32] = np.frombuffer(payload, np.int32)
        if actions.shape != (env.num_envs,):
            raise ProtocolError(f"{len(actions)} actions for {env.num_envs} environments")
        begun = time.perf_counter()
        env.step(actions, self._views[stream])
        self.profile.add("environment", time.perf_counter() - begun)
        self.steps += env.num_envs
        self._sequence[stream] = (header.sequence + 1) & 0xFFFFFFFF
        self._send(stream)

    def close(self, *, goodbye: bool) -> None:
        """End the session; `goodbye` tells the learner, so that it frees the slots at once."""
        self._stop_heartbeat.set()
        if self._heartbeat is not None:
            self._heartbeat.join(timeout=5)
        if goodbye and self.ready is not None:
            try:
                self._transport.send(pack_header(Kind.GOODBYE, session=self.ready.session))
            except ConnectionLost:
                pass
        self._transport.close()


def _refused(payload: Payload) -> Exception:
    from seedcli.errors import RefusedError

    return RefusedError(f"the learner ended the session: {decode_control(payload).get('reason', 'no reason given')}")


def _die_with(parent: int) -> None:
    """Have the kernel stop this process when its parent dies (Linux); elsewhere heartbeats find out."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        raise UsageError(f"the process {parent} that started this actor is gone: start it again")


def _backoff(attempt: int) -> float:
    """Seconds before the next attempt: doubling from 0.1 to 5, with jitter so that a fleet does not come at once."""
    return min(5.0, 0.1 * 2.0 ** min(attempt, 10)) * random.uniform(0.5, 1.0)


class _Actor:
    """The loop over sessions: connect, act, and connect again until the time-out."""

    def __init__(self, address: str, *, envs: int, streams: int, actor_id: str, reconnect: float | None, threads: int):
        self._address = address
        self._envs = envs
        self._streams = streams
        self._actor_id = actor_id
        self._reconnect = reconnect
        self._environments = Environments(threads)
        self.profile = Profile()
        self.steps = 0

    def run(self) -> None:
        """Act until the learner says that training is done.

        Raises:
            UnreachableError: no learner for longer than the reconnect time-out.
        """
        limit = _DEFAULT_RECONNECT_SECONDS if self._reconnect is None else self._reconnect
        connected_before = False
        lost_at = time.monotonic()
        attempt = 0
        try:
            while True:
                session = ActorSession(
                    connect(self._address),
                    self._environments,
                    actor_id=self._actor_id,
                    envs=self._envs,
                    streams=self._streams,
                    profile=self.profile,
                )
                goodbye = True
                try:
                    session.open()
                    assert session.ready is not None
                    _log.info("connected to %s with %d environments", self._address, self._envs)
                    connected_before, attempt = True, 0
                    if self._reconnect is None:
                        limit = session.ready.reconnect_timeout
                    while not session.done:
                        session.turn(_POLL_SECONDS)
                    goodbye = False
                    return
                except TrainingDone:
                    goodbye = False
                    return
                except (ConnectionLost, UnreachableError) as error:
                    goodbye = False
                    if session.ready is not None:
                        lost_at = time.monotonic()
                    gone = time.monotonic() - lost_at
                    if gone >= limit:
                        what = "has been lost" if connected_before else "has not answered"
                        raise UnreachableError(
                            f"the learner at {self._address} {what} for {gone:.0f} s (the limit is {limit:.0f} s): "
                            "start it, check --connect, or raise --reconnect-timeout"
                        ) from error
                    if attempt == 0:
                        _log.warning("%s; trying again for %.0f s", error, limit - gone)
                finally:
                    self.steps += session.steps
                    session.close(goodbye=goodbye)
                time.sleep(min(_backoff(attempt), max(0.0, limit - (time.monotonic() - lost_at))))
                attempt += 1
        finally:
            self._environments.close()


def _handle_signals() -> None:
    def handle(number: int, frame: FrameType | None) -> None:
        # A second signal ends the process at once.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        raise _Stop(128 + number)

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)


def run_actor(
    address: str,
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
        address: the learner, as `net.connect` takes it.
        envs: environments; default 16.
        streams: groups they are split into; default 2, at most `envs`.
        actor_id: default: host, process and a random part.
        reconnect_timeout: seconds to look for a lost learner; default: what the learner says.
        threads: worker threads of an environment that has its own; 0: as many as cores.
        json_output: print steps and where the time went as JSON at the end.
        parent: stop when this process, which started the actor, dies.

    Returns:
        The exit status: 0 when training is done, 143 or 130 after a signal.
    """
    envs = 16 if envs is None else envs
    if envs < 1:
        raise UsageError(f"--envs {envs} must be at least 1")
    streams = min(2, envs) if streams is None else streams
    if not 1 <= streams <= envs:
        raise UsageError(f"--streams {streams} must lie between 1 and --envs ({envs})")
    setup_logging(None, None)
    actor = _Actor(
        address,
        envs=envs,
        streams=streams,
        actor_id=actor_id or f"{socket.gethostname()[:32]}-{os.getpid()}-{secrets.token_hex(3)}",
        reconnect=reconnect_timeout,
        threads=threads,
    )
    begun = time.perf_counter()
    status = EXIT_DONE
    try:
        _handle_signals()
        if parent is not None:
            _die_with(parent)
        actor.run()
    except _Stop as stop:
        status = stop.status
    wall = time.perf_counter() - begun
    report: dict[str, Any] = {"env_steps": actor.steps, "seconds": wall, "profile": actor.profile.seconds()}
    if json_output:
        print(json.dumps(report))
    else:
        spent = ", ".join(f"{name} {100 * part / wall:.0f}%" for name, part in actor.profile.seconds().items())
        _log.info("%s environment steps in %.0f s; time: %s", f"{actor.steps:,}", wall, spent)
    return status
