"""Errors in users' code give a one-sentence message and status 2, and leave no run behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from seedcli.agents.registry import create_agent
from seedcli.cli.main import main
from seedcli.config.choices import FAMILIES
from seedcli.config.sources import load_config
from seedcli.errors import UsageError
from tests.agents.helpers import VECTOR
from tests.system.harness import LIMIT, TINY, Fleet, Process, fleet_in, sets

pytestmark = pytest.mark.timeout(4 * LIMIT)

# Found before anything starts: the name → words of the message.
REFUSED = {
    "my_agent.py:Agent": "write my_agent:Agent, without .py",
    "./agents/my_agent.py:Agent": "write agents.my_agent:Agent, without .py",
    "no_such_module:Agent": "there is no module no_such_module; start seed in the folder that holds it",
    "raises:Agent": "cannot be imported: ZeroDivisionError: division by zero (--debug shows where)",
    "misses:Agent": "cannot be imported: ModuleNotFoundError: No module named 'no_such_library'",
    "tests.doctor.broken_agents:NoLos": "did you mean tests.doctor.broken_agents:NoLoss",
    "tests.doctor.broken_agents:ConfigOfNothing": "its Config must be a subclass of AgentConfig",
    "tests.doctor.broken_agents:KeyWithoutDefault": "the key temperature of its Config needs a default value",
}
# Found when the agent is built, before its first step.
FAILING = {
    "NoLoss": "has no method loss: an agent needs make_network, initial_state",
    "OtherArguments": "cannot be built with (config, training, spec, seed, precision)",
    "ActionsInLong": "ActionsInLong.act returns action as int64 (None,): it must be int32 [N]",
    "OtherState": 'act returns a state with the key "steps", but initial_state gives a state with the key "age"',
    "RecordsMore": "but its algorithm.recorded declares logits",
    "LossOfEachColumn": "it must be a scalar float32 tensor",
}


@pytest.mark.parametrize("agent", REFUSED)
def test_a_class_that_cannot_be_used(
    agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "raises.py").write_text("1 / 0\n")
    (tmp_path / "misses.py").write_text("import no_such_library\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["train", "--preset", "cartpole_vtrace", "--agent", agent]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and REFUSED[agent] in error
    assert not (tmp_path / "runs").exists()


def test_debug_shows_the_traceback_of_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fails_here.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(Exception, match="division by zero") as raised:
        main(["train", "--preset", "cartpole_vtrace", "--agent", "fails_here:Agent", "--debug"])
    cause: BaseException | None = raised.value
    while cause is not None and not isinstance(cause, ZeroDivisionError):
        cause = cause.__cause__
    assert cause is not None and cause.__traceback__ is not None


BROKEN = """
import keras
from seedcli.agents import VTraceAgent
from seedcli.envs import Family


class NoFamily:
    pass


class NoMake(Family):
    pass


class OldMake(Family):
    def make(self, config, num_envs):
        pass


class MakesNothing(Family):
    def make(self, config, num_envs, *, render=False, threads=0):
        return None


class Raises(Family):
    def make(self, config, num_envs, *, render=False, threads=0):
        return {}["gravity"]


class NeedsMore(MakesNothing):
    def __init__(self, more):
        pass


class NoLayer:
    def __init__(self, config, rng):
        pass


class NoCall(keras.layers.Layer):
    def __init__(self, config, rng):
        super().__init__()


class CallFails(NoCall):
    def call(self, x):
        raise KeyError("weights")


class FailsWhenBuilt(CallFails):
    def __init__(self, config, rng):
        raise KeyError("units")


class WrongFeatures(NoCall):
    def call(self, x):
        return x[0]


class RaisesWhenBuilt(VTraceAgent):
    def __init__(self, config, training, spec, seed, precision):
        raise KeyError("table")


class SaysColumns(VTraceAgent):
    class Config(VTraceAgent.Config):
        sample_length = 3


class Contradicts(VTraceAgent):
    class Config(VTraceAgent.Config):
        def conflicts(self, config):
            return self.nothing


class YieldsNumbers(VTraceAgent):
    class Config(VTraceAgent.Config):
        def conflicts(self, config):
            yield 3
