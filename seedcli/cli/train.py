"""The command `seed train`. Nothing heavy is imported at the top; see `seedcli.cli.main`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from seedcli.cli.options import ConfigFile, Debug, Preset, Sets, completed_by, examples, loading_tensorflow
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


def register(app: typer.Typer) -> None:
    """Add the command to `seed`."""
    app.command(
        epilog=examples(
            "seed train --preset cartpole_vtrace",
            "seed train --preset atari_vtrace --env breakout --actors 2 --envs 64",
            "seed train --preset pong_vtrace --set training.learning_rate=3e-4 --logdir runs/slow",
            "seed train --preset pong_vtrace --agent my_agent:MyAgent --set agent.my_cost=0.1",
            "seed train --resume --logdir runs/slow --steps 20_000_000",
        )
    )(train)


def train(
    preset: Preset = None,
    config: ConfigFile = None,
    steps: Steps = None,
    seed: Seed = None,
    logdir: Logdir = None,
    envs: Annotated[str | None, typer.Option("--envs", metavar="N", help="Environments of each actor.")] = None,
    actors: Annotated[str | None, typer.Option("--actors", metavar="N", help="Actor processes.")] = None,
    env: EnvId = None,
    family: Family = None,
    agent: AgentName = None,
    network: NetworkName = None,
    transport: Annotated[
        str | None,
        typer.Option(
            "--transport",
            metavar="NAME",
            help="How actors reach the learner: shm, zmq, grpc, or module:Class of your own.  [default: shm]",
            autocompletion=completed_by("net"),
        ),
    ] = None,
    sets: Sets = None,
    resume: Resume = False,
    continue_: Continue = False,
    overwrite: Overwrite = False,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="Single-threaded, in lock-step: the same seed reproduces the metrics."),
    ] = False,
    metrics_port: MetricsPort = None,
    no_live: NoLive = False,
    profile: Profile = False,
    debug: Debug = False,
) -> int:
    """Train on this machine: one learner and its actors."""
    flags: dict[str, Any] = {"--steps": steps, "--seed": seed, "--env": env, "--envs": envs, "--actors": actors}
    flags |= {"--transport": transport, "--metrics-port": metrics_port, "--deterministic": deterministic or None}
    flags |= {"--family": family, "--agent": agent, "--network": network}
    mode = open_mode(resume=resume, continue_=continue_, overwrite=overwrite)
    found = configure(preset, config, logdir, sets, flags, mode)
    assert found is not None
    if found.config.topology.hosts:
        raise UsageError("topology.hosts is for seed learner: seed train is one learner and its actors on this machine")
    from seedcli.envs.placement import check_simulator
    from seedcli.roles.resuming import finished
    from seedcli.telemetry.exporter import check_metrics_port
    from seedcli.telemetry.output import outlive_output

    check_simulator(found.config.environment)
    check_metrics_port(found.config.net)
    resolved, folder = open_folder(found, logdir, sets, flags, mode)
    with folder:
        if done := finished(resolved, folder):
            print(f"seed: {done}", file=sys.stderr)
            return EXIT_DONE
        outlive_output()
        with loading_tensorflow(folder.undo):
            from seedcli.roles.local import run_train

        return run_train(resolved, folder, live=wants_live_view(no_live), profile=profile)
