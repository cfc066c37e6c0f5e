"""What several command modules share: options that mean the same everywhere, and TensorFlow loaded quietly."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Set one value; may be repeated.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Transport = Literal["shm", "zmq", "grpc"]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="The shared token.  [default: SEED_TOKEN, else your own file]"),
]
# `seedcli.cli.main.main` reads this flag itself, so that it works in front of the command and behind it.
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks and TensorFlow's own log.")]


def complete_preset(incomplete: str) -> list[str]:
    """Names of presets that begin with what was typed."""
    from seedcli.config.presets import preset_names

    return [name for name in preset_names() if name.startswith(incomplete)]


Preset = Annotated[
    str | None,
    typer.Option("--preset", metavar="NAME", help="Preset to start from.", autocompletion=complete_preset),
]


def examples(*lines: str) -> str:
    """An epilog; the backspace in front keeps its lines from being wrapped."""
    return "\b\n" + "\n".join(("Examples:", *(f"  {line}" for line in lines)))


def quiet_tensorflow() -> None:
    """Import TensorFlow here, where what it says while loading can be kept from the user."""
    from seedcli.telemetry.logs import import_tensorflow

    import_tensorflow()
