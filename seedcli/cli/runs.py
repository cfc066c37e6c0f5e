"""The commands that read runs: `seed runs`, `plot`, `compare` and `report`. Nothing heavy is imported at the top."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from seedcli.cli.options import Debug, Json, examples

Runs = Annotated[
    list[Path], typer.Argument(metavar="RUNS…", help="Folders of runs, or folders that hold runs.", show_default=False)
]
GroupBy = Annotated[
    str,
    typer.Option(
        "--group-by",
        metavar="WHAT",
        help="Take the mean over runs with the same preset, environment or algorithm, or with the same value of a key "
        "such as training.batch_size; run: do not group.",
    ),
]
Thresholds = Annotated[
    list[float] | None,
    typer.Option("--threshold", metavar="RETURN", help="Return to reach; may be repeated.", show_default=False),
]
Smooth = Annotated[
    int | None,
    typer.Option(
        "--smooth",
        metavar="N",
        min=1,
        help="Mean of the last N episodes.  [default: 100 of training, 20 of evaluation]",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands to `seed`."""
    app.command(epilog=examples("seed runs", "seed runs runs/pong_vtrace --json"))(runs)
    app.command(
        epilog=examples(
            "seed plot runs/pong_vtrace",
            "seed plot runs/a runs/b --x minutes --threshold 18 --out pong.svg",
            "seed plot runs --group-by training.batch_size --smooth 20",
        )
    )(plot)
    app.command(
        epilog=examples(
            "seed compare runs",
            "seed compare runs/pong_vtrace runs/pong_ppo --threshold 18",
            "seed compare runs --group-by training.learning_rate --json",
        )
    )(compare)
    app.command(
        epilog=examples(
            "seed report runs/pong_vtrace --out report.html",
            "seed report runs/a runs/b --threshold 18 --out pong.html",
        )
    )(report)


def runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder that holds the runs.")] = Path("runs"),
    json_output: Json = False,
    debug: Debug = False,
) -> int:
    """List the runs in a folder, and how each ended.

    A run is running, finished, resumable (stopped, with a checkpoint) or failed.
    """
    from seedcli.results.tables import list_runs

    return list_runs(folder, json_output)


def plot(
    paths: Runs,
    x: Annotated[Literal["env_steps", "minutes"], typer.Option("--x", help="The horizontal axis.")] = "env_steps",
    group_by: GroupBy = "preset",
    threshold: Thresholds = None,
    smooth: Smooth = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Write a .png, .svg or .pdf file instead of drawing in the terminal.",
            show_default=False,
        ),
    ] = None,
    debug: Debug = False,
) -> int:
    """Plot returns of runs, with intervals over seeds.

    All runs must be of one task. A line is the mean over the runs of a group, with its 95 % bootstrap interval.
    """
    from seedcli.results.plots import plot_runs

    return plot_runs(paths, axis=x, group_by=group_by, thresholds=threshold or (), smooth=smooth, out=out)


def compare(
    paths: Runs,
    group_by: GroupBy = "preset",
    threshold: Thresholds = None,
    smooth: Smooth = None,
    json_output: Json = False,
    debug: Debug = False,
) -> int:
    """Compare runs in a table, with intervals over seeds.

    It shows final return, interquartile mean, speed, and steps and minutes to a threshold.
    """
    from seedcli.results.groups import select
    from seedcli.results.tables import print_comparison

    return print_comparison(select(paths, group_by), thresholds=threshold or (), smooth=smooth, json_output=json_output)


def report(
    paths: Runs,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The .html file to write.")] = Path("report.html"),
    group_by: GroupBy = "preset",
    threshold: Thresholds = None,
    debug: Debug = False,
) -> int:
    """Write a report on runs as one self-contained HTML file.

    All runs must be of one task. It shows curves, configuration, time profiles, evaluation, videos, machine and
    versions, and the commands that reproduce the runs.
    """
    from seedcli.results.report import write_report

    return write_report(paths, out=out, group_by=group_by, thresholds=threshold or ())
