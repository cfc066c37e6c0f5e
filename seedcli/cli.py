"""The commands of `seed`: arguments in, a role called, an exit status out.

Nothing heavy is imported at the top: `seed --help` and `seed actor` never see TensorFlow.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seedcli import __version__
from seedcli.cli_bench import bench_app
from seedcli.cli_options import Debug, Json, Sets, Transport, complete_preset, examples, quiet_tensorflow
from seedcli.errors import EXIT_DONE, EXIT_FAILED, EXIT_SIGINT, EXIT_USAGE, SeedError, UsageError

if TYPE_CHECKING:
    from seedcli.layering import Resolved
    from seedcli.roles.runfolder import RunFolder

# Plain help: drawing boxes with rich takes longer than everything else `seed --help` does.
app = typer.Typer(name="seed", rich_markup_mode=None, pretty_exceptions_enable=False)
presets_app = typer.Typer(rich_markup_mode=None)
app.add_typer(presets_app, name="presets", help="Show the presets and their values.")
app.add_typer(bench_app, name="bench", help="Measure this machine against bare loops.")


# Flags that stand for a key of the configuration are text here: the schema checks them like any other layer.
Preset = Annotated[
    str | None,
    typer.Option("--preset", metavar="NAME", help="Preset to start from.", autocompletion=complete_preset),
]
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
NoLive = Annotated[bool, typer.Option("--no-live", help="Plain log lines instead of the live view.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"seed {__version__}")
        raise typer.Exit()


@app.callback(
    invoke_without_command=True,
    epilog=examples("seed train --preset cartpole_vtrace", "seed eval runs/cartpole_vtrace/20250101-120000"),
)
def seed_command(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Debug = False,
) -> int:
    """Distributed deep reinforcement learning with central inference."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        return EXIT_USAGE
    return EXIT_DONE


@app.command(
    epilog=examples(
        "seed train --preset cartpole_vtrace",
        "seed train --preset atari_vtrace --env breakout --actors 2 --envs 64",
        "seed train --preset pong_vtrace --set training.learning_rate=3e-4 --logdir runs/slow",
        "seed train --resume --logdir runs/slow --steps 20_000_000",
    )
)
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
    overwrite: Overwrite = False,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="One thread in lock-step: a seed gives the same metrics again.")
    ] = False,
    no_live: NoLive = False,
    debug: Debug = False,
) -> int:
    """Train on this machine: one learner and its actors."""
    flags = {"--steps": steps, "--seed": seed, "--env": env, "--envs": envs, "--actors": actors}
    flags["--transport"] = transport
    resolved, folder = _start_run(preset, config, logdir, sets, flags, resume=resume, overwrite=overwrite)
    with folder:
        quiet_tensorflow()
        from seedcli.roles.local import run_train

        return run_train(resolved, folder, deterministic=deterministic, live=_live(no_live))


@app.command(
    epilog=examples("seed learner --preset pong_vtrace --logdir runs/pong", "seed learner --resume --logdir runs/pong")
)
def learner(
    preset: Preset = None,
    config: ConfigFile = None,
    steps: Steps = None,
    seed: Seed = None,
    logdir: Logdir = None,
    env: EnvId = None,
    host: Annotated[str | None, typer.Option("--host", metavar="IP", help="Loopback address to listen on.")] = None,
    grpc_port: Annotated[str | None, typer.Option("--grpc-port", metavar="N", help="0: any free one, -1: off.")] = None,
    zmq_port: Annotated[str | None, typer.Option("--zmq-port", metavar="N", help="0: any free one, -1: off.")] = None,
    sets: Sets = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    no_live: NoLive = False,
    debug: Debug = False,
) -> int:
    """Start a learner that waits for actors."""
    flags = {"--steps": steps, "--seed": seed, "--env": env}
    flags |= {"--host": host, "--grpc-port": grpc_port, "--zmq-port": zmq_port}
    resolved, folder = _start_run(preset, config, logdir, sets, flags, resume=resume, overwrite=overwrite)
    with folder:
        quiet_tensorflow()
        from seedcli.roles.learner import run_learner

        return run_learner(resolved, folder, live=_live(no_live))


