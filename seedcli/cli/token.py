"""The commands of `seed token`. Nothing heavy is imported at the top; see `seedcli.cli.main`."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from seedcli.cli.options import Debug, TokenFile, examples
from seedcli.errors import EXIT_DONE, UsageError

token_app = typer.Typer(rich_markup_mode=None)


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
