"""Shared by `seed train` and `seed learner`: options, configuration and run folder.

Everything here runs before TensorFlow is loaded, so that errors appear quickly.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from seedcli.cli.options import completed_by, missing_module_error
from seedcli.errors import UsageError

if TYPE_CHECKING:
    from seedcli.config.sources import Resolved
    from seedcli.roles.run_folder import RunFolder

# Flags that stand for a key of the configuration are text here: the schema checks them like any other layer.
Steps = Annotated[str | None, typer.Option("--steps", metavar="N", help="Environment steps to train on.")]
Seed = Annotated[str | None, typer.Option("--seed", metavar="N", help="Seed of networks, actions and environments.")]
Logdir = Annotated[
    Path | None, typer.Option("--logdir", metavar="DIR", help="The run's folder.  [default: runs/<preset>/<time>]")
]
EnvId = Annotated[
    str | None, typer.Option("--env", metavar="ID", help="Game, scenario, level or Gymnasium id to play.")
]
Family = Annotated[
    str | None,
    typer.Option(
        "--family",
        metavar="NAME",
        help="Family of environments: gymnasium, atari, football, dmlab, or module:Class of your own.",
        autocompletion=completed_by("environment"),
    ),
]
AgentName = Annotated[
    str | None,
    typer.Option(
        "--agent",
        metavar="NAME",
        help="Learning algorithm: vtrace, ppo, r2d2, sac, or module:Class of your own.",
        autocompletion=completed_by("agent"),
    ),
]
NetworkName = Annotated[
    str | None,
    typer.Option(
        "--network",
        metavar="NAME",
        help="Network torso: mlp, impala_shallow, nature, impala_deep, or module:Class of your own.",
        autocompletion=completed_by("agent.network"),
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the run in --logdir.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run in --logdir.")]
Continue = Annotated[
    bool, typer.Option("--continue", help="Resume the run in --logdir if there is one, else start it.")
]
NoLive = Annotated[bool, typer.Option("--no-live", help="Plain log lines instead of the live view.")]
MetricsPort = Annotated[
    str | None,
    typer.Option("--metrics-port", metavar="N", help="HTTP port of Prometheus metrics and health.  [default: off]"),
]

Profile = Annotated[bool, typer.Option("--profile", help="Print the time profile of each thread and actor at the end.")]

# What to do with a run that the folder holds.
OpenMode = Literal["refuse", "resume", "continue", "overwrite"]


def open_mode(*, resume: bool, continue_: bool, overwrite: bool, standby: bool = False) -> OpenMode:
    """What to do with a run that the folder holds, from the flags."""
    flags = {"--resume": resume, "--standby": standby, "--overwrite": overwrite}
    flags["--continue"] = continue_ and not standby  # which means it too
    given = [flag for flag, wanted in flags.items() if wanted]
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} cannot both be given: they contradict each other")
    if resume:
        return "resume"
    if continue_ or standby:
        return "continue"
    return "overwrite" if overwrite else "refuse"


def configure(
    preset: str | None,
    config: Path | None,
    logdir: Path | None,
    sets: Sequence[str] | None,
    flags: dict[str, Any],
    mode: OpenMode,
    wait: Callable[[str], None] | None = None,
) -> Resolved | None:
    """The configuration of a run; None if it must be read from a folder that another learner may still hold."""
    from seedcli.config.sources import load_config
    from seedcli.envs.registry import check_environment
    from seedcli.roles.run_folder import CONFIG, run_of_host
    from seedcli.telemetry.loggers.registry import check_loggers

    if find_spec("tensorflow") is None:
        raise missing_module_error("tensorflow")
    if mode == "continue" and logdir is None:
        raise UsageError("--continue and --standby need --logdir DIR, the folder of the run")
    run = run_of_host(logdir.absolute()) if logdir is not None else None
    if run is not None and (run / CONFIG).is_file():
        raise UsageError(f"{logdir} is the folder of one learner host: give --logdir {run}")
    there = logdir if mode in ("resume", "continue") and preset is None and config is None else None
    if preset is None and config is None and there is None:
        raise UsageError(
            "nothing to train: give --preset NAME (see seed presets list), --config FILE, or --resume with --logdir DIR"
        )
    if there is not None and wait is not None:
        return None
    resolved = load_config(preset, config_file=config, run_folder=there, sets=sets or (), flags=flags)
    check_environment(resolved.config.environment, resolved.sources.get("environment.kwargs", ""))
    check_loggers(resolved.config.telemetry)
    return resolved


def open_folder(
    resolved: Resolved | None,
    logdir: Path | None,
    sets: Sequence[str] | None,
    flags: dict[str, Any],
    mode: OpenMode,
    wait: Callable[[str], None] | None = None,
) -> tuple[Resolved, RunFolder]:
    """The configuration and the locked folder of a run; no file is touched until the configuration is valid."""
    from seedcli.config.sources import load_config
    from seedcli.roles.resuming import keep_mode
    from seedcli.roles.run_folder import RunFolder
    from seedcli.telemetry.loggers.registry import check_loggers

    folder = RunFolder.create(
        logdir,
        resolved.config.run.preset if resolved is not None else "",
        resume=None if mode == "continue" else mode == "resume",
        overwrite=mode == "overwrite",
        wait=wait,
    )
    try:
        if resolved is None:
            if not folder.resume:
                raise UsageError(f"{logdir} holds no run yet: give --preset NAME too, to start one")
            resolved = load_config(None, run_folder=logdir, sets=sets or (), flags=flags)
            check_loggers(resolved.config.telemetry)
        return keep_mode(resolved, folder), folder
    except BaseException:
        folder.undo()
        folder.close()
        raise


def wants_live_view(no_live: bool) -> bool:
    """Whether to show a live view: it is enabled and this terminal supports it."""
    return not no_live and sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
