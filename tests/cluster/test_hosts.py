"""Several learner hosts: their configuration, and the placement and redirection of actors."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seedcli.cluster.hosts import (
    Placement,
    actor_addresses,
    expand_nodes,
    named_in_logs,
    reserve_port,
    resolve_hosts,
)
from seedcli.config.schema import Config, make_config
from seedcli.config.sections import TopologyConfig
from seedcli.config.sources import load_config
from seedcli.envs.registry import create_env
from seedcli.errors import ProtocolError, RefusedError, UsageError
from seedcli.inference.policy import Decision
from seedcli.net.connect import connect
from seedcli.net.handshake import ClientHandshake, Redirected
from seedcli.net.messages import Hello
from seedcli.serving.service import InferenceService
from seedcli.serving.sessions import FleetSettings
from tests.configs import env_config
from tests.inference import helpers
from tests.net.harness import LIMIT, TOKEN, Learner, make_server, security_of

ROOT = Path(__file__).parents[2]
COUNTER = env_config(family="gymnasium", id="seedcli.envs.testing:Counter-v0")


def wait_until(happened: Callable[[], bool], seconds: float = LIMIT) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it has not happened in time"
        time.sleep(0.02)


# -- the configured hosts


def config(*hosts: str, index: int = 0, trust: bool = True) -> Config:
    """A configuration whose hosts are valid, except perhaps for `resolve_hosts`."""
    topology = TopologyConfig.model_construct(hosts=hosts, host_index=index, trust_network=trust)
    return Config.model_construct(topology=topology)


def step(rank: int, nodes: str, counts: str, node: int = 0, local: int = 0, **more: Any) -> dict[str, str]:
    tasks = sum(int(part.split("(")[0]) * int(part[:-1].partition("(x")[2] or 1) for part in counts.split(","))
    environ = {"SLURM_STEP_NUM_TASKS": str(tasks), "SLURM_PROCID": str(rank), "SLURM_STEP_NODELIST": nodes}
    environ |= {"SLURM_STEP_TASKS_PER_NODE": counts, "SLURM_NODEID": str(node), "SLURM_LOCALID": str(local)}
    return environ | {"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0"} | more


def tf_config(**cluster: Any) -> Callable[[Any, Any], dict[str, str]]:
    def of(kind: Any, index: Any) -> dict[str, str]:
        return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}

    return of


def test_a_single_learner_has_no_hosts() -> None:
    assert resolve_hosts(make_config(), {}) == ((), 0)
    assert resolve_hosts(config("a:1"), {}) == ((), 0)
    # A batch script of many tasks is not a step, and a step of one task is one learner, whatever else runs.
    assert resolve_hosts(make_config(), {"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "a[1-4]"}) == (
        (),
        0,
    )
    assert resolve_hosts(make_config(), step(0, "a1", "1")) == ((), 0)
    assert resolve_hosts(make_config(), tf_config(worker=["a:1"])("worker", 0)) == ((), 0)


def test_configured_hosts_take_precedence() -> None:
    environ = step(0, "a[1-2]", "1(x2)") | tf_config(worker=["c:1", "d:1"])("worker", 0)
    assert resolve_hosts(config("a:1", "b:2", index=1), environ) == (("a:1", "b:2"), 1)
    assert resolve_hosts(config(), environ) == (("c:1", "d:1"), 0)


@pytest.mark.parametrize(
    ("hosts", "index", "said"),
    [
        (("a:1", "b"), 0, '"b" must be host:port'),
        (("a:1", "b:0"), 0, '"b:0" must be host:port'),
        (("a:1", "b:70000"), 0, '"b:70000" must be host:port'),
        (("a:1", ""), 0, '"" must be host:port'),
        (("a:1", "b:1", "a:1"), 0, "a:1 is listed twice"),
        (("a:1", "b:1"), 2, "host 2 is not one of the 2 hosts: number them from 0 to 1"),
    ],
)
def test_invalid_hosts_are_refused(hosts: tuple[str, ...], index: int, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_hosts(config(*hosts, index=index), {})
    assert said in str(caught.value) and str(caught.value).startswith("topology.hosts")


@pytest.mark.parametrize(
    ("environ", "where"),
    [
        ({}, "topology.hosts"),
        (tf_config(worker=["a:1", "b:1"])("worker", 1), "TF_CONFIG"),
        (step(0, "a[1-2]", "1(x2)"), "the SLURM step"),
    ],
)
def test_several_hosts_need_trust_network(environ: dict[str, str], where: str) -> None:
    given = () if environ else ("a:1", "b:1")
    with pytest.raises(UsageError, match=f"^{where} names 2 learner hosts, which need --trust-network"):
        resolve_hosts(config(*given, trust=False), environ)


@pytest.mark.parametrize(
    ("cluster", "task", "expected"),
    [
        ({"worker": ["a:1", "b:1"]}, ("worker", 1), (("a:1", "b:1"), 1)),
        ({"chief": ["c:1"], "worker": ["a:1", "b:1"]}, ("worker", 1), (("c:1", "a:1", "b:1"), 2)),
        ({"chief": ["c:1"], "worker": ["a:1", "b:1"]}, ("chief", 0), (("c:1", "a:1", "b:1"), 0)),
    ],
)
def test_hosts_of_tf_config(cluster: Any, task: Any, expected: Any) -> None:
    assert resolve_hosts(config(), tf_config(**cluster)(*task)) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "TF_CONFIG is not JSON"),
        ("[1]", "TF_CONFIG must be"),
        ('{"cluster": {"worker": ["a:1", "b:1"]}}', "TF_CONFIG must be"),
        (tf_config(worker=["a:1"], ps=["p:1"])("worker", 0)["TF_CONFIG"], "tasks of type 'ps'"),
        (tf_config(worker="a:1")("worker", 0)["TF_CONFIG"], "cluster.worker must be a list"),
        (tf_config(worker=["a:1", 2])("worker", 0)["TF_CONFIG"], "cluster.worker must be a list"),
        (tf_config(chief=["a:1", "b:1"])("chief", 0)["TF_CONFIG"], "names 2 chiefs"),
        (tf_config(worker=["a:1", "b:1"])("worker", 2)["TF_CONFIG"], "task worker 2 is not one of the 2 worker tasks"),
        (tf_config(worker=["a:1", "b:1"])("chief", 0)["TF_CONFIG"], "task chief 0 is not one of the 0 chief tasks"),
        (tf_config(worker=["a:1", "b:1"])("evaluator", 0)["TF_CONFIG"], 'task must be {"type"'),
        (tf_config(worker=["a:1", "b:1"])("worker", "0")["TF_CONFIG"], 'task must be {"type"'),
        (tf_config(worker=["a:1", "b"])("worker", 0)["TF_CONFIG"], '"b" must be host:port'),
    ],
)
def test_an_invalid_tf_config_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_hosts(config(), {"TF_CONFIG": text})
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.fixture
def _names_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seedcli.cluster.hosts._is_known", lambda host: True)


BASE = 12_000 + 16 * 35  # of job 5, step 0


@pytest.mark.parametrize(
    ("environ", "hosts", "index"),
    [
        (step(1, "gpu[01-02]", "1(x2)", node=1), [f"gpu01:{BASE}", f"gpu02:{BASE}"], 1),
        (
            step(2, "gpu[01-02,07],login", "1(x4)", node=2),
            [f"{n}:{BASE}" for n in ("gpu01", "gpu02", "gpu07", "login")],
            2,
        ),
        (step(1, "one", "2", local=1), [f"one:{BASE}", f"one:{BASE + 1}"], 1),
        (step(2, "a,b", "2,1", node=1, SLURM_GTIDS="2"), [f"a:{BASE}", f"a:{BASE + 1}", f"b:{BASE}"], 2),
        # Cyclic: tasks 0 and 2 on the first node, 1 and 3 on the second.
        (
            step(2, "a,b", "2(x2)", local=1, SLURM_GTIDS="0,2"),
            [f"a:{BASE}", f"b:{BASE}", f"a:{BASE + 1}", f"b:{BASE + 1}"],
            2,
        ),
        # Task 0 is at the same place as in a block distribution; only the ids of its node differ.
        (
            step(0, "a,b", "2(x2)", SLURM_GTIDS="0,2"),
            [f"a:{BASE}", f"b:{BASE}", f"a:{BASE + 1}", f"b:{BASE + 1}"],
            0,
        ),
    ],
)
@pytest.mark.usefixtures("_names_are_known")
def test_hosts_of_a_slurm_step(environ: dict[str, str], hosts: list[str], index: int) -> None:
    assert resolve_hosts(config(), environ) == (tuple(hosts), index)


def test_unresolvable_nodes_use_slurms_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = step(1, "n[1-2].invalid", "1(x2)", node=1)
    monkeypatch.setenv("PATH", str(tmp_path))
    names = ((f"n1.invalid:{BASE}", f"n2.invalid:{BASE}"), 1)
    assert resolve_hosts(config(), environ) == names
    scontrol = tmp_path / "scontrol"
    for addresses, expected in (
        ("10.0.0.1 10.0.0.2", [f"10.0.0.1:{BASE}", f"10.0.0.2:{BASE}"]),
        ("127.0.0.1 127.0.0.1", [f"127.0.0.1:{BASE}", f"127.0.0.1:{BASE + 1}"]),
    ):
        first, second = addresses.split()
        lines = "".join(
            f"NodeName=n{number}.invalid Arch=x86_64 NodeAddr={address} NodeHostName=h\\n"
            for number, address in ((1, first), (2, second))
        )
        scontrol.write_text(f'#!/bin/sh\n[ "$*" = "--oneliner show node n1.invalid,n2.invalid" ] && printf "{lines}"\n')
        scontrol.chmod(0o700)
        assert resolve_hosts(config(), environ) == (tuple(expected), 1)
    scontrol.write_text("#!/bin/sh\nexit 1\n")
    assert resolve_hosts(config(), environ) == names


@pytest.mark.usefixtures("_names_are_known")
def test_concurrent_steps_use_different_ports() -> None:
    def port(job: int, number: int) -> str:
        more: dict[str, Any] = {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(number)}
        return resolve_hosts(config(), step(0, "one", "16", **more))[0][0]

    ports = [int(port(job, number).partition(":")[2]) for job in range(1000, 1100) for number in range(7)]
    assert len(set(ports)) == len(ports)
    assert min(abs(a - b) for a in ports for b in ports if a != b) >= 16
    assert 1024 < min(ports) and max(ports) + 16 <= 32_768


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        (step(0, "a[1-2]", "1(x2)") | {"SLURM_PROCID": "x"}, "SLURM_PROCID = 'x' is not a number"),
        (step(0, "a[1-2]", "1(x3)"), "does not describe 3 tasks on 2 nodes"),
        (step(0, "a[1-2", "1(x2)"), "is not a SLURM node list"),
        (step(1, "a,b", "2(x2)", node=1, local=1, SLURM_GTIDS="1,2"), "in an unknown way"),
        (step(0, "a", "17"), "17 learner hosts on one node"),
    ],
)
def test_an_invalid_slurm_step_is_refused(environ: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_hosts(config(), environ)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("login", ["login"]),
        ("gpu[01-03,07],login", ["gpu01", "gpu02", "gpu03", "gpu07", "login"]),
        ("a,b-1.x", ["a", "b-1.x"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("r[1-2]n[09-10]x", ["r1n09x", "r1n10x", "r2n09x", "r2n10x"]),
    ],
)
def test_node_lists_are_expanded(nodes: str, expected: list[str]) -> None:
    assert expand_nodes(nodes) == expected


@pytest.mark.parametrize(
    "nodes",
    ["", ",", "a,", ",a", "a,,b", "a[", "a[1", "a]", "a[]", "a[3-1]", "a[x]", "a b", "a[1-99999]", "a[1-300][1-300]"],
)
def test_invalid_node_lists_are_refused(nodes: str) -> None:
    with pytest.raises(UsageError):
        expand_nodes(nodes)


def test_flags_of_a_learner() -> None:
    flags = {"--hosts": ["a:1", "b:1"], "--host-index": "1", "--trust-network": True}
    found = load_config("cartpole_vtrace", environ={}, flags=flags).config.topology
    assert (found.hosts, found.host_index, found.trust_network) == (("a:1", "b:1"), 1, True)


# -- addresses of this host


def test_a_port_is_reserved_for_tensorflow() -> None:
    with socket.socket() as listener:
        with reserve_port("127.0.0.1") as reservation:
            port = reservation.getsockname()[1]
            with pytest.raises(OSError, match="in use"):
                listener.bind(("", port))
        listener.bind(("", port))
    for host in ("192.0.2.7", "no-such-host.invalid"):
        with pytest.raises(UsageError, match=f"^{host} is not an address of this machine"):
            reserve_port(host)


@pytest.mark.parametrize(
    ("host", "listening", "expected"),
    [
        ("gpu1:9000", "0.0.0.0", {"grpc": "gpu1:1", "zmq": "gpu1:2"}),
        ("gpu1:9000", "10.0.0.3", {"grpc": "10.0.0.3:1", "zmq": "10.0.0.3:2"}),
        ("[fd00::1]:9000", "::", {"grpc": "[fd00::1]:1", "zmq": "[fd00::1]:2"}),
    ],
)
def test_actor_addresses_of_a_host(host: str, listening: str, expected: dict[str, str]) -> None:
    assert actor_addresses(host, listening, {"grpc": 1, "zmq": 2}) == expected


def test_logs_name_the_host(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("seedcli.test")
    with named_in_logs(1, 2):
        logger.warning("%d actors", 3)
    logger.warning("100%")
    assert [record.getMessage() for record in caplog.records] == ["host 1/2: 3 actors", "100%"]


# -- placement of actors

ADDRESSES = [{"grpc": f"h{host}:1", "zmq": f"h{host}:2"} for host in range(3)]


class Fleet:
    """A host's view of the others, with a clock that the test sets."""

    def __init__(self, index: int = 0, addresses: Any = ADDRESSES) -> None:
        self.own, self.loads, self.now = 0, [0, 0, 0], 0.0
        self.place = Placement(
            index, addresses, own=lambda apart_from: self.own, loads=lambda: self.loads, clock=lambda: self.now
        )

    def come(self, envs: int = 4, transport: str = "grpc") -> str | None:
        return self.place(Hello(actor_id="actor", envs=envs, streams=1, version="1.0"), transport)


