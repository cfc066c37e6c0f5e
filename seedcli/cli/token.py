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
    """Print the token, to copy it to another home directory."""
    from seedcli.net.security.token import Token, token_text

    text, source = token_text(token_file)
    Token(text, source)  # refuse to show an invalid token
    print(f"seed: the token from {source}; anyone who has it can join your runs", file=sys.stderr)
    typer.echo(text)
    return EXIT_DONE


@token_app.command("new", epilog=examples("seed token new", "seed token new --replace", "seed token new --print"))
def token_new(
    token_file: TokenFile = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the existing token.")] = False,
    print_: Annotated[bool, typer.Option("--print", help="Print the token and write no file.")] = False,
    debug: Debug = False,
) -> int:
    """Create a token in a file that only you can read."""
    from seedcli.net.security.token import VARIABLE, default_path, new_token, write_token

    if print_:
        typer.echo(new_token())
        return EXIT_DONE
    path = token_file or default_path()
    if os.path.lexists(path) and not replace:
        raise UsageError(f"{path} already holds a token, which running processes use: --replace replaces it")
    write_token(path, replace=replace)
    shown = f" --token-file {path}" if token_file else ""
    print(f"seed: wrote a new token to {path}; seed token show{shown} prints it", file=sys.stderr)
    if VARIABLE in os.environ and not token_file:
        print(f"seed: warning: {VARIABLE} is set and takes precedence", file=sys.stderr)
    return EXIT_DONE
