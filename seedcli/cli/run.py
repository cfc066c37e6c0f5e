"""The commands that run: `seed train`, `seed learner`, `seed actor`. Nothing heavy is imported at the top."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from seedcli.cli.options import Debug, Json, Preset, Sets, TokenFile, Transport, examples, quiet_tensorflow
from seedcli.errors import UsageError

if TYPE_CHECKING:
    from seedcli.config.schema import Config
    from seedcli.config.sources import Resolved
    from seedcli.roles.run_folder import RunFolder

# Flags that stand for a key of the configuration are text here: the schema checks them like any other layer.
ConfigFile = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="TOML file laid over the preset.")]
Steps = Annotated[str | None, typer.Option("--steps", metavar="N", help="Environment steps to train on.")]
Seed = Annotated[str | None, typer.Option("--seed", metavar="N", help="Seed of networks, actions and environments.")]
Logdir = Annotated[
    Path | None, typer.Option("--logdir", metavar="DIR", help="The run's folder.  [default: runs/<preset>/<time>]")
]
EnvId = Annotated[
    str | None, typer.Option("--env", metavar="ID", help="Game, scenario, level or Gymnasium id to play.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --logdir.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run in --logdir.")]
Continue = Annotated[
    bool, typer.Option("--continue", help="Go on with the run in --logdir where there is one, else start it.")
]
NoLive = Annotated[bool, typer.Option("--no-live", help="Plain log lines instead of the live view.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="No token and no encryption; both sides need it, or neither.")
]
MetricsPort = Annotated[
    str | None,
    typer.Option("--metrics-port", metavar="N", help="HTTP port of Prometheus metrics and health.  [default: off]"),
]
TlsCert = Annotated[
    str | None, typer.Option("--tls-cert", metavar="FILE", help="gRPC: PEM certificate of your own to show.")
]
TlsKey = Annotated[str | None, typer.Option("--tls-key", metavar="FILE", help="gRPC: its private key, PEM.")]
TlsCa = Annotated[
    str | None,
    typer.Option("--tls-ca", metavar="FILE", help="gRPC: PEM certificates that the other side's must come from."),
]


def train(
    preset: Preset = None,
    config: ConfigFile = None,
    steps: Steps = None,
    seed: Seed = None,
    logdir: Logdir = None,
    envs: Annotated[str | None, typer.Option("--envs", metavar="N", help="Environments of each actor.")] = None,
    actors: Annotated[str | None, typer.Option("--actors", metavar="N", help="Actor processes.")] = None,
    env: EnvId = None,
    transport: Annotated[Transport | None, typer.Option("--transport", help="How actors reach the learner.")] = None,
    sets: Sets = None,
    resume: Resume = False,
    continue_: Continue = False,
    overwrite: Overwrite = False,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="One thread in lock-step: a seed gives the same metrics again.")
    ] = False,
    metrics_port: MetricsPort = None,
    no_live: NoLive = False,
    debug: Debug = False,
) -> int:
    """Train on this machine: one learner and its actors."""
    flags: dict[str, Any] = {"--steps": steps, "--seed": seed, "--env": env, "--envs": envs, "--actors": actors}
    flags |= {"--transport": transport, "--metrics-port": metrics_port, "--deterministic": deterministic or None}
    kept = _kept(resume=resume, continue_=continue_, overwrite=overwrite)
    found = _configure(preset, config, logdir, sets, flags, kept)
    assert found is not None
    if found.config.topology.hosts:
        raise UsageError("topology.hosts is for seed learner: seed train is one learner and its actors on this machine")
    _check_topology(found.config)
    resolved, folder = _open(found, logdir, sets, flags, kept)
    with folder:
        _prepare()
        from seedcli.roles.local import run_train

        return run_train(resolved, folder, live=_live(no_live))


def learner(
    preset: Preset = None,
    config: ConfigFile = None,
    steps: Steps = None,
    seed: Seed = None,
    logdir: Logdir = None,
    env: EnvId = None,
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
        str | None, typer.Option("--host-index", metavar="N", help="Which of --hosts this is, from 0.")
    ] = None,
    trust_network: Annotated[
        bool, typer.Option("--trust-network", help="Several hosts: nothing protects TensorFlow's connections.")
    ] = False,
    sets: Sets = None,
    resume: Resume = False,
    continue_: Continue = False,
    standby: Annotated[
        bool, typer.Option("--standby", help="As --continue, but wait while another learner has the run.")
    ] = False,
    overwrite: Overwrite = False,
    no_live: NoLive = False,
    debug: Debug = False,
) -> int:
    """Start a learner that waits for actors."""
    flags: dict[str, Any] = {"--steps": steps, "--seed": seed, "--env": env, "--metrics-port": metrics_port}
    flags |= {"--host": host, "--grpc-port": grpc_port, "--zmq-port": zmq_port, "--insecure": insecure or None}
    flags |= {"--token-file": str(token_file) if token_file else None}
    flags |= {"--tls-cert": tls_cert, "--tls-key": tls_key, "--tls-ca": tls_ca}
    flags |= {"--hosts": None if hosts is None else [host.strip() for host in hosts.split(",")]}
    flags |= {"--host-index": host_index, "--trust-network": trust_network or None}
    from seedcli.roles.resuming import check_threaded

    kept = _kept(resume=resume, continue_=continue_, standby=standby, overwrite=overwrite)
    waited: list[str] = []
    if standby:
        _prepare()  # now: whoever takes over is to be quick

    def say_that_it_waits(holder: str) -> None:
        waited.append(holder)
        typer.echo(f"seed: standing by: {holder}", err=True)

    wait = say_that_it_waits if standby else None
    found = _configure(preset, config, logdir, sets, flags, kept, wait)
    if found is not None:
        check_threaded(found, logdir)
    servers, index = _place(found.config, standby) if found is not None else ((), 0)
    if found is not None and index:
        _prepare()
        from seedcli.roles.learner.host import run_member

        return run_member(found, logdir, servers, index, fresh=kept in ("refuse", "overwrite"), live=_live(no_live))
    resolved, folder = _open(found, logdir, sets, flags, kept, wait)
    with folder:
        check_threaded(resolved, logdir)
        if found is None:  # what the run is, stands in its folder, which was another learner's until now
            _place(resolved.config, standby)
        if waited:
            typer.echo("seed: that learner is gone: taking over", err=True)
        _prepare()
        from seedcli.roles.learner.run import run_learner

        return run_learner(resolved, folder, live=_live(no_live), hosts=servers)


def actor(
    connect: Annotated[
        str | None,
        typer.Option(
            "--connect",
            metavar="ADDRESS",
            help="host:port is gRPC, zmq://host:port ZeroMQ, a folder that of the learner's run; several with commas.  "
            "[default: SEED_CONNECT, else the first node of this SLURM job]",
        ),
    ] = None,
    envs: Annotated[int | None, typer.Option("--envs", metavar="N", min=1, help="Environments.")] = None,
    streams: Annotated[
        int | None, typer.Option("--streams", metavar="N", min=1, help="Groups of environments that take turns.")
    ] = None,
    actor_id: Annotated[
        str | None, typer.Option("--actor-id", metavar="NAME", help="Name kept over reconnects.  [default: made up]")
    ] = None,
    transport: Annotated[
        Literal["grpc", "zmq"] | None,
        typer.Option("--transport", help="How to reach the learner of a run's folder.  [default: grpc]"),
    ] = None,
    token_file: TokenFile = None,
    insecure: Insecure = False,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    reconnect_timeout: Annotated[
        float | None,
        typer.Option("--reconnect-timeout", metavar="SECONDS", min=0, help="How long to look for a lost learner."),
    ] = None,
    threads: Annotated[
        int,
        typer.Option(
            "--threads", metavar="N", min=0, help="Threads that step Atari or football; 0: as many as it takes."
        ),
    ] = 0,
    json_output: Json = False,
    parent: Annotated[int | None, typer.Option("--parent", hidden=True)] = None,  # leave when this process dies
    debug: Debug = False,
) -> int:
    """Step environments for a learner, which says everything that is not given."""
    if envs is not None and streams is not None and streams > envs:
        raise UsageError(f"--streams {streams} must be at most --envs {envs}: a stream needs an environment")
    if insecure and (token_file or tls_cert or tls_key or tls_ca):
        raise UsageError("--insecure turns token and encryption off: leave it out, or --token-file and --tls-…")
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


def register(app: typer.Typer) -> None:
    """Make them commands of `app`."""
    app.command(
        epilog=examples(
            "seed train --preset cartpole_vtrace",
            "seed train --preset atari_vtrace --env breakout --actors 2 --envs 64",
            "seed train --preset pong_vtrace --set training.learning_rate=3e-4 --logdir runs/slow",
            "seed train --resume --logdir runs/slow --steps 20_000_000",
        )
    )(train)
    app.command(
        epilog=examples(
            "seed learner --preset pong_vtrace --logdir runs/pong",
            "seed learner --resume --logdir runs/pong",
            "seed learner --standby --logdir runs/pong",
        )
    )(learner)
    app.command(
        epilog=examples(
            "seed actor --connect learner-machine:8686",
            "seed actor --connect zmq://learner-machine:8687 --envs 16",
            "seed actor --connect runs/pong",
            "seed actor --connect a:8686,b:8686",
        )
    )(actor)


def _kept(
    *, resume: bool, continue_: bool, overwrite: bool, standby: bool = False
) -> Literal["refuse", "resume", "continue", "overwrite"]:
    """What is to become of a run that the folder holds."""
    flags = {"--resume": resume, "--standby": standby, "--overwrite": overwrite}
    flags["--continue"] = continue_ and not standby  # which means it too
    given = [flag for flag, wanted in flags.items() if wanted]
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} cannot both be given: they say what becomes of a run")
    if resume:
        return "resume"
    if continue_ or standby:
        return "continue"
    return "overwrite" if overwrite else "refuse"


def _prepare() -> None:
    """What a run needs before anything else: output that may go away, and TensorFlow."""
    from seedcli.telemetry.output import outlive_output

    outlive_output()
    if "tensorflow" not in sys.modules and sys.stderr.isatty():
        typer.echo("loading TensorFlow, which takes some seconds", err=True)
    quiet_tensorflow()


_Kept = Literal["refuse", "resume", "continue", "overwrite"]


def _configure(
    preset: str | None,
    config: Path | None,
    logdir: Path | None,
    sets: Sequence[str] | None,
    flags: dict[str, Any],
    kept: _Kept,
    wait: Callable[[str], None] | None = None,
) -> Resolved | None:
    """The configuration of a run; None where it stands in a folder that another learner may hold still."""
    from seedcli.config.sources import load_config
    from seedcli.envs.registry import check_environment
    from seedcli.roles.run_folder import CONFIG, run_of_host

    if kept == "continue" and logdir is None:
        raise UsageError("--continue and --standby need --logdir DIR, the folder of the run")
    run = run_of_host(logdir.absolute()) if logdir is not None else None
    if run is not None and (run / CONFIG).is_file():
        raise UsageError(f"{logdir} is the folder of one learner host in that of a run: give --logdir {run}")
    there = logdir if kept in ("resume", "continue") and preset is None and config is None else None
    if preset is None and config is None and there is None:
        raise UsageError(
            "nothing says what to train: give --preset NAME (see seed presets list), --config FILE, "
            "or --resume with --logdir DIR"
        )
    if there is not None and wait is not None:
        return None
    resolved = load_config(preset, config_file=config, run_folder=there, sets=sets or (), flags=flags)
    check_environment(resolved.config.environment, resolved.sources["environment.kwargs"])
    return resolved


def _open(
    resolved: Resolved | None,
    logdir: Path | None,
    sets: Sequence[str] | None,
    flags: dict[str, Any],
    kept: _Kept,
    wait: Callable[[str], None] | None = None,
) -> tuple[Resolved, RunFolder]:
    """The configuration and the locked folder of a run; nothing is touched before the configuration is good."""
    from seedcli.config.sources import load_config
    from seedcli.roles.resuming import keep_mode
    from seedcli.roles.run_folder import RunFolder

    folder = RunFolder.create(
        logdir,
        resolved.config.run.preset if resolved is not None else "",
        resume=None if kept == "continue" else kept == "resume",
        overwrite=kept == "overwrite",
        wait=wait,
    )
    if resolved is None:
        try:
            if not folder.resume:
                raise UsageError(f"{logdir} holds no run yet: give --preset NAME too, to start one")
            resolved = load_config(None, run_folder=logdir, sets=sets or (), flags=flags)
        except BaseException:
            folder.close()
            raise
    return keep_mode(resolved, folder), folder


def _place(config: Config, standby: bool) -> tuple[tuple[str, ...], int]:
    """The learner hosts of a run and which of them this is, ((), 0) for one alone; refused where devices do not fit."""
    from seedcli.cluster.hosts import resolve_hosts

    hosts, index = resolve_hosts(config, os.environ)
    if hosts and standby:
        raise UsageError("--standby is for one learner host: several are started again together, with --continue")
    _check_topology(config, hosts, index)
    return hosts, index


def _check_topology(config: Config, hosts: Sequence[str] = (), index: int = 0) -> None:
    """Refuse devices that are not there before anything is touched.

    Where "auto" decides all, it fits: then TensorFlow, which knows the devices, need not be loaded for it yet.
    """
    topology, batch = config.topology, config.training.batch_size
    chosen = topology.platform, topology.inference_devices, topology.training_devices, topology.precision
    if chosen == ("auto", "auto", "auto", "float32") and batch % max(1, len(hosts)) == 0:
        return
    _prepare()
    from seedcli.config.topology import make_plan
    from seedcli.training.devices import find_inventory

    placed = topology.model_copy(update={"hosts": tuple(hosts), "host_index": index})
    make_plan(config.model_copy(update={"topology": placed}), find_inventory())


def _live(no_live: bool) -> bool:
    return not no_live and sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