def test_equal_hosts_are_chosen_round_robin_from_this_one() -> None:
    fleet = Fleet(index=1)
    chosen = []
    for _ in range(6):
        chosen.append(fleet.come())
        fleet.own += 4 * (chosen[-1] is None)
    assert chosen == [None, "h2:1", "h0:1"] * 2


def test_the_host_with_the_fewest_environments_is_chosen() -> None:
    fleet = Fleet()
    fleet.own, fleet.loads = 10, [99, 20, 12]
    assert [fleet.come(4), fleet.come(4)] == [None, None]  # its own count is exact, whatever was reported
    fleet.own = 18
    assert fleet.come(4) == "h2:1"
    assert fleet.come(1, "zmq") == "zmq://h2:2"


def test_redirected_actors_count_until_reported_or_expired() -> None:
    fleet = Fleet()
    fleet.own = 100
    assert [fleet.come(8) for _ in range(2)] == ["h1:1", "h2:1"]
    assert [fleet.come(8) for _ in range(2)] == ["h1:1", "h2:1"]
    fleet.loads = [0, 16, 8]  # one redirected to h2 has not arrived yet: both count 16
    assert fleet.come(1) == "h1:1"
    assert fleet.come(1) == "h2:1"
    fleet.now += 60  # it never arrives
    assert fleet.come(8) == "h2:1"


