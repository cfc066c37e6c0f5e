"""The examples in the guides to custom algorithms, networks and environments train unchanged."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "seedcli", "train", "--preset", "cartpole_vtrace", "--deterministic", "--no-live"]


def example(page: str, contains: str) -> str:
    """The code block of a page that contains a text."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.S)
    (found,) = [block for block in blocks if contains in block]
    return str(found)


@pytest.mark.timeout(300)
def test_the_examples_of_the_guides_train(tmp_path: Path) -> None:
    (tmp_path / "my_agent.py").write_text(example("writing-an-agent.md", "class MyAgent(VTraceAgent)"))
    (tmp_path / "my_net.py").write_text(example("writing-an-agent.md", "class MyTorso"))
    (tmp_path / "a2c.py").write_text(example("writing-an-agent.md", "class A2CAgent"))
    (tmp_path / "my_sim.py").write_text(example("writing-an-environment.md", "class MyFamily"))
    (tmp_path / "my_simulator.py").write_text(
        "from seedcli.envs.gymnasium.env import GymnasiumVectorEnv\n"
        "from seedcli.envs.gymnasium.config import GymnasiumConfig\n"
        "def make_vector(name, envs, gravity):\n"
        "    assert gravity == 3\n"
        "    return GymnasiumVectorEnv(GymnasiumConfig(id=name), envs)\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    mine = ["--agent", "my_agent:MyAgent", "--set", "agent.my_cost=0.5", "--network", "my_net:MyTorso"]
    mine += ["--family", "my_sim:MyFamily", "--env", "CartPole-v1", "--set", "environment.gravity=3"]
    for run, flags in {"mine": mine, "a2c": ["--agent", "a2c:A2CAgent"]}.items():
        done = subprocess.run(
            [*COMMAND, "--steps", "3000", "--logdir", run, *flags],
            cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=140,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        last = json.loads((tmp_path / run / "metrics.jsonl").read_text().splitlines()[-1])
        assert last["learner_updates"] > 3 and last["dropped_updates"] == 0
    config = (tmp_path / "mine" / "config.toml").read_text()
    for line in ('algorithm = "my_agent:MyAgent"', "my_cost = 0.5", 'torso = "my_net:MyTorso"', "gravity = 3.0"):
        assert line in config


@pytest.mark.timeout(400)
def test_the_tutorial_runs(tmp_path: Path) -> None:
    """With one seed and fewer steps than its reader runs."""
    page = "your-own-algorithm.md"
    (tmp_path / "my_agent.py").write_text(example(page, "class RatioAgent(VTraceAgent)"))
    doctor = [sys.executable, "-m", "seedcli", "doctor", "--agent", "my_agent:RatioAgent"]
    checked = subprocess.run(
        doctor, cwd=tmp_path, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert checked.returncode == 0, checked.stdout
    assert "seed train --preset gymnasium_vtrace --agent my_agent:RatioAgent" in checked.stdout
    (block,) = re.findall(r"```\n(for seed in .*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.S)
    assert block.count("in 1 2 3;") == 1
    command = f'seed() {{ {sys.executable} -m seedcli "$@"; }}\n{block.replace("in 1 2 3;", "in 1;")}'
    done = subprocess.run(
        ["bash", "-ec", command], cwd=tmp_path, capture_output=True, text=True, timeout=380,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SEED_RUN__STEPS": "3000"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for group in ("my_agent:RatioAgent", "vtrace"):
        assert re.search(rf"^{group} +1 +3\.\d* k ", done.stdout, re.M), done.stdout
    assert (tmp_path / "comparison.png").stat().st_size > 5_000
    lines = [json.loads(line) for line in (tmp_path / "runs" / "ratio_1" / "metrics.jsonl").read_text().splitlines()]
    distances = [line["distance"] for line in lines if line.get("distance") is not None]
    assert distances and min(distances) >= 0.0
    assert "ratio_cost = 0.5  # --set" in (tmp_path / "runs" / "ratio_1" / "config.toml").read_text()
