"""Several learner hosts train one model: real processes, TensorFlow's own connections between them."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from tests.system.harness import TINY, Fleet, Process, checkpoints, counting, last, metrics, sets, wait_for
from tests.system.hosts import FAULT, HOST_TIMEOUT, Crowd, free_addresses, learners

VALUES = sets(*TINY, *counting(0.004), HOST_TIMEOUT)
RUN = ("--preset", "gymnasium_vtrace", "--steps", "1000000000", "--logdir", "run", *VALUES)


def steps_of(run: Path, processes: Sequence[Process]) -> int:
    """Environment steps of a run, whose processes must be alive."""
    for process in processes:
        assert process.running, process.stderr
    return int(last(run, "env_steps"))


def test_two_hosts_count_stop_and_resume_together(fleet: Fleet) -> None:
    run, other = fleet.folder / "run", fleet.folder / "run" / "hosts" / "1"
    chief, member = learners(fleet, 2, *RUN)
    actors = [fleet.actor(str(fleet.folder / "run"), "--envs", "4") for _ in range(2)]
    wait_for(lambda: steps_of(run, (chief, member, *actors)) > 1000, "steps of both hosts")
    # Both actors connected to the chief, whose address is in the folder; one was redirected to the other host.
    assert (last(run, "actors"), last(other, "actors")) == (1, 1)
    assert last(run, "learner_updates") > 0

    member.send(signal.SIGTERM)
    chief.ends_with(143)
    member.ends_with(143)
    # All hosts have the same updates and steps; only the chief wrote a checkpoint.
    ended = [metrics(folder)[-1] for folder in (run, other)]
    assert ended[0]["env_steps"] == ended[1]["env_steps"]
    assert ended[0]["learner_updates"] == ended[1]["learner_updates"]
    assert max(checkpoints(run)) == ended[0]["env_steps"] and not checkpoints(other)
    state = json.loads((run / "checkpoints" / str(max(checkpoints(run))) / "state.json").read_text())
    assert state["counters"]["trained_steps"] <= state["counters"]["env_steps"] == ended[0]["env_steps"]
    assert (
        state["counters"]["trained_steps"] > 0.7 * state["counters"]["env_steps"]
    )  # at most half if only one host trained

    stopped_at, before = ended[0]["env_steps"], metrics(other)[0]
    # Only the chief is given --continue; the other host follows and keeps its metrics.
    chief, member = learners(fleet, 2, *RUN, each=(["--continue"], []))
    wait_for(lambda: steps_of(other, (chief, member, *actors)) > stopped_at + 1000, "steps of the resumed run")
    assert f"at {stopped_at:,} environment steps" in chief.stderr
    steps = [line["env_steps"] for line in metrics(run)]
    assert steps == sorted(steps)
    assert metrics(other)[0] == before
    updates = [line["learner_updates"] for line in metrics(other)]
    assert updates == sorted(updates) and updates[-1] > ended[1]["learner_updates"]
    assert all(actor.running for actor in actors)

    # A host that dies ends the job, which resumes from the checkpoint when it is restarted.
    chief.kill()
    assert_ends_soon(member, "host 0")
    own = {process.pid for actor in actors for process in (psutil.Process(actor.pid), *actor.children())}
    wait_for(lambda: {process.pid for process in fleet.marked()} <= own, "the end of all but the actors", limit=5)
    stopped_at = max(checkpoints(run))
    chief, member = learners(fleet, 2, *RUN, "--continue", tf_config=True)
    wait_for(lambda: steps_of(other, (chief, member, *actors)) > stopped_at + 1000, "steps after the chief's death")
    assert f"at {stopped_at:,} environment steps" in chief.stderr

    member.kill()
    assert_ends_soon(chief, "host 1")
    assert max(checkpoints(run)) > stopped_at + 1000


def assert_ends_soon(process: Process, dead: str) -> None:
    """Assert that a host ends in time after another was killed."""
    process.ends_with(1, limit=20)
    assert dead in process.sentence and "start all hosts again with --continue" in process.sentence


@pytest.mark.slow
def test_a_host_without_data_times_out(fleet: Fleet) -> None:
    chief, member = learners(fleet, 2, *RUN, "--set", "topology.host_timeout=25")
    fleet.actor(str(fleet.folder / "run"), "--envs", "4")  # one actor: one host has none
    for process in (chief, member):
        assert process.wait() == 1, process.stderr
    said = chief.sentence + member.sentence
    assert "topology.host_timeout = 25" in said and "had no training batch for" in said
    assert "and the others wait: give it actors" in chief.stderr


def test_a_host_that_is_stopped_before_training_stops_the_others(fleet: Fleet) -> None:
    chief, member = learners(fleet, 2, *RUN)
    chief.wait_until_it_serves()
    wait_for(lambda: "connected to host 0" in member.stderr, "the member serves too")
    member.send(signal.SIGTERM)
    member.ends_with(143)
    chief.ends_with(1, limit=30)
    assert "it was stopped before training began" in chief.sentence


NOT_CONNECTED = "have not connected within 20 s"
FAULTY = (*RUN, "--set", "topology.host_timeout=20")


@pytest.mark.slow
def test_a_host_that_stalls_while_tensorflow_connects_times_out(fleet: Fleet) -> None:
    fleet.environ[FAULT] = "stopped"
    chief, member = learners(fleet, 2, *FAULTY, modules=("seedcli", "tests.system.hosts"))
    wait_for(lambda: "TensorFlow is connecting" in chief.stderr, "the hosts have joined")
    begun = time.monotonic()
    chief.ends_with(-signal.SIGKILL, limit=35)
    assert time.monotonic() - begun > 18 and NOT_CONNECTED in chief.sentence
    # Its own timeout begins when it continues, and no host answers.
    assert member.running
    begun = time.monotonic()
    member.send(signal.SIGCONT)
    member.ends_with(-signal.SIGKILL, limit=35)
    assert time.monotonic() - begun > 18 and NOT_CONNECTED in member.sentence


@pytest.mark.slow
def test_a_host_whose_tensorflow_cannot_listen_is_reported_and_the_others_time_out(fleet: Fleet) -> None:
    fleet.environ[FAULT] = "taken"
    chief, member = learners(fleet, 2, *FAULTY, modules=("seedcli", "tests.system.hosts"))
    member.ends_with(1)
    assert "cannot reach each other (Could not start gRPC server)" in member.sentence
    chief.ends_with(-signal.SIGKILL, limit=35)
    assert NOT_CONNECTED in chief.sentence and "every port between the learner hosts" in chief.sentence


def test_hosts_join_and_train_despite_unauthenticated_peers_at_the_rendezvous(fleet: Fleet) -> None:
    run, hosts = fleet.folder / "run", free_addresses(2)
    together = (*RUN, "--hosts", ",".join(hosts), "--trust-network")
    chief = fleet.learner(*together)
    system = psutil.Process(chief.pid)
    system.rlimit(psutil.RLIMIT_NOFILE, (400, 400))
    with Crowd(hosts[0], 500) as crowd:
        wait_for(lambda: crowd.ended > 200, "unauthenticated peers are ended before the second host joins")
        member = fleet.learner(*together, "--host-index", "1")
        actors = [fleet.actor(str(run), "--envs", "4") for _ in range(2)]
        wait_for(lambda: steps_of(run, (chief, member, *actors)) > 500, "steps of both hosts")
        size, before = system.memory_info().rss, crowd.ended
        wait_for(lambda: steps_of(run, (chief, member, *actors)) > 1500, "more steps")
        wait_for(lambda: crowd.ended > before + 300, "unauthenticated peers are ended during training too")
        assert system.num_fds() < 400 - 16 and max(checkpoints(run)) > 500
        assert system.memory_info().rss - size < 100 * 2**20
    member.send(signal.SIGTERM)
    chief.ends_with(143)
    member.ends_with(143)


def test_hosts_that_disagree_name_the_difference(fleet: Fleet) -> None:
    different = ((), ("--set", "training.learning_rate=0.5"))
    for process in learners(fleet, 2, *RUN, each=different):
        process.ends_with(2)
        assert "training.learning_rate" in process.sentence and "0.5" in process.sentence
    assert not (fleet.folder / "run" / "hosts").exists()


def test_a_host_that_never_joins_is_named(fleet: Fleet) -> None:
    hosts = free_addresses(2)
    alone = fleet.learner(*RUN, "--hosts", ",".join(hosts), "--trust-network", "--set", "topology.host_timeout=2")
    alone.ends_with(2)
    assert f"host 1 ({hosts[1]})" in alone.sentence and "topology.host_timeout = 2" in alone.sentence
