"""Which actors real learners admit, how others are refused, and that the token is not disclosed.

All learners of this file start at once, because each takes seconds to load.
"""

from __future__ import annotations

import signal
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import zmq

from seedcli.errors import ProtocolError
from seedcli.net.connect import connect
from seedcli.net.frames import MAGIC, PROTOCOL_VERSION, Kind, encode_control, pack_header
from seedcli.net.security.keys import Security, curve_keys, tls_identity
from seedcli.net.security.token import Token, find_token, new_token, write_token
from tests.net.harness import wait_until_gone
from tests.ports import reserve_ports
from tests.system.harness import LIMIT, TINY, Fleet, Learner, Process, counting, fleet_in, last, sets, wait_for

VALUES = sets(*TINY, *counting(pause=0.05), "inference.max_envs=64")
OPTIONS = ("--preset", "cartpole_vtrace", "--steps", "1e12", *VALUES)
TRANSPORTS = ("grpc", "zmq")
HELLO = encode_control({"actor_id": "old", "envs": 1, "streams": 1, "version": "1"})


@dataclass
class Site:
    """The shared processes of these tests."""

    fleet: Fleet
    early: Process  # an actor started before its learner
    learner: Learner
    insecure: Learner
    train: dict[str, Process]

    @property
    def token_path(self) -> Path:
        return self.fleet.folder / "config" / "seed" / "token"

    @property
    def run(self) -> Path:
        return self.fleet.folder / "run"

    def actor(self, *arguments: str, **environ: str) -> Process:
        """Start an actor of two environments, with additional environment variables."""
        before = self.fleet.environ
        self.fleet.environ = before | environ
        try:
            return self.fleet.start("actor", *arguments, "--envs", "2")
        finally:
            self.fleet.environ = before

    def is_refused(self, actor: Process, *parts: str, status: int = 4) -> None:
        actor.ends_with(status)
        actor.killed = True  # expected, so not a failure of the fleet
        assert all(part in actor.sentence for part in parts), actor.sentence

    def joins(self, actor: Process, learner: Learner) -> None:
        """Wait until an actor has joined, then stop it."""
        wait_for(lambda: "connected to " in actor.stderr or not actor.running, "an actor is admitted")
        assert actor.running, actor.stderr
        assert learner.running, learner.stderr
        actor.send(signal.SIGTERM)
        actor.ends_with(143)
        actor.killed = True
        assert "environment steps" in actor.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with fleet_in(tmp_path_factory.mktemp("security")) as fleet:
        early = fleet.start("actor", "--connect", "./run", "--envs", "2")
        train = {
            name: fleet.start(
                "train", "--transport", name, "--actors", "1", "--envs", "2", "--logdir", f"train-{name}", *OPTIONS
            )
            for name in TRANSPORTS
        }
        insecure = fleet.learner("--insecure", "--logdir", "insecure", *OPTIONS)
        wait_for(lambda: "no learner has published its address in ./run" in early.stderr, "the early actor waits")
        learner = fleet.learner("--logdir", "run", *OPTIONS)
        learner.wait_until_it_serves()
        insecure.wait_until_it_serves()
        yield Site(fleet, early, learner, insecure, train)


def listening(process: Process) -> set[str]:
    """The addresses on which a process listens."""
    found = psutil.Process(process.pid).net_connections("tcp")
    # gRPC listens on IPv4 addresses through IPv6.
    return {entry.laddr.ip.removeprefix("::ffff:") for entry in found if entry.status == psutil.CONN_LISTEN}


# -- secrecy of the token


def secrets_of(token: Token, text: str) -> list[bytes]:
    """The token and its keys, which must not be disclosed."""
    found = [text.encode(), token.derive("proof actor").hex().encode()]
    for side in ("learner", "actor"):
        found.append(curve_keys(token, side)[1])  # type: ignore[arg-type]
        key = tls_identity(Security(token), side).key  # type: ignore[arg-type]
        assert key is not None
        found.append(key.splitlines()[1])
    return found


def shown_by(process: Process, *folders: Path) -> bytes:
    """Everything that other users can see of a process and its children, and all files it has written."""
    seen = [process.stdout.encode(), process.stderr.encode()]
    for each in (psutil.Process(process.pid), *process.children()):
        seen.append(Path(f"/proc/{each.pid}/cmdline").read_bytes())
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(files) > 3
    for path in files:
        try:
            seen += [path.read_bytes(), str(path).encode()]
        except FileNotFoundError:
            pass  # an old checkpoint, removed meanwhile
    return b"\0".join(seen)


