"""How an actor finds the learner and its token and certificates."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from seedcli.config.schema import Config, make_config
from seedcli.config.sections import NetConfig
from seedcli.errors import RefusedError, UnreachableError, UsageError
from seedcli.net.addresses import machine_id
from seedcli.net.security.keys import TlsFiles
from seedcli.net.security.token import Token, new_token
from seedcli.roles.discovery import Discovery, announcement, default_connect
from seedcli.roles.run_folder import ADDRESS
from seedcli.serving.listeners import bound_host, learner_security


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "seed" / "token"


def leave(folder: Path, **address: Any) -> None:
    folder.mkdir(exist_ok=True)
    (folder / ADDRESS).write_text(json.dumps(address))


# -- the address given, or the default


def test_environment_variable_takes_precedence_over_slurm() -> None:
    job = {"SLURM_JOB_NODELIST": "gpu7"}
    assert default_connect(job | {"SEED_CONNECT": "a:1"}) == "a:1"
    assert default_connect(job | {"SEED_CONNECT": ""}) == "gpu7:8686"
    with pytest.raises(UsageError, match="no learner address given"):
        default_connect({})


@pytest.mark.parametrize("nodes", ["gpu[03-05,11],cpu2", "gpu03,gpu04", "gpu03"])
def test_the_first_node_of_a_job(nodes: str) -> None:
    assert default_connect({"SLURM_JOB_NODELIST": nodes}) == "gpu03:8686"


def test_malformed_node_list_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot determine the job's first node .*: give --connect"):
        default_connect({"SLURM_JOB_NODELIST": "gpu[03-"})


@pytest.mark.parametrize("connect", ["", ",", " , "])
def test_no_address_is_refused(connect: str) -> None:
    with pytest.raises(UsageError, match="no learner address given"):
        Discovery(connect)


@pytest.mark.parametrize("connect", ["learner", "a:1,learner", "http://a:1", "a:1,zmq://b", "grpc://./run"])
def test_neither_an_address_nor_a_folder_is_refused(connect: str) -> None:
    with pytest.raises(UsageError, match="is not a learner's address"):
        Discovery(connect)


# -- several places


def test_several_places_are_tried_in_turn_starting_with_the_last_good_one() -> None:
    discovery = Discovery("a:1, zmq://b:2,c:3")
    assert str(discovery) == "a:1, zmq://b:2,c:3"
    assert [discovery.next() for _ in range(5)] == ["a:1", "zmq://b:2", "c:3", "a:1", "zmq://b:2"]
    discovery.succeeded()
    assert [discovery.next() for _ in range(2)] == ["zmq://b:2", "c:3"]


def test_an_actor_is_refused_once_every_place_has_refused_it() -> None:
    discovery = Discovery("a:1,b:2")
    error = RefusedError("another token")
    discovery.next()
    discovery.refused("a:1", error)
    discovery.next()
    discovery.refused("a:1", error)  # the same place again
    discovery.next()
    discovery.succeeded()  # the other learner admitted it: earlier refusals no longer count
    discovery.next()
    discovery.refused("b:2", error)
    discovery.next()
    with pytest.raises(RefusedError, match="another token"):
        discovery.refused("a:1", error)
    alone = Discovery("a:1")
    alone.next()
    with pytest.raises(RefusedError):
        alone.refused("a:1", error)


# -- a run's folder


def test_all_addresses_of_a_folder_are_one_learner(tmp_path: Path) -> None:
    (tmp_path / "address.json").write_text(json.dumps({"hosts": ["nowhere", "there"], "grpc": 7}))
    discovery, error = Discovery(str(tmp_path)), RefusedError("another token")
    assert discovery.next() == "nowhere:7"  # unreachable
    assert discovery.next() == "there:7"
    with pytest.raises(RefusedError, match="another token"):
        discovery.refused("there:7", error)
    discovery.succeeded()
    assert discovery.next() == "there:7"
    discovery.refused("there:7", error)  # perhaps another learner: the other address has not been tried since
    # Another place has not refused yet.
    both = Discovery(f"{tmp_path},elsewhere:1")
    assert [both.next() for _ in range(3)] == ["nowhere:7", "there:7", "elsewhere:1"]
    both.refused("there:7", error)


def test_certificates_are_for_grpc_only() -> None:
    for connect in ("zmq://a:1", "b:2,zmq://a:1"):
        with pytest.raises(UsageError, match="--tls-ca are for gRPC"):
            Discovery(connect, tls=TlsFiles(ca="ca.pem"))
    with pytest.raises(UsageError, match="--tls-ca are for gRPC"):
        Discovery("./run", transport="zmq", tls=TlsFiles(ca="ca.pem"))
    Discovery("./run,b:2", tls=TlsFiles(ca="ca.pem"))


def test_a_transport_is_for_folders_only() -> None:
    with pytest.raises(UsageError, match="--transport zmq is for --connect RUN_FOLDER"):
        Discovery("a:1", transport="zmq")


def test_address_file_is_read_at_each_attempt(tmp_path: Path) -> None:
    run = tmp_path / "run"
    discovery = Discovery(str(run))
    for _ in range(2):
        expected = f"no learner has published its address in {run}: start it with --logdir"
        with pytest.raises(UnreachableError, match=expected):
            discovery.next()
        run.mkdir(exist_ok=True)
    leave(run, hosts=["node1"], grpc=8686, zmq=8687)
    assert discovery.next() == "node1:8686"
    leave(run, hosts=["node2"], grpc=9000)
    assert discovery.next() == "node2:9000"
    (run / ADDRESS).unlink()
    with pytest.raises(UnreachableError):
        discovery.next()


@pytest.mark.parametrize("place", ["./run", "run/", "/absolute/run", ".", ".."])
def test_paths_are_folders(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnreachableError, match="no learner has published its address"):
        Discovery(place).next()


def test_an_existing_folder_is_a_folder_whatever_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    leave(tmp_path / "run", hosts=["node1"], grpc=1)
    assert Discovery("run").next() == "node1:1"


@pytest.mark.parametrize(
    "address", [{}, {"hosts": "node"}, {"grpc": 1}, {"hosts": ["a"], "grpc": "1"}, {"hosts": ["a"], "zmq": 1}], ids=str
)
def test_an_actor_waits_while_the_address_file_is_invalid(tmp_path: Path, address: dict[str, Any]) -> None:
    leave(tmp_path / "run", **address)
    with pytest.raises(UnreachableError):
        Discovery(str(tmp_path / "run")).next()


def test_the_transport_chooses_the_port(tmp_path: Path) -> None:
    leave(tmp_path / "run", hosts=["node1", "fe80::1"], grpc=8686, zmq=8687)
    discovery = Discovery(str(tmp_path / "run"), transport="zmq")
    assert [discovery.next() for _ in range(3)] == ["zmq://node1:8687", "zmq://[fe80::1]:8687", "zmq://node1:8687"]


def test_the_loopback_is_tried_first_on_the_learners_machine(tmp_path: Path) -> None:
    left = announcement("0.0.0.0", {"grpc": 8686, "zmq": 8687})
    assert left["everywhere"] is True and left["hosts"] and left["machine"] == machine_id()
    leave(tmp_path / "run", **left)
    assert Discovery(str(tmp_path / "run")).next() == "127.0.0.1:8686"
    leave(tmp_path / "run", **(left | {"machine": "another"}))
    assert Discovery(str(tmp_path / "run")).next() == f"{left['hosts'][0]}:8686"
    leave(tmp_path / "run", **announcement("127.0.0.1", {"grpc": 8686}))
    discovery = Discovery(str(tmp_path / "run"))
    assert {discovery.next() for _ in range(3)} == {"127.0.0.1:8686"}


def test_folders_and_addresses_may_be_mixed(tmp_path: Path) -> None:
    discovery = Discovery(f"{tmp_path}/run,b:2")
    assert [discovery.next() for _ in range(2)] == ["b:2", "b:2"]
    leave(tmp_path / "run", hosts=["node1"], grpc=1)
    assert {discovery.next() for _ in range(2)} == {"node1:1", "b:2"}


# -- protection


def test_token_is_read_at_each_attempt(config: Path) -> None:
    discovery = Discovery("a:1", tls=TlsFiles(ca="ca.pem"))
    with pytest.raises(RefusedError, match="no token: looked in"):
        discovery.security("a:1")
    keys = []
    for _ in range(2):
        text = new_token()
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(text)
        config.chmod(0o600)
        security = discovery.security("a:1")
        assert security is not None and security.tls == TlsFiles(ca="ca.pem")
        assert security.token.derive("x") == Token(text, "x").derive("x")
        keys.append(security.token.derive("x"))
    assert keys[0] != keys[1]


def test_insecure_and_shared_memory_need_no_token(config: Path) -> None:
    assert Discovery("a:1", insecure=True).security("a:1") is None
    assert Discovery("shm:///tmp/x").security("shm:///tmp/x") is None
    assert not config.exists()


def test_a_learner_creates_its_token_unless_it_is_insecure(config: Path) -> None:
    assert learner_security(Config(net=NetConfig(insecure=True))) is None
    assert not config.exists()
    security = learner_security(make_config())
    assert security is not None and security.tls is None
    assert security.token.source == str(config) and stat.S_IMODE(os.stat(config).st_mode) == 0o600
    again = learner_security(Config(net=NetConfig(tls_cert="c", tls_key="k")))
    assert again is not None and again.tls == TlsFiles("c", "k")
    assert again.token.derive("x") == security.token.derive("x")
    with pytest.raises(RefusedError, match="absent"):
        learner_security(Config(net=NetConfig(token_file="/absent")))


@pytest.mark.parametrize(
    ("net", "host"),
    [
        (NetConfig(), "0.0.0.0"),
        (NetConfig(insecure=True), "127.0.0.1"),
        (NetConfig(host="10.0.0.1"), "10.0.0.1"),
        (NetConfig(host="0.0.0.0", insecure=True), "0.0.0.0"),
    ],
)
def test_only_protected_listeners_bind_all_interfaces_by_default(net: NetConfig, host: str) -> None:
    assert bound_host(Config(net=net)) == host
