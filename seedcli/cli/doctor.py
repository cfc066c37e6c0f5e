"""The command `seed doctor`. Nothing heavy is imported at the top; see `seedcli.cli.main`."""

from __future__ import annotations

from typing import Annotated

import typer

from seedcli.cli.options import Debug, Json, Preset, Sets, examples
from seedcli.cli.starting import AgentName, Family, NetworkName
from seedcli.errors import UsageError


def register(app: typer.Typer) -> None:
    """Add the command to `seed`."""
    app.command(
        epilog=examples(
            "seed doctor",
            "seed doctor --json",
            "seed doctor --preset football_vtrace_8gpu",
            "seed doctor --env my_package:MyEnv-v0",
            "seed doctor --env pong --preset pong_vtrace --set environment.max_frames=2000",
            "seed doctor --agent my_agent:MyAgent --preset cartpole_vtrace",
        )
    )(doctor)


def doctor(
    env: Annotated[
        str | None, typer.Option("--env", metavar="ID", help="Check one environment instead, by playing it.")
    ] = None,
    preset: Preset = None,
    family: Family = None,
    agent: AgentName = None,
    network: NetworkName = None,
    sets: Sets = None,
    json_output: Json = False,
    debug: Debug = False,
) -> int:
    """Report what this machine can run, or check your own code.

    Without options, report devices, environments and ports; --env and --agent check one environment or algorithm.

    With --preset or --set alone, also report their device plan; with --env they configure the environment. With --agent
    check whether the algorithm follows the agent protocol, for the environment of --env or of the preset.
    """
    if agent is not None:
        from seedcli.doctor.agent import Request, run_doctor_agent

        return run_doctor_agent(Request(agent, preset, env, family, network, tuple(sets or ())), json_output)
    if network is not None:
        raise UsageError(f"--network {network} needs --agent: a network is checked with an algorithm that uses it")
    if family is not None and env is None:
        raise UsageError(f"--family {family} needs --env: name the environment of that family to check")
    if env is None and preset is None and not sets:
        from seedcli.doctor.report import run_doctor

        return run_doctor(json_output)
    from seedcli.config.sources import load_config

    if env is None:
        from seedcli.doctor.report import run_doctor

        return run_doctor(json_output, load_config(preset, sets=sets or ()).config)
    from seedcli.doctor.environment import run_doctor_env
    from seedcli.envs.registry import check_environment

    resolved = load_config(preset, sets=sets or (), flags={"--env": env, "--family": family})
    environment = resolved.config.environment
    check_environment(environment, resolved.sources.get("environment.kwargs", ""))
    return run_doctor_env(environment, preset, sets or (), json_output, family=family)