def test_a_learners_token_is_only_in_its_file(site: Site) -> None:
    text = site.token_path.read_text().strip()
    wait_for(lambda: last(site.run, "learner_updates") > 0, "training")
    wait_for(lambda: list((site.run / "checkpoints").glob("*/COMPLETE")), "a checkpoint")
    shown = shown_by(site.learner, site.run) + shown_by(site.early, site.run)
    assert b"net.token_file" in shown or b"token_file" in shown, "it includes the configuration"
    for secret in secrets_of(Token(text, "here"), text):
        assert secret not in shown
    assert text.encode() not in Path(f"/proc/{site.learner.pid}/environ").read_bytes()


@pytest.mark.parametrize("name", TRANSPORTS)
def test_a_local_run_has_its_own_secret_token(site: Site, name: str) -> None:
    process, run = site.train[name], site.fleet.folder / f"train-{name}"
    wait_for(lambda: last(run, "learner_updates") > 0 or not process.running, "training")
    assert process.running, process.stderr
    assert listening(process) == {"127.0.0.1"}
    (actor,) = process.actors()
    text = actor.environ()["SEED_TOKEN"]
    assert text != site.token_path.read_text().strip()
    assert "SEED_TOKEN" not in psutil.Process(process.pid).environ()
    shown = shown_by(process, run)
    for secret in secrets_of(Token(text, "here"), text):
        assert secret not in shown
    # An actor with the user's token instead of the run's is refused.
    (address,) = [part for part in actor.cmdline() if ":" in part and part.rpartition(":")[2].isdigit()]
    site.is_refused(site.actor("--connect", address), "do not trust each other")
    assert process.running
    process.kill()  # not needed any more, and takes CPU from the others


# -- admission


def test_a_shared_home_directory_suffices(site: Site) -> None:
    assert site.token_path.stat().st_mode & 0o777 == 0o600
    assert f"need the token from {site.token_path}" in site.learner.stderr
    assert listening(site.learner) <= {"0.0.0.0", "::"}
    grpc, zeromq = (site.learner.addresses[name].rpartition(":")[2] for name in TRANSPORTS)
    # Nothing listens at the first of two places.
    unused = f"127.0.0.1:{reserve_ports(1)[0]}"
    token = site.token_path.read_text()
    actors = [
        site.actor(SEED_CONNECT=f"{unused},127.0.0.1:{grpc}"),
        site.actor("--connect", "./run", "--transport", "zmq"),
        site.actor("--connect", f"127.0.0.1:{grpc}", XDG_CONFIG_HOME="/nowhere", SEED_TOKEN=token),
        site.actor(
            "--connect", f"zmq://127.0.0.1:{zeromq}", "--token-file", str(site.token_path), XDG_CONFIG_HOME="/x"
        ),
    ]
    wait_for(lambda: "connected to " in site.early.stderr, "the waiting actor is admitted")
    for actor in actors:
        site.joins(actor, site.learner)


def test_refused_actors_report_the_reason(site: Site) -> None:
    folder = site.fleet.folder
    write_token(folder / "elsewhere" / "seed" / "token")
    other = str(folder / "elsewhere")
    readable = folder / "readable"
    readable.write_text(new_token())
    readable.chmod(0o644)
    weak = folder / "weak"
    weak.touch(mode=0o600)
    weak.write_text("password")
    address = dict(zip(TRANSPORTS, (site.learner.addresses[name] for name in TRANSPORTS), strict=True))
    insecure = site.insecure.addresses
    grpc = address["grpc"]
    trust = ("do not trust each other", f"{other}/seed/token", "seed token show")
    cases: list[tuple[Process, tuple[str, ...]]] = [
        (site.actor("--connect", grpc, XDG_CONFIG_HOME=other), (grpc, *trust)),
        (site.actor("--connect", address["zmq"], XDG_CONFIG_HOME=other), (address["zmq"], *trust)),
        (
            site.actor("--connect", grpc, XDG_CONFIG_HOME=f"{folder}/none"),
            ("no token", "SEED_TOKEN (not set)", "--token-file (not given)", f"{folder}/none/seed/token"),
        ),
        (site.actor("--connect", grpc, "--token-file", "absent"), ("--token-file absent (does not exist)",)),
        (site.actor("--connect", grpc, "--token-file", str(readable)), (str(readable), "mode 0644", "chmod 600")),
        (site.actor("--connect", grpc, "--token-file", str(weak)), (str(weak), "128")),
        (site.actor("--connect", grpc, SEED_TOKEN=""), ("the token from SEED_TOKEN",)),
        (site.actor("--connect", grpc, "--insecure"), ("leave out --insecure",)),
        (site.actor("--connect", address["zmq"], "--insecure"), ("leave out --insecure",)),
        (site.actor("--connect", insecure["grpc"]), ("does not encrypt", "--insecure to both")),
        (site.actor("--connect", insecure["zmq"]), ("--insecure to both",)),
        (site.actor("--connect", f"{grpc},{address['zmq']}", XDG_CONFIG_HOME=other), trust),
    ]
    for actor, parts in cases:
        site.is_refused(actor, *parts)
    assert not (folder / "none").exists(), "an actor creates no token"
    assert site.learner.running and site.insecure.running


