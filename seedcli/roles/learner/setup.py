"""A learner's listeners, view and hooks, opened by `seed learner` or `seed train`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from seedcli.config.sources import Resolved
from seedcli.net.base import ServerTransport
from seedcli.net.security.keys import Security
from seedcli.roles.learner.threads import Learner
from seedcli.serving.listeners import learner_security, open_transports
from seedcli.telemetry.exporter import Exporter, open_exporter
from seedcli.telemetry.live import View, make_view


@dataclass(frozen=True)
class Setup:
    """A learner's listeners, view and hooks.

    Attributes:
        resolved: the configuration with its sources.
        transports: bound listeners; closed by the learner.
        view: shows progress; started and stopped by `supervise`.
        security: protects connections between hosts and with actors; None: unprotected.
        exporter: serves metrics and health; started and closed by `supervise`.
        announce: called once the learner serves.
        tick: called ten times a second from the main thread.
        closing: called after actors were asked to leave; returns their time profiles for the final table.
        resumed_with: the command that resumes this run.
    """

    resolved: Resolved
    transports: Sequence[ServerTransport]
    view: View
    security: Security | None = None
    exporter: Exporter | None = None
    announce: Callable[[Learner, View], None] = lambda learner, view: None
    tick: Callable[[], None] = lambda: None
    closing: Callable[[], dict[str, dict[str, float]]] = dict
    resumed_with: str = "seed learner"

    @classmethod
    def open(cls, resolved: Resolved, *, live: bool, profile: bool = False) -> Self:
        """Open the listeners, monitoring and view that the configuration asks for.

        Raises:
            SeedError: a port is in use, or a token or certificate cannot be used.
        """
        security = learner_security(resolved.config)
        exporter = open_exporter(resolved.config.net)
        transports = open_transports(resolved.config, security)
        return cls(resolved, transports, make_view(live, profile=profile), security, exporter)