def test_a_host_without_the_transport_is_not_chosen() -> None:
    fleet = Fleet(addresses=[{}, {"grpc": "h1:1"}, {}])
    fleet.own = 100
    assert fleet.come(1, "zmq") is None
    assert fleet.come(1, "shm") is None
    assert fleet.come(1, "grpc") == "h1:1"


# -- redirection


@pytest.mark.parametrize("kind", ["grpc+token", "zmq+token", "zmq"])
def test_an_actor_is_redirected_once(kind: str) -> None:
    scheme = "zmq://" if kind.startswith("zmq") else ""
    learner = Learner(make_server(kind), [1000, 500])
    asked: list[Hello] = []
    address = {"": f"{scheme}elsewhere:1234"}

    def place(hello: Hello) -> str:
        asked.append(hello)
        return address[""]

    learner.place = place
    learner.start()
    try:
        security = security_of(kind)

        def configure(**options: Any) -> dict[str, Any]:
            client = connect(learner.server.address, security)
            try:
                client.connect(LIMIT)
                return ClientHandshake(
                    client, actor_id="actor", envs=4, streams=2, timeout=LIMIT, **options
                ).configure()
            finally:
                client.close()

        with pytest.raises(Redirected) as caught:
            configure()
        assert caught.value.address == address[""]
        assert (len(asked), asked[0].envs, asked[0].placed) == (1, 4, False)
        assert configure(placed=True)["environment"] == {"id": "rows"}
        assert len(asked) == 1
        other = "" if scheme else "zmq://"
        for bad in (
            "",
            "elsewhere",
            "elsewhere:0",
            "shm:///tmp/x",
            "x" * 400 + ":1",
            f"{other}elsewhere:1234",
            "a:1\n",
        ):
            address[""] = bad
            with pytest.raises(ProtocolError):
                configure()
    finally:
        learner.close()


