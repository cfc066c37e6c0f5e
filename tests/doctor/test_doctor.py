from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from seedcli.cli.main import main
from seedcli.config.sections import NetConfig
from seedcli.config.sources import load_config
from seedcli.config.topology import Inventory
from seedcli.doctor import environment as doctor_env
from seedcli.doctor import examination
from seedcli.doctor import network as doctor_net
from seedcli.doctor import report as doctor
from seedcli.doctor.devices import check_devices, describe_devices, describe_topology
from seedcli.doctor.findings import Finding
from seedcli.doctor.report import print_findings, run_doctor
from seedcli.envs import conformance
from tests.configs import env_config


def _without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the one slow check by a fixed finding."""
    found = [Finding("tensorflow", "ok", "2.x, imported in 0.0 s", required=True)]
    monkeypatch.setattr(doctor, "check_devices", lambda config: found)


def _report(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def test_json_holds_every_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_doctor(json_output=True) == 0
    report = _report(capsys)
    assert report["ok"] is True
    findings = {finding["name"]: finding for finding in report["findings"]}
    assert {"seed", "python", "processor", "memory", "file descriptors", "tensorflow", "devices"} <= set(findings)
    assert {
        "gymnasium",
        "rendering",
        "atari",
        "mujoco",
        "football",
        "video",
        "pyzmq",
        "grpcio",
        "port 8686",
        "port 8687",
    } <= set(findings)
    assert {"shared memory", "run folder"} <= set(findings)
    for finding in findings.values():
        assert finding["status"] in ("ok", "warning", "missing")
        assert bool(finding["advice"]) == (finding["status"] != "ok")
    assert findings["atari"]["value"]["games"] >= 57
    assert {"type": "CPU", "name": None} in findings["devices"]["value"]
    assert findings["processor"]["value"] > 0


def test_a_port_in_use_is_a_warning(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _without_tensorflow(monkeypatch)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(doctor_net, "NetConfig", lambda: NetConfig(zmq_port=port))
        assert run_doctor(json_output=True) == 0
    finding = next(f for f in _report(capsys)["findings"] if f["name"] == f"port {port}")
    assert finding["status"] == "warning" and finding["value"] is False
    assert "net.zmq_port" in finding["advice"]


def test_a_folder_that_cannot_be_written_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _without_tensorflow(monkeypatch)

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert run_doctor(json_output=True) == 1
    report = _report(capsys)
    assert report["ok"] is False
    finding = next(f for f in report["findings"] if f["name"] == "run folder")
    assert finding["status"] == "missing" and "--logdir" in finding["advice"]


def test_memory_is_what_the_limits_of_all_control_groups_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "available_memory", lambda: 3 * 2**29)
    (finding,) = doctor._check_memory()
    assert finding.status == "warning" and finding.detail.startswith("1.5 GiB available here, ")
    assert finding.value["available_bytes"] == 3 * 2**29


def test_run_folder_check_leaves_no_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (finding,) = doctor._check_run_folder()
    assert finding.status in ("ok", "warning") and str(tmp_path) in finding.detail
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "stderr", "words"),
    [
        (-4, "", "too old"),
        (-11, "", "SIGSEGV"),
        (1, "Traceback\nImportError: libfoo.so: not found\n", "libfoo.so"),
    ],
)
def test_a_failing_import_of_tensorflow_is_explained(
    monkeypatch: pytest.MonkeyPatch, code: int, stderr: str, words: str
) -> None:
    monkeypatch.setattr(
        subprocess, "run", lambda command, **kwargs: subprocess.CompletedProcess(command, code, "", stderr)
    )
    (finding,) = check_devices()
    assert finding.status == "missing" and finding.required
    assert words in f"{finding.detail} {finding.advice}"


# Devices ----------------------------------------------------------------------------------------------------------

GPU = {"type": "GPU", "name": "NVIDIA H200"}
CPU = {"type": "CPU", "name": None}


def _tensorflow_sees(
    monkeypatch: pytest.MonkeyPatch, folder: Path, devices: list[dict[str, Any]], inventory: Inventory
) -> None:
    """Make the probe report the devices of another machine, which has a driver."""
    seen = {"version": "2.x", "seconds": 1.0, "devices": devices, "inventory": asdict(inventory)}
    smi = folder / "nvidia-smi"
    smi.write_text("#!/bin/sh\nfor i in 1 2; do echo 'NVIDIA H200, 143771'; done\n", encoding="utf-8")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    real = subprocess.run

    def run(command: list[str], **kwargs: Any) -> Any:
        if command[0] == sys.executable:
            return subprocess.CompletedProcess(command, 0, f"noise\n\n{json.dumps(seen)}\n", "")
        return real(command, **kwargs)

    monkeypatch.setattr(subprocess, "run", run)


def test_gpus_are_listed_with_their_memory_and_their_use_by_a_preset(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    models = ("NVIDIA H200",) * 8
    _tensorflow_sees(monkeypatch, tmp_path, [CPU, *[GPU] * 8], Inventory(gpus=8, cores=64, models=models))
    config = load_config("football_vtrace_8gpu", environ={}).config
    tensorflow, devices, topology = check_devices(config)
    assert (tensorflow.name, tensorflow.detail) == ("tensorflow", "2.x, imported in 1.0 s")
    assert devices.status == "ok" and devices.detail == "8 × NVIDIA H200 (140 GiB)"
    assert devices.value[0] == CPU and devices.value[8] == {**GPU, "memory_bytes": 143771 * 2**20}
    assert (topology.name, topology.status, topology.required) == ("topology", "ok", True)
    assert topology.detail.splitlines() == [
        "8 GPUs",
        "training on GPU:0 to GPU:3: 8 unrolls of a batch each",
        "inference on GPU:4 to GPU:7",
        "precision float32; XLA off",
    ]
    assert topology.value["training"] == (0, 1, 2, 3) and topology.value["columns"] == 8
    assert [finding.name for finding in check_devices()] == ["tensorflow", "devices"], "no preset was given"


def test_a_preset_that_does_not_fit_is_a_finding() -> None:
    config = load_config("football_vtrace_8gpu", environ={}).config
    finding = describe_topology(config, Inventory(gpus=2, cores=4, models=("a", "b")))
    assert (finding.status, finding.required, finding.value) == ("missing", True, None)
    assert finding.detail == "topology.inference_devices = 4 is more than the 2 GPUs of this machine: lower it"
    # A sentence may end with the text of another error, which is not advice.
    damaged = describe_topology(config, Inventory(gpus=8), {"TF_CONFIG": "[]"})
    assert damaged.detail.startswith("TF_CONFIG ") and damaged.advice == ""


def test_hosts_of_the_environment_are_described() -> None:
    config = load_config("football_vtrace", environ={}, sets=["topology.trust_network=true"]).config
    cluster = {"cluster": {"worker": ["one:8690", "two:8690"]}, "task": {"type": "worker", "index": 1}}
    environ = {"TF_CONFIG": json.dumps(cluster)}
    finding = describe_topology(config, Inventory(gpus=4), environ)
    assert finding.detail.splitlines()[:3] == [
        "4 GPUs on each of 2 hosts",
        "this is host 1 of one:8690, two:8690; the chief is one:8690",
        "training on GPU:0, GPU:1: 8 unrolls of a batch each",
    ]
    config = load_config("football_vtrace", environ={}).config
    refused = describe_topology(config, Inventory(gpus=4), environ)
    assert refused.status == "missing" and "need --trust-network" in refused.detail


def test_devices_of_every_kind() -> None:
    tpus = [CPU, *[{"type": "TPU", "name": None}] * 8]
    assert describe_devices(tpus, {}).detail == "8 × TPU core"
    mixed = describe_devices([GPU, {"type": "GPU", "name": "other"}, GPU], {"NVIDIA H200": 2**34})
    assert mixed.detail == "2 × NVIDIA H200 (16 GiB), 1 × other"
    assert mixed.value[1] == {"type": "GPU", "name": "other", "memory_bytes": None}


def test_the_command_describes_the_topology_of_a_preset(capsys: pytest.CaptureFixture[str]) -> None:
    sets = ["--set", "topology.platform=cpu", "--set", "topology.virtual_devices=4"]
    hosts = ["--set", "topology.hosts=['a:1', 'b:2']", "--set", "topology.trust_network=true"]
    assert main(["doctor", "--preset", "football_vtrace", *sets, *hosts, "--json"]) == 0
    report = _report(capsys)
    (topology,) = (finding for finding in report["findings"] if finding["name"] == "topology")
    assert topology["value"]["inference"] == [1, 2, 3] and topology["value"]["columns"] == 16
    assert "this is host 0 of a:1, b:2, the chief" in topology["detail"]


def test_the_command_explains_why_a_preset_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--preset", "football_vtrace_tpu8"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "topology topology.platform = tpu needs a TPU, and TensorFlow finds none on this machine" in text
    assert text.endswith("not ready: topology must be fixed first")
    assert main(["doctor", "--preset", "football_vtrace_9gpu"]) == 2
    assert "Did you mean football_vtrace_8gpu" in capsys.readouterr().err


def test_a_check_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _without_tensorflow(monkeypatch)

    def fall() -> list[Finding]:
        raise RuntimeError("unexpected")

    monkeypatch.setattr(doctor, "_check_memory", fall)
    assert run_doctor(json_output=True) == 0
    finding = next(f for f in _report(capsys)["findings"] if f["name"] == "memory")
    assert finding["status"] == "warning" and "unexpected" in finding["detail"]


def test_without_tensorflow_the_advice_is_for_learners(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "tensorflow" else find(name, *rest)
    )
    assert run_doctor(json_output=False) == 1
    out, err = capsys.readouterr()
    assert err == "checking this machine\n"
    assert "unless this machine only runs actors" in " ".join(out.split())


def test_the_table_says_what_to_do() -> None:
    file = io.StringIO()
    findings = [
        Finding("python", "ok", "3.12", required=True),
        Finding("video", "warning", "no ffmpeg", "install it"),
        Finding("tensorflow", "missing", "not installed", "pip install tensorflow", required=True),
    ]
    print_findings(Console(file=file, width=80), findings)
    text = file.getvalue()
    assert "\x1b" not in text
    assert "pip install tensorflow" in text and "ready for seed actor; not for training, which needs tensorflow" in text
    print_findings(
        Console(file=file, width=80), [*findings, Finding("pyzmq", "missing", "not installed", required=True)]
    )
    assert "not ready: tensorflow, pyzmq must be fixed first" in file.getvalue()
    print_findings(Console(file=file, width=80), findings[:2])
    assert "ready: seed train --preset cartpole_vtrace; 1 warning above" in file.getvalue()


def _sample(name: str) -> str:
    return f"tests.envs.samples:{name}-v0"


def test_an_environment_is_played_and_checked(capfd: pytest.CaptureFixture[str]) -> None:
    """In a separate process, which must find the module of the environment too."""
    assert main(["doctor", "--env", _sample("Walk"), "--json"]) == 0
    out, err = capfd.readouterr()
    report = json.loads(out)
    assert err == ""
    assert report["ok"] is True and report["environment"] == f"gymnasium/{_sample('Walk')}"
    assert {finding["status"] for finding in report["findings"]} == {"ok"}
    speed = report["findings"][-1]
    assert speed["name"] == "speed" and speed["value"]["steps_per_second"] > 0
    assert speed["value"]["observation_bytes"] == 8 and 0 < speed["value"]["share_outside"] < 1


def test_a_broken_environment_fails_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--env", _sample("Raises")]) == 1
    out, _ = capfd.readouterr()
    assert "✗" in out and "the simulator fell over" in out.replace("\n", " ") and "not ready: fix play first" in out
    assert "Traceback" not in out


def test_a_family_without_an_environment_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--preset", "pong_vtrace", "--family", "atari"]) == 2
    assert "--family atari needs --env" in capsys.readouterr().err


def test_the_preset_names_the_family(capfd: pytest.CaptureFixture[str]) -> None:
    sets = ["--set", "environment.max_frames=40"]
    assert main(["doctor", "--env", "breakout", "--preset", "atari_vtrace", *sets, "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["environment"] == "atari/breakout"
    (truncation,) = (finding for finding in report["findings"] if finding["name"] == "truncation")
    assert truncation["value"]["truncated"] > 0


def test_an_unknown_environment_is_wrong_usage(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--env", "CartPole-v11"]) == 2
    assert "did you mean CartPole-v1? for one of your own write my_module:CartPole-v11" in capfd.readouterr().err
    assert main(["doctor", "--env", "Boat-v0"]) == 2
    err = capfd.readouterr().err
    assert "did you mean" not in err and "for one of your own write my_module:Boat-v0" in err
    assert main(["doctor", "--env", "tests.envs.samples:Boat-v0"]) == 2
    assert "; module tests.envs.samples does not register it" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "limit", "words"),
    [("Hangs", 6.0, "did not end within 6 s: a reset or step hangs"), ("Dies", 60.0, "process died with SIGABRT")],
)
def test_an_environment_that_hangs_or_kills_its_process(
    capfd: pytest.CaptureFixture[str], name: str, limit: float, words: str
) -> None:
    (finding,) = doctor_env.examine(env_config(id=_sample(name)), seconds=0.1, limit=limit)
    assert (finding.name, finding.status) == ("play", "failure") and words in finding.detail
    assert capfd.readouterr().out == "", "output of the environment does not belong to the result"


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["--env", "CartPole-v1"], "seed train --preset gymnasium_vtrace --env CartPole-v1"),
        (
            ["--env", "CartPole-v1", "--set", "environment.kwargs={sutton_barto_reward = true}"],
            "seed train --preset gymnasium_vtrace --env CartPole-v1 "
            "--set 'environment.kwargs={sutton_barto_reward = true}'",
        ),
        (["--env", "Hopper-v5"], "seed train --preset mujoco_vtrace --env Hopper-v5"),
        (
            ["--set", "environment.family=atari", "--env", "pong", "--set", "environment.max_frames=200"],
            "seed train --preset atari_vtrace --env pong --set environment.family=atari "
            "--set environment.max_frames=200",
        ),
        (
            ["--set", "environment.family=football", "--env", "academy_run_to_score"],
            "seed train --preset football_vtrace --env academy_run_to_score --set environment.family=football",
        ),
        (
            ["--preset", "cartpole_vtrace", "--family", "atari", "--env", "pong"],
            "seed train --preset cartpole_vtrace --env pong --family atari",
        ),
        (
            ["--preset", "dmlab_vtrace", "--env", "rooms_watermaze"],
            "seed train --preset dmlab_vtrace --env rooms_watermaze",
        ),
        (
            ["--set", "environment.family=dmlab", "--env", "rooms_watermaze"],
            "seed train --preset dmlab_vtrace --env rooms_watermaze --set environment.family=dmlab",
        ),
    ],
)
def test_the_suggested_command_trains_what_was_checked(
    arguments: list[str], command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = []
    monkeypatch.setattr(doctor_env, "examine", lambda config, **_: checked.append(config) or [])
    assert main(["doctor", *arguments]) == 0
    assert f"ready: {command}\n" in capsys.readouterr().out
    words = shlex.split(command)
    pairs = list(zip(words[2::2], words[3::2], strict=True))
    sets = [value for flag, value in pairs if flag == "--set"]
    flags = {flag: dict(pairs).get(flag) for flag in ("--env", "--family")}
    suggested = load_config(dict(pairs)["--preset"], environ={}, sets=sets, flags=flags)
    (config,) = checked
    assert (suggested.config.environment.family, suggested.config.environment.id) == (config.family, config.id)
    assert getattr(suggested.config.environment, "kwargs", {}) == getattr(config, "kwargs", {})


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_of_an_environment(width: int) -> None:
    file = io.StringIO()
    findings = [
        conformance.Finding("play", "ok", "2,000 steps"),
        conformance.Finding(
            "rewards", "warning", "each of 6,000 rewards was 0: random actions give no learning signal " * 2
        ),
        conformance.Finding("autoreset", "skipped", "no episode ended"),
    ]
    examination.print_findings(Console(file=file, width=width), "gymnasium/X-v0", findings, "seed train")
    text = file.getvalue()
    assert [line[0] for line in text.splitlines()[1:] if line[0] != " "] == ["✓", "!", "-", "r"]
    assert max(map(len, text.splitlines())) <= width
    assert "ready (1 warning above): seed train" in text
    findings.append(conformance.Finding("actions", "failure", "action [2] fails"))
    examination.print_findings(Console(file=file, width=width), "gymnasium/X-v0", findings, "seed train")
    assert "not ready: fix actions first" in file.getvalue()


def test_the_documented_example_passes_every_check(tmp_path: Path) -> None:
    """Pasted unchanged; with --json stdout holds nothing else."""
    page = Path(__file__).parents[2] / "docs" / "writing-an-environment.md"
    (example,) = re.findall(r"```python\n(import gymnasium\n.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "my_package.py").write_text(example, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "seedcli", "doctor", "--env", "my_package:Beacon-v0", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert [(f["name"], f["detail"]) for f in found.values() if f["status"] != "ok"] == []
    assert "beacon [2] float32, near scalar int32; an action is 3 choices, of 3, 3, 2" in found["spaces"]["detail"]
