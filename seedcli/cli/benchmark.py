"""The commands of `seed benchmark`. Nothing heavy is imported at the top; see `seedcli.cli.main`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from seedcli.cli.options import Debug, Jobs, Json, RetryFailed, examples, refuse_beside_slurm
from seedcli.errors import EXIT_DONE, EXIT_FAILED, UsageError

benchmark_app = typer.Typer(rich_markup_mode=None)


def _complete_suite(incomplete: str) -> list[str]:
    from seedcli.suites.suite import suite_names

    return [name for name in suite_names() if name.startswith(incomplete)]


SuiteName = Annotated[
    str, typer.Argument(metavar="SUITE", help="A suite's name, or its TOML file.", autocompletion=_complete_suite)
]
Results = Annotated[
    Path | None,
    typer.Option("--results", metavar="DIR", help="Folder of the runs.  [default: runs/benchmarks/<suite>]"),
]
Only = Annotated[list[str] | None, typer.Option("--only", metavar="TASK", help="Only this task; may be repeated.")]
With = Annotated[
    list[Path] | None,
    typer.Option("--with", metavar="FILE", help="JSON table of runs made elsewhere; may be repeated."),
]


@benchmark_app.command("list", epilog=examples("seed benchmark list"))
def benchmark_list(json_output: Json = False, debug: Debug = False) -> int:
    """List the suites that come with seed."""
    from seedcli.suites.suite import load_suite, suite_names

    suites = [load_suite(name) for name in suite_names()]
    rows = [
        {
            "name": suite.name,
            "description": suite.description,
            "tasks": len(suite.tasks),
            "runs": sum(len(task.seeds) for task in suite.tasks.values()),
        }
        for suite in suites
    ]
    if json_output:
        typer.echo(json.dumps(rows, indent=2))
        return EXIT_DONE
    for row in rows:
        typer.echo(f"{row['name']:10} {row['tasks']:3} tasks, {row['runs']:3} runs: {row['description']}")
    return EXIT_DONE


@benchmark_app.command(
    "run",
    epilog=examples(
        "seed benchmark run small",
        "seed benchmark run my_suite.toml --jobs 4 --results /data/mine",
        "seed benchmark run small --only cartpole_vtrace",
        "seed benchmark run atari57 --results /shared/atari57 --slurm | bash",
    ),
)
def benchmark_run(
    name: SuiteName,
    results: Results = None,
    jobs: Jobs = None,
    only: Only = None,
    elsewhere: With = None,
    retry_failed: RetryFailed = False,
    evaluate_only: Annotated[
        bool, typer.Option("--evaluate-only", help="Train nothing; evaluate the runs that have finished training.")
    ] = False,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Train nothing; print a script that submits each run as a SLURM job.")
    ] = False,
    debug: Debug = False,
) -> int:
    """Train and evaluate every task and seed of a suite. After an interruption the same command resumes it."""
    from seedcli.suites.suite import choose_tasks, load_suite

    suite = load_suite(name)
    tasks, folder = choose_tasks(suite, only or ()), results or suite.default_results
    if slurm:
        local = {"--jobs": jobs, "--retry-failed": retry_failed, "--evaluate-only": evaluate_only, "--with": elsewhere}
        refuse_beside_slurm(local)
        from seedcli.suites.cluster import submit_script

        typer.echo(submit_script(suite, tasks, folder), nl=False)
        return EXIT_DONE
    from seedcli.suites.outcomes import gather
    from seedcli.suites.report import show, write_files
    from seedcli.suites.run_outcome import Tables
    from seedcli.suites.running import default_jobs, run_suite

    tables = Tables(elsewhere or ())
    complete = run_suite(
        suite,
        tasks,
        folder,
        jobs=jobs or default_jobs(),
        tables=tables,
        retry_failed=retry_failed,
        evaluate_only=evaluate_only,
    )
    outcome = gather(suite, folder, tables)
    written = write_files(outcome, folder)
    show(outcome.only(tasks))
    typer.echo(f"written: {', '.join(map(str, written))}", err=True)
    return EXIT_DONE if complete else EXIT_FAILED


@benchmark_app.command(
    "table",
    epilog=examples(
        "seed benchmark table small",
        "seed benchmark table small --only cartpole_vtrace --only cartpole_ppo",
        "seed benchmark table small --out docs/results --json",
        "seed benchmark table small --with docs/results/small.json --out docs/results",
    ),
)
def benchmark_table(
    name: SuiteName,
    results: Results = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder of the files.  [default: that of the runs]")
    ] = None,
    only: Only = None,
    elsewhere: With = None,
    json_output: Json = False,
    debug: Debug = False,
) -> int:
    """Print a suite's results so far, and write them to files. These are SUITE.md, SUITE.json and charts."""
    from seedcli.suites.outcomes import gather
    from seedcli.suites.report import show, to_json, write_files
    from seedcli.suites.run_outcome import Tables
    from seedcli.suites.suite import choose_tasks, load_suite

    suite = load_suite(name)
    tasks, folder = choose_tasks(suite, only or ()), results or suite.default_results
    if not folder.is_dir() and not elsewhere:
        raise UsageError(f"{folder} is not a folder: seed benchmark run {name} trains the suite; --results names it")
    outcome = gather(suite, folder, Tables(elsewhere or ())).only(tasks)
    written = write_files(outcome, out or folder)
    if json_output:
        typer.echo(to_json(outcome))
    else:
        show(outcome)
    typer.echo(f"written: {', '.join(map(str, written))}", err=True)
    return EXIT_DONE
