"""User errors: one sentence that names the error, and its exit status."""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from seedcli.cli.main import main
from seedcli.net.security.token import write_token
from seedcli.roles.run_folder import RunFolder
from tests.ports import reserve_ports
from tests.system.harness import LIMIT, TINY, Fleet, Learner, Process, checkpoints, fleet_in, last, sets, wait_for

REFUSALS = {
    "train --preset cartpole_vtrac": "Did you mean cartpole_vtrace?",
    "train --preset cartpole_vtrace --set training.batchsize=3": "did you mean training.batch_size",
    "train --preset cartpole_vtrace --set training.batch_size=many": 'batch_size = "many" (from --set) must be',
    "train --preset cartpole_vtrace --set agent.discount=1.5": "agent.discount = 1.5 (from --set) must be at most 1",
    "train --preset cartpole_vtrace --env CartPole-v9": "CartPole-v1",
    "learner --preset cartpole_vtrace --env LunarLandre-v3": "LunarLander-v3",
    "learner --preset atari_vtrace --env braekout": "breakout",
    "train --preset cartpole_vtrace --env ALE/Pong-v5 --set environment.family=atari": 'write "pong"',
    "actor --connect localhost": "localhost",
}


@pytest.mark.parametrize("arguments", REFUSALS)
def test_wrong_usage(fleet: Fleet, arguments: str) -> None:
    process = fleet.start(*arguments.split())
    process.ends_with(2)
    assert process.stdout == ""
    assert len(process.stderr.splitlines()) == 1
    assert REFUSALS[arguments] in process.sentence
    assert not (fleet.folder / "runs").exists(), "an invalid configuration must create nothing"


@pytest.mark.skipif(importlib.util.find_spec("deepmind_lab") is not None, reason="DeepMind Lab is installed")
def test_a_missing_simulator_is_reported_once(fleet: Fleet) -> None:
    values = ("actors.count=1", "actors.envs=2", "training.batch_size=2", "inference.max_envs=8")
    process = fleet.start("train", "--preset", "dmlab_vtrace", "--no-live", *sets(*values))
    process.ends_with(2)
    assert "deepmind_lab" in process.sentence and "docs/deepmind-lab.md" in process.sentence
    assert "again" not in process.stderr


@pytest.mark.parametrize("scheme", ["", "zmq://"])
def test_a_learner_that_does_not_answer(fleet: Fleet, scheme: str) -> None:
    address = f"{scheme}127.0.0.1:{reserve_ports(1)[0]}"
    write_token(fleet.folder / "config" / "seed" / "token")
    actor = fleet.actor(address, "--reconnect-timeout", "1")
    actor.ends_with(3)
    assert address in actor.sentence and "--reconnect-timeout" in actor.sentence


@pytest.mark.parametrize("scheme", ["", "zmq://"])
def test_an_address_that_is_not_a_learners(fleet: Fleet, scheme: str) -> None:
    """A server with another protocol is refused; one that only accepts may be a stalled learner, so the actor waits."""
    write_token(fleet.folder / "config" / "seed" / "token")
    with socket.create_server(("127.0.0.1", 0)) as other, socket.create_server(("127.0.0.1", 0)) as silent:
        stop = threading.Event()

        def greet() -> None:
            while not stop.is_set():
                with contextlib.suppress(TimeoutError), other.accept()[0] as connection:
                    connection.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n")
                    stop.wait(0.1)

        other.settimeout(0.1)
        greeting = threading.Thread(target=greet)
        greeting.start()
        try:
            addresses = [f"{scheme}127.0.0.1:{listener.getsockname()[1]}" for listener in (other, silent)]
            refused, waiting = (fleet.actor(address, "--reconnect-timeout", "8") for address in addresses)
            refused.ends_with(4)
            waiting.ends_with(3)
        finally:
            stop.set()
            greeting.join(LIMIT)
    assert addresses[0] in refused.sentence and "does not speak" in refused.sentence
    assert addresses[1] in waiting.sentence and "--reconnect-timeout" in waiting.sentence
    assert "connections are accepted there" in waiting.stderr


