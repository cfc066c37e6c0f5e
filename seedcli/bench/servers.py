"""The servers that `seed bench` measures, each in its own process: the inference path, and a transport alone."""

from __future__ import annotations

import multiprocessing
import os
import select
import shutil
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from seedcli.bench.echo import SILENCE_SECONDS, Admission, BenchServer, make_echo
from seedcli.bench.load import Load, Target, measure
from seedcli.config.schema import make_config
from seedcli.config.sections import NetConfig
from seedcli.errors import SeedError
from seedcli.net.base import Destination, Payload, Peer
from seedcli.net.frames import Header, Kind, pack_header
from seedcli.net.security.keys import Security
from seedcli.net.security.token import Token, new_token
from seedcli.net.transports import transport_of
from seedcli.specs import ArraySpec, EnvSpec, aligned_empty
from seedcli.tensorflow_import import import_tensorflow

UNROLL_LENGTH = 20  # transitions
_START_SECONDS = 120.0  # importing TensorFlow on a busy machine takes long
_JOIN_SECONDS = 10.0


class Listener:
    """A learner's listener, reachable only from this machine, and its temporary folder.

    Args:
        transport: "zmq", "grpc" (TCP loopback) or "shm".
        security: of TCP; None: none.
    """

    def __init__(self, transport: str, security: Security | None = None) -> None:
        self._folder = tempfile.mkdtemp(prefix="seed-")
        self.server = transport_of(transport).listen_here(Path(self._folder), security, SILENCE_SECONDS)

    def close(self) -> None:
        """Close it; belongs to the thread that used the server."""
        self.server.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class TransportServer:
    """A `ServerTransport` and nothing behind it: a step is answered as soon as its row is in one buffer.

    Args:
        transport: see `Listener`.
        token: connections are encrypted, and it must be proved; "": neither.
    """

    def __init__(self, transport: str, token: str = "") -> None:
        self._listener = Listener(transport, Security(Token(token, "the benchmark")) if token else None)
        self._transport = self._listener.server
        self.address = self._transport.address
        self._admission = Admission(self._extra, self._transport.token)
        self._peer: Peer | None = None
        self._row = memoryview(b"")
        self._actions = b""
        self.full = False  # every step is answered at once
        self._stop_event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def _extra(self, payload_bytes: list[int]) -> dict[str, Any]:
        assert self._peer is not None
        self._row = aligned_empty(max(payload_bytes)).data
        return self._transport.open_session(self._peer, payload_bytes)

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._stop_event, select.POLLIN)
        poll.register(self._transport.fileno(), select.POLLIN)
        try:
            while True:
                while self._transport.receive(self):
                    pass
                if any(descriptor == self._stop_event for descriptor, _ in poll.poll()):
                    return
        finally:
            self._listener.close()

    def destination(self, peer: Peer, header: Header) -> Destination:
        return Destination(peer, self._row, encoded=False)

    def take_row(self, destination: Destination, header: Header, payload: Payload) -> None:
        answer = pack_header(
            Kind.ACTION, len(self._actions), stream=header.stream, sequence=header.sequence, session=header.session
        )
        self._transport.send(destination.owner, answer, self._actions)

    def frame(self, peer: Peer, header: Header, payload: Payload) -> None:
        if self._admission.complete:
            return
        self._peer = peer
        answer, body = self._admission.answer(pack_header(header.kind, header.payload_bytes), bytes(payload))
        if self._admission.complete:
            self._actions = bytes(4 * self._admission.envs[0])
        self._transport.send(peer, answer, body)

    def lost(self, peer: Peer, reason: str, *, malformed: bool = False) -> None:
        """A client that left needs no cleanup."""

    def close(self) -> dict[str, Any]:
        os.eventfd_write(self._stop_event, 1)
        return {}


