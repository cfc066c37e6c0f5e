"""`seed export` of algorithms outside seed, with their own operations, observations and outputs."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest

import seedcli
from tests.export.helpers import make_run, paths
from tests.export.test_export import ECHO, seed

pytestmark = pytest.mark.timeout(300)

MINE = """
import tensorflow as tf
from seedcli.agents import VTraceAgent

class MyAgent(VTraceAgent):
    def act(self, network, inputs, state):
        outputs, state = super().act(network, inputs, state)
        size = tf.linalg.svd(outputs.details["logits"][:, :, None], compute_uv=False)[:, 0]
        return outputs._replace(details={"size": size}), state

class MySampler(VTraceAgent):
    def act(self, network, inputs, state):
        outputs, state = super().act(network, inputs, state)
        drawn = tf.random.stateless_uniform(tf.shape(outputs.action), inputs.seed, 0, 2, tf.int32)
        return outputs._replace(action=outputs.action if inputs.greedy else drawn), state
"""


def test_operations_that_a_format_has_not_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "unusual_agent.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    runs = {
        name: make_run(tmp_path / name, "cartpole_vtrace", "CartPole-v1", f"agent.algorithm=unusual_agent:{name}")
        for name in ("MyAgent", "MySampler")
    }
    for suffix, format_name in ((".onnx", "ONNX"), (".tflite", "TensorFlow Lite")):
        status, _, err = seed(capsys, "export", runs["MyAgent"], tmp_path / f"policy{suffix}")
        sentence = err.splitlines()[-1]
        assert status == 1 and f"{format_name} has no operation Svd, which the agent's act uses" in sentence
        assert len(err.splitlines()) == 2 and not (tmp_path / f"policy{suffix}").exists()
    for again in ((), ("--overwrite",)):
        arguments = (runs["MyAgent"], tmp_path / "policy", "--format", "savedmodel", *again)
        assert seed(capsys, "export", *arguments)[0] == 0
        assert (tmp_path / "policy" / "saved_model.pb").is_file() and (tmp_path / "policy" / "README.md").is_file()
    status, _, err = seed(capsys, "export", runs["MySampler"], tmp_path / "mine.onnx", "--sample")
    assert status == 2 and "draw with seedcli.agents.noise, or export greedy actions" in err
    assert seed(capsys, "export", runs["MySampler"], tmp_path / "mine.onnx")[0] == 0


BLIND = """
import tensorflow as tf
from seedcli.agents import VTraceAgent

class Blind(VTraceAgent):
    def act(self, network, inputs, state):
        seen = inputs.observation
        cue = tf.zeros([tf.shape(seen["target"])[0], *seen["cue"].shape[1:]], seen["cue"].dtype)
        return super().act(network, inputs._replace(observation={**seen, "cue": cue}), state)

class Named(VTraceAgent):
    def act(self, network, inputs, state):
        outputs, state = super().act(network, inputs, state)
        return outputs._replace(details={"action": outputs.details["value"]}), state
"""


def test_a_model_takes_observations_that_the_agent_does_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "blind_agent.py").write_text(BLIND)
    monkeypatch.syspath_prepend(str(tmp_path))
    run = make_run(tmp_path / "run", "gymnasium_vtrace", ECHO, "agent.algorithm=blind_agent:Blind")
    observation = gymnasium.make(ECHO).reset(seed=1)[0]
    expected = seedcli.load_policy(run)(observation)
    for name, path in paths(tmp_path).items():
        status, _, err = seed(capsys, "export", run, path, "--format", name, "--batch", 1)
        assert status == 0, err
        np.testing.assert_allclose(seedcli.load_policy(path)(observation), expected, rtol=1e-5, atol=1e-5)
    assert "It computes actions for 1 environment at once" in (tmp_path / "policy.onnx.README.md").read_text()


def test_details_with_the_name_of_another_output_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "named_agent.py").write_text(BLIND)
    monkeypatch.syspath_prepend(str(tmp_path))
    run = make_run(tmp_path / "run", "cartpole_vtrace", "CartPole-v1", "agent.algorithm=named_agent:Named")
    status, _, err = seed(capsys, "export", run, tmp_path / "policy.onnx")
    assert status == 2 and "returns a detail 'action', but the model has another output action: rename" in err
