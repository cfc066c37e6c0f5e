"""`seed bench`: measurements of this machine, each against a bare loop measured at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seedcli.bench.load import Load
from seedcli.bench.output import machine, print_progress, show, table
from seedcli.bench.servers import UNROLL_LENGTH, Bench
from seedcli.config.sources import Resolved
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec

_WINDOWS = 3  # of each server, alternating
_ATARI = EnvSpec("bench/atari", ArraySpec((84, 84, 1), "uint8"), action=ActionSpec((18,)), frames_per_step=4)
# The size of encoded Pong rows; the contents do not matter, because a transport does not read them.
_ENCODED = EnvSpec("bench/encoded", ArraySpec((49,), "uint8"), action=ActionSpec((18,)), frames_per_step=4)
_CARTPOLE = EnvSpec("bench/cartpole", ArraySpec((4,), "float32"), action=ActionSpec((2,)))
# Two passes through an unroll: every buffer of the arena has been written to, so no memory page is new.
_WARM_UP = 2 * (UNROLL_LENGTH + 1)
# Rows as environments make them: 8 CartPoles, one Atari game, 32 Atari games.
_TRANSPORT_ROWS = ((_CARTPOLE, 8), (_ATARI, 1), (_ATARI, 32))
_OUTSTANDING = (1, 8)


def _percentiles(figures: Mapping[str, Any]) -> str:
    latency = figures["latency_us"]
    return f"{latency['p50'] / 1000:.2f} / {latency['p99'] / 1000:.2f}"


def run_bench_inference(
    *, envs: list[int], envs_per_message: int, transport: str, seconds: float, json_output: bool
) -> int:
    """`seed bench inference`: the learner's path from socket to answer, without `act`, against a bare echo.

    Args:
        envs: numbers of environments to measure with, multiples of `envs_per_message`.
        envs_per_message: environments of a stream.
        transport: "zmq", "grpc" or "shm".
        seconds: length of a window; each server gets three, alternating.
        json_output: print JSON instead of tables.

    Raises:
        SeedError: a process of the benchmark failed.
    """
    sizes = []
    with Bench({"echo": "echo", "service": "inference"}, transport) as bench:
        for count in envs:
            print_progress(f"{count} environments, {envs_per_message} a message, over {transport}")
            load = Load(_ATARI, count, count // envs_per_message, seconds, _WINDOWS, _WARM_UP)
            figures = bench.measure(load)
            ratio = figures["service"]["messages_per_second"] / figures["echo"]["messages_per_second"]
            sizes.append(
                {"envs": count, "streams": load.streams, "payload_bytes": load.payload_bytes, **figures, "ratio": ratio}
            )
        print_progress("one environment, one message at a time")
        one = bench.measure(Load(_CARTPOLE, 1, 1, seconds, _WINDOWS, _WARM_UP))
    added = one["service"]["latency_us"]["p50"] - one["echo"]["latency_us"]["p50"]
    result = {
        "bench": "inference",
        "transport": transport,
        "envs_per_message": envs_per_message,
        "reply_bytes": 32 + 4 * envs_per_message,
        "seconds": seconds,
        "windows": _WINDOWS,
        "machine": machine(),
        "sizes": sizes,
        "one_environment": {**one, "added_us": added},
    }
    shown = table(
        f"central inference over {transport}, a constant in the network's place, against a bare echo",
        "environments", "echo steps/s", "service steps/s", "ratio", "messages/s",
        "echo p50 / p99 ms", "service p50 / p99 ms", "echo CPU µs/message", "service CPU µs/message",
    )  # fmt: skip
    for size in sizes:
        echo, service = size["echo"], size["service"]
        shown.add_row(
            f"{size['envs']:,}", f"{echo['steps_per_second']:,.0f}", f"{service['steps_per_second']:,.0f}",
            f"{size['ratio']:.2f}", f"{service['messages_per_second']:,.0f}",
            _percentiles(echo), _percentiles(service),
            f"{echo['server_cpu_us_per_message']:.0f}", f"{service['server_cpu_us_per_message']:.0f}",
        )  # fmt: skip
    note = (
        f"one environment, round trip: echo {one['echo']['latency_us']['p50']:.0f} µs, "
        f"service {one['service']['latency_us']['p50']:.0f} µs, added {added:.0f} µs (medians)"
    )
    return show(result, json_output, [shown], [note])


def run_bench_transport(*, transport: str, seconds: float, json_output: bool) -> int:
    """`seed bench transport`: a transport's server class, answering at once, against a bare echo.

    Args:
        transport: "zmq", "grpc" or "shm".
        seconds: length of a window; each server gets three, alternating.
        json_output: print JSON instead of a table.

    Raises:
        SeedError: a process of the benchmark failed.
    """
    rows = []
    with Bench({"echo": "echo", "transport": "transport"}, transport) as bench:
        for spec, envs in _TRANSPORT_ROWS:
            for outstanding in _OUTSTANDING:
                load = Load(spec, envs * outstanding, outstanding, seconds, _WINDOWS, _WARM_UP)
                print_progress(f"{load.payload_bytes:,} bytes over {transport}, {outstanding} outstanding")
                figures = bench.measure(load)
                for part in figures.values():
                    del part["steps_per_second"]
                ratio = figures["transport"]["messages_per_second"] / figures["echo"]["messages_per_second"]
                rows.append(
                    {"payload_bytes": load.payload_bytes, "outstanding": outstanding, **figures, "ratio": ratio}
                )
    result = {
        "bench": "transport",
        "transport": transport,
        "seconds": seconds,
        "windows": _WINDOWS,
        "machine": machine(),
        "rows": rows,
    }
    shown = table(
        f"{transport} against a bare echo",
        "bytes", "outstanding", "echo messages/s", "messages/s", "ratio", "MB/s", "echo p50 / p99 ms", "p50 / p99 ms",
    )  # fmt: skip
    for row in rows:
        echo, ours = row["echo"], row["transport"]
        shown.add_row(
            f"{row['payload_bytes']:,}", str(row["outstanding"]), f"{echo['messages_per_second']:,.0f}",
            f"{ours['messages_per_second']:,.0f}", f"{row['ratio']:.2f}", f"{ours['megabytes_per_second']:,.0f}",
            _percentiles(echo), _percentiles(ours),
        )  # fmt: skip
    return show(result, json_output, [shown])


def run_bench_encryption(*, seconds: float, json_output: bool) -> int:
    """`seed bench encryption`: each transport over TCP with token and encryption, against itself without.

    Args:
        seconds: length of a window; each of the two gets three, alternating.
        json_output: print JSON instead of a table.

    Raises:
        SeedError: a process of the benchmark failed.
    """
    rows = []
    for transport in ("grpc", "zmq"):
        with Bench({"plain": "transport", "encrypted": "encrypted"}, transport) as bench:
            for what, spec in (("plain frames", _ATARI), ("encoded frames", _ENCODED)):
                load = Load(spec, 32 * 8, 8, seconds, _WINDOWS, _WARM_UP)
                print_progress(f"{what}, {load.payload_bytes:,} bytes a message, over {transport}")
                figures = bench.measure(load)
                plain, encrypted = figures["plain"], figures["encrypted"]
                rows.append(
                    {
                        "transport": transport,
                        "observations": what,
                        "payload_bytes": load.payload_bytes,
                        **figures,
                        "ratio": encrypted["messages_per_second"] / plain["messages_per_second"],
                    }
                )
    result = {"bench": "encryption", "seconds": seconds, "windows": _WINDOWS, "machine": machine(), "rows": rows}
    shown = table(
        "token and encryption against neither, 32 games a message, 8 messages outstanding",
        "transport", "observations", "bytes", "plain steps/s", "encrypted steps/s", "ratio",
        "plain CPU µs/message", "encrypted CPU µs/message",
    )  # fmt: skip
    for row in rows:
        shown.add_row(
            row["transport"], row["observations"], f"{row['payload_bytes']:,}",
            f"{row['plain']['steps_per_second']:,.0f}", f"{row['encrypted']['steps_per_second']:,.0f}",
            f"{row['ratio']:.2f}", f"{row['plain']['server_cpu_us_per_message']:.0f}",
            f"{row['encrypted']['server_cpu_us_per_message']:.0f}",
        )  # fmt: skip
    return show(result, json_output, [shown])


def _composition(figures: Mapping[str, Any]) -> str:
    n = figures["trainings_of_a_step"]
    return "1/(1/env + 1/inference + 1/train)" if n == 1 else f"1/((1/env + 1/inference)/{n:g} + 1/train)"


def run_bench_training(resolved: Resolved, *, seconds: float, json_output: bool) -> int:
    """`seed bench training`: a real training run against the limit composed of its bare parts.

    Args:
        resolved: what to train.
        seconds: length of the measurement of the run, and of each bare part.
        json_output: print JSON instead of a table.

    Raises:
        SeedError: the run failed.
    """
    from seedcli.bench.training import measure_training

    figures = measure_training(resolved, seconds, print_progress)
    result = {
        "bench": "training",
        "preset": resolved.config.run.preset,
        "seconds": seconds,
        "machine": machine(),
        **figures,
    }
    shown = table(f"training {resolved.config.run.preset} on {result['machine']['cores']} cores", "part", "steps/s", "")
    for name in ("environment", "inference", "training"):
        shown.add_row(f"bare {name}", f"{figures[name]['steps_per_second']:,.0f}", figures[name]["what"])
    shown.add_row("composed limit", f"{figures['composed_steps_per_second']:,.0f}", _composition(figures))
    run = figures["end_to_end"]
    shown.add_row("seed train", f"{run['trained_steps_per_second']:,.0f}", "environment steps that training consumed")
    return show(result, json_output, [shown], [f"ratio: {figures['ratio']:.2f} of the composed limit"])


def run_bench_replay(*, games: Sequence[str], unrolls: int, preset: str, json_output: bool) -> int:
    """`seed bench replay`: memory, packing, sampling and the sum tree, on frames of real games and on small records.

    Args:
        games: Atari games in snake_case.
        unrolls: of each game.
        preset: of the unrolls' lengths, the network and the batch.
        json_output: print JSON instead of tables.

    Raises:
        UsageError: there is no such game.
    """
    from seedcli.bench.replay import measure_replay

    figures = measure_replay(games, unrolls, preset, print_progress)
    result = {"bench": "replay", "preset": preset, "machine": machine(), **figures}
    shown = table(
        f"unrolls of {preset} in the replay, of frames under random actions; rates per core",
        "game", "unrolls", "raw frames MB", "replay MB", "replay / raw", "KB an unroll",
        "insert MB/s", "decode MB/s", "plain copy MB/s",
    )  # fmt: skip
    for game in figures["games"]:
        shown.add_row(
            game["game"], f"{game['unrolls']:,}", f"{game['unique_raw_mb']:,.1f}", f"{game['replay_mb']:,.2f}",
            f"1/{1 / game['memory_ratio']:.1f}", f"{game['bytes_per_unroll'] / 1e3:.1f}",
            f"{game['insert_mb_per_second']:,.0f}", f"{game['decode_mb_per_second']:,.0f}",
            f"{game['copy_mb_per_second']:,.0f}",
        )  # fmt: skip
    step, tree, small = figures["sampling"], figures["tree"], figures["transitions"]
    notes = (
        f"a batch of {step['batch_size']} x {step['records']} records: sampled in {1e3 * step['sample_seconds']:.0f} "
        f"ms, trained on in {1e3 * step['training_step_seconds']:.0f} ms: {step['ratio']:.3f} of it",
        f"sum tree of {tree['entries']:,} entries, {tree['batch_size']} at once: sample {tree['sample_us']:.0f} µs, "
        f"update {tree['update_us']:.0f} µs; a draw without a tree {tree['bare_sample_us']:,.0f} µs",
        f"{small['transitions']:,} transitions of {small['environment']} in plain unrolls of {small['unroll_length']}: "
        f"{small['resident_mb']:.1f} MB, {small['memory_ratio']:.2f} times their records",
        f"{small['batch_size']} of them drawn in {small['sample_us']:.0f} µs, a bare index takes "
        f"{small['bare_sample_us']:.0f} µs; unrolls of {small['envs']} environments inserted in "
        f"{small['insert_us']:.0f} µs, a bare copy takes {small['bare_insert_us']:.0f} µs",
    )
    return show(result, json_output, [shown], notes)
