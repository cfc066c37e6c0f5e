"""The learner: its threads (`roles.learner.threads`), and a main thread that reports and ends the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from seedcli.config.sources import Resolved
from seedcli.roles.discovery import announcement
from seedcli.roles.learner.host import run_chief
from seedcli.roles.learner.setup import Setup
from seedcli.roles.learner.supervise import supervise, use_devices
from seedcli.roles.learner.threads import Learner
from seedcli.roles.run_folder import RunFolder
from seedcli.serving.listeners import bound_host, how_to_join, ports
from seedcli.telemetry.live import View
from seedcli.telemetry.logs import setup_logging


def run_learner(
    resolved: Resolved,
    folder: RunFolder,
    *,
    live: bool,
    hosts: Sequence[str] = (),
    done: str = "",
    profile: bool = False,
) -> int:
    """`seed learner`: serve actors and train until run.steps are taken.

    Args:
        resolved: the configuration with its sources.
        folder: the run's folder, locked.
        live: show a live view.
        hosts: "host:port" of all learner hosts, this one, the chief, first; empty: a single host.
        done: with several hosts: message for all if no steps are left; "" otherwise.
        profile: print the time profile at the end.
    """
    config = resolved.config
    folder.remove_address()  # left by a learner that was killed
    # First, so that a port in use leaves the folder untouched.
    setup = Setup.open(resolved, live=live, profile=profile)
    setup_logging(folder.log_path, setup.view, debug=False)

    def announce(learner: Learner, view: View) -> None:
        folder.write_address(announcement(bound_host(config), ports(setup.transports)))
        for line in how_to_join(config, setup.security, setup.transports):
            view.log(line)

    setup = replace(setup, announce=announce)
    try:
        if hosts:
            return run_chief(setup, folder, hosts, done)
        return supervise(setup, folder, use_devices(config))
    finally:
        folder.remove_address()
