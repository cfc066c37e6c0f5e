"""`seed doctor --agent`: agents that follow the rules pass; otherwise the broken rule is named."""

from __future__ import annotations

import json
from multiprocessing.connection import Connection
from typing import Any

import pytest

from seedcli.cli.main import main
from seedcli.doctor import agent as doctor_agent
from seedcli.doctor import examination
from seedcli.doctor.agent import Request, check_agent, examine
from seedcli.doctor.examination import examine_in_process

_TINY = ("agent.network.hidden=[8]", "training.unroll_length=5")
_REPLAY = ("agent.dueling_hidden=4", "agent.n_step=2", "training.burn_in=2", "agent.network.lstm=4")

# Class → the check that names it, and words of its message.
BROKEN = {
    "ConfigOfNothing": ("class", "its Config must be a subclass of AgentConfig"),
    "KeyWithoutDefault": ("class", "the key temperature of its Config needs a default value"),
    "ConflictIsANumber": ("conflicts", "conflicts yields 3: it must yield text"),
    "NoLoss": ("build", "has no method loss"),
    "OtherArguments": ("build", "cannot be built with (config, training, spec, seed, precision)"),
    "FailsWhenBuilt": ("build", "cannot be built: ZeroDivisionError: no units (broken_agents.py, line "),
    "ForgetsVariables": ("variables", "does not return the variable"),
    "NamesAtRandom": ("variables", "names them differently when the agent is built again"),
    "NotSeeded": ("variables", "when the agent is built again with the same seed"),
    "StateOfOneRow": ("initial state", "initial_state(3) gives age int32 [1]: its first axis must be 3"),
    "ExplorationInDouble": ("exploration", "gives float64 [3], not float32 [3]"),
    "ActionsInLong": ("actions", "action is int64 [4], but for 4 rows it must be int32 [4]"),
    "ActionsOutOfRange": ("actions", "it must be from 0 to 1"),
    "GreedyOfOneRow": ("greedy action", "greedy_action is int32 [1], but for 4 rows it must be int32 [4]"),
    "SamplesAlways": ("greedy action", "it must be greedy_action"),
    "RecordsMore": ("recorded fields", "act records logits, value, but algorithm.recorded declares logits"),
    "RecordsInHalf": ("recorded fields", 'act records "logits" as float16 [4, 2], but declared is float32 [4, 2]'),
    "ForgotReturnOfAct": ("actions", "ForgotReturnOfAct.act returns None: it must return (ActOutputs, state)"),
    "OtherState": (
        "state",
        'act returns a state with the key "steps", but initial_state gives a state with the key "age"',
    ),
    "StateInFloat": ("state", "act returns age as float32 [4], but initial_state gives int32 [4]"),
    "OwnRandomness": ("purity", "random operations must be stateless and take inputs.seed"),
    "CountsInPython": ("purity", "when it is called again with the same inputs"),
    "ChangesVariables": ("purity", "act changes a variable"),
    "NormalizesTheBatch": ("rows", "rows change the results of other rows"),
    "TargetsByColumn": ("targets", "the second axis must be the 4 columns of the batch"),
    "LossOfEachColumn": ("loss", "must be a scalar float32 tensor"),
    "LossOfOtherGroup": ("loss", 'no loss for the parameter group "policy"'),
    "GeneralMetric": ("loss", 'the metric "env_steps" has the name of a built-in one'),
    "MetricOfEachColumn": ("loss", 'the metric "kl" is float32 [5, 4]: it must be a scalar'),
    "ForgotReturn": ("loss", "ForgotReturn.loss returns None: it must return LossOutputs"),
    "ForgotReturnOfLoss": ("loss", "look for a `return` that is missing in loss (broken_agents.py:"),
    "UnusedVariable": ("gradients", 'no gradient of the loss of the group "policy" reaches unused'),
    "InfiniteGradient": ("gradients", "is not finite"),
    "ForgetsMask": ("final records", "the action on a final record changes the "),
    "ForgetsMaskOfDivergence": ("final records", 'the recorded "logits" of a terminated record changes the loss'),
    "ForgetsMaskOfTargets": ("final records", "multiply every term of the loss by the mask (mask_tm1"),
    "MeanOverColumns": ("halves", "do not add up to the loss of the whole"),
    "ObservesEverything": ("observe", "observe counts columns of weight 0"),
    "UndoesUpdates": ("updates", 'updates leave every variable of the group "policy" as it is'),
}


