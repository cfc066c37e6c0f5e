"""The command `seed actor`. Nothing heavy is imported at the top; see `seedcli.cli.main`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from seedcli.cli.options import Debug, Insecure, Json, TlsCa, TlsCert, TlsKey, TokenFile, completed_by, examples
from seedcli.errors import UsageError


def register(app: typer.Typer) -> None:
    """Add the command to `seed`."""
    app.command(
        epilog=examples(
            "seed actor --connect learner-machine:8686",
            "seed actor --connect zmq://learner-machine:8687 --envs 16",
            "seed actor --connect runs/pong",
            "seed actor --connect a:8686,b:8686",
        )
    )(actor)


def actor(
    connect: Annotated[
        str | None,
        typer.Option(
            "--connect",
            metavar="ADDRESS",
            help="host:port (gRPC), zmq://host:port (ZeroMQ) or the run's folder; separate several with commas.  "
            "[default: SEED_CONNECT, else the first node of this SLURM job]",
        ),
    ] = None,
    envs: Annotated[int | None, typer.Option("--envs", metavar="N", min=1, help="Environments.")] = None,
    streams: Annotated[
        int | None, typer.Option("--streams", metavar="N", min=1, help="Groups of environments that take turns.")
    ] = None,
    actor_id: Annotated[
        str | None,
        typer.Option("--actor-id", metavar="NAME", help="Name, kept on reconnects.  [default: generated]"),
    ] = None,
    transport: Annotated[
        str | None,
        typer.Option(
            "--transport",
            metavar="NAME",
            help="How to reach the learner of a run's folder: grpc, zmq, or module:Class of your own.  [default: grpc]",
            autocompletion=completed_by("net"),
        ),
    ] = None,
    token_file: TokenFile = None,
    insecure: Insecure = False,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    reconnect_timeout: Annotated[
        float | None,
        typer.Option(
            "--reconnect-timeout", metavar="SECONDS", min=0, help="How long to try to reconnect to a lost learner."
        ),
    ] = None,
    threads: Annotated[
        int,
        typer.Option("--threads", metavar="N", min=0, help="Threads that step Atari or football; 0: one per CPU core."),
    ] = 0,
    json_output: Json = False,
    parent: Annotated[int | None, typer.Option("--parent", hidden=True)] = None,  # exit when this process dies
    debug: Debug = False,
) -> int:
    """Step environments for a learner. The learner supplies all other settings."""
    if envs is not None and streams is not None and streams > envs:
        raise UsageError(f"--streams {streams} must be at most --envs {envs}: a stream needs an environment")
    if insecure and (token_file or tls_cert or tls_key or tls_ca):
        raise UsageError(
            "--insecure disables the token and encryption: leave out either it, or --token-file and --tls-…"
        )
    from seedcli.net.security.keys import TlsFiles
    from seedcli.roles.actor.run import run_actor
    from seedcli.roles.discovery import Discovery, default_connect
    from seedcli.telemetry.output import outlive_output

    outlive_output()
    tls = TlsFiles(tls_cert or "", tls_key or "", tls_ca or "")
    return run_actor(
        Discovery(
            connect if connect is not None else default_connect(os.environ),
            transport=transport,
            insecure=insecure,
            token_file=token_file,
            tls=tls if tls.given else None,
        ),
        envs=envs,
        streams=streams,
        actor_id=actor_id,
        reconnect_timeout=reconnect_timeout,
        threads=threads,
        json_output=json_output,
        parent=parent,
    )
