"""The commands of `seed presets`. Nothing heavy is imported at the top; see `seedcli.cli.main`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from seedcli.cli.options import Debug, Json, Sets, complete_preset, examples
from seedcli.errors import EXIT_DONE

if TYPE_CHECKING:
    from seedcli.config.presets import PresetInfo

presets_app = typer.Typer(rich_markup_mode=None)


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
