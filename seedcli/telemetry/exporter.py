"""A learner's metrics and health over HTTP: /metrics, /healthz, /readyz, /status.

Requests read the last report, which is rendered once, so they do not slow the learner down. Peers are not
authenticated: any input, however slow, costs at most `CONNECTIONS` threads for a few seconds each.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import json
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any, Literal, Protocol

from seedcli.config.flags import name_flags
from seedcli.config.sections import NetConfig
from seedcli.errors import UsageError
from seedcli.net.addresses import join_host_port, listen_error, shown_host
from seedcli.telemetry.prometheus import CONTENT_TYPE, Status, render

_log = logging.getLogger(__name__)

CONNECTIONS = 16  # at the same time; further ones are closed at once
REQUEST_SECONDS = 5.0  # timeout of reading a request, and of sending its answer
_HEAD_BYTES = 8192  # request line and headers
_POLL_SECONDS = 0.25  # how soon `close` is noticed
_PAUSE_SECONDS = 0.1  # after a failed accept, mostly for lack of file descriptors
_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"

Phase = Literal["starting", "serving", "stopping"]


@dataclass(frozen=True)
class Health:
    """Health of a learner.

    Attributes:
        phase: "serving" while it accepts actors.
        failure: why it is unhealthy; "": it is healthy.
    """

    phase: Phase
    failure: str = ""


class Source(Protocol):
    """Source of the answers; called from any thread."""

    @property
    def status(self) -> Status:
        """Return the last report: the same object until there is a new one."""

    def health(self) -> Health:
        """Return the learner's current health."""


def open_exporter(net: NetConfig) -> Exporter | None:
    """Bind the configured server; None if it is off. Raises like `Exporter`."""
    return Exporter(net.metrics_host, net.metrics_port) if net.metrics_port >= 0 else None


def check_metrics_port(net: NetConfig) -> None:
    """Check that the port is available before anything is started; raises like `Exporter`."""
    if (exporter := open_exporter(net)) is not None:
        exporter.close()


class Exporter:
    """The HTTP server; bound on construction, answers from `start` to `close`.

    Args:
        host: name or address of an interface of this machine.
        port: 0 for any free one.

    Attributes:
        url: of the server, without a path.

    Raises:
        UsageError: the host is not this machine's, or the port is in use or not allowed.
    """

    def __init__(self, host: str, port: int) -> None:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        except (OSError, UnicodeError) as error:
            raise UsageError(
                f'net.metrics_host = "{host}" is not an address of this machine ({error}): use 127.0.0.1'
            ) from error
        try:
            self._server = _Server(family, (str(address[0]), port))
        except OSError as error:
            raise _bind_error(host, port, error) from error
        self.url = f"http://{join_host_port(shown_host(host), self._server.server_address[1])}"
        self._thread: threading.Thread | None = None

    def start(self, source: Source) -> None:
        """Answer requests in background threads."""
        self._server.pages = Pages(source)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening and end every connection, within a second; safe to call twice."""
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._thread = None
        self._server.server_close()
        self._server.hang_up()


def _bind_error(host: str, port: int, error: OSError) -> UsageError:
    number = error.errno or 0
    if number in (errno.EADDRINUSE, errno.EACCES):
        return name_flags(listen_error(host, port, number, setting="net.metrics_port"))
    return UsageError(
        f"cannot listen on port {port} of {host} ({errno.errorcode.get(number, number)}): "
        "check --set net.metrics_host=… and --metrics-port …"
    )


Answer = tuple[int, str, bytes]  # HTTP status, content type, body


class Pages:
    """The pages by path."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._rendered: tuple[Status, bytes] | None = None
        self._pages: dict[str, Callable[[], Answer]] = {
            "/metrics": self._metrics,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/status": self._status,
        }

    def answer(self, target: str) -> Answer:
        """Return the answer to a request; `target`: from the request line."""
        page = self._pages.get(target.partition("?")[0])
        return page() if page is not None else (404, _TEXT, f"unknown path; known: {', '.join(self._pages)}\n".encode())

    def _metrics(self) -> Answer:
        # Render once per report, in one thread, for any number of requests.
        with self._lock:
            status = self._source.status
            if self._rendered is None or self._rendered[0] is not status:
                self._rendered = status, render(status)
            return 200, CONTENT_TYPE, self._rendered[1]

    def _healthz(self) -> Answer:
        health = self._source.health()
        if health.failure:
            return _json(503, {"status": "failing", "phase": health.phase, "reason": health.failure})
        return _json(200, {"status": "ok", "phase": health.phase})

    def _readyz(self) -> Answer:
        health = self._source.health()
        if health.phase != "serving" or health.failure:
            reason = health.failure or f"the learner is {health.phase}"
            return _json(503, {"status": "not ready", "phase": health.phase, "reason": reason})
        return _json(200, {"status": "ready", "phase": health.phase})

    def _status(self) -> Answer:
        status = self._source.status
        return _json(
            200,
            {
                "run": dict(status.run),
                "total_steps": status.total_steps,
                "health": dataclasses.asdict(self._source.health()),
                "snapshot": None if status.snapshot is None else status.snapshot.to_dict(),
                "fleet": [dataclasses.asdict(row) for row in status.fleet],
            },
        )


