"""Generates the page of all commands and options; docs/site/hooks.py adds it to the site."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

import typer

from seedcli.cli.main import app

HEAD = """\
# Command line

What `seed COMMAND --help` prints, of every command. All have `--debug`, which shows a traceback in place of an error's
sentence. `--set` takes any [configuration key](configuration.md). A command ends with one of these
[exit statuses](reference.md#exit-statuses).
"""
ALIKE = {"--debug", "--help"}  # options that every command has


def commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Each command below a command, itself included, with its full name."""
    yield name, command
    for child, found in getattr(command, "commands", {}).items():
        yield from commands(f"{name} {child}", found)


def as_text(words: str) -> str:
    """Plain words as Markdown, in one line."""
    return escape(" ".join(words.split()), quote=False).replace("[", "\\[").replace("|", "\\|")


def table(command: Any, context: Any) -> Iterator[str]:
    """A row for each argument and option that its help shows."""
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is None or not ALIKE.isdisjoint(parameter.opts):
            continue
        term, meaning = record
        if parameter.param_type_name == "argument":
            term = term.split(" <")[0]  # RUN <path>
        yield f"| `{term}` | {as_text(meaning)} |"


def section(name: str, command: Any) -> Iterator[str]:
    """The section of one command: description, usage, options and examples."""
    context = command.make_context(name, [], resilient_parsing=True)
    yield from (f"{'#' * min(len(name.split()), 3)} {name}", "", command.help, "")
    if rows := list(table(command, context)):
        yield from ("| argument or option | meaning |", "|---|---|", *rows, "")
    examples = (command.epilog or "").removeprefix("\b\nExamples:\n")
    if examples:
        yield from ("```", *(line.strip() for line in examples.splitlines()), "```", "")


def page() -> str:
    """The whole page."""
    (_, whole), *found = commands("seed", typer.main.get_command(app))
    parts = [HEAD, "| command | what it does |", "|---|---|"]
    for name, command in found:
        parts.append(f"| [`{name}`](#{name.replace(' ', '-')}) | {as_text(command.help.splitlines()[0])} |")
    for name, command in found:
        parts += ["", *section(name, command)]
    return "\n".join(parts)


if __name__ == "__main__":
    print(page())
