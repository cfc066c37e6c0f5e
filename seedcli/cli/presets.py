"""The commands of `seed presets`. Nothing heavy is imported at the top; see `seedcli.cli.main`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seedcli.cli.options import ConfigFile, Debug, Json, Sets, examples
from seedcli.cli.starting import AgentName, Family, NetworkName
from seedcli.config.presets import complete_preset
from seedcli.errors import EXIT_DONE, UsageError

if TYPE_CHECKING:
    from seedcli.config.presets import PresetInfo

presets_app = typer.Typer(rich_markup_mode=None)


@presets_app.command("list")
def presets_list(json_output: Json = False, debug: Debug = False) -> int:
    """List the presets, with variants for other devices below their base."""
    from seedcli.config.presets import presets

    found = presets()
    if json_output:
        rows = [{"name": name, "description": info.description, "base": info.base} for name, info in found.items()]
        typer.echo(json.dumps(rows, indent=2))
        return EXIT_DONE
    _print_table(("preset", "description"), list(_variants_of("", found, "")))
    return EXIT_DONE


def _variants_of(base: str, found: Mapping[str, PresetInfo], indent: str) -> Iterator[tuple[str, str]]:
    """Name and description of the presets based on `base`, each followed by its variants."""
    for name, info in found.items():
        if info.base == base:
            yield indent + name, info.description
            yield from _variants_of(name, found, f"{indent}  ")


@presets_app.command(
    "show",
    epilog=examples(
        "seed presets show cartpole_vtrace --set training.batch_size=64 --json",
        "seed presets show pong_vtrace --config mine.toml --all",
        "seed presets show cartpole_vtrace --agent my_agent:MyAgent",
        "seed presets show runs/pong",
    ),
)
def presets_show(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A preset, or the folder of a run.", autocompletion=complete_preset),
    ] = None,
    config: ConfigFile = None,
    agent: AgentName = None,
    network: NetworkName = None,
    family: Family = None,
    sets: Sets = None,
    every: Annotated[
        bool, typer.Option("--all", help="Include values without effect for this algorithm and environment family.")
    ] = False,
    json_output: Json = False,
    debug: Debug = False,
) -> int:
    """Show every value, its source, its meaning and its allowed values."""
    from seedcli.config.sources import allowed_values, describe, has_effect, load_config
    from seedcli.config.toml_text import format_value

    if name is None and config is None:
        raise UsageError("nothing to show: give the NAME of a preset, the folder of a run, or --config FILE")
    run = Path(name) if name is not None and (Path(name) / "config.toml").is_file() else None
    flags = {"--agent": agent, "--network": network, "--family": family}
    resolved = load_config(None if run else name, config_file=config, run_folder=run, sets=sets or (), flags=flags)
    for note in resolved.notes:
        print(f"seed: {note}", file=sys.stderr)
    rows = [value for value in describe(resolved) if every or has_effect(value, resolved.config)]
    if json_output:
        values = {
            row.key: {
                "value": row.value,
                "source": row.source,
                "description": row.description,
                "allowed": allowed_values(resolved.config, row.key),
            }
            for row in rows
        }
        typer.echo(json.dumps({"preset": resolved.config.run.preset, "values": values}, indent=2, ensure_ascii=False))
        return EXIT_DONE
    table = []
    for row in rows:
        allowed = allowed_values(resolved.config, row.key)
        meaning = row.description + (f" ({', '.join(allowed)})" if allowed else "")
        table.append((row.key, format_value(row.value), row.source, meaning))
    _print_table(("key", "value", "source", "meaning"), table)
    return EXIT_DONE


_NARROW = 120  # terminal width below which a table of four columns is unreadable


def _print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows; the first cell is a name that is never broken, the last gets its own line."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    # A file or a pipe has no width: do not wrap lines.
    console = Console() if sys.stdout.isatty() else Console(width=200)
    if len(header) > 2 and console.width < _NARROW:
        for name, *cells, last in rows:
            console.print(Text.assemble((name, "bold"), "  ", "  ".join(cells)), soft_wrap=True)
            console.print(Padding(Text(last, style="dim"), (0, 0, 0, 4)))
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for index, heading in enumerate(header):
        table.add_column(heading, no_wrap=index == 0)
    for row in rows:
        table.add_row(*(Text(cell, overflow="fold") for cell in row))  # Text, because a list in brackets is not markup
    console.print(table)
