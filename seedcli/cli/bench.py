"""The commands of `seed bench`. Nothing heavy is imported at the top; see `seedcli.cli.main`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from seedcli.cli.options import Debug, Json, Sets, examples, loading_tensorflow
from seedcli.config.presets import complete_preset
from seedcli.errors import UsageError

bench_app = typer.Typer(rich_markup_mode=None)

# Those with a bare echo in `bench.echo`.
BenchTransport = Annotated[Literal["shm", "zmq", "grpc"], typer.Option("--transport", help="How messages travel.")]
Measured = Annotated[
    str, typer.Option("--preset", metavar="NAME", help="What to measure.", autocompletion=complete_preset)
]
Seconds = Annotated[float, typer.Option("--seconds", metavar="S", min=0.1, help="Length of each measurement.")]


@bench_app.command("inference", epilog=examples("seed bench inference --envs 32 --envs 1024 --transport zmq --json"))
def bench_inference(
    envs: Annotated[
        list[int] | None,
        typer.Option("--envs", metavar="N", min=1, help="May be repeated.  [default: 32, 256, 1024, 4096]"),
    ] = None,
    envs_per_message: Annotated[int, typer.Option("--envs-per-message", metavar="N", min=1)] = 32,
    transport: BenchTransport = "zmq",
    seconds: Seconds = 5.0,
    json_output: Json = False,
    debug: Debug = False,
) -> int:
    """Compare inference without a network with a bare echo. The echo copies and answers the same bytes."""
    counts = envs or [32, 256, 1024, 4096]
    for count in counts:
        if count % envs_per_message:
            raise UsageError(f"--envs {count} must be a multiple of --envs-per-message {envs_per_message}")
    with loading_tensorflow():
        from seedcli.bench.figures import run_bench_inference

    return run_bench_inference(
        envs=counts, envs_per_message=envs_per_message, transport=transport, seconds=seconds, json_output=json_output
    )


@bench_app.command("transport", epilog=examples("seed bench transport --transport grpc --json"))
def bench_transport(
    transport: BenchTransport = "zmq",
    seconds: Seconds = 5.0,
    json_output: Json = False,
    debug: Debug = False,
) -> int:
    """Compare a transport with a bare echo over the same sockets."""
    from seedcli.bench.figures import run_bench_transport

    return run_bench_transport(transport=transport, seconds=seconds, json_output=json_output)


@bench_app.command("encryption", epilog=examples("seed bench encryption --json"))
def bench_encryption(seconds: Seconds = 5.0, json_output: Json = False, debug: Debug = False) -> int:
    """Compare gRPC and ZeroMQ with and without token and encryption."""
    from seedcli.bench.figures import run_bench_encryption

    return run_bench_encryption(seconds=seconds, json_output=json_output)


@bench_app.command("training", epilog=examples("seed bench training --preset pong_vtrace --json"))
def bench_training(
    preset: Measured = "pong_vtrace",
    sets: Sets = None,
    seconds: Seconds = 30.0,
    json_output: Json = False,
    debug: Debug = False,
) -> int:
    """Compare training with the limit composed of its bare parts. These are environment, inference and training."""
    from seedcli.config.sources import load_config

    resolved = load_config(preset, sets=sets or ())
    with loading_tensorflow():
        from seedcli.bench.figures import run_bench_training

    return run_bench_training(resolved, seconds=seconds, json_output=json_output)


@bench_app.command(
    "topology",
    epilog=examples(
        "seed bench topology --preset football_vtrace --set actors.count=25",
        "seed bench topology --preset cartpole_vtrace --virtual 4 --json",
    ),
)
def bench_topology(
    preset: Measured = "pong_vtrace",
    sets: Sets = None,
    virtual: Annotated[
        int, typer.Option("--virtual", metavar="N", min=0, max=64, help="Split the CPU into N virtual devices.")
    ] = 0,
    seconds: Seconds = 5.0,
    json_output: Json = False,
    debug: Debug = False,
) -> int:
    """Try every ratio of inference to training devices. It recommends the best one."""
    from seedcli.config.sources import load_config

    split = ["topology.platform=cpu", f"topology.virtual_devices={virtual}"] if virtual else []
    config = load_config(preset, sets=[*(sets or ()), *split]).config
    with loading_tensorflow():
        from seedcli.bench.topology import run_bench_topology

    return run_bench_topology(config, seconds=seconds, json_output=json_output)


@bench_app.command("replay", epilog=examples("seed bench replay --game pong --game breakout --json"))
def bench_replay(
    games: Annotated[
        list[str] | None,
        typer.Option("--game", metavar="NAME", help="May be repeated.  [default: pong, breakout, seaquest, ms_pacman]"),
    ] = None,
    unrolls: Annotated[int, typer.Option("--unrolls", metavar="N", min=1, help="Unrolls of each game.")] = 160,
    preset: Annotated[
        str,
        typer.Option(
            "--preset",
            metavar="NAME",
            help="Preset of the unroll length, network and batch.",
            autocompletion=complete_preset,
        ),
    ] = "atari_r2d2",
    json_output: Json = False,
    debug: Debug = False,
) -> int:
    """Measure the replay with real frames and small records. It covers memory, packing, sampling and its sum tree."""
    from seedcli.config.sources import load_config

    load_config(preset)  # so that errors appear before TensorFlow loads
    with loading_tensorflow():
        from seedcli.bench.figures import run_bench_replay

    chosen = games or ["pong", "breakout", "seaquest", "ms_pacman"]
    return run_bench_replay(games=chosen, unrolls=unrolls, preset=preset, json_output=json_output)


@bench_app.command("codecs", epilog=examples("seed bench codecs --json"))
def bench_codecs(json_output: Json = False, debug: Debug = False) -> int:
    """Measure what observation codecs save and cost in real play. It shows the link speed below which each pays off."""
    from seedcli.bench.codecs import run_bench_codecs

    return run_bench_codecs(json_output=json_output)


@bench_app.command("actor", epilog=examples("seed bench actor --preset pong_vtrace --json"))
def bench_actor(
    preset: Measured = "pong_vtrace",
    sets: Sets = None,
    seconds: Seconds = 10.0,
    json_output: Json = False,
    debug: Debug = False,
) -> int:
    """Measure the simulator's share of a busy actor's time. The actor never waits for a learner."""
    from seedcli.bench.actor import run_bench_actor
    from seedcli.config.sources import load_config

    config = load_config(preset, sets=sets or ()).config
    return run_bench_actor(config, seconds=seconds, json_output=json_output)


@bench_app.command(
    "policy", epilog=examples("seed bench policy runs/pong", "seed bench policy pong.onnx --seconds 10 --json")
)
def bench_policy(
    path: Annotated[Path, typer.Argument(metavar="RUN|MODEL", help="A run's folder, or a model of seed export.")],
    seconds: Seconds = 5.0,
    json_output: Json = False,
    debug: Debug = False,
) -> int:
    """Measure the time from an observation to its action. It uses one core, and TensorFlow, ONNX Runtime and LiteRT."""
    from seedcli.bench.policy import on_one_core, run_bench_model
    from seedcli.models.formats import FORMATS, format_of_file, require

    if format_of_file(path) is not None:
        return run_bench_model(path, seconds=seconds, json_output=json_output)
    from seedcli.config.sources import from_toml_file
    from seedcli.envs.placement import check_simulator
    from seedcli.training.checkpoint_files import find_checkpoint

    checkpoint = find_checkpoint(path)
    config = from_toml_file(checkpoint.config_path)
    require(tuple(n for each in FORMATS.values() for n in (*each.writes, each.runs)), f"{path}", "'seedcli[export]'")
    check_simulator(config.environment)
    on_one_core()
    with loading_tensorflow():
        from seedcli.bench.policy_of_run import run_bench_run

    return run_bench_run(checkpoint, config, seconds=seconds, json_output=json_output)
