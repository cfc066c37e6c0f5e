"""The command `seed eval`. Nothing heavy is imported at the top; see `seedcli.cli.main`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from seedcli.cli.options import Debug, Json, examples, loading_tensorflow
from seedcli.errors import UsageError


def register(app: typer.Typer) -> None:
    """Add the command to `seed`."""
    app.command(
        name="eval",
        epilog=examples(
            "seed eval runs/pong --episodes 10 --video pong.mp4",
            "seed eval runs/pong/checkpoints/1000000 --sample --json",
            "seed eval runs/pong --watch",
            "seed eval runs/pong --video pong.mp4 --log",
            "seed eval --model pong.onnx --episodes 10",
            "seed eval --suite atari57 runs --chart atari57.png",
        ),
    )(evaluate)


def evaluate(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="PATH", help="A run's folder, or one checkpoint's; with --suite, the folder that holds the runs."
        ),
    ] = None,
    model: Annotated[
        Path | None, typer.Option("--model", metavar="FILE", help="Play a model of seed export, without TensorFlow.")
    ] = None,
    env: Annotated[
        str | None,
        typer.Option("--env", metavar="ID", help="With --model, play another environment of its family."),
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option("--suite", metavar="NAME", help="Play one run per game (atari57) or per level (dmlab30)."),
    ] = None,
    episodes: Annotated[
        int, typer.Option("--episodes", metavar="N", min=1, help="Episodes to play; with --suite, in each game.")
    ] = 20,
    sample: Annotated[
        bool, typer.Option("--sample/--greedy", help="Sample actions, or take the most probable one.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of environments and actions.")] = 1,
    json_output: Json = False,
    video: Annotated[
        Path | None, typer.Option("--video", metavar="FILE", help="Also record one episode, as FILE.mp4.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow a run and play each new checkpoint.")] = False,
    log: Annotated[
        bool, typer.Option("--log", help="Also send result and video to the run's telemetry.loggers.")
    ] = False,
    chart: Annotated[
        Path | None, typer.Option("--chart", metavar="FILE", help="With --suite, draw the scores into FILE.png.")
    ] = None,
    envs: Annotated[int, typer.Option("--envs", metavar="N", min=1, help="Environments played at once.")] = 8,
    debug: Debug = False,
) -> int:
    """Play a trained agent, or one for each game of a benchmark."""
    if model is not None:
        return _evaluate_model(
            model,
            {"PATH": path, "--suite": suite, "--watch": watch, "--chart": chart},
            env_id=env,
            sample=sample,
            episodes=episodes,
            seed=seed,
            json_output=json_output,
            video=video,
            envs=envs,
        )
    if path is None:
        raise UsageError("nothing to play: give PATH, the folder of a run, or --model FILE")
    if env is not None:
        raise UsageError(f"--env {env} is for --model: a run plays the environment it was trained in")
    if suite is not None:
        if video is not None or watch or log:
            flag = "--watch" if watch else "--log" if log else "--video"
            raise UsageError(f"{flag} is for one run and --suite {suite} plays many: give one of the two")
        from seedcli.envs.scores import load_suite
        from seedcli.roles.evaluator.suite_runs import check_output, choose_runs

        benchmark = load_suite(suite)
        if chart is not None:
            check_output("--chart", chart, ".png")
        runs = choose_runs(path, benchmark)
        with loading_tensorflow():
            from seedcli.roles.evaluator.suite import run_suite

        return run_suite(
            runs,
            benchmark,
            episodes=episodes,
            sample=sample,
            seed=seed,
            json_output=json_output,
            chart=chart,
            envs=envs,
        )
    if chart is not None:
        raise UsageError(f"--chart {chart} draws the scores of a benchmark: give --suite too, such as --suite atari57")
    from seedcli.roles.evaluator.request import check_request

    check_request(path, video=video, watch=watch, log=log)
    with loading_tensorflow():
        from seedcli.roles.evaluator.run import run_eval

    return run_eval(
        path,
        episodes=episodes,
        sample=sample,
        seed=seed,
        json_output=json_output,
        video=video,
        watch=watch,
        log=log,
        envs=envs,
    )


def _evaluate_model(model: Path, others: dict[str, Any], **options: Any) -> int:
    given = [name for name, value in others.items() if value]
    if given:
        raise UsageError(f"--model {model} plays one model: leave out {given[0]}")
    from seedcli.roles.evaluator.model import run_eval_model

    return run_eval_model(model, **options)