"""
# The option → words of the message.
REFUSED_CLASSES = {
    "--family broken:NoFamily": "must be a subclass of seedcli.envs.Family",
    "--family broken:NoMake": "has no method make, which builds its environments",
    "--family broken:OldMake": "make must take (config, num_envs, *, render, threads): ",
    "--family broken:MakesNothing": "make returned NoneType, which has no spec: it must be a seedcli.envs.VectorEnv",
    "--family broken:Raises": "cannot build CartPole-v1: KeyError: 'gravity' (broken.py, line 27)",
    "--family broken:NeedsMore": "must be constructed without arguments: TypeError: ",
    "--family exits:Family": "cannot be imported: SystemExit: 0 (--debug shows where)",
    "--agent broken:Contradicts": "Config.conflicts failed: AttributeError: ",
    "--agent broken:YieldsNumbers": "Config.conflicts yields 3: it must yield text",
    "--agent :Agent": "write module:Class, such as my_module:MyClass",
}
REFUSED_WHEN_BUILT = {
    "--network broken:NoLayer": "the torso broken:NoLayer must be a subclass of keras.layers.Layer",
    "--network broken:NoCall": "the torso broken:NoCall has no method call",
    "--network broken:CallFails": "the torso CallFails fails on inputs [1, 5]: KeyError: weights (broken.py, line 47)",
    "--network broken:FailsWhenBuilt": "FailsWhenBuilt cannot be built: KeyError: 'units' (broken.py, line 52)",
    "--network broken:WrongFeatures": "must return features [N, F] in a floating-point dtype with F known",
    "--agent broken:RaisesWhenBuilt": "cannot be built: KeyError: 'table' (broken.py, line 62)",
    "--agent broken:SaysColumns": "has AlgorithmSpec.sample_length = None, but its",
}


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder with modules of broken classes."""
    (tmp_path / "broken.py").write_text(BROKEN)
    (tmp_path / "exits.py").write_text("import sys; sys.exit(0)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "broken", raising=False)


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("option", REFUSED_CLASSES)
def test_a_broken_class_of_any_kind(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["train", "--preset", "cartpole_vtrace", *option.split()])
    assert status == (1 if option.endswith("Raises") else 2), "an environment that cannot be built is no wrong usage"
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("seed: ") and REFUSED_CLASSES[option] in error
    assert not Path("runs").exists()


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("option", REFUSED_WHEN_BUILT)
def test_a_broken_class_that_is_built_for_an_environment(option: str) -> None:
    flag, name = option.split()
    config = load_config("cartpole_vtrace", environ={}, flags={flag: name}).config
    with pytest.raises(UsageError) as raised:
        create_agent(config.agent, config.training, VECTOR, 1)
    assert REFUSED_WHEN_BUILT[option] in str(raised.value) and str(raised.value).isprintable()


def test_a_class_of_an_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[seedcli.environments]\nshort = tests.own_code.my_family:ShortFamily\nno_class = os.path:join\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    FAMILIES.__dict__.pop("installed", None)
    try:
        assert main(["presets", "show", "cartpole_vtrace", "--family", "short"]) == 0
        assert "environment.longest" in capsys.readouterr().out
        assert main(["presets", "show", "cartpole_vtrace", "--family", "no_class"]) == 2
        assert "the entry point os.path:join is not a class" in capsys.readouterr().err
    finally:
        FAMILIES.__dict__.pop("installed", None)


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Fleet, dict[str, Process]]]:
    """One run with each broken agent, two at a time."""
    with fleet_in(tmp_path_factory.mktemp("failing")) as fleet:
        processes: dict[str, Process] = {}
        for name in FAILING:
            arguments = (
                "--preset",
                "cartpole_vtrace",
                "--envs",
                "4",
                "--steps",
                "500",
                "--deterministic",
                *sets(*TINY),
            )
            agent = f"tests.doctor.broken_agents:{name}"
            processes[name] = fleet.start("train", "--logdir", name, "--agent", agent, *arguments)
            if len(processes) % 2 == 0:
                for process in processes.values():
                    process.wait()
        yield fleet, processes


@pytest.mark.parametrize("name", FAILING)
def test_an_agent_that_does_not_keep_the_protocol(failed: tuple[Fleet, dict[str, Process]], name: str) -> None:
    fleet, processes = failed
    processes[name].ends_with(2)
    assert FAILING[name] in processes[name].sentence
    assert not (fleet.folder / name).exists()
