"""Faults of users' code are one sentence and status 2, and leave no run behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from seedcli.cli.main import main
from tests.system.harness import LIMIT, TINY, Fleet, Process, fleet_in, sets

pytestmark = pytest.mark.timeout(4 * LIMIT)

# Found before anything starts: the name → words of the sentence.
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