class Host:
    """A learner host without a network: a real service on real sockets, in a thread, whose actions are all 0."""

    def __init__(self, kind: str) -> None:
        self.server = make_server(kind)
        settings = FleetSettings(
            environment=COUNTER.model_dump(mode="json"),
            seed=5,
            max_envs=64,
            heartbeat_seconds=0.5,
            timeout_seconds=5.0,
            reconnect_timeout=60.0,
        )
        self.service = InferenceService([self.server], settings, self._engine_for)
        self.engine: Any = None
        self._stop = threading.Event()
        self._lose_all = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _engine_for(self, spec: Any, on_fault: Any) -> Any:
        if self.engine is None:
            self.engine, self.arena, _, self.unrolls = helpers.make_engine(
                max_envs=64, on_fault=on_fault, length=3, policy=Still(64)
            )
        return self.engine

    @property
    def envs(self) -> int:
        return sum(session.envs for session in self.service.sessions())

    @property
    def steps(self) -> int:
        return sum(session.steps for session in self.service.sessions())

    @property
    def address(self) -> str:
        return self.server.address

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.service.turn(block=True)
            if self._lose_all.is_set():
                for session in self.service.sessions():
                    self.service.lost(session.peer, "a test")
                self._lose_all.clear()
            while self.engine is not None and self.unrolls:
                self.arena.release(self.unrolls.pop())

    def lose_all(self) -> None:
        """Lose all actors, in the service's thread as the service itself does."""
        self._lose_all.set()
        self.service.wake()

    def stop(self, *, done: bool = False) -> None:
        if self._stop.is_set():
            return
        self.service.stop(training_done=done)
        self._stop.set()
        self._thread.join(LIMIT)
        self.service.finish()


