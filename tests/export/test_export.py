"""`seed export`, `seed eval --model`, `seed bench policy` and `load_policy` on models, valid and refused ones.

One run has every kind of memory, Dict observations and Box actions; the other is a plain CartPole.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnx
import pytest

import seedcli
from seedcli.cli.main import main
from seedcli.errors import CheckpointError, UsageError
from tests.export.helpers import MEMORY, cartpole_run, make_run, paths

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).resolve().parents[2]
ECHO = "seedcli.envs.testing:Echo-v0"


def seed(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    status = main([str(each) for each in arguments])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("echo") / "run", "gymnasium_vtrace", ECHO, *MEMORY)


@pytest.fixture(scope="module")
def models(echo: Path) -> Mapping[str, Path]:
    """Models of the agent with memory, one in each format."""
    found = paths(echo.parent)
    for name, path in found.items():
        assert main(["export", str(echo), str(path), "--format", name]) == 0
    return found


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cartpole_run(tmp_path_factory.mktemp("cartpole") / "run")


@pytest.fixture(scope="module")
def sampled(cartpole: Path) -> Path:
    """A CartPole model that samples."""
    path = cartpole.parent / "sampled.onnx"
    assert main(["export", str(cartpole), str(path), "--sample"]) == 0
    return path


def test_models_play_as_the_run_does_and_remember_by_themselves(echo: Path, models: Mapping[str, Path]) -> None:
    original = seedcli.load_policy(echo)
    env = gymnasium.make_vec(ECHO, 3, vectorization_mode="sync")
    policies = {name: seedcli.load_policy(path) for name, path in models.items()}
    observations, _ = env.reset(seed=1)
    reward, ended, first = np.zeros(3), np.zeros(3, bool), np.ones(3, bool)
    actions = []
    for _ in range(20):  # episodes have 8 steps
        expected = original.step(observations, reward, first)
        for name, policy in policies.items():
            found = policy.step(observations, reward, first)
            np.testing.assert_allclose(found.action, expected.action, rtol=1e-5, atol=1e-5, err_msg=name)
            assert found.action.dtype == expected.action.dtype and set(found.details) == set(expected.details)
            for detail in ("value", "mean", "std"):
                np.testing.assert_allclose(
                    getattr(found, detail), getattr(expected, detail), rtol=1e-4, atol=1e-5, err_msg=f"{name} {detail}"
                )
        first = ended
        actions.append(expected.action)
        observations, reward, terminated, truncated, _ = env.step(expected.action)
        ended = terminated | truncated
    assert np.std(actions, axis=0).min() > 0.1, "an agent that always does the same shows nothing"
    for policy in policies.values():
        policy.reset()
        one = {name: part[0] for name, part in observations.items()}
        original.reset()
        np.testing.assert_allclose(policy(one), original(one), rtol=1e-5, atol=1e-5)
        assert policy.spec == original.spec and policy.env_steps == 70 and policy.greedy
        assert policy.config["agent"] == original.config["agent"]


def test_what_a_model_needs_is_what_its_network_uses(echo: Path, models: Mapping[str, Path], sampled: Path) -> None:
    graph = onnx.load(models["onnx"]).graph
    assert {each.name for each in graph.input} == {
        "observation_cue", "observation_target", "reward", "first", "state_lstm_hidden", "state_lstm_cell",
        "state_value_lstm_hidden", "state_value_lstm_cell",
        "state_frames_cue", "state_frames_target", "state_frame_count", "state_previous_action",
    }  # fmt: skip
    assert {each.name for each in graph.output} == {
        "action", "value", "mean", "std", *(f"next_{x.name}" for x in graph.input if x.name.startswith("state_")),
    }  # fmt: skip
    assert [each.name for each in onnx.load(sampled).graph.input] == ["observation", "noise"]
    readme = Path(f"{models['onnx']}.README.md").read_text()
    assert "| `first` | bool | [N] |" in readme and "-2 to 6, each" in readme and "next_state_lstm_cell" in readme
    # The example of each README runs unchanged, in a process that has not loaded the others.
    for path in (models["onnx"], models["tflite"], sampled):
        (code,) = re.findall(r"^```python\n(.*?)^```$", Path(f"{path}.README.md").read_text(), re.DOTALL | re.MULTILINE)
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=path.parent, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0 and done.stdout.startswith("["), done.stderr


def test_sampled_actions_have_the_policys_probabilities(cartpole: Path, sampled: Path) -> None:
    policy, same = (seedcli.load_policy(sampled, seed=5) for _ in range(2))
    observation = np.tile([0.1, -0.2, 0.3, 0.4], (4000, 1))
    found = policy.step(observation)
    original = seedcli.load_policy(cartpole).step(observation[0])
    p = original.probabilities[1]
    assert abs(found.action.mean() - p) < 5 * np.sqrt(p * (1 - p) / 4000) and 0.02 < p < 0.98
    np.testing.assert_array_equal(found.greedy_action, np.full(4000, original.action))
    np.testing.assert_array_equal(same(observation), found.action)
    assert (policy(observation) != found.action).any(), "each call draws other numbers"
    with pytest.raises(UsageError, match="was exported with sampled actions: export the run with --greedy"):
        seedcli.load_policy(sampled, greedy=True)


_WITHOUT = """
import sys, seedcli, gymnasium
from seedcli.cli.main import main
policy = seedcli.load_policy(sys.argv[1])
assert policy(gymnasium.make("CartPole-v1").reset(seed=1)[0]) in (0, 1)
status = main(["eval", "--model", sys.argv[1], "--json", "--episodes", "3"])
assert not {"tensorflow", "keras", "onnx"} & set(sys.modules)
sys.exit(status)
"""


def test_a_model_is_played_without_tensorflow(
    cartpole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "policy.onnx"
    status, out, err = seed(capsys, "export", cartpole, path, "--json")
    assert status == 0 and err == f"writing {path} for ONNX Runtime\n"
    report = json.loads(out)
    assert report["largest_difference"] <= 1e-5 and report["observations"] == 400 and report["env_steps"] == 70
    assert {each.name for each in tmp_path.iterdir()} == {"policy.onnx", "policy.onnx.README.md"}
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT, str(path)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    played = json.loads(done.stdout)
    status, out, _ = seed(capsys, "eval", cartpole, "--json", "--episodes", 3)
    assert played["returns"] == json.loads(out)["returns"] and played["checkpoint"] == str(path)


def test_eval_plays_a_model_with_memory(
    echo: Path, models: Mapping[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, expected, _ = seed(capsys, "eval", echo, "--json", "--episodes", 3)
    for path in (models["tflite"], models["savedmodel"]):
        status, out, _ = seed(capsys, "eval", "--model", path, "--json", "--episodes", 3)
        assert status == 0
        np.testing.assert_allclose(json.loads(out)["returns"], json.loads(expected)["returns"], rtol=1e-4)


def test_a_fixed_batch_answers_just_as_many(cartpole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = cartpole.parent / "two.tflite"
    assert seed(capsys, "export", cartpole, path, "--batch", 2)[0] == 0
    policy = seedcli.load_policy(path)
    assert policy(np.zeros((2, 4))).shape == (2,)
    policy.reset()
    with pytest.raises(UsageError, match="has a fixed batch size of 2 and is given 1"):
        policy(np.zeros(4))
    status, out, _ = seed(capsys, "eval", "--model", path, "--json", "--episodes", 3)
    assert status == 0 and json.loads(out)["episodes"] == 3
    assert "It computes actions for 2 environments at once" in Path(f"{path}.README.md").read_text()
    status, _, err = seed(capsys, "bench", "policy", path)
    assert status == 2 and "has a fixed batch size of 2 and this measures 1" in err


def bench(path: Path) -> dict[str, Any]:
    """The report of `seed bench policy`, run in a separate process because it restricts itself to one core."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "seedcli", "bench", "policy", str(path), "--seconds", "0.2", "--json"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    for figures in report["runtimes"].values():
        assert 0 < figures["p50_ms"] <= figures["p99_ms"] and figures["calls"] > 10
    assert report["machine"]["cores"] == 1
    return report


