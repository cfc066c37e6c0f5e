"""The command `seed build`. Nothing heavy is imported at the top; see `seedcli.cli.main`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from seedcli.cli.options import Debug, Json, examples


def register(app: typer.Typer) -> None:
    """Add the command to `seed`."""
    app.command(
        epilog=examples(
            "seed build actor seed-actor",
            "seed build actor seed-actor --with football,mujoco",
            "seed build all seed-all --overwrite",
        )
    )(build)


def build(
    kind: Annotated[
        Literal["actor", "all"],
        typer.Argument(metavar="KIND", help="actor: runs seed actor, without TensorFlow.  all: runs every command."),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write.")],
    additions: Annotated[
        str,
        typer.Option(
            "--with",
            metavar="NAMES",
            help="football, mujoco or other installed packages; separate several with commas.",
        ),
    ] = "",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it exists.")] = False,
    json_output: Json = False,
    debug: Debug = False,
) -> int:
    """Pack seed into one executable file for other machines. They need Python and no other packages."""
    from seedcli.build.request import check_request
    from seedcli.build.run import run_build

    names = [name.strip() for name in additions.split(",")] if additions else []
    return run_build(check_request(kind, out, names, overwrite=overwrite), json_output=json_output)
