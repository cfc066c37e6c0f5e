"""The cost of a billion frames: the published figures of SEED RL, and a made-up run calculated by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from seedcli.cli.main import main
from seedcli.errors import UsageError
from seedcli.results.cost import Fleet, Prices, measure
from seedcli.results.runs import RunData, read_run
from tests.results.helpers import line, make_run

# Google Cloud's hourly prices in 2019: a core of n1-standard, a P100, a core of a TPU v3.
CPU, P100, TPU = 0.0475, 1.46, 1.0


@pytest.mark.parametrize(
    ("frames_per_second", "accelerators", "price", "actor_cores", "published"),
    [
        (30_000, 1, P100, 176, 90),  # IMPALA, DeepMind Lab, small network
        (74_000, 2, TPU, 104, 25),  # SEED, the same
        (11_000, 2, P100, 400, 553),  # IMPALA, Football, default network
        (18_000, 2, TPU, 416, 345),  # SEED, the same
        (44_000, 8, TPU, 1_032, 365),  # SEED, Football, medium network
    ],
)
def test_costs_of_the_paper_follow_from_its_rates(
    frames_per_second: float, accelerators: int, price: float, actor_cores: int, published: float
) -> None:
    """Espeholt et al., arXiv 1910.06591: frames/s, accelerators and cores of its table of speeds, dollars of its table
    of costs. Both are rounded, so they agree within 5 %."""
    bill = Prices(gpu=price, cpu=CPU).bill(Fleet(frames_per_second, accelerators, 0, actor_cores))
    assert bill.total == pytest.approx(published, rel=0.05)


def test_a_bill_by_hand() -> None:
    bill = Prices(gpu=2.5, cpu=0.04).bill(Fleet(frames_per_second=1e6 / 3.6, gpus=2, learner_cores=8, actor_cores=100))
    assert (bill.hours, bill.learner, bill.actors) == pytest.approx((1.0, 5.32, 4.0))
    assert bill.total == pytest.approx(9.32)


def metrics(*, gpus: bool = True) -> list[dict[str, Any]]:
    """100 steps of 4 frames a second; the training GPU is busy for 0.4 of the time, inference for 0.1."""
    name = "GPU" if gpus else "CPU"
    devices = [
        {"device": f"{name}:0", "role": "training", "utilisation": 0.4},
        {"device": f"{name}:{int(gpus)}", "role": "inference", "utilisation": 0.1},
    ]
    return [
        line(steps, 1.0, env_frames=4 * steps, learner_updates=max(0, steps - 1000) // 100, actors=10,
             actors_stepping=8, actors_waiting=2, devices=devices)
        for steps in range(0, 5001, 500)
    ]  # fmt: skip


def session(**profile: dict[str, float]) -> dict[str, Any]:
    return {"started": 1_000_000.0, "command": ["seed", "learner"], "machine": {"cores": 16}, "profile": profile}


def test_a_run_is_measured_from_its_first_update_on(tmp_path: Path) -> None:
    lines = metrics()
    lines[0]["time"] -= 1000.0  # actors joined late
    found = measure(make_run(tmp_path / "run", lines, sessions=[session()]))
    assert found.fleet == Fleet(pytest.approx(400.0), gpus=2, learner_cores=16.0, actor_cores=10.0)
    assert (found.stepping, found.busy, found.shared) == (pytest.approx(0.8), pytest.approx(0.4), False)
    # The learner could be 2.5 times as fast; ten cores that step for 0.8 of the time are eight.
    assert found.filled.frames_per_second == pytest.approx(1000.0)
    assert found.filled.actor_cores == pytest.approx(20.0)


def test_a_device_that_infers_and_trains_and_a_busy_thread_limit_the_learner(tmp_path: Path) -> None:
    run = make_run(tmp_path / "device", metrics(gpus=False), sessions=[session()])
    assert measure(run).busy == pytest.approx(0.5)
    assert measure(run).fleet.gpus == 0
    profile = {
        "inference_thread": {"wire": 6.0, "inference": 2.0, "waiting": 2.0},
        "training_thread": {"training": 4.0, "waiting": 6.0},
        "actor 0": {"environment": 10.0},
    }
    run = make_run(tmp_path / "thread", metrics(), sessions=[session(**profile)])
    assert measure(run).busy == pytest.approx(0.8)


def test_actors_of_seed_train_are_on_the_machine_of_the_learner(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", metrics(), sessions=[session()])
    (run / "logs").mkdir()
    found = measure(run)
    assert found.shared and found.fleet.learner_cores == 6.0
    assert measure(run, gpus=1, learner_cores=3, actor_cores=40).fleet == Fleet(pytest.approx(400.0), 1, 3, 40)


def test_the_command_prints_both_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run", metrics(), sessions=[session()])
    arguments = ["cost", str(run), "--price-gpu", "2.5", "--price-cpu", "0.04"]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    hours = 1e9 / 400 / 3600
    assert found["measured"]["learner"] == pytest.approx(hours * (2 * 2.5 + 16 * 0.04))
    assert found["measured"]["actors"] == pytest.approx(hours * 10 * 0.04)
    assert found["learner_filled"]["total"] == pytest.approx(hours / 2.5 * (5.64 + 20 * 0.04))
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "694.4" in shown and "3,916.67" in shown and "it can use 20.0 actor cores" in shown


def test_actors_of_every_learner_host_are_counted(tmp_path: Path) -> None:
    """Frames, devices and cores are those of all hosts; the actors in the metrics are those of the first."""
    run = make_run(tmp_path / "run", metrics(), sessions=[session()])
    with (run / "config.toml").open("a") as file:
        file.write('[topology]\nhosts = ["a:1", "b:1"]\n')
    fleet = measure(run).fleet
    assert (fleet.gpus, fleet.learner_cores, fleet.actor_cores) == (4, 32.0, 20.0)


def test_lines_written_meanwhile_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run", metrics(), sessions=[session()])

    def read_and_train_on(path: Path) -> RunData:
        found = read_run(path)
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({**metrics()[-1], "env_steps": 6000}) + "\n")
        return found

    before = measure(run)
    monkeypatch.setattr("seedcli.results.cost.read_run", read_and_train_on)
    assert measure(run) == before


@pytest.mark.parametrize(
    ("lines", "sessions", "sentence"),
    [
        (metrics()[:4], [session()], "too few lines of metrics with updates"),
        ([{**each, "time": None} for each in metrics()], [session()], "a deterministic run records no time"),
        (metrics(), [], "does not say how many cores its learner had: give --learner-cores"),
    ],
)
def test_a_run_without_rates_or_machines_is_refused(
    tmp_path: Path, lines: list[dict[str, Any]], sessions: list[dict[str, Any]], sentence: str
) -> None:
    run = make_run(tmp_path / "run", lines, sessions=sessions)
    with pytest.raises(UsageError, match=sentence):
        measure(run)
    with pytest.raises(UsageError, match="holds no run"):
        measure(tmp_path / "none")
