"""The command `seed learner`. Nothing heavy is imported at the top; see `seedcli.cli.main`."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Annotated, Any

import typer

from seedcli.cli.options import (
    ConfigFile,
    Debug,
    Insecure,
    Preset,
    Sets,
    TlsCa,
    TlsCert,
    TlsKey,
    TokenFile,
    examples,
    loading_tensorflow,
)
from seedcli.cli.starting import (
    AgentName,
    Continue,
    EnvId,
    Family,
    Logdir,
    MetricsPort,
    NetworkName,
    NoLive,
    Overwrite,
    Profile,
    Resume,
    Seed,
    Steps,
    configure,
    open_folder,
    open_mode,
    wants_live_view,
)
from seedcli.errors import EXIT_DONE, UsageError

_NO_STANDBY = "--standby is for one learner host: restart several together, with --continue"


def register(app: typer.Typer) -> None:
    """Add the command to `seed`."""
    app.command(
        epilog=examples(
            "seed learner --preset pong_vtrace --logdir runs/pong",
            "seed learner --resume --logdir runs/pong",
            "seed learner --standby --logdir runs/pong",
        )
    )(learner)


def learner(
    preset: Preset = None,
    config: ConfigFile = None,
    steps: Steps = None,
    seed: Seed = None,
    logdir: Logdir = None,
    env: EnvId = None,
    family: Family = None,
    agent: AgentName = None,
    network: NetworkName = None,
    host: Annotated[
        str | None,
        typer.Option("--host", metavar="IP", help="Address to listen on.  [default: all; with --insecure 127.0.0.1]"),
    ] = None,
    grpc_port: Annotated[str | None, typer.Option("--grpc-port", metavar="N", help="0: any free one, -1: off.")] = None,
    zmq_port: Annotated[str | None, typer.Option("--zmq-port", metavar="N", help="0: any free one, -1: off.")] = None,
    metrics_port: MetricsPort = None,
    token_file: TokenFile = None,
    insecure: Insecure = False,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    hosts: Annotated[
        str | None,
        typer.Option(
            "--hosts",
            metavar="HOST:PORT,…",
            help="Learner hosts that train one model, the chief first.  [default: those of TF_CONFIG or a SLURM step]",
        ),
    ] = None,
    host_index: Annotated[
        str | None, typer.Option("--host-index", metavar="N", help="Index of this host in --hosts, from 0.")
    ] = None,
    trust_network: Annotated[
        bool, typer.Option("--trust-network", help="Several hosts: allow TensorFlow's unprotected connections.")
    ] = False,
    sets: Sets = None,
    resume: Resume = False,
    continue_: Continue = False,
    standby: Annotated[
        bool, typer.Option("--standby", help="Like --continue, but wait while another learner has the run.")
    ] = False,
    overwrite: Overwrite = False,
    no_live: NoLive = False,
    profile: Profile = False,
    debug: Debug = False,
) -> int:
    """Start a learner that waits for actors."""
    flags: dict[str, Any] = {"--steps": steps, "--seed": seed, "--env": env, "--metrics-port": metrics_port}
    flags |= {"--family": family, "--agent": agent, "--network": network}
    flags |= {"--host": host, "--grpc-port": grpc_port, "--zmq-port": zmq_port, "--insecure": insecure or None}
    flags |= {"--token-file": str(token_file) if token_file else None}
    flags |= {"--tls-cert": tls_cert, "--tls-key": tls_key, "--tls-ca": tls_ca}
    flags |= {"--hosts": None if hosts is None else [host.strip() for host in hosts.split(",")]}
    flags |= {"--host-index": host_index, "--trust-network": trust_network or None}
    from seedcli.cluster.hosts import resolve_hosts
    from seedcli.roles.resuming import check_threaded, finished
    from seedcli.roles.stopping import exiting_at_once
    from seedcli.serving.listeners import check_listeners
    from seedcli.telemetry.exporter import check_metrics_port
    from seedcli.telemetry.output import outlive_output

    mode = open_mode(resume=resume, continue_=continue_, standby=standby, overwrite=overwrite)
    waited: list[str] = []

    def print_waiting(holder: str) -> None:
        waited.append(holder)
        typer.echo(f"seed: standing by: {holder}", err=True)

    wait = print_waiting if standby else None
    found = configure(preset, config, logdir, sets, flags, mode, wait)
    servers: tuple[str, ...] = ()
    index = 0
    if found is not None:
        check_threaded(found, logdir)
        servers, index = resolve_hosts(found.config, os.environ)
        if servers and standby:
            raise UsageError(_NO_STANDBY)
    if found is not None and not standby:  # the other learner may still hold its ports
        check_listeners(found.config)
        check_metrics_port(found.config.net)
    live = wants_live_view(no_live)
    outlive_output()
    if found is not None and index:
        with loading_tensorflow():
            from seedcli.roles.learner.host import run_member

        fresh = mode in ("refuse", "overwrite")
        return run_member(found, logdir, servers, index, fresh=fresh, live=live, profile=profile)
    if standby:  # now, so that the takeover is quick
        with loading_tensorflow():
            from seedcli.roles.learner.run import run_learner
    # A waiting standby has nothing to undo, and shutting TensorFlow down would take seconds.
    with exiting_at_once(lambda: None) if standby else contextlib.nullcontext():
        resolved, folder = open_folder(found, logdir, sets, flags, mode, wait)
    with folder:
        check_threaded(resolved, logdir)
        # Read the run's configuration only now: another learner held the folder until here.
        if found is None and resolve_hosts(resolved.config, os.environ)[0]:
            raise UsageError(_NO_STANDBY)
        done = finished(resolved, folder)
        if done and not servers:
            print(f"seed: {done}", file=sys.stderr)
            return EXIT_DONE
        if waited:
            typer.echo("seed: the other learner has ended: taking over", err=True)
        with loading_tensorflow(folder.undo):
            from seedcli.roles.learner.run import run_learner

        return run_learner(resolved, folder, live=live, hosts=servers, done=done, profile=profile)
