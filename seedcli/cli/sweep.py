"""The command `seed sweep`. Nothing heavy is imported at the top; see `seedcli.cli.main`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seedcli.cli.options import Debug, Jobs, Json, RetryFailed, examples, refuse_beside_slurm
from seedcli.errors import EXIT_DONE, EXIT_FAILED


def register(app: typer.Typer) -> None:
    """Add the command to `seed`."""
    app.command(
        epilog=examples(
            "seed sweep my_sweep.toml",
            "seed sweep my_sweep.toml --jobs 4 --json",
            "seed sweep my_sweep.toml --results /shared/lr --slurm | sbatch",
            "seed compare runs/sweeps/my_sweep --group-by training.learning_rate",
        )
    )(sweep)


def sweep(
    file: Annotated[Path, typer.Argument(metavar="SWEEP.toml", help="TOML file with the values and seeds to try.")],
    results: Annotated[
        Path | None,
        typer.Option("--results", metavar="DIR", help="Folder of the runs.  [default: runs/sweeps/<sweep>]"),
    ] = None,
    jobs: Jobs = None,
    retry_failed: RetryFailed = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Train nothing; show the results so far.")] = False,
    slurm: Annotated[bool, typer.Option("--slurm", help="Train nothing; print a SLURM job array.")] = False,
    json_output: Json = False,
    debug: Debug = False,
) -> int:
    """Train and evaluate a grid, list or random draw of values. After an interruption the same command resumes it."""
    from seedcli.suites.sweep import load_sweep

    found = load_sweep(file)
    folder = results or found.default_results
    if slurm:
        local = {"--jobs": jobs, "--retry-failed": retry_failed, "--dry-run": dry_run, "--json": json_output}
        refuse_beside_slurm(local)
        from seedcli.suites.array import array_script

        typer.echo(array_script(found, folder), nl=False)
        return EXIT_DONE
    from seedcli.suites.outcomes import gather
    from seedcli.suites.ranking import show_ranking
    from seedcli.suites.running import default_jobs, run_suite

    complete = dry_run or run_suite(
        found.suite, found.suite.tasks, folder, jobs=jobs or default_jobs(), retry_failed=retry_failed
    )
    show_ranking(found, gather(found.suite, folder), json_output)
    return EXIT_DONE if complete else EXIT_FAILED