class ConstantPolicy:
    """An `inference.policy.Policy` that always chooses the same action, zeros as all it records, and has no state."""

    def __init__(self, max_envs: int, spec: EnvSpec, recorded: Mapping[str, ArraySpec]) -> None:
        from seedcli.inference.device_policy import Decision

        self._decision = Decision
        self._action = np.zeros((max_envs, *spec.action.array.shape), spec.action.array.dtype)
        self._recorded = {name: np.zeros((max_envs, *field.shape), field.dtype) for name, field in recorded.items()}

    def begin(self, observation: Any, reward: Any, first: Any, slots: npt.NDArray[np.int32]) -> Any:
        """The answer, at once."""
        rows = len(slots)
        return self._decision(self._action[:rows], {name: x[:rows] for name, x in self._recorded.items()}, 0)

    def finish(self, promise: Any) -> Any:
        """What `begin` gave."""
        return promise

    def snapshot(self, slots: Any, first: Any) -> Any:
        """No state."""
        return {}

    def assign(self, slots: Any, role: Any, index: Any) -> None:
        """All slots are equal."""


class InferenceServer:
    """The learner's own path from the socket to the answer, with its default settings: transport, service, step
    engine, arena, and another thread that takes finished unrolls and releases them. Only `act` is replaced.
    """

    def __init__(self, transport: str, max_envs: int) -> None:
        import_tensorflow()  # before anything else loads it, so that it stays silent
        from seedcli.roles.learner.threads import fleet_settings
        from seedcli.serving.service import InferenceService
        from seedcli.training.batches import UnrollQueue

        inference = {"max_envs": max(max_envs, make_config().inference.max_envs)}
        self._config = make_config({"inference": inference}).model_copy(
            update={"net": NetConfig(timeout_seconds=SILENCE_SECONDS)}
        )
        self._listener = Listener(transport)
        self.address = self._listener.server.address
        self._queue = UnrollQueue()
        self._engine: Any = None
        self._arena: Any = None
        self._service = InferenceService([self._listener.server], fleet_settings(self._config), self._engine_for)
        self._consumer = threading.Thread(target=self._consume, name="prefetch", daemon=True)

    def _engine_for(self, spec: EnvSpec, on_fault: Callable[..., None]) -> Any:
        from seedcli.agents.base import AlgorithmSpec
        from seedcli.inference.arena import Arena
        from seedcli.inference.engine import StepEngine

        config = self._config
        recorded = {"policy": ArraySpec((sum(spec.action.categories) or 2 * spec.action.size,), "float32")}
        algorithm = AlgorithmSpec("constant", 0, UNROLL_LENGTH, "queue", recorded)
        self._arena = Arena(
            spec,
            algorithm.records,
            algorithm.recorded,
            batch_size=config.training.batch_size,
            queue_batches=config.training.queue_batches,
            on_release=self._service.wake,
        )
        self._engine = StepEngine(
            algorithm,
            spec,
            [ConstantPolicy(config.inference.max_envs, spec, recorded)],
            self._arena,
            max_envs=config.inference.max_envs,
            batch_size=config.inference.batch_size,
            deadline=config.inference.deadline_ms / 1000,
            on_unroll=self._queue.put,
            on_fault=on_fault,
        )
        return self._engine

    def _consume(self) -> None:
        """Act as the prefetch thread, but without copying unrolls into training batches, which is not inference."""
        while (pieces := self._queue.take(self._config.training.batch_size)) is not None:
            for piece in pieces:
                if piece.stop == piece.buffer.num_envs:
                    self._arena.release(piece.buffer)

    def run(self) -> None:
        self._consumer.start()
        try:
            self._service.run()
        finally:
            self._listener.close()

    def close(self) -> dict[str, Any]:
        """The mean inference batch, and seconds of the inference thread by activity."""
        self._service.stop(training_done=False)
        self._queue.close()
        self._consumer.join(timeout=_JOIN_SECONDS)
        profile = self._service.profile.seconds()
        if self._engine is None:
            return {"profile": profile}
        stats = self._engine.stats
        for name, seconds in self._engine.profile.seconds().items():
            profile[name] = profile.get(name, 0.0) + seconds
        return {"inference_batch_size": stats.batch_rows / max(1, stats.batches), "profile": profile}