def _failures(agent: str, *sets: str, env: str = "CartPole-v1") -> dict[str, str]:
    findings = check_agent(Request(agent, env=env, sets=(*_TINY, *sets)))
    return {finding.name: finding.detail for finding in findings if finding.status == "failure"}


def _sample(name: str) -> str:
    return f"tests.doctor.broken_agents:{name}"


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_named(name: str) -> None:
    check, words = BROKEN[name]
    failures = _failures(_sample(name))
    assert check in failures and words in failures[check], failures


@pytest.mark.parametrize(
    ("name", "sets", "check", "words"),
    [
        ("UnrollNeverResets", ("agent.network.lstm=4",), "unroll", "is not the one after acting"),
        ("ForgetsStatistics", ("agent.network.normalize_observations=true",), "variables", "of the network"),
        ("NegativePriorities", _REPLAY, "loss", "it must be finite and at least 0"),
        ("PrioritiesOfObservations", _REPLAY, "initial priorities", "broken_agents.py:"),
    ],
)
def test_a_rule_that_needs_settings_is_named(name: str, sets: tuple[str, ...], check: str, words: str) -> None:
    failures = _failures(_sample(name), *sets)
    assert words in failures.get(check, ""), failures


@pytest.mark.parametrize(
    ("agent", "sets"),
    [
        ("vtrace", ("agent.normalize_values=true", "agent.network.normalize_observations=true")),
        ("vtrace", ("agent.network.lstm=4", "agent.network.previous_action_reward=true", "training.minibatches=2")),
        ("r2d2", (*_REPLAY, "agent.network.normalize_observations=true")),
        ("tests.own_code.my_agent:MyAgent", ("agent.weight_decay=0.01",)),
        ("tests.own_code.from_nothing:Reinforce", ("agent.entropy=0.1",)),
        ("vtrace", ("agent.network.torso=tests.own_code.my_net:MyTorso", "agent.network.sines=5")),
    ],
)
def test_an_agent_that_keeps_the_rules_passes(agent: str, sets: tuple[str, ...]) -> None:
    assert _failures(agent, *sets) == {}


@pytest.mark.parametrize("agent", ["vtrace", "ppo", "tests.own_code.my_agent:MyAgent"])
def test_an_agent_with_correlated_noise_passes(agent: str) -> None:
    assert _failures(agent, "agent.noise_correlation=0.8", env="Pendulum-v1") == {}


@pytest.mark.parametrize("agent", ["ppo", "tests.own_code.my_agent:MyAgent"])
def test_an_agent_with_noise_that_is_kept_passes(agent: str) -> None:
    assert _failures(agent, "agent.noise_persistence=0.8") == {}


@pytest.mark.parametrize(
    ("name", "cause", "follow"),
    [
        ("OtherState", "state", {"rows": "state"}),
        ("ForgotReturnOfAct", "actions", dict.fromkeys(("recorded fields", "state", "purity"), "actions")),
        ("UnusedVariable", "gradients", dict.fromkeys(("final records", "halves", "updates"), "gradients")),
        ("TargetsByColumn", "targets", {"loss": "targets", "gradients": "loss", "updates": "gradients"}),
    ],
)
def test_what_depends_on_a_failed_check_is_skipped(name: str, cause: str, follow: dict[str, str]) -> None:
    findings = {each.name: each for each in check_agent(Request(_sample(name), env="CartPole-v1", sets=_TINY))}
    assert [name for name, each in findings.items() if each.status == "failure"] == [cause]
    for each, need in follow.items():
        assert (findings[each].status, findings[each].detail) == ("skipped", f"needs the check {need!r} to pass")


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        (_sample("ForgetsMask"), "VTraceConfig without keys of its own"),
        ("tests.own_code.my_agent:MyAgent", "MyConfig with keys of its own: weight_decay"),
        (_sample("KeyOfPython"), "Config with keys of its own: global"),
    ],
)
def test_keys_of_its_own(agent: str, words: str) -> None:
    status, detail = doctor_agent._check_class(agent)
    assert status == "ok" and detail.endswith(words)


