"""One connection of an actor: handshake, environments, and the loop of steps and actions.

Each stream is a lock-step group of environments; while one steps, the others wait for their actions.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from seedcli.config.schema import make_environment_config
from seedcli.config.sections import EnvironmentConfig
from seedcli.envs.base import VectorEnv
from seedcli.envs.placement import create_env_in_actor
from seedcli.envs.registry import family_of
from seedcli.errors import ConnectionLost, ProtocolError, RefusedError
from seedcli.net.addresses import machine_id
from seedcli.net.base import ClientTransport, Payload
from seedcli.net.codecs import CODECS, RAW, RowEncoder
from seedcli.net.frames import Header, Kind, decode_control, pack_header
from seedcli.net.handshake import ClientHandshake
from seedcli.net.messages import Ready
from seedcli.net.messages import goodbye as pack_goodbye
from seedcli.roles.actor.codec_choice import choose_codecs
from seedcli.roles.watchdog import Watchdog
from seedcli.specs import EnvSpec, RowLayout, Rows, aligned_empty, split_envs
from seedcli.telemetry.logs import log_notice
from seedcli.telemetry.metrics import Profile

_log = logging.getLogger(__name__)

_HANDSHAKE_SECONDS = 60.0
_FIRST_ANSWER_SECONDS = 5.0


_PROBES = 2  # environments that the choice of codecs plays if finished episodes stay in memory


class Environments:
    """The vector environments of an actor, one per stream, kept across reconnections.

    Args:
        threads: see `envs.create_env`.
        create: builds environments; a different function if the actor shares the learner's process.
        renew: replaces the process with a new one; None: not supported.
        on_hang: called in another thread with a message when environments hang; None: hangs are not detected.
        signalled: see `Watchdog`.

    Attributes:
        restarts: how often they may be rebuilt, `environment.restarts`.
    """

    def __init__(
        self,
        threads: int,
        *,
        create: Callable[..., VectorEnv] = create_env_in_actor,
        renew: Callable[[], None] | None = None,
        on_hang: Callable[[str], None] | None = None,
        signalled: Callable[[], int] = lambda: 0,
    ) -> None:
        self._threads = threads
        self._create = create
        self._renew = renew
        self._on_hang = on_hang
        self._signalled = signalled
        self._broken = False
        self._config: EnvironmentConfig | None = None
        self._envs: list[VectorEnv] = []
        self._codecs: dict[tuple[str, ...], dict[str, str]] = {}
        self._played = False
        self._watchdog = Watchdog("", 0.0, lambda seconds: None)
        self.restarts = 0

    def build(self, config: EnvironmentConfig, split: list[int]) -> EnvSpec:
        """Build the environments of `config` in groups of the sizes `split`, unless they exist already."""
        if self._played and self._renew is not None and family_of(config).keeps_finished_episodes:
            self._renew()
        if self._broken or config != self._config or [env.num_envs for env in self._envs] != split:
            self.close()
            self._config = config
            self.restarts = config.restarts
            self._watch(config)
            self._broken = True  # until all are built
            with self._watchdog:
                for envs in split:
                    self._envs.append(self._create(config, envs, threads=self._threads))
            self._broken = False
            self._codecs = {}
        if self.notice:
            log_notice(_log, self.notice)
        return self._envs[0].spec

    @property
    def notice(self) -> str:
        """A note for users on how the observations are used; "" for none."""
        return getattr(self._envs[0], "notice", "")

    def discard(self) -> None:
        """Mark the environments as failed, so that `build` makes new ones."""
        self._broken = True

    def _watch(self, config: EnvironmentConfig) -> None:
        if self._on_hang is None:
            return
        on_hang, name, limit = self._on_hang, f"{config.family}/{config.id}", config.step_timeout

        def hung(seconds: float) -> None:
            on_hang(f"{name} has not returned for {seconds:.0f} s (environment.step_timeout = {limit:g})")

        self._watchdog = Watchdog(name, limit, hung, signalled=self._signalled)

    def reset(self, stream: int, seed: int, out: Rows) -> None:
        """Reset the environments of a stream; see `VectorEnv.reset`."""
        self._played = True
        with self._watchdog:
            self._envs[stream].reset(seed, out)

    def step(self, stream: int, actions: npt.NDArray[Any], out: Rows) -> None:
        """Step the environments of a stream; see `VectorEnv.step`."""
        with self._watchdog:
            self._envs[stream].step(actions, out)

    def codecs(self, message: Mapping[str, Any], seed: int, shares_memory: bool) -> dict[str, str]:
        """Choose the codec of each observation array once per configuration.

        For large observations this plays some steps of the first stream; the caller must reset it afterwards.

        Raises:
            ProtocolError: CONFIGURE lacks the codecs.
        """
        compression, offered = message.get("compression"), message.get("codecs")
        if compression not in ("auto", "off", "on") or not isinstance(offered, list):
            raise ProtocolError(
                "the learner did not say which codecs it accepts: install the same seedcli on both sides"
            )
        spec = self._envs[0].spec
        same_machine = message.get("machine") == machine_id()
        if compression == "off" or shares_memory or (same_machine and compression == "auto"):
            return dict.fromkeys(spec.arrays, RAW)
        known = tuple(name for name in CODECS if name in offered)
        if known not in self._codecs:
            with self._watchdog:
                self._codecs[known] = self._choose(seed, known)
        return self._codecs[known]

    def _choose(self, seed: int, known: tuple[str, ...]) -> dict[str, str]:
        assert self._config is not None
        if not family_of(self._config).keeps_finished_episodes:
            return choose_codecs(self._envs[0], seed, known)
        probe = self._create(self._config, min(_PROBES, self._envs[0].num_envs), threads=self._threads)
        try:
            return choose_codecs(probe, seed, known)
        finally:
            probe.close()

    def __getitem__(self, stream: int) -> VectorEnv:
        return self._envs[stream]

    def close(self) -> None:
        """Close all environments; errors are only logged."""
        with self._watchdog:
            for env in self._envs:
                try:
                    env.close()
                except Exception as error:
                    _log.warning("environments cannot be closed: %s", error)
        self._envs = []
        self._watchdog.close()


class ActorSession:
    """One connection, from the handshake to its end.

    Args:
        transport: not yet connected.
        environments: built in `open`.
        actor_id: kept across reconnections.
        envs: number of environments.
        streams: groups that the environments are split into.
        failure: the error of this actor's environments, if one caused the reconnection; "" otherwise.
        reported: called when the learner has received `failure`.
        placed: see `net.messages.Hello`.

    Attributes:
        ready: the learner's READY message; None before `open`.
        done: the learner announced the end of training.
        profile: seconds by activity: "environment", "encoding", "wire", "waiting".
        steps: environment steps taken.
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
        failure: str = "",
        reported: Callable[[], None] = lambda: None,
        placed: bool = False,
    ) -> None:
        self._placed = placed
        self._transport = transport
        self._failure = failure
        self._reported = reported
        self._environments = environments
        self._actor_id = actor_id
        self._envs = envs
        self._streams = streams
        self._views: list[Rows] = []
        self._encoders: list[RowEncoder] = []
        self._rows: list[npt.NDArray[np.uint8]] = []
        self._buffers: list[memoryview] = []
        self._sequence: list[int] = []
        self._unanswered = 0.0  # seconds of waiting since the last frame
        self._stop_heartbeat = threading.Event()
        self._heartbeat: threading.Thread | None = None
        self.ready: Ready | None = None
        self.done = False
        self.steps = 0
        self.profile = profile

    def open(self) -> None:
        """Connect, shake hands, build the environments and send the first rows.

        Raises:
            UnreachableError, RefusedError, ProtocolError, ConnectionLost, EnvironmentFailed, UsageError.
            Redirected: another learner host must serve this actor; no environment has been built yet.
        """
        self._transport.connect(_FIRST_ANSWER_SECONDS)
        handshake = ClientHandshake(
            self._transport,
            actor_id=self._actor_id,
            envs=self._envs,
            streams=self._streams,
            timeout=_HANDSHAKE_SECONDS,
            failure=self._failure,
            placed=self._placed,
        )
        message = handshake.configure()
        self._reported()
        config = make_environment_config(message["environment"])
        seed = int(message["seed"])
        split = split_envs(self._envs, self._streams, int(message["evaluation_envs"]))
        spec = self._environments.build(config, split)
        codecs = self._environments.codecs(message, seed, self._transport.shares_memory)
        ready = handshake.announce(spec, codecs, self._environments.notice)
        layouts = [RowLayout(spec, envs) for envs in split]
        if any(codec != RAW for codec in codecs.values()):
            self._encoders = [RowEncoder(layout, codecs) for layout in layouts]
        sizes = [encoder.max_payload for encoder in self._encoders] or [layout.nbytes for layout in layouts]
        if list(ready.stream_envs) != split or list(ready.payload_bytes) != sizes:
            raise ProtocolError(
                "the learner expects other streams or rows than this actor has: install the same seedcli on both sides"
            )
        self._buffers = self._transport.open_session(ready.extra, ready.payload_bytes)
        if self._encoders:
            self._rows = [aligned_empty(layout.nbytes) for layout in layouts]
        else:
            self._rows = [np.frombuffer(buffer, np.uint8) for buffer in self._buffers]
        self._views = [layout.views(row) for layout, row in zip(layouts, self._rows, strict=True)]
        self._sequence = [0] * len(layouts)
        self.ready = ready
        self._start_heartbeat(ready)
        for stream, layout in enumerate(layouts):
            begun = time.perf_counter()
            self._environments.reset(stream, seed, self._views[stream])
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
        size = self.ready.payload_bytes[stream]
        if self._encoders:
            size = self._encoders[stream].encode(self._rows[stream], self._buffers[stream])
            encoded = time.perf_counter()
            self.profile.add("encoding", encoded - begun)
            begun = encoded
        header = pack_header(
            Kind.STEP, size, stream=stream, sequence=self._sequence[stream], session=self.ready.session
        )
        # `turn` reports the lost connection, after the learner's last messages: one may be DONE.
        with contextlib.suppress(ConnectionLost):
            if self._encoders:
                self._transport.send(header, self._buffers[stream][:size])
            else:
                self._transport.send_row(stream, header)
        self.profile.add("wire", time.perf_counter() - begun)

    def turn(self, timeout: float) -> bool:
        """Handle one frame; returns False if none arrived within `timeout` seconds.

        Raises:
            ConnectionLost: the connection broke, or the learner timed out.
            RefusedError: the learner ended the session, with its reason.
        """
        begun = time.perf_counter()
        frame = self._transport.receive(timeout)
        waited = time.perf_counter() - begun
        self.profile.add("waiting", waited)
        assert self.ready is not None
        if frame is None:
            # Environments may have held the GIL for long: only time spent waiting for frames counts.
            self._unanswered += waited
            if self._unanswered > self.ready.timeout_seconds:
                raise ConnectionLost(f"the learner has been silent for {self._unanswered:.0f} s")
            return False
        self._unanswered = 0.0
        header, payload = frame
        if header.kind == Kind.ACTION:
            self._act(header, payload)
        elif header.kind == Kind.DONE:
            self.done = True
        elif header.kind == Kind.UNKNOWN:
            raise ConnectionLost("the learner no longer knows this session: it ended the session or was restarted")
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
        action = env.spec.action.array
        if len(payload) != env.num_envs * action.nbytes:
            raise ProtocolError(f"actions of {len(payload)} bytes where {env.num_envs * action.nbytes} are expected")
        actions: npt.NDArray[Any] = np.frombuffer(payload, action.dtype).reshape(env.num_envs, *action.shape)
        begun = time.perf_counter()
        self._environments.step(stream, actions, self._views[stream])
        self.profile.add("environment", time.perf_counter() - begun)
        self.steps += env.num_envs
        self._sequence[stream] = (header.sequence + 1) & 0xFFFFFFFF
        self._send(stream)

    def close(self, *, goodbye: bool, failure: str = "") -> None:
        """End the session.

        Args:
            goodbye: notify the learner, so that it frees the slots at once.
            failure: error of the environments that ended the session, reported to the learner; "" for none.
        """
        self._stop_heartbeat.set()
        if self._heartbeat is not None:
            self._heartbeat.join(timeout=5)
        if goodbye and self.ready is not None:
            try:
                body = pack_goodbye(failure)
                self._transport.send(pack_header(Kind.GOODBYE, len(body), session=self.ready.session), body)
            except ConnectionLost:
                pass
        self._transport.close()


def _refused(payload: Payload) -> Exception:
    return RefusedError(f"the learner ended the session: {decode_control(payload).get('reason', 'no reason given')}")