class Still(helpers.CountingPolicy):
    def begin(self, observation: Any, reward: Any, first: Any, slots: Any) -> Decision:
        decision = super().begin(observation, reward, first, slots)
        return decision._replace(action=np.zeros(len(slots), np.int32))


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], list[Host]]]:
    env = create_env(COUNTER, 1)
    monkeypatch.setattr(helpers, "SPEC", env.spec)
    env.close()
    started: list[Host] = []

    def start(kind: str) -> list[Host]:
        started.extend((Host(kind), Host(kind)))
        where = [{host.server.name: host.address.removeprefix("zmq://")} for host in started]
        for index, host in enumerate(started):
            host.service.handshakes.place = Placement(
                index, where, own=host.service.handshakes.envs, loads=lambda: [host.envs for host in started]
            )
            host.start()
        return started

    yield start
    for host in started:
        host.stop()


@pytest.fixture
def actor(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []

    def start(*addresses: str) -> subprocess.Popen[str]:
        arguments = ["-m", "seedcli", "actor", "--connect", ",".join(addresses), "--envs", "4", "--streams", "1"]
        environ = os.environ | {"SEED_TOKEN": TOKEN, "XDG_CONFIG_HOME": str(tmp_path)}
        processes.append(
            subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                env=environ,
                stderr=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stdin=subprocess.DEVNULL,
                text=True,
            )  # fmt: skip
        )
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate(timeout=LIMIT)