@app.command(
    epilog=examples("seed actor --connect 127.0.0.1:8686", "seed actor --connect zmq://127.0.0.1:8687 --envs 16")
)
def actor(
    connect: Annotated[
        str, typer.Option("--connect", metavar="ADDRESS", help="host:port is gRPC, zmq://host:port is ZeroMQ.")
    ],
    envs: Annotated[int | None, typer.Option("--envs", metavar="N", min=1, help="Environments.")] = None,
    streams: Annotated[
        int | None, typer.Option("--streams", metavar="N", min=1, help="Groups of environments that take turns.")
    ] = None,
    actor_id: Annotated[
        str | None, typer.Option("--actor-id", metavar="NAME", help="Name kept over reconnects.  [default: made up]")
    ] = None,
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
    from seedcli.roles.actor import run_actor

    return run_actor(
        connect,
        envs=envs,
        streams=streams,
        actor_id=actor_id,
        reconnect_timeout=reconnect_timeout,
        threads=threads,
        json_output=json_output,
        parent=parent,
    )


@app.command(
    name="eval",
    epilog=examples(
        "seed eval runs/pong --episodes 10 --video pong.mp4",
        "seed eval runs/pong/checkpoints/1000000 --sample --json",
        "seed eval runs/pong --watch",
        "seed eval --suite atari57 runs --chart atari57.png",
    ),
)
def evaluate(
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="A run's folder, or one checkpoint's; with --suite, that of the runs."),
    ],
    suite: Annotated[
        str | None, typer.Option("--suite", metavar="NAME", help="Play one run a game: atari57, or a level: dmlab30.")
    ] = None,
    episodes: Annotated[
        int, typer.Option("--episodes", metavar="N", min=1, help="Episodes to play, of a suite in each game.")
    ] = 20,
    sample: Annotated[
        bool, typer.Option("--sample/--greedy", help="Sample actions, or take the most probable one.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of environments and actions.")] = 1,
    json_output: Json = False,
    video: Annotated[
        Path | None, typer.Option("--video", metavar="FILE", help="Also record one episode, as FILE.mp4.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow a run and play each new checkpoint.")] = False,
    chart: Annotated[
        Path | None, typer.Option("--chart", metavar="FILE", help="With --suite, draw the scores into FILE.png.")
    ] = None,
    envs: Annotated[int, typer.Option("--envs", metavar="N", min=1, help="Environments played at once.")] = 8,
    debug: Debug = False,
) -> int:
    """Play a trained agent, or one for each game of a benchmark."""
    if suite is not None:
        if video is not None or watch:
            flag = "--watch" if watch else "--video"
            raise UsageError(f"{flag} is for one run and --suite {suite} plays many: give one of the two")
        from seedcli.envs.scores import load_suite

        benchmark = load_suite(suite)
        quiet_tensorflow()
        from seedcli.roles.suite import run_suite

        return run_suite(
            path,
            benchmark,
            episodes=episodes,
            sample=sample,
            seed=seed,
            json_output=json_output,
            chart=chart,
            envs=envs,
        )
    if chart is not None:
        raise UsageError(f"--chart {chart} draws the scores of a benchmark: give --suite too, such as --suite atari57")
    quiet_tensorflow()
    from seedcli.roles.evaluator import run_eval

    return run_eval(
        path, episodes=episodes, sample=sample, seed=seed, json_output=json_output, video=video, watch=watch, envs=envs
    )


@app.command(
    epilog=examples(
        "seed doctor",
        "seed doctor --json",
        "seed doctor --env my_package:MyEnv-v0",
        "seed doctor --env pong --preset pong_vtrace --set environment.max_frames=2000",
    )
)
def doctor(
    env: Annotated[
        str | None, typer.Option("--env", metavar="ID", help="Check one environment instead, by playing it.")
    ] = None,
    preset: Preset = None,
    sets: Sets = None,
    json_output: Json = False,
    debug: Debug = False,
) -> int:
    """Say what this machine can run (devices, environments, ports), or whether an environment keeps the rules."""
    if env is None and preset is None and not sets:
        from seedcli.roles.doctor import run_doctor

        return run_doctor(json_output)
    from seedcli.envs import check_environment_name
    from seedcli.layering import load_config
    from seedcli.roles.doctor_env import run_doctor_env

    environment = load_config(preset, sets=sets or (), flags={"--env": env}).config.environment
    check_environment_name(environment)
    return run_doctor_env(environment, preset, sets or (), json_output)


