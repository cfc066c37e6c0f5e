"""Short runs that check the output of the benchmarks, never their speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seedcli.bench import bare_envs
from seedcli.bench import figures as bench
from seedcli.bench import training as bench_training
from seedcli.bench.echo import Admission
from seedcli.bench.load import Connection, Load, Target
from seedcli.bench.servers import Bench
from seedcli.config.sources import load_config
from seedcli.errors import ProtocolError, SeedError, UsageError
from seedcli.net.frames import HEADER_BYTES, Kind, pack_header, unpack_header
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec

ATARI = EnvSpec("bench/atari", ArraySpec((84, 84, 1), "uint8"), ActionSpec((18,)), 4)
CARTPOLE = EnvSpec("bench/cartpole", ArraySpec((4,), "float32"), ActionSpec((2,)))


def check_figures(figures: dict[str, Any], load: Load) -> None:
    """A server's figures agree with each other and with what was sent."""
    rate = figures["messages_per_second"]
    assert rate > 0
    assert len(figures["window_messages_per_second"]) == load.windows
    assert min(figures["window_messages_per_second"]) <= rate <= max(figures["window_messages_per_second"])
    assert figures["megabytes_per_second"] == pytest.approx(rate * load.payload_bytes / 1e6)
    latency = figures["latency_us"]
    assert 0 < latency["p50"] <= latency["p99"]
    assert figures["server_cpu_us_per_message"] >= 0


@pytest.mark.parametrize(
    ("spec", "envs", "nbytes"), [(CARTPOLE, 8, 320), (ATARI, 1, 7_296), (ATARI, 32, 226_048), (CARTPOLE, 1, 256)]
)
def test_rows_of_a_load_have_the_size_of_an_actors(spec: EnvSpec, envs: int, nbytes: int) -> None:
    assert Load(spec, 4 * envs, 4, 1.0, 1, 0).payload_bytes == nbytes


def test_an_echo_answer_has_the_stream_sequence_and_size_of_its_step() -> None:
    admission = Admission()
    admission.envs = [32, 32]
    step = pack_header(Kind.STEP, 226_048, stream=1, sequence=7, session=99)
    header = unpack_header(admission.action_header()(step))
    assert header == (Kind.ACTION, 1, 7, 4 * 32, 99)
    assert len(admission.action_header()(step + b"row")) == HEADER_BYTES


