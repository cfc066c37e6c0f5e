"""Output of `seed bench`: the machine's description, progress on stderr, tables or JSON on stdout."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from seedcli import __version__
from seedcli.errors import EXIT_DONE


def machine() -> dict[str, Any]:
    """A description of the machine."""
    return {
        "seedcli": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
    }


def print_progress(text: str) -> None:
    """One line of progress."""
    print(text, file=sys.stderr, flush=True)


def show(result: Mapping[str, Any], json_output: bool, tables: Sequence[Table], notes: Sequence[str] = ()) -> int:
    """Print the result as JSON, or tables and notes; returns the exit status."""
    if json_output:
        print(json.dumps(result, indent=2))
        return EXIT_DONE
    # A file or a pipe has no width: do not wrap lines.
    console = Console() if sys.stdout.isatty() else Console(width=200)
    for table in tables:
        console.print(table)
    for note in notes:
        console.print(note, highlight=False, markup=False)
    return EXIT_DONE


def table(title: str, *columns: str) -> Table:
    """An empty table of numbers."""
    empty = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        empty.add_column(column, justify="right")
    return empty
