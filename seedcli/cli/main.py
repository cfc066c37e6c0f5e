"""The commands of `seed`: arguments in, a role called, an exit status out.

Nothing heavy is imported at the top: `seed --help` and `seed actor` never see TensorFlow.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seedcli import __version__
from seedcli.cli.bench import bench_app
from seedcli.cli.options import Debug, Json, Preset, Sets, TokenFile, complete_preset, examples, quiet_tensorflow
from seedcli.cli.run import register
from seedcli.cli.slurm import register_slurm
from seedcli.errors import EXIT_DONE, EXIT_FAILED, EXIT_SIGINT, EXIT_USAGE, SeedError, UsageError
from seedcli.roles.stopping import Stopped, raising_stopped

if TYPE_CHECKING:
    from seedcli.config.presets import PresetInfo

# Plain help: drawing boxes with rich takes longer than everything else `seed --help` does.
app = typer.Typer(name="seed", rich_markup_mode=None, pretty_exceptions_enable=False)
presets_app = typer.Typer(rich_markup_mode=None)
token_app = typer.Typer(rich_markup_mode=None)
app.add_typer(presets_app, name="presets", help="Show the presets and their values.")
app.add_typer(token_app, name="token", help="Show or make the token that learners and actors share.")
app.add_typer(bench_app, name="bench", help="Measure this machine against bare loops.")


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


register(app)
register_slurm(app)


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
        from seedcli.roles.evaluator.suite import run_suite

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
    from seedcli.roles.evaluator.run import run_eval

    return run_eval(
        path, episodes=episodes, sample=sample, seed=seed, json_output=json_output, video=video, watch=watch, envs=envs
    )


@app.command(
    epilog=examples(
        "seed doctor",
        "seed doctor --json",
        "seed doctor --preset football_vtrace_8gpu",
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
    """Say what this machine can run (devices, environments, ports), or whether an environment keeps the rules.

    With --preset or --set alone, also what that would do with the devices; with --env they describe the environment.
    """
    if env is None and preset is None and not sets:
        from seedcli.doctor.report import run_doctor

        return run_doctor(json_output)
    from seedcli.config.sources import load_config

    if env is None:
        from seedcli.doctor.report import run_doctor

        return run_doctor(json_output, load_config(preset, sets=sets or ()).config)
    from seedcli.doctor.environment import run_doctor_env
    from seedcli.envs.registry import check_environment

    resolved = load_config(preset, sets=sets or (), flags={"--env": env})
    environment = resolved.config.environment
    check_environment(environment, resolved.sources["environment.kwargs"])
    return run_doctor_env(environment, preset, sets or (), json_output)


@presets_app.command("list")
def presets_list(json_output: Json = False, debug: Debug = False) -> int:
    """List the presets, variants for other devices below what they vary."""
    from seedcli.config.presets import presets

    found = presets()
    if json_output:
        rows = [{"name": name, "description": info.description, "base": info.base} for name, info in found.items()]
        typer.echo(json.dumps(rows, indent=2))
        return EXIT_DONE
    _print_table(("preset", "description"), list(_variants_of("", found, "")))
    return EXIT_DONE


def _variants_of(base: str, found: Mapping[str, PresetInfo], indent: str) -> Iterator[tuple[str, str]]:
    """Name and description of the presets laid over `base`, below each its own variants."""
    for name, info in found.items():
        if info.base == base:
            yield indent + name, info.description
            yield from _variants_of(name, found, f"{indent}  ")


@presets_app.command("show", epilog=examples("seed presets show cartpole_vtrace --set training.batch_size=64 --json"))
def presets_show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The preset.", autocompletion=complete_preset)],
    sets: Sets = None,
    json_output: Json = False,
    debug: Debug = False,
) -> int:
    """Show every value, where it comes from and what it means."""
    from seedcli.config.sources import describe, format_value, load_config

    rows = describe(load_config(name, sets=sets or ()))
    if json_output:
        values = {row.key: {"value": row.value, "source": row.source, "description": row.description} for row in rows}
        typer.echo(json.dumps({"preset": name, "values": values}, indent=2, ensure_ascii=False))
    else:
        table = [(row.key, format_value(row.value), row.source, row.description) for row in rows]
        _print_table(("key", "value", "source", "meaning"), table)
    return EXIT_DONE


@token_app.command("show", epilog=examples("seed token show", "seed token show --token-file cluster.token"))
def token_show(token_file: TokenFile = None, debug: Debug = False) -> int:
    """Print the token: to copy it to a machine that does not share this one's home."""
    from seedcli.net.security.token import Token, token_text

    text, source = token_text(token_file)
    Token(text, source)  # one that no command would take is not shown as if it were one
    print(f"seed: the token from {source}; whoever has it may join your runs", file=sys.stderr)
    typer.echo(text)
    return EXIT_DONE


@token_app.command("new", epilog=examples("seed token new", "seed token new --replace", "seed token new --print"))
def token_new(
    token_file: TokenFile = None,
    replace: Annotated[bool, typer.Option("--replace", help="Put it in the place of the one that is there.")] = False,
    print_: Annotated[bool, typer.Option("--print", help="Print it and write no file.")] = False,
    debug: Debug = False,
) -> int:
    """Make a token, and the file for it that only you can read."""
    from seedcli.net.security.token import VARIABLE, default_path, new_token, write_token

    if print_:
        typer.echo(new_token())
        return EXIT_DONE
    path = token_file or default_path()
    if os.path.lexists(path) and not replace:
        raise UsageError(f"{path} holds a token already: what runs uses it; --replace makes another in its place")
    write_token(path, replace=replace)
    shown = f" --token-file {path}" if token_file else ""
    print(f"seed: a new token stands in {path}; seed token show{shown} prints it", file=sys.stderr)
    if VARIABLE in os.environ and not token_file:
        print(f"seed: warning: {VARIABLE} is set here, and comes before it", file=sys.stderr)
    return EXIT_DONE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `seed` and return its exit status; `arguments` are the process's own where None.

    An error for the user becomes one sentence on stderr; --debug, anywhere, shows its traceback instead.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    if not debug:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        # Or every connection of an unauthenticated peer would write a line of gRPC's own.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        # Not standalone: typer then returns a command's status, and leaves the wording of errors to us.
        with raising_stopped():
            status = app(arguments, prog_name="seed", standalone_mode=False)
        return int(status or EXIT_DONE)
    except typer.TyperException as error:
        print(f"seed: {_usage_sentence(error)}", file=sys.stderr)
        return error.exit_code
    except Stopped as stopped:
        return stopped.status
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