@pytest.mark.parametrize("transport", ["zmq", "grpc", "shm"])
def test_a_transport_and_its_echo_answer_the_same_load(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # for the processes started below
    load = Load(CARTPOLE, envs=6, streams=3, seconds=0.05, windows=2, warm_up=2)
    with Bench({"echo": "echo", "transport": "transport"}, transport) as processes:
        for _ in range(2):  # servers come and go in the same processes
            figures = processes.measure(load)
            assert list(figures) == ["echo", "transport"]
            for part in figures.values():
                check_figures(part, load)
    assert list(tmp_path.iterdir()) == []


def test_a_client_that_cannot_connect_fails_the_benchmark() -> None:
    with Bench({"echo": "echo"}, "zmq") as processes:
        assert processes._client is not None
        targets = {"echo": Target("127.0.0.1", processes._client.pid)}
        processes._client.send((targets, Load(CARTPOLE, 1, 1, 0.05, 1, 0)))
        with pytest.raises(SeedError, match="is not a learner's address"):
            processes._client.receive(30)


def test_a_wrong_answer_is_not_counted() -> None:
    class Transport:
        address = "zmq://127.0.0.1:1"

        def receive(self, timeout: float) -> Any:
            header = pack_header(Kind.ACTION, 4, sequence=1)
            return unpack_header(header), b"\0\0\0\0"

    connection = Connection.__new__(Connection)
    connection._transport = Transport()  # type: ignore[assignment]
    connection._reply_bytes = 4
    connection._sequence = [0]
    with pytest.raises(ProtocolError, match="wrong answer"):
        connection._receive()


def test_bench_inference_prints_one_object(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    status = bench.run_bench_inference(envs=[4, 8], envs_per_message=4, transport="zmq", seconds=0.05, json_output=True)
    assert status == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert "8 environments" in err
    assert (result["bench"], result["transport"], result["windows"]) == ("inference", "zmq", 3)
    assert [(size["envs"], size["streams"]) for size in result["sizes"]] == [(4, 1), (8, 2)]
    for size in result["sizes"]:
        load = Load(ATARI, size["envs"], size["streams"], 0.05, 3, 0)
        assert size["payload_bytes"] == load.payload_bytes
        for name in ("echo", "service"):
            check_figures(size[name], load)
            rate = size[name]["messages_per_second"]
            assert size[name]["steps_per_second"] == pytest.approx(4 * rate)
        assert size["ratio"] == pytest.approx(
            size["service"]["messages_per_second"] / size["echo"]["messages_per_second"]
        )
        # Batches hold whole messages, at most one of each stream.
        assert 4 <= size["service"]["inference_batch_size"] <= size["envs"]
        assert {"wire", "batching", "inference"} <= size["service"]["profile"].keys()
    one = result["one_environment"]
    assert one["added_us"] == pytest.approx(one["service"]["latency_us"]["p50"] - one["echo"]["latency_us"]["p50"])
    assert one["service"]["inference_batch_size"] == 1
    assert not list(tmp_path.glob("seed-*"))


def test_bench_transport_prints_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_TRANSPORT_ROWS", ((CARTPOLE, 8),))
    assert bench.run_bench_transport(transport="shm", seconds=0.05, json_output=False) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in lines if line and line[0] == "320"] == [["320", "1"], ["320", "8"]]


@pytest.mark.parametrize(
    ("preset", "what"),
    [
        ("cartpole_vtrace", "gymnasium"),
        ("mujoco_vtrace", "gymnasium"),
        ("pong_vtrace", "ale_py AtariVectorEnv"),
        ("football_academy_vtrace", "envpool gfootball"),
    ],
)
def test_bare_environments_are_as_many_as_in_the_run(preset: str, what: str) -> None:
    config = load_config(preset, environ={}, sets=["actors.envs=3", "actors.streams=2"]).config
    if config.environment.family == "football":
        pytest.importorskip("envpool")
    assert bare_envs.library(config.environment) == what
    with bare_envs.environment_turn(config, cores=2) as turn:
        assert turn() == 3
        assert bench_training._rate(turn, 0.05) > 0


def test_bare_football_groups_play_different_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    envpool = pytest.importorskip("envpool")
    make, seeds = envpool.make, []

    def made(*args: Any, **options: Any) -> Any:
        seeds.append((options["seed"], options["num_envs"]))
        return make(*args, **options)

    monkeypatch.setattr(envpool, "make", made)
    config = load_config("football_academy_vtrace", environ={}, sets=["actors.envs=3", "actors.streams=2"]).config
    with bare_envs.environment_turn(config, cores=2) as turn:
        assert turn() == 3
    played = [seed + i for seed, envs in seeds for i in range(envs)]
    assert len(seeds) == 2 and len(set(played)) == len(played) == 3


def test_a_family_without_a_bare_loop_is_refused() -> None:
    config = load_config("dmlab_vtrace", environ={}).config
    with (
        pytest.raises(UsageError, match="environment.family dmlab cannot be measured bare: choose another preset"),
        bare_envs.environment_turn(config, cores=2),
    ):
        pass


@pytest.mark.parametrize(("preset", "sets", "steps"), [
    ("cartpole_vtrace", [], 32 * 16),
    ("gymnasium_ppo", ["environment.id=CartPole-v1"], 16 * 32),  # in minibatches of transitions
])  # fmt: skip
def test_bare_inference_and_training_count_environment_steps(preset: str, sets: list[str], steps: int) -> None:
    from seedcli.agents.registry import create_agent
    from seedcli.envs.registry import create_env

    config = load_config(preset, environ={}, sets=sets).config
    env = create_env(config.environment, 1)
    agent = create_agent(config.agent, config.training, env.spec, 1)
    before = [variable.numpy() for variable in agent.network.trainable_variables]
    assert bench_training._inference_turn(agent, env.spec, 16)() == 16
    assert bench_training._training_turn(agent, config, env.spec)() == steps
    after = [variable.numpy() for variable in agent.network.trainable_variables]
    assert any((x != y).any() for x, y in zip(before, after, strict=True))
    env.close()


def test_the_rate_of_a_counter_is_fitted_to_all_lines() -> None:
    # 100 a second, counted in jumps of 250: the two ends alone would give 94 or 125.
    lines = [{"time": 1e9 + t, "trained_steps": 100 * t // 250 * 250} for t in range(0, 41)]
    assert bench_training._slope(lines, "trained_steps") == pytest.approx(100, rel=0.02)


@pytest.mark.slow
def test_bench_training_measures_a_real_run(capsys: pytest.CaptureFixture[str]) -> None:
    resolved = load_config("cartpole_vtrace", environ={})
    assert bench.run_bench_training(resolved, seconds=4.0, json_output=True) == 0
    result = json.loads(capsys.readouterr().out)
    rates = [result[name]["steps_per_second"] for name in ("environment", "inference", "training")]
    assert all(rate > 0 for rate in rates)
    assert result["composed_steps_per_second"] == pytest.approx(1 / sum(1 / rate for rate in rates))
    assert result["composed_steps_per_second"] < min(rates)
    run = result["end_to_end"]
    assert run["seconds"] >= 4.0
    # Steps are trained on after they were taken.
    assert 0 < run["trained_steps_per_second"] < 1.5 * run["env_steps_per_second"]
    assert result["ratio"] == pytest.approx(run["trained_steps_per_second"] / result["composed_steps_per_second"])


def test_a_run_that_ends_early_is_reported_with_its_last_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("loading\nseed: no environment Nothing-v0\n\n")
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(2)"]) as run:
        with pytest.raises(SeedError, match="ended with status 2: seed: no environment Nothing-v0"):
            bench_training._wait_for(tmp_path / "metrics.jsonl", run, log, 30.0, bool)


def test_waiting_for_the_metrics_of_a_run(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(f'{{"time": {t}}}\n' for t in range(5)))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as run:
        found = bench_training._wait_for(metrics, run, metrics, 30.0, lambda lines: lines[2:])
        run.kill()
    assert found == [{"time": 2}, {"time": 3}, {"time": 4}]


def test_measuring_transports_needs_no_tensorflow() -> None:
    code = "import sys, seedcli.bench.figures; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_bench_replay_packs_real_frames_below_an_eighth(capsys: pytest.CaptureFixture[str]) -> None:
    games = ["pong", "breakout", "seaquest"]
    assert bench.run_bench_replay(games=games, unrolls=16, preset="pong_r2d2", json_output=True) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["bench"], result["preset"]) == ("replay", "pong_r2d2")
    assert [game["game"] for game in result["games"]] == games
    for game in result["games"]:
        # 2 rounds of 8 environments, of 25 and 20 new records.
        assert game["unrolls"] == 16 and game["unique_raw_mb"] == pytest.approx(45 * 8 * 84 * 84 / 1e6)
        assert game["memory_ratio"] == pytest.approx(game["replay_mb"] / game["unique_raw_mb"])
        assert 0 < game["memory_ratio"] <= 1 / 8
        assert game["bytes_per_unroll"] > 2 * 128 * 4, "it holds the LSTM's state, which hardly compresses"
        rates = ("insert_mb_per_second", "decode_mb_per_second", "copy_mb_per_second")
        assert all(np.isfinite(game[rate]) and game[rate] > 0 for rate in rates)
    step, tree = result["sampling"], result["tree"]
    assert (step["batch_size"], step["records"]) == (8, 25)
    assert step["ratio"] == pytest.approx(step["sample_seconds"] / step["training_step_seconds"])
    assert tree["entries"] == 10**6 and 0 < tree["sample_us"] and 0 < tree["update_us"]
    assert tree["bare_sample_us"] > 0
    small = result["transitions"]
    # 17 + 6 + 1 float32, two flags and a version; an unroll's last record is stored twice, and its end flags again.
    assert small["record_bytes"] == 106 and small["raw_mb"] == 106
    assert 0.5 < small["memory_ratio"] <= 1.1
    assert all(small[name] > 0 for name in ("insert_us", "bare_insert_us", "sample_us", "bare_sample_us"))
