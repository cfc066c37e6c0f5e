"""`seed bench topology`: the splits it tries, both sides waiting for each other, and its recommendation."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any

import pytest

from seedcli.bench import generated, topology_trial
from seedcli.bench import topology as bench_topology
from seedcli.bench.generated import environment_spec, random_observation
from seedcli.bench.topology import ratios, run_bench_topology
from seedcli.bench.topology_trial import batch_rows, try_plan
from seedcli.cli.main import main
from seedcli.config.schema import Config
from seedcli.config.sources import load_config
from seedcli.config.topology import Inventory, make_plan
from seedcli.errors import SeedError, SimulatorMissing, UsageError
from tests.inference.test_device_memory import exhausted


def config(preset: str = "cartpole_vtrace", *sets: str) -> Config:
    return load_config(preset, environ={}, sets=sets).config


def shares(found: list[Any]) -> list[tuple[int, int]]:
    return [(len(plan.training), len(plan.inference)) for plan in found]


def test_every_split_that_divides_the_batch_is_tried() -> None:
    plans, left_out = ratios(config("football_vtrace_8gpu"), Inventory(gpus=8))
    assert shares(plans) == [(1, 7), (2, 6), (4, 4), (8, 8)]
    assert len(left_out) == 4 and left_out[0].startswith(
        "training on 3 of 8 devices is left out: training.batch_size = 32 must be a multiple of 3"
    )
    plans, left_out = ratios(config("football_vtrace", "training.batch_size=6"), Inventory(gpus=3))
    assert (shares(plans), left_out) == ([(1, 2), (2, 1), (3, 3)], [])


def test_one_device_has_one_split() -> None:
    for inventory in (Inventory(cores=2), Inventory(gpus=1)):
        plans, left_out = ratios(config(), inventory)
        assert (shares(plans), plans[0].shared, left_out) == ([(1, 1)], (0,), [])


def test_a_batch_is_half_of_the_fleet_or_as_configured() -> None:
    fleet = ["actors.count=25", "actors.envs=8"]
    assert [batch_rows(config("football_vtrace", *fleet), lanes) for lanes in (1, 4)] == [100, 25]
    assert [batch_rows(config("atari_r2d2"), lanes) for lanes in (1, 4)] == [64, 16]
    assert batch_rows(config("atari_r2d2", "actors.count=1", "actors.evaluation_envs=0"), 1) == 20, "the whole fleet"


def bench(*arguments: str) -> dict[str, Any]:
    """Run the command in a separate process, because TensorFlow can split its devices only once per process."""
    command = [sys.executable, "-m", "seedcli", "bench", "topology", *arguments, "--seconds", "0.3", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "retracing" not in done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def check_ratio(ratio: dict[str, Any], trainings: float) -> None:
    """Check that the figures agree with each other."""
    trained, acted = ratio["trained_steps_per_second"], ratio["inference_rows_per_second"]
    assert 0 < ratio["env_steps_per_second"] == pytest.approx(min(acted, trained / trainings))
    # The two wait for each other: their rates differ by no more than inference may be ahead.
    assert acted == pytest.approx(trained / trainings, rel=0.9)
    assert 0 < ratio["training_utilisation"] <= 1
    assert len(ratio["inference_utilisation"]) == len(ratio["inference_devices"])
    assert all(0 < busy <= 1 for busy in ratio["inference_utilisation"])
    assert ratio["transfer_mb"] > 0 and ratio["limit"] in ("inference", "training", "transfer")


def test_splits_of_the_processor_are_tried_and_the_best_is_recommended() -> None:
    result = bench("--preset", "cartpole_vtrace", "--virtual", "2")
    assert (result["platform"], result["devices"], result["virtual"]) == ("cpu", 2, True)
    first, second = result["ratios"]
    assert (first["training_devices"], first["inference_devices"]) == (["CPU:0"], ["CPU:1"])
    assert second["training_devices"] == second["inference_devices"] == ["CPU:0", "CPU:1"]
    assert (first["unrolls_per_device"], second["unrolls_per_device"]) == (16, 8)
    assert (first["inference_batch_rows"], second["inference_batch_rows"]) == (16, 8)
    for ratio in result["ratios"]:
        check_ratio(ratio, 1.0)
    best = max(result["ratios"], key=lambda ratio: ratio["env_steps_per_second"])
    assert result["recommended"]["training_devices"] == len(best["training_devices"])
    assert any("share its cores" in note for note in result["notes"])
    again = make_plan(config("cartpole_vtrace", *result["recommended"]["set"]), Inventory(cores=2))
    assert [again.name(device) for device in again.inference] == best["inference_devices"]


def test_steps_of_a_replay_are_trained_on_several_times() -> None:
    result = bench("--preset", "recall_r2d2", "--set", "topology.platform=cpu", "--set", "training.batch_size=8")
    (ratio,) = result["ratios"]
    assert result["trainings_of_a_step"] == 32.0
    check_ratio(ratio, 32.0)
    assert any("only one way" in note for note in result["notes"])
    assert any("trained on 32 times" in note for note in result["notes"])


class Broken(Exception):
    """Stands for an error of a device."""


def test_an_error_in_a_thread_ends_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = config("cartpole_vtrace", "topology.platform=cpu")
    plan = make_plan(wanted, Inventory())

    def fail(self: Any) -> int:
        raise Broken("no memory")

    monkeypatch.setattr(topology_trial._Actors, "act", fail)
    with pytest.raises(Broken, match="no memory"):
        try_plan(wanted, environment_spec(wanted.environment), plan, 0.1)
    names = {thread.name for thread in threading.enumerate()}
    assert not names & {"inference", "prefetch"}


def test_a_ratio_whose_networks_do_not_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = config("cartpole_vtrace", "topology.platform=cpu")
    monkeypatch.setattr(topology_trial, "AgentPolicy", exhausted)
    with pytest.raises(SeedError, match=r"out of memory at this ratio: .*lower actors\.count"):
        try_plan(wanted, environment_spec(wanted.environment), make_plan(wanted, Inventory()), 0.1)


def test_a_ratio_that_fails_is_reported_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = ratios(config("football_vtrace"), Inventory(gpus=4))[0]
    good = topology_trial.Trial(real[0], 90.0, 90.0, 95.0, 1.0, 4, (0.5,) * 3, 0.9, "training", 2.0, 1.0, 1.0)

    def attempt(config: Any, spec: Any, plan: Any, seconds: float) -> Any:
        if plan is real[0]:
            return good
        raise SeedError("a training device has no memory left: lower training.batch_size")

    monkeypatch.setattr(bench_topology, "try_plan", attempt)
    trials, failed = bench_topology.measure_plans(config(), None, real, 1.0, lambda line: None)  # type: ignore[arg-type]
    assert trials == [good]
    assert failed[0].startswith("2 train, 2 infer failed: a training device has no memory left")
    with pytest.raises(SeedError, match="no memory left"):
        bench_topology.measure_plans(config(), None, real[1:], 1.0, lambda line: None)  # type: ignore[arg-type]


def test_without_json_a_narrow_table_and_a_line_to_paste_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def attempt(config: Config, spec: Any, plan: Any, seconds: float) -> topology_trial.Trial:
        rate = {1: 40.0, 2: 123_456.0, 4: 80.0}[len(plan.training)]
        return topology_trial.Trial(plan, rate, rate, rate, 0.75, 80, (0.5, 0.25), 1.0, "transfer", 12.3, 1.0, 1.0)

    monkeypatch.setattr(bench_topology, "find_inventory", lambda: Inventory(gpus=4, models=("a",) * 4))
    monkeypatch.setattr(bench_topology, "environment_spec", lambda environment: None)
    monkeypatch.setattr(bench_topology, "prepare", lambda plan: None)
    monkeypatch.setattr(bench_topology, "share_cores", lambda config: None)
    monkeypatch.setattr(bench_topology, "try_plan", attempt)
    assert run_bench_topology(config("atari_r2d2"), seconds=1.0, json_output=False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == (
        "recommended (123,456 environment steps/s, transfer limits): --set topology.training_devices=2 "
        "--set topology.inference_devices=2"
    )
    (row,) = (line for line in lines if line.split()[:3] == ["2", "2", "123,456"])
    assert len(row.rstrip()) < 80 and row.split()[3:] == ["123,456", "80", "100%", "38%", "12.3", "transfer"]
    assert any("training on 3 of 4 devices is left out" in line for line in lines)


def test_several_hosts_are_refused() -> None:
    hosts = ["topology.hosts=['a:1', 'b:1']", "topology.trust_network=true"]
    with pytest.raises(UsageError, match="must be left out: seed bench topology tries the devices of one host"):
        run_bench_topology(config("cartpole_vtrace", *hosts), seconds=1.0, json_output=True)


def test_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[Config, dict[str, Any]]] = []
    monkeypatch.setattr(bench_topology, "run_bench_topology", lambda config, **rest: called.append((config, rest)) or 0)
    assert main("bench topology --preset football_vtrace_8gpu --virtual 4 --seconds 2 --json".split()) == 0
    ((wanted, rest),) = called
    assert (wanted.topology.platform, wanted.topology.virtual_devices) == ("cpu", 4)
    assert rest == {"seconds": 2.0, "json_output": True}


@pytest.mark.parametrize(
    ("preset", "observation", "actions"),
    [("football_vtrace", (72, 96, 4), 19), ("dmlab_vtrace", (72, 96, 3), 9), ("atari_r2d2", (84, 84, 1), 18)],
)
def test_shapes_are_known_without_the_simulator(
    preset: str, observation: tuple[int, ...], actions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*arguments: Any) -> Any:
        raise SimulatorMissing("not here")

    wanted = config(preset).environment
    if preset != "dmlab_vtrace":
        real = environment_spec(wanted)
        assert (real.observation.shape, real.action.categories) == (observation, (actions,))  # type: ignore[union-attr]
    monkeypatch.setattr(generated, "create_env_beside_tensorflow", missing)
    spec = environment_spec(wanted)
    assert (spec.observation.shape, spec.action.categories) == (observation, (actions,))  # type: ignore[union-attr]
    values = random_observation(spec, [3, 2])
    assert values.shape == (3, 2, *observation) and values.dtype == "uint8" and len(set(values.flat)) > 50
    with pytest.raises(SimulatorMissing):
        environment_spec(config("cartpole_vtrace").environment)
