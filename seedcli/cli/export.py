"""The command `seed export`. Nothing heavy is imported at the top; see `seedcli.cli.main`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from seedcli.cli.options import Debug, Json, examples, loading_tensorflow


def register(app: typer.Typer) -> None:
    """Add the command to `seed`."""
    app.command(
        name="export",
        epilog=examples(
            "seed export runs/pong pong.onnx",
            "seed export runs/pong pong.tflite --sample --batch 1",
            "seed export runs/pong/checkpoints/1000000 pong --format savedmodel",
        ),
    )(export)


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or one checkpoint's.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write; for a SavedModel, a folder.")],
    format_name: Annotated[
        Literal["savedmodel", "onnx", "tflite"] | None,
        typer.Option("--format", help="Format of the model.  [default: by the suffix of OUT]"),
    ] = None,
    sample: Annotated[
        bool, typer.Option("--sample/--greedy", help="Sample actions, or take the most probable one.")
    ] = False,
    batch: Annotated[
        int | None,
        typer.Option(
            "--batch", metavar="N", min=1, help="Fix the batch size at N environments.  [default: any number]"
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it exists.")] = False,
    json_output: Json = False,
    debug: Debug = False,
) -> int:
    """Write a trained policy as an ONNX, LiteRT or TensorFlow model. The model is compared with the original."""
    from seedcli.export.request import check_request

    request = check_request(run, out, format_name, greedy=not sample, batch=batch, overwrite=overwrite)
    with loading_tensorflow():
        from seedcli.export.run import run_export

    return run_export(request, json_output=json_output)