@presets_app.command("list")
def presets_list(json_output: Json = False, debug: Debug = False) -> int:
    """List the presets."""
    from seedcli.layering import presets

    found = presets()
    if json_output:
        typer.echo(json.dumps([{"name": name, "description": text} for name, text in found.items()], indent=2))
    else:
        _print_table(("preset", "description"), list(found.items()))
    return EXIT_DONE


@presets_app.command("show", epilog=examples("seed presets show cartpole_vtrace --set training.batch_size=64 --json"))
def presets_show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The preset.", autocompletion=complete_preset)],
    sets: Sets = None,
    json_output: Json = False,
    debug: Debug = False,
) -> int:
    """Show every value, where it comes from and what it means."""
    from seedcli.layering import describe, format_value, load_config

    rows = describe(load_config(name, sets=sets or ()))
    if json_output:
        values = {row.key: {"value": row.value, "source": row.source, "description": row.description} for row in rows}
        typer.echo(json.dumps({"preset": name, "values": values}, indent=2, ensure_ascii=False))
    else:
        table = [(row.key, format_value(row.value), row.source, row.description) for row in rows]
        _print_table(("key", "value", "source", "meaning"), table)
    return EXIT_DONE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `seed` and return its exit status; `arguments` are the process's own where None.

    An error for the user becomes one sentence on stderr; --debug, anywhere, shows its traceback instead.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    if not debug:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        # Not standalone: typer then returns a command's status, and leaves the wording of errors to us.
        status = app(arguments, prog_name="seed", standalone_mode=False)
        return int(status or EXIT_DONE)
    except typer.TyperException as error:
        print(f"seed: {_usage_sentence(error)}", file=sys.stderr)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_SIGINT
    except SeedError as error:
        if debug:
            raise
        print(f"seed: {error}", file=sys.stderr)
        return error.exit_status
    except Exception as error:
        if debug:
            raise
        print(f"seed: unexpected {type(error).__name__}: {error} (--debug shows where)", file=sys.stderr)
        return EXIT_FAILED


def _usage_sentence(error: typer.TyperException) -> str:
    message = error.format_message().rstrip(".").replace("Value error, ", "")
    if isinstance(error.__cause__, ValueError) and hasattr(error.__cause__, "errors"):
        # Pydantic, which converts for typer, tells the rule; the value it keeps to itself.
        message = message.replace("Input should", f"{error.__cause__.errors()[0]['input']} should")
    context = getattr(error, "ctx", None)
    return f"{message} ({context.command_path if context else 'seed'} --help shows the usage)"


def _start_run(
    preset: str | None,
    config: Path | None,
    logdir: Path | None,
    sets: Sequence[str] | None,
    flags: dict[str, Any],
    *,
    resume: bool,
    overwrite: bool,
) -> tuple[Resolved, RunFolder]:
    """The configuration and the locked folder of a run; nothing is touched before the configuration is good."""
    from seedcli.envs import check_environment_name
    from seedcli.layering import load_config
    from seedcli.roles.runfolder import RunFolder

    if preset is None and config is None and not (resume and logdir):
        raise UsageError(
            "nothing says what to train: give --preset NAME (see seed presets list), --config FILE, "
            "or --resume with --logdir DIR"
        )
    run_folder = logdir if resume and preset is None else None
    resolved = load_config(preset, config_file=config, run_folder=run_folder, sets=sets or (), flags=flags)
    check_environment_name(resolved.config.environment)
    return resolved, RunFolder.create(logdir, resolved.config.run.preset, resume=resume, overwrite=overwrite)


def _live(no_live: bool) -> bool:
    return not no_live and sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def _print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*header, box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(cell, overflow="fold") for cell in row))  # Text: a list is no markup
    # A file or a pipe has no width of its own to fit into: no line of it is broken.
    console = Console() if sys.stdout.isatty() else Console(width=200)
    console.print(table)
