"""The command line: arguments reach a role, and its end becomes the exit status. Only roles are replaced."""

import json
import os
import re
import resource
import shlex
import socket
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import typer

import seedcli
from seedcli.cli.main import app, main
from seedcli.config.choices import CHOICES
from seedcli.config.known_keys import all_keys
from seedcli.config.sources import from_toml_file, load_config
from seedcli.errors import RefusedError, UnreachableError


class Role:
    """Replaces a role: records its calls, and ends with `ending`."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.ending: int | BaseException = 0

    def __call__(self, *arguments: Any, **options: Any) -> int:
        self.calls.append((arguments, options))
        if isinstance(self.ending, BaseException):
            raise self.ending
        return self.ending


ROLES = {
    "seedcli.roles.local": ["run_train"],
    "seedcli.roles.learner.run": ["run_learner"],
    "seedcli.roles.actor.run": ["run_actor"],
    "seedcli.roles.evaluator.run": ["run_eval"],
    "seedcli.doctor.report": ["run_doctor"],
    "seedcli.bench.figures": ["run_bench_inference", "run_bench_transport", "run_bench_training"],
}


@pytest.fixture
def role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Role:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SEED_")]:
        monkeypatch.delenv(name)
    role = Role()
    for module_name, functions in ROLES.items():
        module = types.ModuleType(module_name)
        for function in functions:
            setattr(module, function, role)
        monkeypatch.setitem(sys.modules, module_name, module)
    # The checks before a role is called are tested elsewhere.
    for name in ("seedcli.envs.placement.check_simulator", "seedcli.roles.evaluator.request.check_request"):
        monkeypatch.setattr(name, lambda *_, **__: None)
    monkeypatch.setattr("seedcli.serving.listeners.check_listeners", lambda config: None)
    monkeypatch.setattr("seedcli.tensorflow_import.import_tensorflow", lambda: None)
    return role


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit status and the one sentence on stderr."""
    status = main(arguments)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("seed: ")
    assert captured.err.count("\n") == 1
    assert "\x1b" not in captured.err
    return status, captured.err