ServerKind = Literal["echo", "transport", "encrypted", "inference"]


def _make_server(kind: ServerKind, transport: str, envs: int, token: str) -> BenchServer:
    if kind == "echo":
        return make_echo(transport)
    if kind in ("transport", "encrypted"):
        return TransportServer(transport, token)
    return InferenceServer(transport, envs)


def _serve(pipe: Pipe) -> None:
    """The main thread of a server process: one server after another, each in a thread of its own."""
    while (task := pipe.recv()) is not None:
        server = _make_server(*task)
        thread = threading.Thread(target=server.run, name="server", daemon=True)
        thread.start()
        try:
            pipe.send(server.address)
            pipe.recv()
        finally:
            report = server.close()
            thread.join(timeout=_JOIN_SECONDS)
        pipe.send(report)


def _load(pipe: Pipe) -> None:
    """The main thread of the client process."""
    while (task := pipe.recv()) is not None:
        pipe.send(measure(*task))


def _process_main(role: Callable[[Pipe], None], pipe: Pipe) -> None:
    try:
        role(pipe)
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except SeedError as error:
        pipe.send(error)
    except Exception:
        pipe.send(SeedError(f"the benchmark's process failed: {traceback.format_exc()}"))


class _Process:
    """A child process that answers one message at a time; it ends with this one."""

    def __init__(self, role: Callable[[Pipe], None]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_process_main, args=(role, theirs), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process.pid is not None
        return self._process.pid

    def send(self, message: Any) -> None:
        """Send a message."""
        self._pipe.send(message)

    def receive(self, timeout: float) -> Any:
        """Its next answer; raises SeedError if it failed, has died or takes longer than `timeout` seconds."""
        if not self._pipe.poll(timeout):
            raise SeedError(f"a process of the benchmark has not answered for {timeout:.0f} s: is the machine busy?")
        try:
            answer = self._pipe.recv()
        except EOFError as error:
            raise SeedError("a process of the benchmark has died: start it again with nothing else running") from error
        if isinstance(answer, SeedError):
            raise answer
        return answer

    def end(self) -> None:
        """End it; safe to call twice."""
        self._pipe.close()  # tells the process to clean up and exit
        self._process.join(_JOIN_SECONDS)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(_JOIN_SECONDS)


class Bench:
    """The processes of a benchmark: a server of each kind, alone in its process, and one client; a context manager.

    Args:
        kinds: the servers to compare, by the name that their figures get.
        transport: "zmq", "grpc" or "shm".
    """

    def __init__(self, kinds: dict[str, ServerKind], transport: str) -> None:
        self._kinds = kinds
        self._transport = transport
        self._servers: dict[str, _Process] = {}
        self._client: _Process | None = None

    def __enter__(self) -> Self:
        self._servers = {name: _Process(_serve) for name in self._kinds}
        self._client = _Process(_load)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in (self._client, *self._servers.values()):
            if process is not None:
                process.end()

    def measure(self, load: Load) -> dict[str, dict[str, Any]]:
        """Measure new servers under a load; returns, by name, `load.measure`'s figures and the server's own.

        Raises:
            SeedError: one of the processes failed.
        """
        assert self._client is not None
        tokens = {name: new_token() if kind == "encrypted" else "" for name, kind in self._kinds.items()}
        for name, process in self._servers.items():
            process.send((self._kinds[name], self._transport, load.envs, tokens[name]))
        targets = {
            name: Target(process.receive(_START_SECONDS), process.pid, tokens[name])
            for name, process in self._servers.items()
        }
        self._client.send((targets, load))
        # The warm-up has no fixed length; the client itself times out if there is no progress.
        limit = _START_SECONDS + 2 * load.windows * load.seconds * len(targets)
        figures: dict[str, dict[str, Any]] = self._client.receive(limit)
        for name, process in self._servers.items():
            process.send("close")
            figures[name] |= process.receive(_START_SECONDS)
        return figures