def test_a_torso_with_other_arguments_is_named() -> None:
    failures = _failures("vtrace", f"agent.network.torso={_sample('TorsoOfNothing')}")
    words = f"the torso {_sample('TorsoOfNothing')} must take (config, rng) when it is built: too many positional"
    assert failures.keys() == {"build"} and words in failures["build"], failures


def _load_nothing(connection: Connection) -> None:
    connection.send(None)


def test_progress_names_what_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "_PROGRESS_SECONDS", 0.01)
    lines: list[str] = []
    arguments: Any = {"first": "class", "hangs": "it hangs", "loading": "TensorFlow", "progress": lines.append}
    assert examine_in_process(_load_nothing, (), **arguments) == []
    assert lines[0] == "still loading TensorFlow after 0 of at most 120 s"
    (finding,) = examine_in_process(_load_nothing, (), limit=0.01, **arguments)
    assert finding.detail.startswith("did not begin within 0.01 s: this machine may be too busy to load TensorFlow")


def test_a_box_of_actions_passes() -> None:
    findings = check_agent(Request("vtrace", env="Pendulum-v1", sets=_TINY))
    assert {finding.status for finding in findings} == {"ok", "skipped"}


def test_the_command_checks_in_a_process_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    values = [part for value in _TINY for part in ("--set", value)]
    arguments = ["doctor", "--agent", "tests.own_code.from_nothing:Reinforce", "--env", "CartPole-v1", *values]
    assert main([*arguments, "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["ok"] is True and report["agent"] == "tests.own_code.from_nothing:Reinforce"
    assert [finding["name"] for finding in report["findings"]][-1] == "updates"


def _examined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the checks in this process, which has already imported TensorFlow."""
    monkeypatch.setattr(doctor_agent, "examine", lambda request, **_: check_agent(request))


def test_the_command_fails_with_a_broken_agent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _examined(monkeypatch)
    assert main(["doctor", "--agent", _sample("NoLoss")]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "✗" in out and "not ready: fix build first" in out and "has no method loss" in out


def test_a_class_that_does_not_exist_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _examined(monkeypatch)
    assert main(["doctor", "--agent", _sample("NoLos"), "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["name"] == "class" and "did you mean tests.doctor.broken_agents:NoLoss" in finding["detail"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--agent", "vtrace", "--preset", "cartpole_vtrac"], "cartpole_vtrace"),
        (["--agent", "vtrace", "--env", "CartPole-v11"], "did you mean CartPole-v1"),
        (["--network", "mlp"], "--network mlp needs --agent"),
    ],
)
def test_wrong_usage(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_an_agent_that_kills_its_process() -> None:
    *_, finding = examine(Request(_sample("Dies"), env="CartPole-v1", sets=_TINY))
    assert (finding.name, finding.status) == ("build", "failure") and "process died with SIGABRT" in finding.detail


@pytest.mark.parametrize(("agent", "preset"), [("r2d2", "gymnasium_r2d2"), ("sac", "gymnasium_sac")])
def test_the_suggested_preset_suits_the_source_of_batches(agent: str, preset: str) -> None:
    findings = examine(Request(agent, env="Pendulum-v1" if agent == "sac" else "CartPole-v1"))
    assert next(finding.value for finding in findings if finding.name == "build") == preset
    assert all(finding.status in ("ok", "skipped") for finding in findings), findings


def test_the_suggested_command_repeats_the_request() -> None:
    request: Any = Request("my:Agent", None, "CartPole-v1", None, "my:Net", ("agent.x=1",))
    assert request.training_command("gymnasium_ppo") == (
        "seed train --preset gymnasium_ppo --agent my:Agent --network my:Net --env CartPole-v1 --set agent.x=1"
    )