def test_bench_policy_measures_a_model(sampled: Path) -> None:
    assert set(bench(sampled)["runtimes"]) == {"ONNX Runtime, onnx"}


@pytest.mark.slow
def test_bench_policy_measures_a_run_in_every_runtime(cartpole: Path) -> None:
    assert set(bench(cartpole)["runtimes"]) == {
        "TensorFlow, the run", "TensorFlow, savedmodel", "ONNX Runtime, onnx", "LiteRT, tflite"
    }  # fmt: skip


def refusal(path: Path) -> str:
    with pytest.raises((CheckpointError, UsageError)) as error:
        seedcli.load_policy(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)
    return str(error.value)


def described(source: Path, target: Path, change: Any) -> Path:
    """A copy of an ONNX model with a changed description."""
    model = onnx.load(source)
    entry = model.metadata_props[0]
    entry.value = change(entry.value)
    onnx.save(model, target)
    return target


def test_models_that_cannot_be_used_are_refused_in_one_sentence(
    models: Mapping[str, Path], sampled: Path, tmp_path: Path
) -> None:
    for name in ("onnx", "tflite"):
        content = models[name].read_bytes()
        for part in (0, 100, len(content) // 2, len(content) - 10):
            cut = tmp_path / f"cut{models[name].suffix}"
            cut.write_bytes(content[:part])
            assert "truncated" in refusal(cut)
    empty = tmp_path / "folder"
    empty.mkdir()
    (empty / "saved_model.pb").write_bytes((models["savedmodel"] / "saved_model.pb").read_bytes()[:500])
    assert "cannot be loaded by TensorFlow: it is truncated, damaged or not such a model" in refusal(empty)
    assert "does not exist" in refusal(tmp_path / "none.onnx")

    other = onnx.load(sampled)
    del other.metadata_props[:]
    onnx.save(other, tmp_path / "other.onnx")
    assert "has no description of an agent: it was not written by seed export" in refusal(tmp_path / "other.onnx")
    bad = tmp_path / "bad.onnx"
    assert "format 9 and this version" in refusal(
        described(sampled, bad, lambda x: x.replace('"format":1', '"format":9'))
    )
    assert "description is damaged" in refusal(described(sampled, bad, lambda x: x[:-20]))
    wrong = described(sampled, bad, lambda x: x.replace('"shape":[4]', '"shape":[0]'))
    assert "description is damaged (" in refusal(wrong)
    wrong = described(sampled, bad, lambda x: x.replace('"name":"noise"', '"name":"nose"'))
    assert "has the inputs noise, observation, and its description says nose, observation" in refusal(wrong)


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (("{model}", "--env", "Acrobot-v1"), "is a model for gymnasium/CartPole-v1 and does not fit gymnasium/Acrobot"),
        (("{model}", "--env", "CartPoll-v1"), "did you mean CartPole-v1"),
        (("{model}", "--watch"), "plays one model: leave out --watch"),
        (("{greedy}", "--sample"), "was exported with greedy actions; export the run with --sample"),
        (("{model}", "--video", "x.avi"), "must end in .mp4"),
    ],
)
def test_what_a_model_cannot_be_evaluated_with(
    models: Mapping[str, Path],
    sampled: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    sentence: str,
) -> None:
    given = [each.format(model=sampled, greedy=models["onnx"]) for each in arguments]
    status, out, err = seed(capsys, "eval", "--model", *given)
    assert status == 2 and out == "" and sentence in err and err.count("\n") == 1


