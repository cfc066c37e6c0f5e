"""The command `seed cost`. Nothing heavy is imported at the top; see `seedcli.cli.main`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seedcli.cli.options import Debug, Json, examples
from seedcli.errors import EXIT_DONE


def register(app: typer.Typer) -> None:
    """Add the command to `seed`."""
    app.command(
        epilog=examples(
            "seed cost runs/pong --price-gpu 2.5 --price-cpu 0.04",
            "seed cost runs/football --price-gpu 2.5 --price-cpu 0.04 --actor-cores 400 --json",
        )
    )(cost)


def cost(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    price_cpu: Annotated[
        float, typer.Option("--price-cpu", metavar="X", min=0, help="Price of a CPU core for an hour.")
    ],
    price_gpu: Annotated[
        float, typer.Option("--price-gpu", metavar="X", min=0, help="Price of a GPU, or TPU core, for an hour.")
    ] = 0.0,
    gpus: Annotated[
        int | None, typer.Option("--gpus", metavar="N", min=0, help="GPUs of the learner.  [default: those it used]")
    ] = None,
    learner_cores: Annotated[
        float | None,
        typer.Option(
            "--learner-cores", metavar="N", min=0, help="CPU cores of the learner.  [default: those of its machine]"
        ),
    ] = None,
    actor_cores: Annotated[
        float | None,
        typer.Option("--actor-cores", metavar="N", min=0.01, help="CPU cores of all actors.  [default: one per actor]"),
    ] = None,
    json_output: Json = False,
    debug: Debug = False,
) -> int:
    """Compute the cost of a billion frames at a run's rates. It also shows how many actor cores the learner can use."""
    from seedcli.results.cost import Prices, measure
    from seedcli.results.cost_table import show_cost

    found = measure(run, gpus=gpus, learner_cores=learner_cores, actor_cores=actor_cores)
    show_cost(found, Prices(price_gpu, price_cpu), json_output)
    return EXIT_DONE
