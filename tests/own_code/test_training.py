"""An agent, a torso and a family outside the package train, resume and are evaluated like the built-in ones."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import seedcli
from seedcli.cli.main import main
from seedcli.errors import UsageError
from tests.system.harness import LIMIT, TINY, Fleet, fleet_in, last, metrics, sets, wait_for

HERE = Path(__file__).parent
FILES = ("my_agent.py", "from_nothing.py", "my_net.py", "my_family.py", "my_transport.py")
TRANSPORT = "my_transport:MyTransport"
OWN = ("--agent", "my_agent:MyAgent", "--network", "my_net:MyTorso", "--family", "my_family:ShortFamily")
COMMON = ("--preset", "cartpole_vtrace", "--envs", "4", *sets(*TINY, "training.checkpoint_seconds=1000"))
# Each trains on half of a batch.
TWO_DEVICES = sets("topology.platform=cpu", "topology.virtual_devices=2", "topology.training_devices=2")
# Name of the run → the rest of its command: every transport, every kind of class, one and two devices.
RUNS = {
    "shm": ("--transport", "shm", *OWN, *sets("agent.weight_decay=0.01", "agent.network.sines=7")),
    "zmq": ("--transport", "zmq", *OWN, *TWO_DEVICES),
    "grpc": ("--transport", "grpc", *OWN),
    "nothing": ("--agent", "from_nothing:Reinforce", *TWO_DEVICES),
    "own": ("--transport", TRANSPORT, *OWN),
    "one": ("--deterministic", *OWN),
    "two": ("--deterministic", *OWN),
}

pytestmark = pytest.mark.timeout(4 * LIMIT)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A working folder with the users' modules and one finished run of each kind."""
    with fleet_in(tmp_path_factory.mktemp("own")) as fleet:
        for name in FILES:
            shutil.copy(HERE / name, fleet.folder)
        for name, rest in RUNS.items():
            fleet.start("train", "--logdir", name, "--steps", "400", *COMMON, *rest).ends_with(0)
        yield fleet


@pytest.mark.parametrize("name", RUNS)
def test_it_trains(trained: Fleet, name: str) -> None:
    line = metrics(trained.folder / name)[-1]
    assert line["env_steps"] >= 400 and line["learner_updates"] > 0
    own = "entropy" if name == "nothing" else "squares"
    assert f'"{own}": ' in (trained.folder / name / "metrics.jsonl").read_text()


def test_the_run_records_classes_and_keys(trained: Fleet) -> None:
    text = (trained.folder / "shm" / "config.toml").read_text()
    for words in (
        'algorithm = "my_agent:MyAgent"  # --agent',
        "weight_decay = 0.01  # --set",
        'torso = "my_net:MyTorso"  # --network',
        "sines = 7  # --set",
        'family = "my_family:ShortFamily"  # --family',
        "longest = 50  # default",
    ):
        assert words in text, text


def test_deterministic_runs_are_equal(trained: Fleet) -> None:
    one, two = ((trained.folder / name / "metrics.jsonl").read_bytes() for name in ("one", "two"))
    assert one == two and one.count(b"\n") >= 1


def test_it_is_evaluated_and_resumed(trained: Fleet) -> None:
    evaluated = trained.start("eval", "shm", "--episodes", "2", "--json")
    evaluated.ends_with(0)
    assert '"episodes"' in evaluated.stdout
    resumed = trained.start("train", "--logdir", "one", "--resume", "--steps", "800")
    resumed.ends_with(0)
    assert metrics(trained.folder / "one")[-1]["env_steps"] >= 800


@pytest.mark.parametrize(
    "arguments",
    [
        ("eval", "grpc"),
        ("export", "grpc", "policy.onnx"),
        ("train", "--logdir", "two", "--resume", "--steps", "800"),
    ],
)
def test_a_class_that_is_gone_is_one_sentence(
    trained: Fleet, arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name in ("grpc", "two"):
        shutil.copytree(trained.folder / name, tmp_path / name)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    assert main(list(arguments)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "there is no module my_" in error and "start seed in the folder" in error
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(UsageError, match="there is no module my_"):
        seedcli.load_policy("grpc")


def test_an_actor_needs_no_module_of_the_agent(trained: Fleet, tmp_path: Path) -> None:
    arguments = ("--agent", "from_nothing:Reinforce", "--preset", "cartpole_vtrace", "--logdir", "served")
    learner = trained.learner(*arguments, "--steps", "1e9", *sets(*TINY, "actors.envs=4"))
    address = learner.wait_until_it_serves()["zmq"]
    with fleet_in(tmp_path / "elsewhere") as elsewhere:
        elsewhere.environ["XDG_CONFIG_HOME"] = str(trained.folder / "config")
        actor = elsewhere.actor(address, "--envs", "4")
        wait_for(lambda: last(trained.folder / "served", "learner_updates") > 0 or not actor.running, "an update")
        assert actor.running, actor.stderr
        actor.kill()
    learner.kill()


def test_an_actor_joins_a_learner_over_a_transport_of_its_own(trained: Fleet) -> None:
    own = sets(f"net.transport={TRANSPORT}", "net.my_port=0")
    arguments = ("--preset", "cartpole_vtrace", "--logdir", "heard", "--steps", "1e9")
    learner = trained.learner(*arguments, *own, *sets(*TINY, "actors.envs=4"))
    learner.wait_until_it_serves()
    actor = trained.actor("heard", "--transport", TRANSPORT, "--envs", "4")
    wait_for(lambda: last(trained.folder / "heard", "learner_updates") > 0 or not actor.running, "an update")
    assert actor.running, actor.stderr
    assert f"seed actor --connect {TRANSPORT}://127.0.0.1:" in learner.stderr + learner.stdout
    actor.kill()
    learner.kill()


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process works in a folder with the users' modules."""
    for name in FILES:
        shutil.copy(HERE / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_presets_show_lists_their_keys(working_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    choices = ["agent.algorithm=my_agent:MyAgent", "agent.network.torso=my_net:MyTorso"]
    choices.append("environment.family=my_family:ShortFamily")
    assert main(["presets", "show", "cartpole_vtrace", "--all", *sets(*choices), "--json"]) == 0
    shown = capsys.readouterr().out
    for key in ("weight_decay", "sines", "longest"):
        assert key in shown


def test_slurm_prints_the_flags(working_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slurm", "--preset", "cartpole_vtrace", "--env", "any", *OWN]) == 0
    script = capsys.readouterr().out
    for flag, value in zip(OWN[::2], OWN[1::2], strict=True):
        assert f"{flag} {value}" in script


@pytest.mark.parametrize("command", ["train", "learner", "slurm", "doctor"])
def test_help_names_the_flags(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    for flag in ("--agent", "--network", "--family"):
        assert flag in out