def run_seed(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SEED_")}
    environ["PYTHONPATH"] = str(Path(seedcli.__file__).parent.parent)
    return subprocess.run(
        [sys.executable, "-m", "seedcli", *arguments], capture_output=True, text=True, timeout=60, env=environ, cwd=cwd
    )


def test_train_passes_all_options_on(role: Role, tmp_path: Path) -> None:
    status = main(
        "train --preset cartpole_vtrace --steps 1e3 --seed 7 --logdir D --envs 8 --actors 2 --transport grpc "
        "--set training.batch_size=4 --set agent.network.hidden=[8] --deterministic".split()
    )
    assert status == 0
    ((resolved, folder), options) = role.calls[0]
    config = resolved.config
    assert (config.run.steps, config.run.seed, config.actors.envs, config.actors.count) == (1000, 7, 8, 2)
    assert (config.net.transport, config.training.batch_size, config.agent.network.hidden) == ("grpc", 4, (8,))
    assert resolved.sources["actors.envs"] == "--envs"
    assert folder.path == Path("D") and not folder.resume
    assert config.run.deterministic and resolved.sources["run.deterministic"] == "--deterministic"
    assert options == {"live": False, "profile": False}


def test_env_sets_the_environments_id(role: Role) -> None:
    assert main(["train", "--preset", "atari_vtrace", "--env", "space_invaders"]) == 0
    (resolved, folder), _ = role.calls[0]
    assert resolved.config.environment.id == "space_invaders"
    assert folder.path.parent == Path("runs/atari_vtrace")


def test_environment_variables_are_a_layer(role: Role, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEED_TRAINING__BATCH_SIZE", "64")
    monkeypatch.setenv("SEED_TOKEN", "secret")
    assert main(["train", "--preset", "cartpole_vtrace"]) == 0
    assert role.calls[0][0][0].config.training.batch_size == 64


def test_a_standby_without_a_run_or_preset_leaves_nothing(role: Role, capsys: pytest.CaptureFixture[str]) -> None:
    status, sentence = failure(capsys, "learner", "--standby", "--logdir", "D")
    assert status == 2 and "give --preset NAME" in sentence
    assert not Path("D").exists() and not role.calls


def test_resume_needs_no_preset(role: Role, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("learner --preset pong_vtrace --logdir D --set training.batch_size=4".split()) == 0
    (resolved, folder), options = role.calls[0]
    folder.write_config(resolved)
    assert options == {"live": False, "hosts": (), "done": "", "profile": False}
    assert main("learner --resume --logdir D --steps 99 --zmq-port 0 --grpc-port -1".split()) == 0
    (resumed, folder), _ = role.calls[1]
    assert folder.resume
    assert (resumed.config.training.batch_size, resumed.sources["training.batch_size"]) == (4, "run D")
    assert (resumed.config.run.steps, resumed.config.net.zmq_port, resumed.config.net.grpc_port) == (99, 0, -1)
    assert failure(capsys, "learner", "--preset", "pong_vtrace", "--logdir", "D")[0] == 2
    assert failure(capsys, "train", "--resume", "--logdir", "absent")[0] == 2
    assert len(role.calls) == 2


def test_the_run_folder_is_unlocked_when_a_role_ends(role: Role) -> None:
    for ending in (0, UnreachableError("gone")):
        role.ending = ending
        main("train --preset cartpole_vtrace --logdir D".split())
    assert len(role.calls) == 2


def test_an_invalid_configuration_creates_no_run_folder(
    role: Role, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, message = failure(capsys, *"train --preset cartpole_vtrace --logdir D --set training.batchsize=3".split())
    assert status == 2 and "did you mean training.batch_size" in message
    assert not (tmp_path / "D").exists()


def test_actor_passes_all_options_on(role: Role) -> None:
    assert main("actor --connect zmq://h:1 --envs 4 --streams 2 --actor-id a --reconnect-timeout 3".split()) == 0
    (discovery,), options = role.calls[0]
    assert (discovery.next(), options) == (
        "zmq://h:1",
        {
            "envs": 4,
            "streams": 2,
            "actor_id": "a",
            "reconnect_timeout": 3.0,
            "threads": 0,
            "json_output": False,
            "parent": None,
        },
    )
    main(["actor", "--connect", "h:1"])
    assert set(role.calls[1][1].values()) == {None, 0}


def test_actor_takes_token_certificates_and_address_from_flags_and_environment(
    role: Role, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEED_TOKEN", "of-the-environment-0123456789abcdef")
    assert main(["token", "new", "--token-file", "T"]) == 0
    assert main("actor --connect h:1 --token-file T --tls-ca A --tls-cert C --tls-key K".split()) == 0
    security = role.calls[0][0][0].security("h:1")
    assert security.token.source == "T"
    assert (security.tls.ca, security.tls.cert, security.tls.key) == ("A", "C", "K")
    monkeypatch.setenv("SEED_CONNECT", "zmq://c:3")
    assert main(["actor"]) == 0
    (discovery,), _ = role.calls[1]
    assert discovery.next() == "zmq://c:3"
    assert (discovery.security("zmq://c:3").token.source, discovery.security("zmq://c:3").tls) == ("SEED_TOKEN", None)
    assert main(["actor", "--insecure"]) == 0
    assert role.calls[2][0][0].security("h:1") is None


def test_learner_takes_its_security_from_flags(role: Role) -> None:
    assert (
        main("learner --preset pong_vtrace --logdir D --token-file T --tls-cert C --tls-key K --tls-ca A".split()) == 0
    )
    net = role.calls[0][0][0].config.net
    assert (net.token_file, net.tls_cert, net.tls_key, net.tls_ca, net.insecure) == ("T", "C", "K", "A", False)
    assert main("learner --preset pong_vtrace --logdir E --insecure --host 10.0.0.1".split()) == 0
    net = role.calls[1][0][0].config.net
    assert (net.insecure, net.host) == (True, "10.0.0.1")


def test_the_configuration_holds_no_token(role: Role, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEED_TOKEN", "of-the-environment-0123456789abcdef")
    assert main("learner --preset pong_vtrace --logdir D".split()) == 0
    (resolved, folder), _ = role.calls[0]
    folder.write_config(resolved)
    assert "0123456789abcdef" not in folder.config_path.read_text()
    assert not any("token" in key for key in all_keys() if key != "net.token_file")


def test_eval_passes_all_options_on(role: Role) -> None:
    assert main("eval D --episodes 3 --sample --seed 5 --json --video v.mp4 --watch --log --envs 2".split()) == 0
    (path,), options = role.calls[0]
    assert path == Path("D")
    assert options == {
        "episodes": 3,
        "sample": True,
        "seed": 5,
        "json_output": True,
        "video": Path("v.mp4"),
        "watch": True,
        "log": True,
        "envs": 2,
    }
    main(["eval", "D", "--greedy"])
    assert role.calls[1][1]["sample"] is False
    assert role.calls[1][1]["episodes"] == 20


def test_doctor_and_bench_pass_all_options_on(role: Role, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--json"])
    main("bench inference --envs 64 --envs 128 --transport shm --seconds 2 --json".split())
    main(["bench", "transport"])
    main("bench training --preset cartpole_vtrace --set training.batch_size=4".split())
    assert role.calls[0] == ((True,), {})
    assert role.calls[1][1] == {
        "envs": [64, 128],
        "envs_per_message": 32,
        "transport": "shm",
        "seconds": 2.0,
        "json_output": True,
    }
    assert role.calls[2][1] == {"transport": "zmq", "seconds": 5.0, "json_output": False}
    (resolved,), options = role.calls[3]
    assert resolved.config.training.batch_size == 4
    assert options == {"seconds": 30.0, "json_output": False}
    main(["bench", "inference"])
    assert role.calls[4][1]["envs"] == [32, 256, 1024, 4096]
    assert failure(capsys, "bench", "inference", "--envs", "33")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ("nonsense", "nonsense"),
        ("train --nonsense", "--nonsense"),
        ("train", "--preset NAME"),
        ("train --resume", "--logdir"),
        ("train --preset cartpole", "Unknown preset 'cartpole'. Did you mean cartpole_vtrace?"),
        ("train --preset cartpole_vtrace --resume", "--resume needs --logdir"),
        ("train --preset cartpole_vtrace --steps 0", "run.steps = 0 (from --steps) must be at least 1"),
        ("train --preset cartpole_vtrace --steps many", "(from --steps) must be a whole number"),
        ("train --preset cartpole_vtrace --transport udp", "udp"),
        ("train --preset cartpole_vtrace --envs 5000", "inference.max_envs = 4096"),
        ("train --preset pong_r2d2 --set agent.n_step=21", "training.unroll_length = 20"),
        ("train --preset pong_r2d2 --envs 2 --set actors.streams=1", "actors.evaluation_envs = 2 must be at most 1"),
        ("presets show recall_r2d2 --set replay.capacity=5", "must be at least replay.min_size = 100"),
        ("train --config absent.toml", "absent.toml cannot be read"),
        (
            "learner --preset pong_vtrace --zmq-port 70000",
            "net.zmq_port = 70000 (from --zmq-port) must be at most 65535",
        ),
        (
            "learner --preset pong_vtrace --insecure --token-file T",
            "net.insecure = true disables the token and encryption: remove net.token_file",
        ),
        ("learner --preset pong_vtrace --insecure --tls-cert C --tls-key K", "net.insecure = true disables the token"),
        ("learner --preset pong_vtrace --resume --continue --logdir D", "--resume and --continue cannot both"),
        ("learner --preset pong_vtrace --continue", "need --logdir"),
        ("actor", "no learner address given: give --connect HOST:PORT or --connect RUN_FOLDER, or set SEED_CONNECT"),
        ("actor --connect ,", 'no learner address given (--connect ",")'),
        ("actor --connect h:1,nonsense", '"nonsense" is not a learner\'s address'),
        ("actor --connect h:1 --insecure --token-file T", "--insecure disables the token and encryption"),
        ("actor --connect h:1 --insecure --tls-ca T", "--insecure disables the token and encryption"),
        ("token new --replace --token-file /proc/no/token", "/proc/no/token cannot be written"),
        ("actor --connect h:1 --envs 2 --streams 3", "--streams 3 must be at most --envs 2"),
        ("actor --connect h:1 --envs 0", "'--envs': 0 should be greater than or equal to 1"),
        ("eval", "PATH"),
        ("eval D --episodes some", "'--episodes': some should be a valid integer"),
        ("presets show nonsense", "Unknown preset 'nonsense'. There are atari_ppo, "),
        ("presets show", "give the NAME of a preset, the folder of a run, or --config FILE"),
    ],
)
def test_wrong_usage_is_one_sentence(role: Role, capsys: pytest.CaptureFixture[str], arguments: str, part: str) -> None:
    status, message = failure(capsys, *arguments.split())
    assert status == 2
    assert part in message
    assert role.calls == []


def test_every_error_has_its_status(role: Role, capsys: pytest.CaptureFixture[str]) -> None:
    role.ending = UnreachableError("no answer from h:1")
    assert failure(capsys, "actor", "--connect", "h:1") == (3, "seed: no answer from h:1\n")
    role.ending = RefusedError("no")
    assert failure(capsys, "actor", "--connect", "h:1")[0] == 4
    role.ending = ValueError("a bug")
    status, message = failure(capsys, "actor", "--connect", "h:1")
    assert status == 1 and "unexpected ValueError: a bug (--debug shows where)" in message
    role.ending = 143
    assert main(["actor", "--connect", "h:1"]) == 143
    role.ending = KeyboardInterrupt()
    assert main(["actor", "--connect", "h:1"]) == 130


@pytest.mark.parametrize("arguments", [["--debug", "doctor"], ["doctor", "--debug"]])
def test_debug_shows_the_traceback(role: Role, arguments: list[str]) -> None:
    role.ending = RefusedError("no")
    with pytest.raises(RefusedError):
        main(arguments)


def test_presets_list(role: Role, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    listed = {preset["name"]: preset["description"] for preset in rows}
    bases = {preset["name"]: preset["base"] for preset in rows}
    assert main(["presets", "list"]) == 0
    table = capsys.readouterr().out
    assert "pong_vtrace" in listed
    assert all(name in table and description in table for name, description in listed.items())
    assert (bases["football_vtrace_8gpu"], bases["football_vtrace"]) == ("football_vtrace", "")
    names = [words[0] for words in map(str.split, table.splitlines()) if words and words[0] in listed]
    assert sorted(names) == sorted(listed), "each is listed once"
    at = names.index("atari_r2d2")
    assert names[at : at + 4] == ["atari_r2d2", "atari_r2d2_1gpu", "atari_r2d2_8gpu", "atari_r2d2_tpu8"]


def test_presets_show(role: Role, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("presets show pong_vtrace --set agent.network.hidden=[8] --json --all".split()) == 0
    shown = json.loads(capsys.readouterr().out)
    assert list(shown["values"]) == list(load_config("pong_vtrace").sources)
    assert shown["values"]["agent.network.hidden"] == {
        "value": [8],
        "source": "--set",
        "description": "widths of the hidden layers of mlp, also used for vectors beside images",
        "allowed": [],
    }
    assert shown["values"]["agent.network.torso"]["allowed"] == ["mlp", "impala_shallow", "nature", "impala_deep"]
    assert main(["presets", "show", "pong_vtrace"]) == 0
    output = capsys.readouterr().out
    assert "\x1b" not in output
    row = next(line for line in output.splitlines() if "training.learning_rate " in line)
    assert row.split()[:4] == ["training.learning_rate", "0.0005", "preset", "pong_vtrace"]
    assert "[64, 64]" in output
    assert "(mlp, impala_shallow, nature, impala_deep)" in output
    for key in ("replay.capacity", "agent.dueling_hidden", "environment.level_cache", "environment.engine"):
        assert key not in output, f"{key} has no effect here"


def test_presets_show_has_the_keys_of_own_code(capsys: pytest.CaptureFixture[str]) -> None:
    own = "--agent tests.own_code.my_agent:MyAgent --network tests.own_code.my_net:MyTorso"
    assert main(["presets", "show", "cartpole_vtrace", *own.split(), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)["values"]
    assert values["agent.weight_decay"]["source"] == values["agent.network.sines"]["source"] == "default"
    assert values["agent.algorithm"]["source"] == "--agent"


def test_presets_show_takes_a_run_and_a_file(role: Role, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("train --preset recall_r2d2 --seed 5 --logdir D".split()) == 0
    (resolved, folder), _ = role.calls[0]
    folder.write_config(resolved)
    shown = {"D": (5, "run D"), "--config D/config.toml": (5, "file D/config.toml"), "recall_r2d2": (1, "default")}
    for arguments, (seed, source) in shown.items():
        assert main(["presets", "show", *arguments.split(), "--json"]) == 0
        values = json.loads(capsys.readouterr().out)["values"]
        assert (values["run.seed"]["value"], values["run.seed"]["source"]) == (seed, source)
        assert "replay.capacity" in values and "agent.rho_clip" not in values


def test_a_narrow_terminal_does_not_break_keys(
    role: Role, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["presets", "show", "pong_vtrace", "--all"]) == 0
    words = re.sub(r"\x1b\[\d+m", "", capsys.readouterr().out).split()
    assert set(load_config("pong_vtrace").sources) <= set(words)


def test_help_and_version(role: Role, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"seed {seedcli.__version__}\n"
    assert main([]) == 2
    output = capsys.readouterr().out
    for command in ("train", "learner", "actor", "eval", "presets", "doctor", "bench", "token"):
        assert f"\n  {command} " in output
        assert main([command, "--help"]) == 0
        assert f"Usage: seed {command}" in capsys.readouterr().out


@pytest.mark.parametrize("group", ["", "bench", "benchmark", "presets", "token"])
def test_help_shows_summaries_of_commands_in_full(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([*group.split(), "--help"])
    commands = capsys.readouterr().out.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert len(commands) >= 2
    assert not [line for line in commands if line.endswith("...") or not line.endswith(".")]


@pytest.mark.parametrize(
    ("flag", "table"),
    [("agent", "agent"), ("network", "agent.network"), ("family", "environment"), ("transport", "net")],
)
def test_help_names_the_built_in_choices(flag: str, table: str) -> None:
    train: Any = typer.main.get_command(app)
    (option,) = (each for each in train.commands["train"].params if each.name == flag)
    names = option.help.partition(": ")[2].partition(", or")[0]
    assert set(names.split(", ")) == set(CHOICES[table].built_in)


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from seedcli.cli.main import main; status = main(['train', '--help']); "
        "heavy = {'tensorflow', 'keras', 'numpy', 'gymnasium', 'grpc', 'zmq', 'rich', 'cryptography', 'ssl'}; "
        "heavy &= set(sys.modules); "
        "print(heavy, file=sys.stderr); sys.exit(status or len(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_help_is_fast() -> None:
    """In processor time, which other processes affect little; the best of five runs counts."""

    def seconds() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    best = float("inf")
    for _ in range(5):
        before = seconds()
        assert run_seed("--help").returncode == 0
        best = min(best, seconds() - before)
    assert 0.0 < best < 0.4


def test_the_real_command(tmp_path: Path) -> None:
    done = run_seed("presets", "show", "cartpole_vtrace", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    done = run_seed("train", "--preset", "nonsense", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("seed: Unknown preset 'nonsense'. There are ")
    assert list(tmp_path.iterdir()) == []


def test_completion_knows_the_presets() -> None:
    environ = {**os.environ, "_SEED_COMPLETE": "complete_bash", "COMP_WORDS": "seed presets show po", "COMP_CWORD": "3"}
    script = "from seedcli.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=environ)
    assert sorted(done.stdout.split()) == ["pong_ppo", "pong_r2d2", "pong_vtrace"], done.stderr


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("train --agent r", "r2d2"),
        ("doctor --network im", "impala_deep impala_shallow"),
        ("learner --family foo", "football"),
        ("train --transport z", "zmq"),
        ("train --preset pong_v", "pong_vtrace"),
    ],
)
def test_tab_completes_choices_in_bash(tmp_path: Path, words: str, completed: str) -> None:
    (tmp_path / "seed").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m seedcli "$@"\n')
    (tmp_path / "seed").chmod(0o755)
    count = len(words.split())
    # As bash does when TAB is pressed: it calls the function that --show-completion has defined.
    script = f'eval "$(_SEED_COMPLETE=source_bash seed)"; COMP_WORDS=(seed {words}); COMP_CWORD={count}; '
    script += '$(complete -p seed | sed "s/.*-F //; s/ .*//") seed; echo "${COMPREPLY[@]}"'
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, env=environ)
    assert " ".join(sorted(done.stdout.split())) == completed, done.stderr


def test_a_saved_configuration_is_a_configuration_file(role: Role, tmp_path: Path) -> None:
    assert main("train --preset pong_vtrace --seed 5 --logdir D".split()) == 0
    (resolved, folder), _ = role.calls[0]
    folder.write_config(resolved)
    assert main("train --config D/config.toml --logdir E".split()) == 0
    (again, _), _ = role.calls[1]
    assert again.config == resolved.config == from_toml_file(Path("D/config.toml"))


def test_invalid_options_of_several_hosts_are_refused_before_anything_starts(
    role: Role, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = ("learner", "--preset", "pong_vtrace", "--logdir", "D", "--hosts", "a:1,b:1")
    status, sentence = failure(capsys, *hosts)
    assert status == 2 and "--trust-network" in sentence
    status, sentence = failure(capsys, *hosts, "--trust-network", "--set", "training.batch_size=7")
    assert status == 2 and "training.batch_size = 7 must be a multiple of 2" in sentence
    status, sentence = failure(capsys, *hosts, "--trust-network", "--standby")
    assert status == 2 and "--standby" in sentence
    status, sentence = failure(capsys, "train", "--preset", "pong_vtrace", "--set", 'topology.hosts=["a:1"]')
    assert status == 2 and "seed train is one learner" in sentence
    assert not role.calls and not Path("D").exists()


def test_standby_is_refused_for_a_run_of_several_hosts(role: Role, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = "--hosts a:1,b:1 --trust-network".split()
    assert main(["learner", "--preset", "pong_vtrace", "--logdir", "D", *hosts]) == 0
    (resolved, folder), options = role.calls[0]
    assert options["hosts"] == ("a:1", "b:1")
    folder.write_config(resolved)
    status, sentence = failure(capsys, "learner", "--standby", "--logdir", "D")
    assert status == 2 and "--standby is for one learner host" in sentence
    assert len(role.calls) == 1
    status, sentence = failure(capsys, "learner", "--continue", "--logdir", "D/hosts/1")
    assert status == 2 and "is the folder of one learner host" in sentence and sentence.rstrip().endswith("/D")


MISTAKES = {
    "eval nowhere": "it does not exist",
    "eval . --video film.avi": "must end in .mp4",
    "eval . --watch --video film.mp4": "give one of the two",
    "eval --model nowhere.onnx": "does not exist",
    "export nowhere policy.onnx": "it does not exist",
    "bench policy nowhere": "it does not exist",
    "eval --suite atari57 nowhere": "is not a folder",
    "eval --suite atari57 . --chart scores.pdf": "must end in .png",
    "train --preset cartpole_vtrace --env nofile:MyEnv-v0": "start seed in the folder that holds it",
    "learner --preset cartpole_vtrace --logdir D --grpc-port PORT": "choose another port with --grpc-port …",
    "learner --preset cartpole_vtrace --logdir D --zmq-port PORT": "choose another port with --zmq-port …",
    "train --preset cartpole_vtrace --logdir D --metrics-port PORT": "choose another port with --metrics-port …",
    "learner --preset cartpole_vtrace --logdir D --token-file absent": "no token file absent",
    "bench replay --preset nonsense": "Unknown preset",
}


@pytest.mark.parametrize("arguments", MISTAKES)
def test_wrong_usage_is_found_before_tensorflow_is_loaded(tmp_path: Path, arguments: str) -> None:
    script = (
        "import sys; from seedcli.cli.main import main; status = main(sys.argv[1:]); "
        "assert 'tensorflow' not in sys.modules; sys.exit(status)"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SEED_")}
    environ |= {"PYTHONPATH": str(Path(seedcli.__file__).parent.parent), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    with socket.create_server(("0.0.0.0", 0)) as taken:
        words = arguments.replace("PORT", str(taken.getsockname()[1])).split()
        done = subprocess.run(
            [sys.executable, "-c", script, *words],
            capture_output=True, text=True, timeout=60, env=environ, cwd=tmp_path,
        )  # fmt: skip
    assert done.returncode in (2, 4), done.stderr
    assert done.stderr.count("\n") == 1 and MISTAKES[arguments] in done.stderr
    assert not {"D", "runs"} & {entry.name for entry in tmp_path.iterdir()}


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_closed_output_is_not_an_error(stream: str) -> None:
    redirection = {"stdout": ">&-", "stderr": "2>&-"}[stream]
    command = f"{sys.executable} -m seedcli presets list {redirection}"
    environ = {**os.environ, "PYTHONPATH": str(Path(seedcli.__file__).parent.parent)}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, env=environ)
    assert (done.returncode, done.stderr) == (0, "")


def test_modules_in_the_working_folder_are_found(tmp_path: Path) -> None:
    """As with the installed `seed`, where Python looks in the script's folder instead."""
    (tmp_path / "mine.py").write_text(
        "import gymnasium\ngymnasium.register('My-v0', entry_point='gymnasium.envs.classic_control:CartPoleEnv')\n"
    )
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    script = "import sys\nfrom seedcli.cli.main import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
    (bin_folder / "seed").write_text(script)
    environ = {**os.environ, "PYTHONPATH": str(Path(seedcli.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, str(bin_folder / "seed"), "doctor", "--env", "mine:My-v0", "--json"],
        capture_output=True, text=True, timeout=100, env=environ, cwd=tmp_path,
    )  # fmt: skip
    findings = {finding["name"]: finding["status"] for finding in json.loads(done.stdout)["findings"]}
    assert findings and "cannot be imported" not in done.stdout, done.stderr