@pytest.mark.parametrize("key", ["grpc_port", "zmq_port"])
def test_a_port_in_use(tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str) -> None:
    other = {"grpc_port": "zmq_port", "zmq_port": "grpc_port"}[key]
    run = tmp_path / "run"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        values = sets(f"net.{key}={port}", f"net.{other}=0")
        assert main(["learner", "--preset", "cartpole_vtrace", "--logdir", str(run), *values]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and f"port {port}" in message and f"--{key.replace('_', '-')} …" in message
    # The folder is free for the next start.
    RunFolder.create(run, "cartpole_vtrace").close()


def test_a_host_of_another_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main(["learner", "--preset", "cartpole_vtrace", "--logdir", str(run), "--host", "192.0.2.1"]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "192.0.2.1" in message and "--host" in message
    RunFolder.create(run, "cartpole_vtrace").close()


def test_help_imports_no_tensorflow(fleet: Fleet) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "seedcli", "--help"]
    imported = subprocess.run(command, capture_output=True, timeout=LIMIT, check=True).stderr.decode()
    names = {line.rpartition("|")[2].strip() for line in imported.splitlines()}
    assert "seedcli.cli.main" in names and not {name for name in names if name.startswith(("tensorflow", "keras"))}


BROKEN = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Broken(CartPoleEnv):
    def reset(self, **options):
        raise ValueError("no luck")

gymnasium.register("Broken-v0", entry_point=Broken)
"""


def test_a_run_that_fails_before_its_first_step_leaves_no_folder(fleet: Fleet) -> None:
    (fleet.folder / "broken.py").write_text(BROKEN)
    common = ("train", "--preset", "cartpole_vtrace", "--logdir", "run", "--steps", "300", "--envs", "4", *sets(*TINY))
    failed = fleet.start(*common, "--env", "broken:Broken-v0", *sets("environment.restarts=0"))
    failed.ends_with(1)
    assert "keeps failing (exit status 1)" in failed.sentence and "no luck" in failed.sentence
    assert not (fleet.folder / "run").exists()
    failed.killed = True
    fleet.start(*common).ends_with(0)


def test_a_signal_while_tensorflow_is_loaded_ends_silently_and_leaves_no_folder(fleet: Fleet) -> None:
    learner = fleet.learner("--preset", "cartpole_vtrace", "--logdir", "run")
    wait_for(lambda: (fleet.folder / "run").exists(), "its folder")
    time.sleep(0.5)
    learner.send(signal.SIGINT)
    learner.ends_with(130)
    assert learner.stderr == "" and not (fleet.folder / "run").exists()


def test_a_learner_that_is_killed_early_has_a_checkpoint(fleet: Fleet) -> None:
    run = fleet.folder / "run"
    trained = fleet.start(
        *("train", "--preset", "cartpole_vtrace", "--logdir", "run", "--steps", "1e9", "--envs", "4"),
        *sets(*TINY, "training.checkpoint_seconds=1000"),
    )
    wait_for(lambda: last(run, "learner_updates") > 0, "an update")
    wait_for(lambda: checkpoints(run), "the first checkpoint", limit=10.0)
    trained.kill()


# At the end, because this learner and its actor occupy the processor until the last test of the file.


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_in(tmp_path_factory.mktemp("errors")) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def learner(processes: Fleet) -> Learner:
    """A learner for up to 8 environments of CartPole."""
    values = sets(*TINY, "actors.envs=8", "inference.max_envs=8")
    learner = processes.learner("--preset", "cartpole_vtrace", "--logdir", "run", "--steps", "1e12", *values)
    learner.wait_until_it_serves()
    return learner


# Before the tests with an actor, which would otherwise step while the three learners start.
def test_a_folder_has_one_learner(learner: Learner, processes: Fleet) -> None:
    for extra in ([], ["--resume"], ["--overwrite"]):
        second = processes.learner("--preset", "cartpole_vtrace", "--logdir", "run", *extra)
        second.ends_with(2)
        assert "belongs to a running learner" in second.sentence and str(learner.pid) in second.sentence
    assert learner.running


@pytest.fixture(scope="module", params=["zmq", "grpc"])
def actor(request: pytest.FixtureRequest, learner: Learner, processes: Fleet) -> Iterator[Process]:
    """An actor of CartPole that has stepped for a while; tests only look at it."""
    run = processes.folder / "run"
    wait_for(lambda: last(run, "envs") == 0, "room for an actor")
    before = last(run, "env_steps")
    actor = processes.actor(learner.addresses[request.param], "--envs", "6")
    wait_for(lambda: last(run, "env_steps") > before + 500 or not actor.running, "an actor steps")
    assert actor.running, actor.stderr
    yield actor
    actor.kill()


def test_more_environments_than_fit(learner: Learner, processes: Fleet, actor: Process) -> None:
    for address in learner.addresses.values():
        refused = processes.actor(address, "--envs", "3")
        refused.ends_with(4)
        for part in ("3 environments", "8", "6 are connected", "inference.max_envs"):
            assert part in refused.sentence
        refused.killed = True
    assert actor.running


def test_an_actor_needs_little_memory(actor: Process) -> None:
    status = Path(f"/proc/{actor.pid}/status").read_text()
    resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
    assert resident < 150 * 1000, f"{resident} kB"
    loaded = Path(f"/proc/{actor.pid}/maps").read_text()
    assert "numpy" in loaded and "tensorflow" not in loaded
