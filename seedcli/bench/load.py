"""The load of `seed bench`: an actor's transport and handshake, with prepared rows instead of environments.

The same code measures all targets alternately, because a machine's speed drifts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import psutil

from seedcli.errors import ConnectionLost, ProtocolError
from seedcli.net.connect import connect
from seedcli.net.frames import Kind, pack_header
from seedcli.net.handshake import ClientHandshake
from seedcli.net.security.keys import Security
from seedcli.net.security.token import Token
from seedcli.specs import EnvSpec, RowLayout

_CONNECT_SECONDS = 30.0
_ANSWER_SECONDS = 30.0  # timeout of an answer


class Target(NamedTuple):
    """A server to measure: its address as `net.connect` takes it, the process it runs in, and its token, if any."""

    address: str
    pid: int
    token: str = ""


@dataclass(frozen=True)
class Load:
    """What is sent.

    Attributes:
        spec: one environment.
        envs: total number of environments.
        streams: messages outstanding; each carries envs / streams environments.
        seconds: length of a window.
        windows: windows for each target, alternating.
        warm_up: answers every stream gets before the first window.
    """

    spec: EnvSpec
    envs: int
    streams: int
    seconds: float
    windows: int
    warm_up: int

    @property
    def envs_per_message(self) -> int:
        """Environments of a stream."""
        return self.envs // self.streams

    @property
    def payload_bytes(self) -> int:
        """Size of a row."""
        return RowLayout(self.spec, self.envs_per_message).nbytes


class _Window(NamedTuple):
    """The result of one window: messages answered a second, their latencies in seconds, CPU seconds of both sides."""

    messages: int
    seconds: float
    latencies: Any
    server_cpu: float
    client_cpu: float


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


class Connection:
    """A session of `load.streams` streams, each with one message outstanding while a window lasts.

    Raises:
        UnreachableError, RefusedError, ProtocolError, ConnectionLost: no session could be opened.
    """

    def __init__(self, target: Target, load: Load) -> None:
        security = Security(Token(target.token, "the benchmark")) if target.token else None
        self._transport = connect(target.address, security)
        self._server = psutil.Process(target.pid)
        self._client = psutil.Process()
        self._transport.connect(_CONNECT_SECONDS)
        handshake = ClientHandshake(
            self._transport, actor_id="bench", envs=load.envs, streams=load.streams, timeout=_CONNECT_SECONDS
        )
        handshake.configure()
        ready = handshake.announce(load.spec)
        layout = RowLayout(load.spec, load.envs_per_message)
        rng = np.random.default_rng(1)
        for buffer in self._transport.open_session(ready.extra, ready.payload_bytes):
            row = layout.views(np.frombuffer(buffer, np.uint8))
            # Small whole numbers: valid in every type.
            row.observation[:] = rng.integers(0, 2, row.observation.shape)
            row.reward[:], row.terminated[:], row.truncated[:] = 0.0, 0, 0
        self._session = ready.session
        self._payload_bytes = layout.nbytes
        self._reply_bytes = 4 * load.envs_per_message
        self._sequence = [0] * load.streams
        self._sent = [0.0] * load.streams

    def _send(self, stream: int) -> None:
        header = pack_header(
            Kind.STEP, self._payload_bytes, stream=stream, sequence=self._sequence[stream], session=self._session
        )
        self._sent[stream] = time.perf_counter()
        self._transport.send_row(stream, header)

    def _receive(self) -> int:
        """The stream of the next answer, which is checked."""
        frame = self._transport.receive(_ANSWER_SECONDS)
        if frame is None:
            raise ConnectionLost(f"{self._transport.address} has not answered for {_ANSWER_SECONDS:.0f} s")
        header, payload = frame
        stream = header.stream
        if header.kind != Kind.ACTION or header.sequence != self._sequence[stream] or len(payload) != self._reply_bytes:
            raise ProtocolError(f"{self._transport.address} gave a wrong answer: {header}")
        self._sequence[stream] = (header.sequence + 1) & 0xFFFFFFFF
        return stream

    def window(self, seconds: float, at_least: int = 0) -> _Window:
        """Keep every stream's message outstanding for `seconds`, and until `at_least` answers came.

        Answers that are outstanding at the end are received, but not counted.
        """
        latencies: list[float] = []
        clock = time.perf_counter
        receive, send, sent = self._receive, self._send, self._sent
        server_cpu, client_cpu = _cpu(self._server), _cpu(self._client)
        begun = now = clock()
        for stream in range(len(sent)):
            send(stream)
        while now - begun < seconds or len(latencies) < at_least:
            stream = receive()
            now = clock()
            latencies.append(now - sent[stream])
            send(stream)
        server_cpu, client_cpu = _cpu(self._server) - server_cpu, _cpu(self._client) - client_cpu
        for _ in sent:
            receive()
        return _Window(len(latencies), now - begun, np.array(latencies), server_cpu, client_cpu)

    def close(self) -> None:
        """Leave."""
        try:
            self._transport.send(pack_header(Kind.GOODBYE, session=self._session))
        except ConnectionLost:
            pass
        self._transport.close()


def _summary(windows: list[_Window], load: Load) -> dict[str, Any]:
    """Medians over windows."""
    rates = [window.messages / window.seconds for window in windows]
    rate = median(rates)
    p50, p99 = (median(float(np.percentile(w.latencies, q)) for w in windows) for q in (50, 99))
    messages = sum(window.messages for window in windows)
    return {
        "steps_per_second": rate * load.envs_per_message,
        "messages_per_second": rate,
        "megabytes_per_second": rate * load.payload_bytes / 1e6,
        "latency_us": {"p50": 1e6 * p50, "p99": 1e6 * p99},
        "server_cpu_us_per_message": 1e6 * sum(w.server_cpu for w in windows) / messages,
        "client_cpu_us_per_message": 1e6 * sum(w.client_cpu for w in windows) / messages,
        "window_messages_per_second": rates,
    }


def measure(targets: Mapping[str, Target], load: Load) -> dict[str, dict[str, Any]]:
    """Measure every target under the same load, alternating after each window.

    Args:
        targets: by name; measured in this order.
        load: what is sent.

    Returns:
        By name: rates (medians over windows), latency percentiles as the client sees them (medians over windows), CPU
        microseconds a message of the server's and of this process (means), and each window's rate.
    """
    connections = {name: Connection(target, load) for name, target in targets.items()}
    windows: dict[str, list[_Window]] = {name: [] for name in targets}
    try:
        for connection in connections.values():
            connection.window(0.0, at_least=load.warm_up * load.streams)
        for _ in range(load.windows):
            for name, connection in connections.items():
                windows[name].append(connection.window(load.seconds))
    finally:
        for connection in connections.values():
            connection.close()
    return {name: _summary(parts, load) for name, parts in windows.items()}