def test_a_model_is_not_taken_for_a_run(sampled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = seed(capsys, "eval", sampled)
    assert status == 2 and f"is a model of seed export: give --model {sampled}" in err
    status, _, err = seed(capsys, "eval")
    assert status == 2 and "give PATH, the folder of a run, or --model FILE" in err


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (("policy.bin",), "policy.bin does not say which format is wanted: end its name in .onnx or .tflite"),
        (("policy.tflite", "--format", "onnx"), "with --format onnx must end in .onnx"),
        (("policy.onnx", "--format", "savedmodel"), "with --format savedmodel must be a folder"),
        (("there.onnx",), "there.onnx exists: name another file, or give --overwrite"),
        (
            ("run", "--format", "savedmodel", "--overwrite"),
            "run is a folder of other files, which --overwrite does",
        ),
        (("none/policy.onnx",), "is not a folder that you may write to; create it first"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_anything_else(
    cartpole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.onnx").touch()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").touch()
    status, out, err = seed(capsys, "export", cartpole, *arguments)
    assert status == 2 and out == "" and sentence in err and err.count("\n") == 1
    assert {str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*")} == {"there.onnx", "run", "run/config.toml"}


def test_a_package_that_is_not_installed_is_named(
    cartpole: Path, sampled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    status, _, err = seed(capsys, "export", cartpole, tmp_path / "policy.tflite")
    assert status == 2 and "needs ai-edge-litert, not installed here: pip install 'seedcli[export]'" in err
    status, _, err = seed(capsys, "eval", "--model", sampled)
    assert status == 2 and "needs onnxruntime, not installed here: pip install onnxruntime" in err


def test_a_model_that_differs_is_not_written(
    cartpole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("seedcli.export.run.LIMIT", -1.0)
    (tmp_path / "policy.onnx").write_text("before")
    status, _, err = seed(capsys, "export", cartpole, tmp_path / "policy.onnx", "--overwrite")
    assert status == 1 and re.search(r"differs from the original by \d\.\de-\d+ in \w+", err)
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"policy.onnx": "before"}


def test_the_description_is_in_the_file(models: Mapping[str, Path], sampled: Path) -> None:
    (entry,) = onnx.load(sampled).metadata_props
    found = json.loads(entry.value)
    assert entry.key == "seedcli" and found["config"]["environment"]["id"] == "CartPole-v1" and not found["greedy"]
    with zipfile.ZipFile(models["tflite"]) as archive:
        assert json.loads(archive.read("seedcli.json"))["spec"]["name"] == f"gymnasium/{ECHO}"
    assert (models["savedmodel"] / "assets.extra" / "seedcli.json").is_file()
    assert (models["savedmodel"] / "README.md").is_file()
