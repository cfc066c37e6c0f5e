"""Options that several commands share, and the quiet import of TensorFlow."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_type_hints

import typer

from seedcli.config.presets import complete_preset
from seedcli.errors import UsageError

_T = TypeVar("_T")

Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Set one value; may be repeated.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="File of the token.  [default: SEED_TOKEN, else your own file]"),
]
# `seedcli.cli.main.main` reads this flag itself, so that it works in front of the command and behind it.
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks and TensorFlow's own log.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="TOML file applied on top of the preset.")
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="No token and no encryption; both sides need it, or neither.")
]
TlsCert = Annotated[str | None, typer.Option("--tls-cert", metavar="FILE", help="gRPC: your own certificate, PEM.")]
TlsKey = Annotated[str | None, typer.Option("--tls-key", metavar="FILE", help="gRPC: its private key, PEM.")]
TlsCa = Annotated[
    str | None,
    typer.Option("--tls-ca", metavar="FILE", help="gRPC: CA certificates that must have signed the other side's, PEM."),
]

# Of `seed benchmark run` and `seed sweep`.
Jobs = Annotated[
    int | None, typer.Option("--jobs", metavar="N", min=1, help="Runs at a time.  [default: one per two cores]")
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Also retry runs that have failed before.")]

Preset = Annotated[
    str | None,
    typer.Option("--preset", metavar="NAME", help="Preset to start from.", autocompletion=complete_preset),
]


def completed_by(table: str) -> Callable[[str], list[str]]:
    """Complete an option with the names of built-in and installed choices of a table, e.g. "agent.network"."""

    def complete(incomplete: str) -> list[str]:
        from seedcli.config.choices import CHOICES

        return [name for name in CHOICES[table].names() if name.startswith(incomplete)]

    return complete


def options_of(made: type[_T]) -> Callable[[Callable[[_T], int]], Callable[..., int]]:
    """Make a command from a function of one dataclass: its options are the fields, and --debug."""

    def command_of(function: Callable[[_T], int]) -> Callable[..., int]:
        def command(*, debug: bool = False, **values: Any) -> int:
            return function(made(**values))

        hints = get_type_hints(made, include_extras=True)
        parameters = [
            Parameter(field.name, Parameter.KEYWORD_ONLY, default=_default(field), annotation=hints[field.name])
            for field in fields(cast(Any, made))
        ]
        parameters.append(Parameter("debug", Parameter.KEYWORD_ONLY, default=False, annotation=Debug))
        command.__name__, command.__doc__ = function.__name__, function.__doc__
        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return command

    return command_of


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return Parameter.empty if field.default is MISSING else field.default


def refuse_beside_slurm(flags: Mapping[str, object]) -> None:
    """Refuse flags that have a value beside --slurm, which trains nothing here.

    Raises:
        UsageError: for that reason.
    """
    for flag, value in flags.items():
        if value:
            raise UsageError(f"{flag} is for runs on this machine, and --slurm prints jobs: give one of the two")


def examples(*lines: str) -> str:
    """An epilog of examples; the leading backspace keeps its lines from being wrapped."""
    return "\b\n" + "\n".join(("Examples:", *(f"  {line}" for line in lines)))


def missing_module_error(module: str) -> UsageError:
    """The error of a command that needs a module which is missing, as most are in a file that runs actors."""
    return UsageError(
        f"this command needs {module}, not installed here: pip install seedcli, or use a file that seed build all made"
    )


@contextlib.contextmanager
def loading_tensorflow(undo: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Load TensorFlow, then run the block; a signal meanwhile ends the process at once and silently.

    A half-finished import cannot be unwound: it would print TensorFlow's messages or a traceback.

    Args:
        undo: called before a signal ends the process.
    """
    from seedcli.roles.stopping import exiting_at_once
    from seedcli.tensorflow_import import import_tensorflow

    if "tensorflow" not in sys.modules and sys.stderr.isatty():
        typer.echo("loading TensorFlow, which takes some seconds", err=True)
    with exiting_at_once(undo):
        import_tensorflow()
        yield
