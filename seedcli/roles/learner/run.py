"""The learner: its threads (`roles.learner.threads`), and a main thread that reports and ends the run."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from seedcli.config.sources import Resolved
from seedcli.roles.discovery import announcement
from seedcli.roles.learner.host import run_host
from seedcli.roles.learner.supervise import supervise, use_devices
from seedcli.roles.learner.threads import Learner
from seedcli.roles.run_folder import RunFolder
from seedcli.serving.listeners import bound_host, how_to_join, learner_security, open_transports, ports
from seedcli.telemetry.exporter import open_exporter
from seedcli.telemetry.live import View, make_view
from seedcli.telemetry.logs import setup_logging

_log = logging.getLogger(__name__)


def run_learner(
    resolved: Resolved,
    folder: RunFolder,
    *,
    live: bool,
    hosts: Sequence[str] = (),
    done: str = "",
    profile: bool = False,
) -> int:
    """`seed learner`: serve actors that connect, train, end when run.steps are taken.

    Args:
        resolved: the configuration with its sources.
        folder: the run's, locked.
        live: show a live view.
        hosts: "host:port" of all learner hosts, of which this one is the chief; empty: it is alone.
        done: several hosts: why there is nothing left to do, "" where there is.
        profile: print in the end where all the time went.
    """
    config = resolved.config
    folder.remove_address()  # of a learner that was killed
    security = learner_security(config)
    # First of all: where a port is in use, the folder is left as it was.
    exporter = open_exporter(config.net)
    transports = open_transports(config, security)
    view = make_view(live, profile=profile)
    setup_logging(folder.log_path, view, debug=False)

    def announce(learner: Learner, view: View) -> None:
        folder.write_address(announcement(bound_host(config), ports(transports)))
        for line in how_to_join(config, security, transports):
            view.log(line)

    try:
        if hosts:
            return run_host(resolved, lambda *_: folder, hosts, 0, transports, security, view, announce, exporter, done)
        devices = use_devices(config)
        return supervise(resolved, folder, transports, view, announce=announce, exporter=exporter, devices=devices)
    finally:
        folder.remove_address()