def _json(status: int, value: dict[str, Any]) -> Answer:
    return status, _JSON, json.dumps(value, ensure_ascii=False).encode(errors="replace") + b"\n"


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """One thread per connection, up to `CONNECTIONS`."""

    allow_reuse_address = True  # ignore lingering connections of an earlier learner
    daemon_threads = True
    block_on_close = False
    request_queue_size = 2 * CONNECTIONS
    pages: Pages

    def __init__(self, family: int, address: tuple[str, int]) -> None:
        self.address_family = family
        self._open: set[socket.socket] = set()
        self._open_lock = threading.Lock()
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; pause after a failure, because the caller retries at once."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(_PAUSE_SECONDS)
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether the number of connections is below the limit."""
        with self._open_lock:
            room = len(self._open) < CONNECTIONS
            if room:
                self._open.add(request)
        return room

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, accepted or not."""
        with self._open_lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """Close all open connections; their threads then end."""
        with self._open_lock:
            for request in self._open:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a failed connection at debug level; it affects nothing else."""
        _log.debug("a request for metrics or health failed", exc_info=True)


class _Bad(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    """One request of one connection."""

    server: _Server
    server_version = "seed"
    sys_version = ""
    default_request_version = "HTTP/1.0"  # answers to 0.9 would have no headers
    command = ""

    def handle(self) -> None:
        """Read the request within its limits of time and size, and answer it."""
        self.requestline, self.request_version = "", self.default_request_version
        try:
            head = self._read_head()
            self.connection.settimeout(REQUEST_SECONDS)
            if not head:
                return
            self.rfile.close()
            self.rfile = io.BufferedReader(io.BytesIO(head))
            self.raw_requestline = self.rfile.readline()
            if not self.parse_request():
                return
            if self.command not in ("GET", "HEAD"):
                raise _Bad(405, "only GET and HEAD are supported")
            answer = self.server.pages.answer(self.path)
        except _Bad as error:
            answer = (error.status, _TEXT, f"{error}\n".encode())
        self._send(answer)

    def _read_head(self) -> bytes:
        """Read request line and headers; empty if the peer has closed the connection."""
        deadline = time.monotonic() + REQUEST_SECONDS
        head = b""
        while not (b"\r\n\r\n" in head or b"\n\n" in head):
            if len(head) >= _HEAD_BYTES:
                raise _Bad(431, f"request line and headers exceed {_HEAD_BYTES} bytes")
            try:
                self.connection.settimeout(max(0.001, deadline - time.monotonic()))
                piece = self.connection.recv(_HEAD_BYTES - len(head))
            except TimeoutError:
                raise _Bad(408, f"a request must be complete within {REQUEST_SECONDS:.0f} s") from None
            if not piece:
                return b""
            head += piece
        return head

    def _send(self, answer: Answer) -> None:
        status, content_type, body = answer
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if status == 405:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer the parser's errors in plain text, without echoing the request."""
        self._send((code, _TEXT, b"invalid or unsupported HTTP request\n"))

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: scrapes would fill the log."""
