"""The `seed` program: its commands, each in its own file, and its error handling.

Nothing heavy is imported at the top: `seed --help` and `seed actor` never import TensorFlow.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from seedcli import __version__
from seedcli.cli import actor, build, cost, doctor, export, learner, runs, sweep, train
from seedcli.cli import eval as evaluate
from seedcli.cli.bench import bench_app
from seedcli.cli.benchmark import benchmark_app
from seedcli.cli.options import Debug, examples, missing_module_error
from seedcli.cli.presets import presets_app
from seedcli.cli.slurm import register_slurm
from seedcli.cli.token import token_app
from seedcli.errors import EXIT_DONE, EXIT_FAILED, EXIT_SIGINT, EXIT_USAGE, SeedError
from seedcli.roles.stopping import Stopped, raising_stopped

# Plain help: drawing boxes with rich takes longer than everything else `seed --help` does.
app = typer.Typer(name="seed", rich_markup_mode=None, pretty_exceptions_enable=False)
app.add_typer(presets_app, name="presets", help="Show the presets and their values.")
app.add_typer(token_app, name="token", help="Show or create the token that learners and actors share.")
app.add_typer(bench_app, name="bench", help="Measure this machine against bare loops.")
app.add_typer(benchmark_app, name="benchmark", help="Train suites of tasks and compare them with published results.")


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


for command in (train, learner, actor, evaluate, export, runs, sweep, cost, build, doctor):
    command.register(app)
register_slurm(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `seed` and return its exit status; `arguments` default to those of the process.

    An error becomes one line on stderr; --debug, anywhere, shows its traceback instead.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    if not debug:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        # Otherwise gRPC logs a line for every connection of an unauthenticated peer.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    _open_missing_output()
    _import_from_working_folder()
    try:
        # Not standalone: typer then returns a command's status and leaves error messages to this function.
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
        _log_error(error)
        if debug:
            raise
        print(f"seed: {error}", file=sys.stderr)
        return error.exit_status
    except Exception as error:
        _log_error(error)
        if debug:
            raise
        if isinstance(error, ModuleNotFoundError):
            print(f"seed: {missing_module_error(error.name or str(error))}", file=sys.stderr)
            return EXIT_USAGE
        print(f"seed: unexpected {type(error).__name__}: {error} (--debug shows where)", file=sys.stderr)
        return EXIT_FAILED


def _open_missing_output() -> None:
    """Discard output to a stdout or stderr that was closed before the start, instead of failing."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (for as long as the process lives)


def _import_from_working_folder() -> None:
    """Let `module:Id` name a module in the working folder when run as the console script, as `python -m` does."""
    try:
        folder = os.getcwd()
    except OSError:  # the folder has been removed
        return
    if not sys.flags.safe_path and not {"", folder} & set(sys.path):
        sys.path.insert(0, folder)


def _log_error(error: Exception) -> None:
    """Write the error that ended a run into its log, if it has one."""
    if "seedcli.telemetry.logs" in sys.modules:
        from seedcli.telemetry.logs import log_to_file

        log_to_file(logging.ERROR, str(error), None if isinstance(error, SeedError) else error)


def _usage_sentence(error: typer.TyperException) -> str:
    message = error.format_message().rstrip(".").replace("Value error, ", "")
    if isinstance(error.__cause__, ValueError) and hasattr(error.__cause__, "errors"):
        # Pydantic, which converts for typer, names the rule but not the value.
        message = message.replace("Input should", f"{error.__cause__.errors()[0]['input']} should")
    context = getattr(error, "ctx", None)
    return f"{message} ({context.command_path if context else 'seed'} --help shows the usage)"
