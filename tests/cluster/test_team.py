"""Agreement of learner hosts after each step, and the share of each host."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from seedcli.cluster.messages import Addresses, Run, State, Status
from seedcli.cluster.rendezvous import Rendezvous, RendezvousCancelled
from seedcli.cluster.team import COUNTERS, Team, local_share
from seedcli.config.schema import make_config
from seedcli.errors import SeedError

NAMES = ("a:1", "b:1", "c:1")


class FixedRendezvous:
    """A rendezvous that holds only the run, resumed from a checkpoint with these counters."""

    hosts = NAMES
    failure = ""

    def __init__(self, index: int, counters: dict[str, int]) -> None:
        self.index = index
        self._counters = counters
        self.closed: list[str] = []

    def wait(self, condition: Callable[[State], bool], timeout: float, overdue: Any) -> State:
        state = State(missing=(), run=Run(folder="/x", counters=self._counters))
        if not condition(state):
            raise overdue()
        return state

    def update(self, **values: Any) -> None:
        pass

    def close(self, reason: str = "") -> None:
        self.closed.append(reason)


def teams(host_timeout: float = 60.0, **counters: int) -> list[Team]:
    return [Team(FixedRendezvous(index, counters), host_timeout) for index in range(3)]  # type: ignore[arg-type]


def counted(steps: int) -> dict[str, int]:
    return {name: steps * (number + 1) for number, name in enumerate(COUNTERS)}


def test_all_hosts_agree_on_the_sum() -> None:
    hosts = teams(env_steps=1000, episodes=7, trained_steps=900, seeds_given=5)
    for host in hosts:
        assert host.share_run(None).folder == "/x" and host.start_counters["seeds_given"] == 5
    steps, statuses = (10, 20, 30), (0, 143, 0)
    control = np.sum(
        [host.control(counted(n), ready=True, status=s) for host, n, s in zip(hosts, steps, statuses, strict=True)],
        axis=0,
    )
    assert control[0] == 0  # no host is without a batch
    for host in hosts:
        agreement = host.agree(control)
        assert agreement.missing == () and agreement.stopping == {1: 143}
        assert host.totals["env_steps"] == 1060 and host.totals["episodes"] == 7 + 120
        assert host.totals["trained_steps"] == 900 + 60 * (COUNTERS.index("trained_steps") + 1)


def test_a_step_without_a_batch_counts_no_training() -> None:
    hosts = teams()
    control = np.sum([host.control(counted(10), ready=host.index != 2, status=0) for host in hosts], axis=0)
    assert control[0] == 1
    agreement = hosts[0].agree(control)
    assert agreement.missing == (2,)
    assert hosts[0].totals["env_steps"] == 30 and hosts[0].totals["trained_steps"] == 0


def test_the_timeout_runs_only_while_a_host_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    host, *others = teams(host_timeout=5.0)

    def step(*ready: bool) -> None:
        now[0] += 4.0
        sent = [each.control(counted(0), ready=r, status=0) for each, r in zip((host, *others), ready, strict=True)]
        host.agree(np.sum(sent, axis=0))

    for _ in range(4):
        step(False, False, False)  # no host has actors yet
    step(True, True, False)
    step(True, True, True)
    step(True, True, False)
    step(True, False, False)
    with pytest.raises(SeedError, match=r"host 1 \(b:1\) and host 2 \(c:1\) had no training batch for 8 s"):
        step(True, False, False)


def test_a_signal_ends_waiting_for_the_others() -> None:
    address = "127.0.0.1:9"  # no chief listens here
    own = Status(index=1, process="x", version="1", addresses=Addresses(tensorflow=address, actors={}), config={})
    rendezvous = Rendezvous([address, "b:1"], own, None, lambda: True)
    with pytest.raises(RendezvousCancelled), Team(rendezvous, 60.0) as team:
        team.wait_for_all()


def test_waiting_for_a_host_times_out() -> None:
    with pytest.raises(SeedError, match="not every host is ready"):
        teams()[1].wait_for_all()


def test_a_failed_or_stopped_host_reports_the_reason() -> None:
    failed, stopped, done = teams()
    with pytest.raises(SeedError), failed:
        raise SeedError("the disk is full")
    with stopped:
        pass
    with done:
        done.finished = True
    reasons = [team.rendezvous.closed for team in (failed, stopped, done)]  # type: ignore[attr-defined]
    assert reasons == [["the disk is full"], ["it was stopped before training began"], [""]]


def test_shares_add_up_to_the_whole() -> None:
    config = make_config(
        {
            "run": {"steps": 10**9},
            "agent": {"algorithm": "r2d2"},
            "training": {"batch_size": 64},
            "replay": {"capacity": 1001, "min_size": 100, "window": 32.5},
            "actors": {"count": 4, "envs": 10, "evaluation_envs": 5},
        }
    )
    shares = [local_share(config, index, 2) for index in range(2)]
    assert [share.training.batch_size for share in shares] == [32, 32]
    assert sum(share.actors.evaluation_envs for share in shares) == 5
    assert all(share.replay.capacity == 501 and share.replay.min_size == 50 for share in shares)
    assert len({share.run.seed for share in shares}) == 2
    for share in shares:
        make_config(share.model_dump(by_alias=True))  # a share is itself a valid configuration
    assert local_share(config, 0, 1) is config