@pytest.mark.parametrize("kind", ["grpc+token", "zmq+token"])
def test_actors_are_spread_over_hosts_and_reconnect(
    hosts: Callable[[str], list[Host]], actor: Callable[..., subprocess.Popen[str]], kind: str
) -> None:
    first, second = hosts(kind)
    actors = [actor(first.address)]
    wait_until(lambda: first.envs == 4)
    actors.append(actor(first.address))
    wait_until(lambda: second.envs == 4)
    assert first.envs == 4
    # The third goes to one host and the fourth to the other, whichever address they are given.
    actors += [actor(second.address), actor(second.address)]
    wait_until(lambda: first.envs == second.envs == 8)
    wait_until(lambda: first.steps > 50 and second.steps > 50)
    # One host stops: actors that were given the address of the other return there and are not redirected again.
    second.stop()
    wait_until(lambda: first.envs == 12, 30.0)
    first.stop(done=True)
    # One of the two that know only the second host was connected to it, and still retries.
    wait_until(lambda: sum(process.poll() is None for process in actors) == 1)
    assert [process.poll() for process in actors[:2]] == [0, 0]
    assert {process.poll() for process in actors[2:]} == {0, None}


def test_an_actor_that_cannot_reach_the_other_host_stays(
    hosts: Callable[[str], list[Host]], actor: Callable[..., subprocess.Popen[str]]
) -> None:
    first, second = hosts("grpc+token")
    second.stop()
    asked: list[Hello] = []

    def place(hello: Hello, transport: str) -> str:
        asked.append(hello)
        return second.address

    first.service.handshakes.place = place
    process = actor(first.address)
    wait_until(lambda: first.envs == 4, 30.0)
    wait_until(lambda: first.steps > 20, 30.0)
    assert len(asked) == 1
    # A reconnecting actor is placed again, because the other host may be back.
    first.lose_all()
    wait_until(lambda: len(asked) == 2, 30.0)
    wait_until(lambda: first.envs == 4, 30.0)
    first.stop(done=True)
    assert process.wait(LIMIT) == 0


def test_an_unauthenticated_learner_cannot_redirect_actors() -> None:
    """Such as another process that listens at the address of a stopped learner."""
    learner = Learner(make_server("zmq+token"), [1000, 500])
    learner.place = lambda hello: "zmq://elsewhere:1"

    class Pretender:
        def challenge(self) -> dict[str, Any]:
            return {"nonce": "0" * 64, "proof_required": True}

        def answer(self, transcript: bytes, message: Any) -> dict[str, Any]:
            return {"proof": "0" * 64}

    learner.authenticator = Pretender()
    learner.start()
    try:
        with contextlib.closing(connect(learner.server.address, learner.security)) as client:
            client.connect(LIMIT)
            handshake = ClientHandshake(client, actor_id="actor", envs=4, streams=2, timeout=LIMIT)
            with pytest.raises(RefusedError, match="does not hold the token"):
                handshake.configure()
    finally:
        learner.close()