def test_insecure_on_both_sides_is_allowed_on_loopback_with_a_warning(site: Site) -> None:
    assert listening(site.insecure) == {"127.0.0.1"}
    (warning,) = [line for line in site.insecure.stderr.splitlines() if "no token and no encryption" in line]
    assert "WARNING" in warning.upper() and "127.0.0.1" in warning
    for name in TRANSPORTS:
        site.joins(site.actor("--connect", site.insecure.addresses[name], "--insecure"), site.insecure)


# -- addresses of the learner


def test_unreachable_learner(site: Site) -> None:
    unused = f"127.0.0.1:{reserve_ports(1)[0]}"
    node = "no-such-node.invalid"
    waiting = ("--reconnect-timeout", "0.5")
    nothing = site.actor()
    unreachable = [site.actor("--connect", address, *waiting) for address in (unused, f"zmq://{unused}")]
    job = site.actor(*waiting, SLURM_JOB_NODELIST=node)
    site.is_refused(nothing, "--connect", "SEED_CONNECT", status=2)
    for actor in unreachable:
        site.is_refused(actor, unused, "has not answered", "--reconnect-timeout", status=3)
    site.is_refused(job, f"{node}:8686", status=3)


def test_an_actor_follows_its_learner_to_another_port(site: Site) -> None:
    wait_for(lambda: "connected to " in site.early.stderr, "an actor is admitted")
    before = dict(site.learner.addresses)
    site.learner.kill()
    taken = [socket.create_server(("0.0.0.0", int(before[name].rpartition(":")[2]))) for name in TRANSPORTS]
    try:
        again = site.fleet.learner("--resume", "--logdir", "run")
        after = again.wait_until_it_serves()
        assert not set(before.values()) & set(after.values())
        wait_for(lambda: site.early.stderr.count("connected to ") == 2, "the actor has followed")
        assert site.early.running
    finally:
        for listener in taken:
            listener.close()
    site.learner = again


# -- versions


class Impostor(threading.Thread):
    """Answers every ZeroMQ message with a frame of another version."""

    def __init__(self, version: int) -> None:
        super().__init__(daemon=True)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self.address = f"zmq://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"
        self._header = struct.pack("<4sBBHIIQQ", MAGIC, version, Kind.CHALLENGE, 0, 0, 2, 0, 0)
        self.start()

    def run(self) -> None:
        try:
            while True:
                identity = self._socket.recv_multipart()[0]
                self._socket.send_multipart([identity, self._header, b"{}"])
        except zmq.ContextTerminated:
            self._socket.close(linger=0)

    def close(self) -> None:
        self._context.term()
        self.join(LIMIT)


def test_a_learner_of_another_version_is_named(site: Site) -> None:
    impostor = Impostor(99)
    try:
        actor = site.actor("--connect", impostor.address, "--insecure")
        site.is_refused(actor, "version 99", f"version {PROTOCOL_VERSION}", "the same seedcli on both sides")
    finally:
        impostor.close()


@pytest.mark.parametrize("name", TRANSPORTS)
def test_an_actor_of_another_version_is_named(site: Site, name: str) -> None:
    header = bytearray(pack_header(Kind.HELLO, len(HELLO)))
    header[4] = {"grpc": 98, "zmq": 97}[name]

    def named() -> bool:
        """Whether the log names the version; its lines on malformed frames are rate-limited."""
        client = connect(site.learner.addresses[name], Security(find_token(site.token_path)))
        try:
            client.connect(LIMIT)
            client.send(bytes(header), HELLO)
            if name == "zmq":
                wait_until_gone(client)
            else:  # gRPC's status names the version
                with pytest.raises(ProtocolError, match=f"uses protocol version {header[4]}"):
                    wait_until_gone(client)
        finally:
            client.close()
        return f"uses protocol version {header[4]}" in site.learner.stderr

    wait_for(named, "the learner names the version")
    assert site.learner.running
